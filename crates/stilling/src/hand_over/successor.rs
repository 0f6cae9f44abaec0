//! The side that comes: it asks whoever is at the path for the listeners.
//!
//! Nobody there, or a socket that nobody listens on any more, is a normal start. So is an old server that ends
//! in the middle of its offer: what has been received stays open (and its queues with it), what is missing is
//! opened, because then nobody else has it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use super::channel::{ControlConnection, Incoming};
use super::control_socket;
use super::error::HandOverError;
use super::limits::{HELLO_TIMEOUT, LISTENERS_HANDED_MAX, OFFER_TIMEOUT};
use super::message::{HandoverMessage, SUCCEEDED, VERSION};

/// What was found at the path.
#[derive(Debug, Default)]
pub(super) struct PredecessorOffer {
    /// There was a socket at the path, whether or not somebody listened.
    pub(super) socket_existed: bool,
    /// The old server, if it still lives.
    pub(super) predecessor: Option<ControlConnection>,
    /// Its listeners.
    pub(super) listeners: Vec<OwnedFd>,
}

/// Asks the server at `path` for its listeners. One that has just been succeeded sends its visitors on: then
/// once more.
pub(super) fn ask(path: &Path) -> Result<PredecessorOffer, HandOverError> {
    if !control_socket::check(path)? {
        return Ok(PredecessorOffer::default());
    }
    let found = match request_offer(path) {
        Err(HandOverError::Refused(reason)) if reason == SUCCEEDED => request_offer(path)?,
        outcome => outcome?,
    };
    Ok(PredecessorOffer { socket_existed: true, ..found })
}

fn request_offer(path: &Path) -> Result<PredecessorOffer, HandOverError> {
    let Some(channel) = ControlConnection::connect(path, Instant::now() + HELLO_TIMEOUT)? else {
        return Ok(PredecessorOffer::default());
    };
    channel.check_peer()?;
    let hello = HandoverMessage::Hello { version: VERSION };
    if let Err(error) = channel.send(&hello, &[], Instant::now() + HELLO_TIMEOUT) {
        // One that has just left cannot be spoken to; one that refused before it read has said why.
        return match channel.receive_now("listeners")? {
            Incoming::Received(HandoverMessage::Refused(reason), _) => Err(HandOverError::Refused(reason)),
            Incoming::Ended => Ok(PredecessorOffer::default()),
            _ => Err(error),
        };
    }
    receive_offer(channel)
}

fn receive_offer(channel: ControlConnection) -> Result<PredecessorOffer, HandOverError> {
    const EXPECTED: &str = "listeners";
    let deadline = Instant::now() + OFFER_TIMEOUT;
    let mut listeners = Vec::new();
    loop {
        match channel.receive(EXPECTED, deadline, OFFER_TIMEOUT)? {
            Incoming::Received(HandoverMessage::Listeners { count }, came)
                if listeners.len() + count <= LISTENERS_HANDED_MAX =>
            {
                listeners.extend(came);
            }
            Incoming::Received(HandoverMessage::End { total }, _) if total == listeners.len() => {
                return Ok(PredecessorOffer { predecessor: Some(channel), listeners, socket_existed: true });
            }
            Incoming::Received(HandoverMessage::Refused(reason), _) => {
                return Err(HandOverError::Refused(reason));
            }
            Incoming::Received(other, _) => {
                return Err(HandOverError::Unexpected { expected: EXPECTED, got: format!("`{other}`") });
            }
            Incoming::Ended | Incoming::Nothing => {
                return Ok(PredecessorOffer { predecessor: None, listeners, socket_existed: true });
            }
        }
    }
}
