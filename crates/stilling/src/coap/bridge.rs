//! The hub's resources: `POST /publish/<subject>` enters a stream, and `/subscribe/<filter>` has the newest message of a
//! filter as its state.
//!
//! ```text
//!   request ─▶ admit ─┬─▶ 4.03, 4.05, 4.01 with an Echo value
//!                     ├─▶ Publish ───▶ BridgeCall ─▶ HubBridge ─▶ outcome ─▶ 2.04
//!                     └─▶ Subscribe ─▶ BridgeCall ─▶ HubBridge ─▶ states of the resource ─▶ 2.05, notifications
//! ```

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use stilling_hub::HashKey;
use stilling_wire::coap::{Code, ContentFormat, OptionNumber};

use super::address_shares::{AddressShares, ClientAddress};
use super::answer::Answer;
use super::limits::{PUBLICATIONS_SIZE_MAX, RETRY_AFTER_SECONDS};
use super::observations::ResourceId;
use super::pending::PendingId;
use super::request::CoapRequest;
use crate::http::encode_conditions;
use crate::settings::SourceRange;

const PUBLISH_PREFIX: &[u8] = b"publish/";

const SUBSCRIBE_PREFIX: &[u8] = b"subscribe/";

/// The addresses that may publish and subscribe. CoAP has no credentials.
#[derive(Clone, Debug, Default)]
pub(crate) struct BridgeAccess(Arc<[SourceRange]>);

impl BridgeAccess {
    /// No address: the paths do not exist.
    pub(crate) fn new(sources: impl IntoIterator<Item = SourceRange>) -> BridgeAccess {
        BridgeAccess(sources.into_iter().collect())
    }

    fn allows(&self, peer: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(peer))
    }
}

/// A path of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BridgePath {
    Publish,
    Subscribe,
}

/// Why a request does not reach the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BridgeRejection {
    /// 4.05.
    Method,
    /// 4.03.
    Source,
    /// 4.01: the request may be old, or of another address than it seems (RFC 9175 §2.3).
    Echo,
}

/// A publication on its way to the hub.
#[derive(Debug)]
pub(crate) struct BridgePublication {
    /// Not checked.
    pub(super) subject: Vec<u8>,
    /// In NATS format.
    pub(super) headers: Vec<u8>,
    pub(super) payload: Vec<u8>,
    /// Its bytes, while it waits.
    _reservation: ShareReservation,
}

/// Bytes in a client's share until this is dropped.
#[derive(Debug)]
struct ShareReservation {
    shares: Arc<Mutex<AddressShares>>,
    client: ClientAddress,
    bytes: usize,
}

impl ShareReservation {
    /// `None` without room for the client.
    fn new(
        shares: &Arc<Mutex<AddressShares>>,
        client: ClientAddress,
        bytes: usize,
    ) -> Option<ShareReservation> {
        let has_room = shares.lock().unwrap_or_else(PoisonError::into_inner).try_add(client, bytes);
        has_room.then(|| ShareReservation { shares: Arc::clone(shares), client, bytes })
    }
}

impl Drop for ShareReservation {
    fn drop(&mut self) {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.release(self.client, self.bytes);
    }
}

/// A call for the [`HubBridge`](super::HubBridge).
#[derive(Debug)]
pub(crate) enum BridgeCall {
    /// Then [`CoapShard::publication_ended`](super::CoapShard::publication_ended) is called.
    Publish {
        exchange: PendingId,
        publication: Box<BridgePublication>,
    },
    /// The outcome of a publication is late: the exchange ends now.
    Withdraw(PendingId),
    /// Deliver the newest messages of a filter, which is not checked.
    Subscribe {
        resource: ResourceId,
        filter: Box<[u8]>,
    },
    Unsubscribe(ResourceId),
}

/// The answer to a request for the hub.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BridgeAnswer {
    pub(super) code: Code,
    pub(super) format: Option<ContentFormat>,
    pub(super) body: Vec<u8>,
}

impl BridgeAnswer {
    /// An error with its reason.
    pub(super) fn error(code: Code, reason: &str) -> BridgeAnswer {
        BridgeAnswer { code, format: None, body: reason.as_bytes().to_vec() }
    }

    pub(super) fn write(&self, answer: &mut Answer) {
        answer.start(self.code).format = self.format;
        answer.body.extend_from_slice(&self.body);
        if self.code == Code::SERVICE_UNAVAILABLE {
            answer.max_age = Some(RETRY_AFTER_SECONDS);
        }
    }
}

/// What a request gets that waited for the hub.
#[derive(Debug)]
pub(super) enum AwaitedOutcome {
    Answer(BridgeAnswer),
    /// The state of its resource.
    State(ResourceId),
}

/// The part of the endpoint that talks to the hub.
#[derive(Debug)]
pub(super) struct Bridge {
    access: BridgeAccess,
    calls: VecDeque<BridgeCall>,
    /// Exchanges and their outcomes, the oldest first.
    ended: VecDeque<(PendingId, AwaitedOutcome)>,
    /// Of the bytes of publications that wait. Only this shard locks it.
    publication_shares: Arc<Mutex<AddressShares>>,
}

impl Bridge {
    pub(super) fn new(hash_key: HashKey) -> Bridge {
        Bridge {
            access: BridgeAccess::default(),
            calls: VecDeque::new(),
            ended: VecDeque::new(),
            publication_shares: Arc::new(Mutex::new(AddressShares::new(hash_key, PUBLICATIONS_SIZE_MAX))),
        }
    }

    pub(super) fn set_access(&mut self, access: BridgeAccess) {
        self.access = access;
    }

