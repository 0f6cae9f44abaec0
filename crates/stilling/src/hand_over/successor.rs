//! The side that comes: it asks whoever is at the path for the listeners.
//!
//! Nobody there, or a socket that nobody listens on any more, is a normal start. So is an old server that ends
//! in the middle of its offer: what has been received stays open (and its queues with it), what is missing is
//! opened, because then nobody else has it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use super::channel::{Channel, Incoming};
use super::door;
use super::error::HandOverError;
use super::limits::{HELLO_TIMEOUT, LISTENERS_HANDED_MAX, OFFER_TIMEOUT};
use super::message::{Message, SUCCEEDED, VERSION};

/// What was found at the path.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// There was a socket at the path, whether or not somebody listened.
    pub(super) was_there: bool,
    /// The old server, if it still lives.
    pub(super) old: Option<Channel>,
    /// Its listeners.
    pub(super) listeners: Vec<OwnedFd>,
}

/// Asks the server at `path` for its listeners. One that has just been succeeded sends its visitors on: then
/// once more.
pub(super) fn ask(path: &Path) -> Result<Found, HandOverError> {
    if !door::check(path)? {
        return Ok(Found::default());
    }
    let found = match knock(path) {
        Err(HandOverError::Refused(reason)) if reason == SUCCEEDED => knock(path)?,
        outcome => outcome?,
    };
    Ok(Found { was_there: true, ..found })
}

fn knock(path: &Path) -> Result<Found, HandOverError> {
    let Some(channel) = Channel::connect(path, Instant::now() + HELLO_TIMEOUT)? else {
        return Ok(Found::default());
    };
    channel.check_peer()?;
    let hello = Message::Hello { version: VERSION };
    if let Err(error) = channel.send(&hello, &[], Instant::now() + HELLO_TIMEOUT) {
        // One that has just left cannot be spoken to; one that refused before it read has said why.
        return match channel.receive_now("listeners")? {
            Incoming::Message(Message::Refused(reason), _) => Err(HandOverError::Refused(reason)),
            Incoming::Ended => Ok(Found::default()),
            _ => Err(error),
        };
    }
    receive_offer(channel)
}

fn receive_offer(channel: Channel) -> Result<Found, HandOverError> {
    const EXPECTED: &str = "listeners";
    let deadline = Instant::now() + OFFER_TIMEOUT;
    let mut listeners = Vec::new();
    loop {
        match channel.receive(EXPECTED, deadline, OFFER_TIMEOUT)? {
            Incoming::Message(Message::Listeners { count }, came)
                if listeners.len() + count <= LISTENERS_HANDED_MAX =>
            {
                listeners.extend(came);
            }
            Incoming::Message(Message::End { total }, _) if total == listeners.len() => {
                return Ok(Found { old: Some(channel), listeners, was_there: true });
            }
            Incoming::Message(Message::Refused(reason), _) => return Err(HandOverError::Refused(reason)),
            Incoming::Message(other, _) => {
                return Err(HandOverError::Unexpected { expected: EXPECTED, got: format!("`{other}`") });
            }
            Incoming::Ended | Incoming::Nothing => {
                return Ok(Found { old: None, listeners, was_there: true });
            }
        }
    }
}
