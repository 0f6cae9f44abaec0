//! Every bound of the supervision in one place, with its unit and what happens when it is reached.

use std::time::Duration;

/// Worker processes at most. More: refused as a wrong option.
pub const PROCESSES_MAX: usize = 1024;
/// Slots of one process at most. More: refused as a wrong option.
pub const SLOTS_MAX: usize = 1024;
/// Wait before a process that died is started again. It doubles with each death in a row.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest wait before a process that died is started again.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A process that has answered for so long begins a new row of deaths, and is started again at once.
pub const STABLE_UPTIME: Duration = Duration::from_secs(10);
/// First wait between two looks whether a started process answers. It doubles with each look.
pub const READY_CHECK_FIRST: Duration = Duration::from_millis(2);
/// Longest wait between two looks whether a started process answers.
pub const READY_CHECK_MAX: Duration = Duration::from_millis(100);
/// Bytes of a printed line that are passed on at once. A longer line is cut into several.
pub const LINE_SIZE_MAX: usize = 8 * 1024;
/// How long the beginning of a printed line may wait for its end. Then it is passed on as a line.
pub const LINE_WAIT_MAX: Duration = Duration::from_millis(200);
/// How long the end waits for processes that were killed, and for their last words.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// What can be chosen about the processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Processes, 1 to [`PROCESSES_MAX`].
    pub processes: usize,
    /// Requests that one process may have at once, 1 to [`SLOTS_MAX`].
    pub slots: usize,
    /// Requests after which a process is replaced; 0: never.
    pub requests_max: u64,
    /// How long a started process may take until it answers. Reached: it is killed, which counts as a death.
    pub start_timeout: Duration,
    /// How long a process that is to be replaced may take to finish its requests, while it gets no others. Reached: it
    /// is asked to end all the same.
    pub drain_timeout: Duration,
    /// How long a process may take to end after `SIGTERM`. Reached: it is killed.
    pub stop_timeout: Duration,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        ProcessLimits {
            processes: 1,
            slots: 1,
            requests_max: 0,
            start_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(10),
        }
    }
}
