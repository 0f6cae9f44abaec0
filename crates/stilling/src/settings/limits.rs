//! Every bound of what is configured in one place, with its unit and what happens when it is reached.

use std::time::Duration;

/// Streams at most: as many as one journal serves. More: refused.
pub const STREAMS_MAX: usize = 1024;

/// Bytes of a stream's name, which is the name of its folder, too. Longer: refused.
pub const STREAM_NAME_SIZE_MAX: usize = 64;

/// Filters that one stream is bound to. More: refused.
pub const STREAM_SUBJECTS_MAX: usize = 64;

/// Least bytes that a stream can be told to keep. Fewer: refused.
pub const RETENTION_BYTES_LEAST: u64 = 1024 * 1024;

/// Most bytes that a stream can be told to keep, a pebibyte. More: refused.
pub const RETENTION_BYTES_MAX: u64 = 1 << 50;

/// Longest time that a stream can be told to recognise message ids. Longer: refused.
pub const DEDUP_TIME_MAX: Duration = Duration::from_secs(86_400);

/// Most bytes of a message that a stream can be told to take. More: refused.
pub const MESSAGE_SIZE_LARGEST: u32 = 8 * 1024 * 1024;

/// Most messages that a stream can be told to let wait. More: refused.
pub const PENDING_LARGEST: u32 = 10_000_000;

/// Users at most. More: refused.
pub const USERS_MAX: usize = 1024;

/// Bytes of a user's name. Longer: refused.
pub const USER_NAME_SIZE_MAX: usize = 255;

/// Bytes of a password or token. Longer: refused.
pub const SECRET_SIZE_MAX: usize = 1024;

/// Filters that one user may publish to, and as many to subscribe to. More: refused.
pub const USER_FILTERS_MAX: usize = 64;

/// Ranges of addresses that may send syslog datagrams or open syslog connections. More: refused.
pub const SYSLOG_SOURCES_MAX: usize = 256;

/// Listeners of one kind. More: refused.
pub const HUB_LISTENERS_MAX: usize = 64;

/// Bytes of the path of a Unix socket: the 107 that the system can bind to, less `.next`, which a successor's socket is named
/// until it takes the path. Longer: refused.
pub const SOCKET_PATH_SIZE_MAX: usize = 102;

/// Bytes that one word of a syslog message may give a subject. More are left out.
pub const SUBJECT_WORD_SIZE_MAX: usize = 128;

/// Bytes of a template of subjects. Longer: refused.
pub const TEMPLATE_SIZE_MAX: usize = 256;
