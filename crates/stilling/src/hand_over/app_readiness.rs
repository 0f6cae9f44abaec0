//! Whether the worker processes of a successor can answer.

use std::time::Duration;

pub(crate) struct AppReadiness {
    /// Whether a worker process can answer a request now.
    pub(crate) is_ready: Box<dyn Fn() -> bool + Send>,
    /// Maximum time until the first one is ready.
    pub(crate) start_timeout: Duration,
}

impl std::fmt::Debug for AppReadiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppReadiness").field("start_timeout", &self.start_timeout).finish_non_exhaustive()
    }
}
