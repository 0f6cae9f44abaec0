//! A server on threads of its own, for a program that does something else besides.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::ServeError;
use crate::lifecycle::Lifecycle;
use crate::overview::Overview;

/// Asks a running server for its end, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    lifecycle: Arc<Lifecycle>,
}

impl Stopper {
    /// Drains the server, as SIGTERM does: nothing new is accepted, requests in flight finish. A second call, of whichever
    /// copy, cuts off what has not finished. It does not wait: see [`RunningServer::wait`].
    pub fn stop(&self) {
        self.lifecycle.end();
    }
}

/// A server on threads of its own. Dropping it lets it run on.
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
    /// Where the server listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where the pages about the server are answered, if they have a listener of their own.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What there is to see while it runs.
    pub fn overview(&self) -> &Arc<Overview> {
        &self.overview
    }

    /// What asks for the end from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { lifecycle: Arc::clone(&self.lifecycle) }
    }

    /// Drains, waits for the end, and returns what there was to see.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn end(self) -> Result<Arc<Overview>, ServeError> {
        self.lifecycle.end();
        self.wait()
    }

    /// Waits for the end, whoever asks for it, and returns what there was to see.
    ///
    /// # Errors
    /// A shard had failed.
    ///
    /// # Panics
    /// A shard had panicked.
    pub fn wait(self) -> Result<Arc<Overview>, ServeError> {
        let outcome = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.map(|()| self.overview)
    }
}
