//! Why a hand-over failed: which side is at fault, and what the operator can do.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::limits::PATH_SIZE_MAX;
use super::message::VERSION;

/// Why a hand-over failed.
#[derive(Debug)]
pub enum HandOverError {
    /// The path of the control socket is too long for a socket address.
    PathTooLong(PathBuf),
    /// Other users could replace the socket in this directory.
    DirectoryWritableByOthers(PathBuf),
    /// The file at the path is not a socket.
    NotASocket(PathBuf),
    /// The socket belongs to another user.
    ForeignSocket {
        /// The socket.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// User id of this process.
        user: u32,
    },
    /// The process at the other end runs as another user.
    ForeignPeer {
        /// Its user id.
        peer: u32,
        /// User id of this process.
        user: u32,
    },
    /// The other side has another protocol version.
    Version(u32),
    /// The other side refused, for this reason.
    Refused(String),
    /// The predecessor did not receive `taken` in time and goes on, so this server must end.
    PredecessorContinues(String),
    /// The other side sent another message than expected, or bytes that are not a message.
    Unexpected {
        /// The expected message.
        expected: &'static str,
        /// What was received.
        got: String,
    },
    /// The other side did not act in time.
    TimedOut {
        /// The expected message.
        expected: &'static str,
        /// The timeout.
        after: Duration,
    },
    /// The other side ended before it sent the expected message.
    PeerEnded {
        /// The expected message.
        expected: &'static str,
    },
    /// The successor ended after it had sent `taken`, before this server began to drain.
    SuccessorEnded,
    /// There are more listeners than can be handed over.
    TooManyListeners(usize),
    /// No server is at the path, and another process is starting there.
    Starting {
        /// The control socket.
        path: PathBuf,
        /// The id of that process, if known.
        process: Option<u32>,
    },
    /// No worker process of this server became ready.
    AppNotReady {
        /// The timeout.
        after: Duration,
    },
    /// This server is ending, so it takes over nothing.
    Ending,
    /// The operating system refused an operation.
    System {
        /// The operation.
        doing: String,
        /// The error.
        error: io::Error,
    },
}

impl HandOverError {
    /// Wraps an error of the system, for `map_err`.
    pub(super) fn system<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> HandOverError {
        let doing = doing.into();
        move |error| HandOverError::System { doing, error: error.into() }
    }
}

impl fmt::Display for HandOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandOverError::PathTooLong(path) => {
                write!(f, "{} is longer than {PATH_SIZE_MAX} bytes; choose a shorter path", path.display())
            }
            HandOverError::DirectoryWritableByOthers(folder) => write!(
                f,
                "other users can replace files in {}; choose a directory that only this user can write to",
                folder.display()
            ),
            HandOverError::NotASocket(path) => {
                write!(f, "{} exists and is not a socket; choose another path or remove it", path.display())
            }
            HandOverError::ForeignSocket { path, owner, user } => write!(
                f,
                "{} belongs to user {owner}, and this server runs as user {user}; run it as the same user",
                path.display()
            ),
            HandOverError::ForeignPeer { peer, user } => {
                write!(f, "the process at the other end runs as user {peer}, and this server as user {user}")
            }
            HandOverError::Version(peer_version) => {
                write!(
                    f,
                    "this server has hand-over version {VERSION}, the other one version {peer_version}; stop the old server, then start the new one"
                )
            }
            HandOverError::Refused(reason) => write!(f, "the other server refused: {reason}"),
            HandOverError::PredecessorContinues(reason) => {
                write!(f, "the predecessor continues, so this server must end: {reason}")
            }
            HandOverError::Unexpected { expected, got } => {
                write!(f, "the other side should have sent `{expected}` and sent {got}")
            }
            HandOverError::TimedOut { expected, after } => {
                write!(f, "the other side has not sent `{expected}` within {} seconds", after.as_secs_f64())
            }
            HandOverError::PeerEnded { expected } => {
                write!(f, "the other side ended before it sent `{expected}`")
            }
            HandOverError::SuccessorEnded => f.write_str("the successor ended as soon as it had taken over"),
            HandOverError::TooManyListeners(listeners) => {
                write!(f, "{listeners} listeners are too many to hand over")
            }
            HandOverError::Starting { path, process } => {
                let process_note = process.map(|number| format!(" (process {number})")).unwrap_or_default();
                let path = path.display();
                write!(f, "another server{process_note} is starting with {path}; wait until it serves")
            }
            HandOverError::AppNotReady { after } => {
                let seconds = after.as_secs_f64();
                write!(
                    f,
                    "no worker process (--app) became ready within {seconds} seconds, so the old server continues"
                )
            }
            HandOverError::Ending => f.write_str("this server is ending"),
            HandOverError::System { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

impl std::error::Error for HandOverError {}
