//! Every bound of the supervision, with its unit and the effect of reaching it.

use std::time::Duration;

/// Maximum number of worker processes. More: rejected as an invalid option.
pub const PROCESSES_MAX: usize = 1024;
/// Maximum number of slots of one process. More: rejected as an invalid option.
pub const SLOTS_MAX: usize = 1024;
/// Delay before an exited process is started again. It doubles with each exit in a row.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest delay before an exited process is started again.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Uptime after which an exit resets the restart delay: the process is started again at once.
pub const STABLE_UPTIME: Duration = Duration::from_secs(10);
/// First delay between two readiness checks of a started process. It doubles with each check.
pub const READY_CHECK_FIRST: Duration = Duration::from_millis(2);
/// Longest delay between two readiness checks of a started process.
pub const READY_CHECK_MAX: Duration = Duration::from_millis(100);
/// Bytes of an unterminated printed line after which it is forwarded as a line, and of one read. A line of twice this
/// size or more is always split.
pub const LINE_SIZE_MAX: usize = 8 * 1024;
/// Longest wait of an unterminated printed line for its end. Reached: it is forwarded as a line.
pub const LINE_WAIT_MAX: Duration = Duration::from_millis(200);
/// Longest wait at the end for killed processes and for their remaining output.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which the memory of the processes is measured, if it is bounded.
pub const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Processes whose memory is measured for one worker process, itself included. More: not counted.
pub const MEASURED_PROCESSES_MAX: usize = 256;
/// Threads of one process whose children are measured. More: not counted.
pub const MEASURED_THREADS_MAX: usize = 256;

/// Configuration of the worker processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Processes, 1 to [`PROCESSES_MAX`].
    pub processes: usize,
    /// Concurrent requests per process, 1 to [`SLOTS_MAX`].
    pub slots: usize,
    /// Requests after which a process is replaced; 0: never.
    pub requests_max: u64,
    /// Resident bytes of a process with its descendants beyond which it is replaced; 0: no bound.
    pub memory_max: u64,
    /// Time for a started process to become ready. Reached: it is killed, which counts as an exit.
    pub start_timeout: Duration,
    /// Time for a process that is being replaced to finish its requests, during which it gets no others. Reached: it is
    /// stopped, and its remaining requests are lost.
    pub drain_timeout: Duration,
    /// Time for a process to end after `SIGTERM`. Reached: it is killed.
    pub stop_timeout: Duration,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        ProcessLimits {
            processes: 1,
            slots: 1,
            requests_max: 0,
            memory_max: 0,
            start_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(10),
        }
    }
}
