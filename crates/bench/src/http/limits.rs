//! Limits of the HTTP generator, with their units and the behavior when reached.

/// Maximum connections of one run; the descriptor limit of the process is usually lower. More: an error at start.
pub const CONNECTIONS_MAX: u32 = 1_000_000;

/// Maximum requests in flight on one connection. More: an error at start.
pub const PIPELINE_MAX: u16 = 4096;

/// Maximum threads of one run. More: an error at start.
pub const THREADS_MAX: u32 = 1024;

/// Maximum requests per second of a schedule. More: an error at start.
pub const RATE_MAX: f64 = 1e9;

/// Maximum steps of an open loop with a changing rate. More: an error at start.
pub const STEPS_MAX: usize = 16;

/// Maximum length of one step: each 100 ms of it has its own counters. Longer: an error at start.
pub const STEPS_SPAN_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

/// Default maximum of requests per thread that wait for a connection. More: dropped and counted.
pub const BACKLOG: u32 = 100_000;

/// Maximum connections that a thread opens at once: well below the backlog of a usual listener, so that no handshake is
/// dropped and retried a second later. More: they wait.
pub const CONNECTING_MAX: u32 = 512;

/// Maximum bytes of the first answer, the reference for all others. Longer: an error at start.
pub const REFERENCE_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Maximum bytes of an answer's body. Longer: a bad response.
pub const BODY_SIZE_MAX: u64 = 1 << 40;
