//! Bounds of the configuration, with unit and behaviour at the bound.

use std::time::Duration;

/// Streams per server, as many as one journal serves. More: refused.
pub const STREAMS_MAX: usize = 1024;

/// Bytes of a stream's name, which is also the name of its directory. Longer: refused.
pub const STREAM_NAME_SIZE_MAX: usize = 64;

/// Filters of one stream. More: refused.
pub const STREAM_SUBJECTS_MAX: usize = 64;

/// Minimum of a stream's `retention-bytes`. Less: refused.
pub const RETENTION_BYTES_MIN: u64 = 1024 * 1024;

/// Maximum of a stream's `retention-bytes`, one pebibyte. More: refused.
pub const RETENTION_BYTES_MAX: u64 = 1 << 50;

/// Maximum time for which a stream recognises message ids. Longer: refused.
pub const DEDUP_TIME_MAX: Duration = Duration::from_secs(86_400);

/// Maximum of a stream's `catch-up-time`. Longer: refused.
pub const CATCH_UP_TIME_MAX: Duration = Duration::from_secs(86_400);

/// Maximum of a stream's `max-message-size`, in bytes. More: refused.
pub const STREAM_MESSAGE_SIZE_MAX: u32 = 8 * 1024 * 1024;

/// Maximum of a stream's `max-pending`, in messages. More: refused.
pub const STREAM_PENDING_MAX: u32 = 10_000_000;

/// Users per server. More: refused.
pub const USERS_MAX: usize = 1024;

/// Bytes of a user's name. Longer: refused.
pub const USER_NAME_SIZE_MAX: usize = 255;

/// Bytes of a password or token. Longer: refused.
pub const SECRET_SIZE_MAX: usize = 1024;

/// Filters of one user for publishing, and as many for subscribing. More: refused.
pub const USER_FILTERS_MAX: usize = 64;

/// Address ranges that may send syslog datagrams or open syslog connections. More: refused.
pub const SYSLOG_SOURCES_MAX: usize = 256;

/// Address ranges whose CoAP clients may publish and subscribe. More: refused.
pub const COAP_SOURCES_MAX: usize = 256;

/// Minimum bytes of a file of the packet log. Less: refused.
pub const PACKET_LOG_FILE_SIZE_MIN: usize = 1024 * 1024;

/// Maximum bytes of a file of the packet log. More: refused.
pub const PACKET_LOG_FILE_SIZE_MAX: usize = 1 << 40;

/// Minimum files of the packet log. Less: refused.
pub const PACKET_LOG_FILES_MIN: usize = 2;

/// Maximum files of the packet log. More: refused.
pub const PACKET_LOG_FILES_MAX: usize = 10_000;

/// Listeners per protocol. More: refused.
pub const HUB_LISTENERS_MAX: usize = 64;

/// Bytes of the path of a Unix socket: the 107 that the system can bind, less the suffix `.next` of a successor's
/// socket. Longer: refused.
pub const SOCKET_PATH_SIZE_MAX: usize = 102;

/// Bytes of a host or application name of a syslog message in a subject. Longer: truncated.
pub const SUBJECT_TOKEN_SIZE_MAX: usize = 128;

/// Bytes of a subject template. Longer: refused.
pub const TEMPLATE_SIZE_MAX: usize = 256;
