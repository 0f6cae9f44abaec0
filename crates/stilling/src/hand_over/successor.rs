//! The successor's side: requests the listeners of the server at the path.
//!
//! A missing socket, or a socket without a listener, is a normal start. So is a predecessor that ends in the middle
//! of its offer: the received listeners stay open, with their queues, and the missing ones are opened, since no other
//! process has them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use super::control_connection::{ControlConnection, Incoming};
use super::control_socket;
use super::error::HandOverError;
use super::limits::{HELLO_TIMEOUT, LISTENERS_HANDED_OVER_MAX, OFFER_TIMEOUT};
use super::message::{HandoverMessage, REPLACED_REASON, VERSION};

/// What the path and its server provide.
#[derive(Debug, Default)]
pub(super) struct PredecessorOffer {
    /// There was a socket at the path, with or without a listener.
    pub(super) socket_existed: bool,
    pub(super) predecessor: Option<ControlConnection>,
    pub(super) listeners: Vec<OwnedFd>,
}

/// Requests the listeners of the server at `path`. Tries once more if that server has just been succeeded.
pub(super) fn request_listeners(path: &Path) -> Result<PredecessorOffer, HandOverError> {
    if !control_socket::check(path)? {
        return Ok(PredecessorOffer::default());
    }
    let found = match request_offer(path) {
        Err(HandOverError::Refused(reason)) if reason == REPLACED_REASON => request_offer(path)?,
        outcome => outcome?,
    };
    Ok(PredecessorOffer { socket_existed: true, ..found })
}

fn request_offer(path: &Path) -> Result<PredecessorOffer, HandOverError> {
    let Some(connection) = ControlConnection::connect(path, Instant::now() + HELLO_TIMEOUT)? else {
        return Ok(PredecessorOffer::default());
    };
    connection.check_peer()?;
    let hello = HandoverMessage::Hello { version: VERSION };
    if let Err(error) = connection.send(&hello, &[], Instant::now() + HELLO_TIMEOUT) {
        // The server has ended, or it refused before it read, and its reason can be received.
        return match connection.try_receive("listeners")? {
            Incoming::Received(HandoverMessage::Refused(reason), _) => Err(HandOverError::Refused(reason)),
            Incoming::Ended => Ok(PredecessorOffer::default()),
            _ => Err(error),
        };
    }
    receive_offer(connection)
}

fn receive_offer(connection: ControlConnection) -> Result<PredecessorOffer, HandOverError> {
    const EXPECTED: &str = "listeners";
    let deadline = Instant::now() + OFFER_TIMEOUT;
    let mut listeners = Vec::new();
    loop {
        match connection.receive(EXPECTED, deadline, OFFER_TIMEOUT)? {
            Incoming::Received(HandoverMessage::Listeners { count }, came)
                if listeners.len() + count <= LISTENERS_HANDED_OVER_MAX =>
            {
                listeners.extend(came);
            }
            Incoming::Received(HandoverMessage::End { total }, _) if total == listeners.len() => {
                return Ok(PredecessorOffer {
                    predecessor: Some(connection),
                    listeners,
                    socket_existed: true,
                });
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
