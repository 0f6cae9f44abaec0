//! Hot restart: a server takes over from another without refusing a connection, by receiving its open listeners.
//!
//! The accept queue belongs to the listener, and closing a listener resets the connections in its queue. So listeners
//! are never closed and reopened: the successor receives the predecessor's descriptors over a Unix socket and accepts
//! from the same queues. For a moment both servers accept, then the predecessor stops.
//!
//! ```text
//!   predecessor  ──accepts──────────────────────────────────╴drains, answers, exits╶
//!                      │ listeners        ▲ ready  │ yours  ▲ taken
//!   successor    ╶─────▼──accepts─────────┴────────▼────────┴──────────────────────────
//!                hand-over                          takes the path
//! ```
//!
//! Invariants, wherever either process ends (`docs/hot-restart.md` goes through all steps):
//!
//! - Until it receives `taken`, the predecessor has stopped nothing. If the successor fails before that, the
//!   predecessor continues, and takes the path back if the successor had it.
//! - Once the successor has the listeners, it needs nothing more from the predecessor. If the predecessor ends, the
//!   successor is the server.
//! - Every listener that a server holds is accepted from, by this process or by another process that holds it.
//! - Further addresses of the successor listen only after `yours`: no connection arrives at a listener that a failed
//!   hand-over would close.
//!
//! | file | contents |
//! |---|---|
//! | `message.rs` | messages: lines and their meaning, no I/O |
//! | `control_connection.rs` | the connection: messages with descriptors, in bounded time |
//! | `control_socket.rs` | the path: permissions, and how it changes hands |
//! | `lock.rs` | one process at a time may start at a path without a server |
//! | `successor.rs` | the request for the listeners, at the start |
//! | `succession.rs` | the steps and their effect on both lifecycles, no I/O |
//! | `handover_thread.rs` | the thread that finishes a take-over and waits for the next successor |
//! | `exchange_memory.rs` | the memory in which exchanges over CoAP change hands |
//! | `activation.rs` | listeners from the parent process (sd_listen_fds(3)) |
//!
//! All of it runs before the shards start, or on the hand-over thread. The shards see its effects as changes of the
//! `Lifecycle`, with a wake.

mod activation;
mod app_readiness;
mod control_connection;
mod control_socket;
mod error;
mod exchange_memory;
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

use stilling_engine::net::ListenOptions;
use stilling_ring::Wake;

pub use activation::{ActivationError, are_listeners_passed};
pub use error::HandOverError;

pub(crate) use activation::{PassedListener, take as take_passed_listeners};
pub(crate) use app_readiness::AppReadiness;
pub(crate) use handover_thread::{HandoverThread, HandoverWaker};

pub(crate) use control_connection::PeerProcess;

use crate::coap::ExchangeHandover;
use crate::socket_file::SocketName;
use control_connection::ControlConnection;
use control_socket::ControlSocket;
use limits::{ADDRESS_FREE_CHECK_INTERVAL, ADDRESS_FREE_TIMEOUT};
use lock::StartLock;

/// How a server takes over from another, and can be succeeded.
#[derive(Clone, Debug)]
pub struct TakeOverConfig {
    /// The control socket: the server that listens there is succeeded, then this server listens there.
    pub path: PathBuf,
    /// Receives one line per event of a hand-over. Called on a separate thread.
    pub report: fn(&str),
}

/// The sockets of a server that change hands.
#[derive(Debug)]
pub(crate) struct HandedSockets {
    /// A copy of each listener and of each internet datagram socket.
    pub(crate) listeners: Vec<OwnedFd>,
    /// Options for listeners that are bound and do not listen yet.
    pub(crate) options: ListenOptions,
    pub(crate) sockets: Vec<SocketName>,
    pub(crate) exchanges: Arc<ExchangeHandover>,
}

/// A take-over before this server has opened anything.
#[derive(Debug)]
pub(crate) struct PendingTakeOver {
    config: TakeOverConfig,
    predecessor: Option<ControlConnection>,
    /// Held until this server is at the path, so that no other process starts there.
    lock: Option<StartLock>,
    /// There is a control socket without a server: the predecessor has ended, perhaps just now.
    predecessor_ended: bool,
    waker: Arc<HandoverWaker>,
}

/// A take-over by a server that is ready to start.
#[derive(Debug)]
pub(crate) struct PreparedTakeOver {
    config: TakeOverConfig,
    predecessor: Option<ControlConnection>,
    lock: Option<StartLock>,
    control_socket: ControlSocket,
    waker: Arc<HandoverWaker>,
}

impl PendingTakeOver {
    /// Requests the listeners of the server at the path. Returns them.
    pub(crate) fn request_listeners(
        mut config: TakeOverConfig,
    ) -> Result<(PendingTakeOver, Vec<OwnedFd>), HandOverError> {
        // Daemonizing changes the current folder.
        config.path =
            std::path::absolute(&config.path).map_err(HandOverError::system("find the current directory"))?;
        let waker = Arc::new(HandoverWaker::new()?);
        control_socket::check(&config.path)?;
        // Before the path is read: a starting server releases the lock only when it is at the path.
        let lock = StartLock::acquire(&config.path)?;
        let successor::PredecessorOffer { predecessor, listeners, socket_existed } =
            successor::request_listeners(&config.path)?;
        if lock.is_none() && predecessor.is_none() {
            let process = StartLock::holder(&config.path);
            return Err(HandOverError::Starting { path: config.path, process });
        }
        let predecessor_ended = socket_existed && predecessor.is_none();
        Ok((PendingTakeOver { config, predecessor, lock, predecessor_ended, waker }, listeners))
    }

    pub(crate) fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    pub(crate) fn predecessor(&self) -> Option<PeerProcess> {
        self.predecessor.as_ref()?.check_peer().ok()
    }

    /// A retry for addresses in use. Each call sleeps briefly and returns whether to try again: an ended predecessor
    /// may hold its addresses for a moment.
    pub(crate) fn address_retry(&self) -> impl FnMut() -> bool + use<> {
        let until = self.predecessor_ended.then(|| Instant::now() + ADDRESS_FREE_TIMEOUT);
        move || {
            let waits = until.is_some_and(|until| Instant::now() < until);
            if waits {
                std::thread::sleep(ADDRESS_FREE_CHECK_INTERVAL);
            }
            waits
        }
    }

    /// Wakes the hand-over thread after a change of the lifecycle.
    pub(crate) fn wake(&self) -> Arc<Wake> {
        let waker = Arc::clone(&self.waker);
        Arc::new(Wake::new(move || waker.wake()))
    }

    /// Opens the control socket, once all listeners are open. Without a predecessor the server is at its path at
    /// once.
    pub(crate) fn open_control_socket(self) -> Result<PreparedTakeOver, HandOverError> {
        let PendingTakeOver { config, predecessor, mut lock, waker, .. } = self;
        let control_socket = ControlSocket::bind_pending(&config.path)?;
        if predecessor.is_none() {
            control_socket.claim_path()?;
            lock = None;
        }
        Ok(PreparedTakeOver { config, predecessor, lock, control_socket, waker })
    }
}
