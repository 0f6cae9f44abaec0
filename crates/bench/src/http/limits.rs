//! Every bound of the HTTP generator in one place, with its unit and what happens when it is reached.

/// Most connections of one run; the descriptor limit of the process is usually lower. More: an error at start.
pub const CONNECTIONS_MAX: u32 = 1_000_000;

/// Most requests in flight on one connection. More: an error at start.
pub const PIPELINE_MAX: u16 = 4096;

/// Most threads of one run. More: an error at start.
pub const THREADS_MAX: u32 = 1024;

/// Most requests per second that can be scheduled. More: an error at start.
pub const RATE_MAX: f64 = 1e9;

/// Most steps of an open loop whose rate changes. More: an error at start.
pub const STEPS_MAX: usize = 16;

/// How long one step may last: each 100 ms of it has a count of its own. Longer: an error at start.
pub const STEPS_SPAN_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

/// Requests per thread that wait for a connection, unless told otherwise. More: dropped and counted.
pub const BACKLOG: u32 = 100_000;

/// Connections that a thread opens at once: well below the backlog of a usual listener, so that
/// nobody's handshake is dropped and tried again a second later. More: they wait their turn.
pub const CONNECTING_MAX: u32 = 512;

/// Bytes of the longest first answer that others are compared with. Longer: an error at start.
pub const REFERENCE_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Bytes of the longest body that is read. Longer: a bad response.
pub const BODY_SIZE_MAX: u64 = 1 << 40;
