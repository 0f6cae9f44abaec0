//! One server takes over from another without a connection lost: its listeners change processes, open.
//!
//! The queue of a listener belongs to the listener, and closing one resets whoever waits in it. So listeners are
//! never closed and opened again: the successor receives the old server's descriptors over a Unix socket and
//! accepts from the very same queues, both of them for a moment, before the old server stops.
//!
//! ```text
//!   old server   ──accepts──────────────────────────────────╴drains, answers, exits╶
//!                      │ listeners        ▲ ready  │ yours  ▲ taken
//!   successor    ╶─────▼──accepts─────────┴────────▼────────┴──────────────────────────
//!                ask                                takes the path
//! ```
//!
//! What holds, whoever dies when (`docs/hand-over.md` goes through all steps):
//!
//! - Until `taken` has come the old server has not stopped anything. Whatever happens to the successor before,
//!   it goes on, and if the path had been taken already it takes it back.
//! - Once the listeners have come the successor needs nothing more from the old server. If that dies, the
//!   successor is the server.
//! - Every listener that a server holds is accepted from, or is also held by somebody who accepts from it.
//! - What the successor opens besides listens only when the old server has said `yours`: no connection comes to
//!   what might end with a hand-over that fails.
//!
//! | file | what |
//! |---|---|
//! | `message.rs` | what is said: lines and their meaning, no I/O |
//! | `channel.rs` | the connection: messages with descriptors, in bounded time |
//! | `control_socket.rs` | the path: who may own it, how it changes hands |
//! | `lock.rs` | who may begin where nobody is: one at a time |
//! | `successor.rs` | asking for the listeners, at the start |
//! | `succession.rs` | the steps as they change the life of both servers, no I/O |
//! | `porter.rs` | the thread that finishes a take-over and waits for the next successor |
//! | `activation.rs` | listeners from the parent process (sd_listen_fds(3)) |
//!
//! All of it runs before the shards start, or on the porter's thread. The shards hear of it as of everything in
//! the process's life: by a changed number in the `Lifecycle` and a wake.

mod activation;
mod channel;
mod control_socket;
mod error;
mod handover_thread;
pub mod limits;
mod lock;
pub mod message;
pub(crate) mod succession;
mod successor;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use stilling_ring::Wake;

pub use activation::{ActivationError, are_listeners_passed};
pub use error::HandOverError;

pub(crate) use activation::{PassedListener, take as take_passed_listeners};
pub(crate) use handover_thread::{AppReadiness, HandedSockets, HandoverThread, HandoverWaker};

pub(crate) use channel::PeerProcess;

use channel::ControlConnection;
use control_socket::ControlSocket;
use limits::{ADDRESS_FREE_CHECK_INTERVAL, ADDRESS_FREE_TIMEOUT};
use lock::StartLock;

/// How a server succeeds another, and is succeeded.
#[derive(Clone, Debug)]
pub struct TakeOverConfig {
    /// The control socket: whoever listens there is succeeded, then this server listens there.
    pub path: PathBuf,
    /// Is told in a line what becomes of a hand-over. Runs on a thread of its own.
    pub report: fn(&str),
}

/// The beginning of a take-over: before this server has opened anything.
#[derive(Debug)]
pub(crate) struct PendingTakeOver {
    config: TakeOverConfig,
    predecessor: Option<ControlConnection>,
    /// Held until this server is at the path, so that nobody else begins there.
    lock: Option<StartLock>,
    /// There was an old server, and it has ended, perhaps this very moment.
    has_ended: bool,
    waker: Arc<HandoverWaker>,
}

/// A server that is ready to start, and to tell the old one so.
#[derive(Debug)]
pub(crate) struct PreparedTakeOver {
    config: TakeOverConfig,
    predecessor: Option<ControlConnection>,
    lock: Option<StartLock>,
    control_socket: ControlSocket,
    waker: Arc<HandoverWaker>,
}

impl PendingTakeOver {
    /// Asks whoever is at the path; returns what it has handed out.
    pub(crate) fn ask(mut config: TakeOverConfig) -> Result<(PendingTakeOver, Vec<OwnedFd>), HandOverError> {
        // A process that goes into the background changes its folder.
        config.path = std::path::absolute(&config.path).map_err(HandOverError::system("find this folder"))?;
        let waker = Arc::new(HandoverWaker::new()?);
        control_socket::check(&config.path)?;
        // Before the look at the path: who begins there lets go of the lock only when it can be found.
        let lock = StartLock::acquire(&config.path)?;
        let successor::PredecessorOffer { predecessor, listeners, socket_existed } =
            successor::ask(&config.path)?;
        if lock.is_none() && predecessor.is_none() {
            let process = StartLock::holder(&config.path);
            return Err(HandOverError::Starting { path: config.path, process });
        }
        let has_ended = socket_existed && predecessor.is_none();
        Ok((PendingTakeOver { config, predecessor, lock, has_ended, waker }, listeners))
    }

    /// Whether there is a server to succeed.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// The process that is succeeded.
    pub(crate) fn predecessor(&self) -> Option<PeerProcess> {
        self.predecessor.as_ref()?.check_peer().ok()
    }

    /// A short wait for an address that is in use, again and again until it returns false: what is left of an old
    /// server that has ended may hold its addresses for a moment.
    pub(crate) fn address_retry(&self) -> impl FnMut() -> bool + use<> {
        let until = self.has_ended.then(|| Instant::now() + ADDRESS_FREE_TIMEOUT);
        move || {
            let waits = until.is_some_and(|until| Instant::now() < until);
            if waits {
                std::thread::sleep(ADDRESS_FREE_CHECK_INTERVAL);
            }
            waits
        }
    }

    /// Wakes the porter: when the server's life changes.
    pub(crate) fn wake(&self) -> Arc<Wake> {
        let waker = Arc::clone(&self.waker);
        Arc::new(Wake::new(move || waker.wake()))
    }

    /// All listeners are open: makes the control socket. Without an old server it is at its path at once.
    pub(crate) fn open_control_socket(self) -> Result<PreparedTakeOver, HandOverError> {
        let PendingTakeOver { config, predecessor, mut lock, waker, .. } = self;
        let control_socket = ControlSocket::beside(&config.path)?;
        if predecessor.is_none() {
            control_socket.claim_path()?;
            lock = None;
        }
        Ok(PreparedTakeOver { config, predecessor, lock, control_socket, waker })
    }
}