    /// The hub's path that a request names. Without access for any address there is none.
    pub(super) fn path(&self, request: &CoapRequest<'_>) -> Option<BridgePath> {
        if self.access.0.is_empty() {
            return None;
        }
        let path = request.path;
        if path.starts_with(PUBLISH_PREFIX) {
            return Some(BridgePath::Publish);
        }
        path.starts_with(SUBSCRIBE_PREFIX).then_some(BridgePath::Subscribe)
    }

    /// Checks method and source. `is_fresh`: the request shows that it is not older than an Echo value.
    pub(super) fn admit(
        &self,
        path: BridgePath,
        method: Code,
        peer: IpAddr,
        is_fresh: bool,
    ) -> Result<(), BridgeRejection> {
        let is_known = match path {
            BridgePath::Publish => method == Code::POST,
            BridgePath::Subscribe => method == Code::GET,
        };
        if !is_known {
            return Err(BridgeRejection::Method);
        }
        if !self.access.allows(peer) {
            return Err(BridgeRejection::Source);
        }
        if !is_fresh && !peer.to_canonical().is_loopback() {
            return Err(BridgeRejection::Echo);
        }
        Ok(())
    }

    /// The publication that a complete request of a client describes.
    ///
    /// # Errors
    /// The answer to an invalid one.
    pub(super) fn publication(
        &self,
        request: &CoapRequest<'_>,
        client: ClientAddress,
    ) -> Result<Box<BridgePublication>, BridgeAnswer> {
        let conditions: Vec<_> = request.values(OptionNumber::URI_QUERY).map(name_and_value).collect();
        if let Some((name, _)) = conditions.iter().find(|(name, _)| !is_condition(name)) {
            let reason = format!("unknown parameter {}", name.escape_ascii());
            return Err(BridgeAnswer::error(Code::BAD_REQUEST, &reason));
        }
        let headers = encode_conditions(conditions.into_iter(), false)
            .map_err(|rejection| BridgeAnswer::error(Code::BAD_REQUEST, &rejection.reason))?;
        let subject = rest_of_path(request);
        let size = subject.len() + headers.len() + request.payload.len();
        let Some(reservation) = ShareReservation::new(&self.publication_shares, client, size) else {
            return Err(BridgeAnswer::error(Code::SERVICE_UNAVAILABLE, "too many publications wait"));
        };
        let payload = request.payload.to_vec();
        Ok(Box::new(BridgePublication { subject, headers, payload, _reservation: reservation }))
    }

    pub(super) fn call(&mut self, call: BridgeCall) {
        self.calls.push_back(call);
    }

    pub(super) fn next_call(&mut self) -> Option<BridgeCall> {
        self.calls.pop_front()
    }

    /// Sets the outcome of an exchange, which [`next_ended`](Self::next_ended) returns.
    pub(super) fn end(&mut self, exchange: PendingId, outcome: AwaitedOutcome) {
        self.ended.push_back((exchange, outcome));
    }

    /// Takes the next exchange that has an outcome.
    pub(super) fn next_ended(&mut self) -> Option<(PendingId, AwaitedOutcome)> {
        self.ended.pop_front()
    }

    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }
}

fn name_and_value(argument: &[u8]) -> (&[u8], &[u8]) {
    let at = argument.iter().position(|&byte| byte == b'=').unwrap_or(argument.len());
    (&argument[..at], argument.get(at + 1..).unwrap_or_default())
}

/// Whether a parameter has the name of a header for conditions.
fn is_condition(name: &[u8]) -> bool {
    name.get(..5).is_some_and(|prefix| prefix.eq_ignore_ascii_case(b"nats-"))
}

/// The path after its first segment.
pub(super) fn rest_of_path(request: &CoapRequest<'_>) -> Vec<u8> {
    let segments: Vec<&[u8]> = request.values(OptionNumber::URI_PATH).skip(1).collect();
    segments.join(&b'/')
}

#[cfg(test)]
mod tests {
    use stilling_engine::DatagramPath;
    use stilling_wire::coap::{CoapMessage, MessageType, MessageWriter, Token};

    use super::super::limits::REQUEST_BODY_SIZE_MAX;
    use super::super::request::PathBuffer;
    use super::*;

    /// Long publications of one client that wait leave room for those of others, and return it when they wait no longer.
    #[test]
    fn a_client_has_a_share_of_the_bytes_that_wait() {
        let client = |address| {
            ClientAddress::of(&DatagramPath {
                socket: 0,
                peer: ([192, 0, 2, address], 1).into(),
                local: None,
            })
        };
        let mut buffer = vec![0; 2 * REQUEST_BODY_SIZE_MAX];
        let mut writer =
            MessageWriter::new(&mut buffer, MessageType::NonConfirmable, Code::POST, 1, Token::EMPTY)
                .expect("there is room");
        for segment in ["publish", "a"] {
            writer.option(OptionNumber::URI_PATH, segment.as_bytes()).expect("there is room");
        }
        let datagram = writer.payload(&vec![b'x'; REQUEST_BODY_SIZE_MAX - 1]).expect("there is room");
        let message = CoapMessage::parse(datagram).expect("it is valid");
        let mut path = PathBuffer::new();
        let request = CoapRequest::decode(&message, &mut path).expect("it is valid");
        let bridge = Bridge::new(HashKey(1, 2));
        let fill = |address| -> Vec<_> {
            (0..).map_while(|_| bridge.publication(&request, client(address)).ok()).collect()
        };
        let first = fill(1);
        assert_eq!(first.len() * REQUEST_BODY_SIZE_MAX, PUBLICATIONS_SIZE_MAX / 2);
        assert_eq!(fill(2).len(), first.len() / 2);
        drop(first);
        assert_eq!(fill(2).len() * REQUEST_BODY_SIZE_MAX, PUBLICATIONS_SIZE_MAX / 2);
    }
}
