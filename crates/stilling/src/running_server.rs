//! A server on its own threads, for a program with other work.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::ServeError;
use crate::lifecycle::Lifecycle;
use crate::overview::Overview;

/// Stops a running server, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    lifecycle: Arc<Lifecycle>,
}

impl Stopper {
    /// Drains the server, like SIGTERM: it accepts nothing new and finishes requests in flight. A second call, on any
    /// copy, cuts off what has not finished. Does not wait: see [`RunningServer::wait`].
    pub fn stop(&self) {
        self.lifecycle.end();
    }
}

/// A server on its own threads. Dropping it lets it run on.
///
/// ```no_run
/// # fn main() -> Result<(), stilling::ServeError> {
/// let server = stilling::Server::bind(stilling::ServeConfig::default(), stilling::http::Routes::new())?;
/// let running = server.start()?;
/// let stopper = running.stopper();
/// std::thread::spawn(move || {
///     // … until something happens:
///     stopper.stop();
/// });
/// running.wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RunningServer {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) overview: Arc<Overview>,
    pub(crate) thread: std::thread::JoinHandle<Result<(), ServeError>>,
}

impl RunningServer {
    /// The addresses that the server listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of the admin pages, if they have their own listener.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Counters and state of the server.
    pub fn overview(&self) -> &Arc<Overview> {
        &self.overview
    }

    /// A handle to stop the server from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { lifecycle: Arc::clone(&self.lifecycle) }
    }

    /// Drains, waits for the end, and returns the final counters.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn end(self) -> Result<Arc<Overview>, ServeError> {
        self.lifecycle.end();
        self.wait()
    }

    /// Waits for the end and returns the final counters.
    ///
    /// # Errors
    /// A shard has failed.
    ///
    /// # Panics
    /// A shard has panicked.
    pub fn wait(self) -> Result<Arc<Overview>, ServeError> {
        let outcome = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.map(|()| self.overview)
    }
}
