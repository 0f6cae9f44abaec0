//! Bounds of syslog, with unit and behaviour at the bound.

use std::time::Duration;

/// Bytes of a message on a connection. The rest is cut off, and counted as `too_large`. (Datagrams are shorter: see
/// [`DATAGRAM_SIZE_MAX`](stilling_engine::limits::DATAGRAM_SIZE_MAX).)
pub(crate) const MESSAGE_SIZE_MAX: u32 = 60 * 1024;

/// How long a connection may be silent. Then it is closed: its peer may have vanished.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Bytes of datagrams, per shard, that wait for room on the way to the hub. A message of severity s (0 to 7) is held
/// as long as its stream has no more than (8 - s)/8 of the free bytes; without room it is shed, and counted.
pub(crate) const HELD_SIZE_MAX: usize = 1024 * 1024;

/// Bytes of held datagrams per source and stream; a source is one address, or all Unix sockets together. A message of
/// severity s may use (8 - s)/8 of them; without room it is shed, and counted.
pub(crate) const HELD_SOURCE_SIZE_MAX: usize = 256 * 1024;

/// Subjects, per shard, with separate counts of shed messages until there is room to report them. Shed messages of
/// further subjects count with the last subject of the same stream; a stream without one adds its own.
pub(crate) const SHED_SUBJECTS_MAX: usize = 16;

/// Bytes of held datagrams, per shard and turn, that go to the hub before connections that wait for the same room.
/// The rest follows after those connections, as far as there is room.
pub(crate) const BACKLOG_BYTES_PER_TURN: usize = 64 * 1024;
