//! Why a hand-over did not come about: who is at fault, and what the operator can do.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::limits::PATH_SIZE_MAX;
use super::message::VERSION;

/// Why a hand-over did not come about.
#[derive(Debug)]
pub enum HandOverError {
    /// The path of the control socket is too long for an address.
    PathTooLong(PathBuf),
    /// Others than this user could put a socket of their own into the folder.
    FolderOpenToOthers(PathBuf),
    /// There is something at the path that is no socket.
    NoSocket(PathBuf),
    /// The socket belongs to another user.
    ForeignSocket {
        /// The socket.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
        /// This process's user.
        user: u32,
    },
    /// The process at the other end runs as another user.
    ForeignPeer {
        /// Its user's number.
        peer: u32,
        /// This process's user.
        user: u32,
    },
    /// The other side speaks another version.
    Version(u32),
    /// The other side said no.
    Refused(String),
    /// The server before this one had not heard its last word in time and goes on, so this one must not.
    TakenBack(String),
    /// The other side said something else than it should, or nothing that can be understood.
    Unexpected {
        /// What should have come.
        expected: &'static str,
        /// What came.
        got: String,
    },
    /// The other side did not act in time.
    Late {
        /// What should have come.
        expected: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The other side ended before it had said its last word.
    Gone {
        /// What should have come.
        expected: &'static str,
    },
    /// There are more listeners than can be handed over.
    TooMany(usize),
    /// Nobody is at the path, and another process is about to be.
    Starting {
        /// The control socket.
        path: PathBuf,
        /// The process's number, if it has said so.
        process: Option<u32>,
    },
    /// No worker process of this server has become ready.
    AppNotReady {
        /// How long it was waited for.
        after: Duration,
    },
    /// This server is to end, so it takes over nothing.
    Ending,
    /// The operating system refused something.
    System {
        /// What was tried.
        doing: String,
        /// What it said.
        error: io::Error,
    },
}

impl HandOverError {
    /// For `map_err`: the system refused what was tried.
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
            HandOverError::FolderOpenToOthers(folder) => write!(
                f,
                "others may put sockets into {}; choose a folder that only this user can write to",
                folder.display()
            ),
            HandOverError::NoSocket(path) => {
                write!(f, "{} exists and is no socket; choose another path or remove it", path.display())
            }
            HandOverError::ForeignSocket { path, owner, user } => write!(
                f,
                "{} belongs to user {owner}, and this server runs as user {user}; run it as the same user",
                path.display()
            ),
            HandOverError::ForeignPeer { peer, user } => {
                write!(f, "the process at the other end runs as user {peer}, and this server as user {user}")
            }
            HandOverError::Version(theirs) => {
                write!(
                    f,
                    "this server speaks version {VERSION} of the hand-over, the other version {theirs}; stop the old server, then start the new one"
                )
            }
            HandOverError::Refused(reason) => write!(f, "the other server refused: {reason}"),
            HandOverError::TakenBack(reason) => {
                write!(f, "the server before this one goes on, so this one must end: {reason}")
            }
            HandOverError::Unexpected { expected, got } => {
                write!(f, "the other side should have said `{expected}` and said {got}")
            }
            HandOverError::Late { expected, after } => {
                write!(f, "the other side has not said `{expected}` within {} seconds", after.as_secs_f64())
            }
            HandOverError::Gone { expected } => {
                write!(f, "the other side ended before it said `{expected}`")
            }
            HandOverError::TooMany(listeners) => {
                write!(f, "{listeners} listeners are more than can be handed over")
            }
            HandOverError::Starting { path, process } => {
                let who = process.map(|number| format!(" (process {number})")).unwrap_or_default();
                let path = path.display();
                write!(f, "another server{who} is starting with {path} at this moment; wait until it serves")
            }
            HandOverError::AppNotReady { after } => {
                let seconds = after.as_secs_f64();
                write!(
                    f,
                    "no worker process (--app) has become ready within {seconds} seconds, so the old server goes on"
                )
            }
            HandOverError::Ending => f.write_str("this server is to end"),
            HandOverError::System { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

impl std::error::Error for HandOverError {}
