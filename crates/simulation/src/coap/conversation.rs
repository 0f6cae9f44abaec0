//! What a client has sent, and the checks of each message that it gets.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stilling_ring::Time;
use stilling_wire::coap::{CoapMessage, MessageContent, MessageId, MessageType};

/// Distance of the ids of pings to those of requests, which the core counts up: a late reset that answers a ping must
/// not have the id of a request.
const PING_ID_DISTANCE: MessageId = 1 << 15;

/// How long the server must not use an id for another message.
const EXCHANGE_LIFETIME: Duration = Duration::from_secs(247);

/// Bytes of a message of the server at most.
const MESSAGE_SIZE_MAX: usize = 1280;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The token of each message that was sent.
    sent: BTreeMap<MessageId, Vec<u8>>,
    /// Id of the last request.
    last_id: MessageId,
    tokens: BTreeSet<Vec<u8>>,
    /// What the server sent with each of its message ids, and when.
    received: BTreeMap<MessageId, (Time, Vec<u8>)>,
}

impl Conversation {
    /// Notes a message of the client.
    pub(super) fn note_sent(&mut self, datagram: &[u8]) {
        if let Ok(message) = CoapMessage::parse(datagram)
            && message.content == MessageContent::Request
        {
            let token = message.token.as_bytes().to_vec();
            self.sent.insert(message.id, token.clone());
            self.last_id = message.id;
            self.tokens.insert(token);
        }
    }

    /// The id of a ping, unless it was used before.
    pub(super) fn add_ping(&mut self) -> Option<MessageId> {
        let id = self.last_id.wrapping_add(PING_ID_DISTANCE);
        match self.sent.entry(id) {
            Entry::Vacant(entry) => entry.insert(Vec::new()),
            Entry::Occupied(_) => return None,
        };
        Some(id)
    }

    /// Checks that a message is for this client, answers what it sent, and has an id of its own.
    pub(super) fn check(&mut self, datagram: &[u8], now: Time) -> Result<(), String> {
        if datagram.len() > MESSAGE_SIZE_MAX {
            return Err(format!("a message of {} bytes", datagram.len()));
        }
        let message =
            CoapMessage::parse(datagram).map_err(|error| format!("a malformed message: {error}"))?;
        if matches!(message.kind, MessageType::Confirmable | MessageType::NonConfirmable) {
            // RFC 7252 §4.4: an id has one message within this time, or clients ignore the second.
            let is_other =
                |&(at, ref other): &(Time, Vec<u8>)| now.since(at) < EXCHANGE_LIFETIME && other != datagram;
            if self.received.get(&message.id).is_some_and(is_other) {
                return Err(format!("message id {} was used twice", message.id));
            }
            self.received.insert(message.id, (now, datagram.to_vec()));
        }
        let sent = self.sent.get(&message.id);
        let is_known = match (message.content, message.kind) {
            (MessageContent::Response, MessageType::Acknowledgement) => {
                sent.is_some_and(|token| token == message.token.as_bytes())
            }
            (MessageContent::Response, _) => self.tokens.contains(message.token.as_bytes()),
            (MessageContent::Empty, MessageType::Acknowledgement | MessageType::Reset) => sent.is_some(),
            _ => false,
        };
        if is_known { Ok(()) } else { Err(format!("a message for another client or request: {message:?}")) }
    }
}
