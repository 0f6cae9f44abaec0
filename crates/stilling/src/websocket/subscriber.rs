//! The subscriber's part of a connection: its subscription, and publications with their answers.

use std::collections::HashMap;
use std::io::Write;

use stilling_engine::{CloseReason, Io, Token};
use stilling_hub::{ClientOptions, DeliveryItem, HubRequest, Ingress, Payload, Publication, PublishOutcome};
use stilling_wire::nats::{MESSAGE_ID, Subject, encode_headers};
use stilling_wire::websocket::{CloseCode, Opcode, encode_frame_around};

use super::client_message::{BadClientMessage, ClientPublication};
use super::limits::{ANSWER_SIZE_MAX, PUBLICATIONS_MAX};
use super::session::WebSocketClose;
use crate::http::refusal_status;
use crate::hub::{HubHandle, RESERVED_SUBJECTS, StreamDirectory, SubscribeRequest, SubscriptionOutput};
use crate::users::UserAccess;

#[derive(Debug)]
pub(super) struct Subscriber {
    access: UserAccess,
    may_publish: bool,
    token: Token,
    /// Its publications, from the first one on. Boxed because most subscribers only listen.
    publications: Option<Box<Publications>>,
    output: SubscriptionOutput,
    is_in_hub: bool,
}

/// Publications without an answer.
#[derive(Debug, Default)]
struct Publications {
    /// Their references, by ticket.
    references: HashMap<u32, Box<str>>,
    ticket: u32,
}

impl Subscriber {
    pub(super) fn new(token: Token, access: UserAccess, may_publish: bool) -> Subscriber {
        Subscriber {
            access,
            may_publish,
            token,
            publications: None,
            output: SubscriptionOutput::default(),
            is_in_hub: false,
        }
    }

    /// Subscribes. Returns whether there was room.
    pub(super) fn subscribe(&mut self, request: &SubscribeRequest, hub: &mut HubHandle) -> bool {
        self.is_in_hub = true;
        hub.publisher_connections += 1;
        hub.counters.websocket.opened.add(1);
        hub.port.subscribe_to(self.token, request).is_ok()
    }

    /// Leaves the hub. Idempotent.
    pub(super) fn leave_hub(&mut self, hub: &mut HubHandle) {
        if std::mem::take(&mut self.is_in_hub) {
            hub.port.disconnect(self.token);
            hub.publisher_connections = hub.publisher_connections.saturating_sub(1);
            hub.counters.websocket.closed.add(1);
        }
    }

    /// Whether as many publications wait for answers as may.
    pub(super) fn is_full(&self) -> bool {
        let publications = self.publications.as_ref();
        publications.is_some_and(|publications| publications.references.len() >= PUBLICATIONS_MAX)
    }

    /// Publishes a client's message, or answers it with an error.
    pub(super) fn publish(&mut self, message: &[u8], io: &mut Io<'_>, hub: &mut HubHandle) {
        let publication = match ClientPublication::parse(message) {
            Ok(publication) => publication,
            Err(BadClientMessage { reference, reason }) => return send_error(reference, 400, &reason, io),
        };
        let reference = publication.reference;
        let headers = match self.check(&publication, hub) {
            Ok(headers) => headers,
            Err((code, reason)) => return send_error(reference, code, &reason, io),
        };
        let ticket = self.publications.get_or_insert_default().add(reference);
        let shared = io.share(&publication.payload);
        let payload = match shared {
            Some((block, range)) => Payload::shared(block, range),
            None => (&*publication.payload).into(),
        };
        let publication = Publication {
            ingress: Ingress::WebSocket,
            subject: publication.subject.as_bytes(),
            reply: b"",
            headers: &headers,
            payload,
            ticket: Some(ticket),
        };
        hub.port.push_request(self.token, ClientOptions::default(), &HubRequest::Publish(publication));
    }

    /// Checks subject, permission and size. Returns the header block.
    fn check(&self, publication: &ClientPublication<'_>, hub: &HubHandle) -> Result<Vec<u8>, (u16, String)> {
        let ClientPublication { subject, payload, id, .. } = publication;
        if !self.may_publish {
            let reason = "publishing at a non-loopback address requires users ([[user]]) or --open-publish";
            return Err((403, reason.to_owned()));
        }
        if let Err(error) = Subject::parse(subject.as_bytes(), &hub.limits.subject) {
            return Err((400, format!("invalid subject: {error}")));
        }
        if subject.as_bytes().starts_with(RESERVED_SUBJECTS) {
            return Err((400, "reserved subject: $JS. is reserved for the hub's JetStream API".to_owned()));
        }
        if !hub.users.may_publish(self.access, subject.as_bytes()) {
            return Err((403, "this user may not publish to this subject".to_owned()));
        }
        let most = hub.limits.payload_size_max;
        if payload.len() as u64 > u64::from(most) {
            return Err((413, format!("the message has {} bytes; the maximum is {most}", payload.len())));
        }
        let mut headers = Vec::new();
        if let Some(id) = id {
            encode_headers(&mut headers, None, &[(MESSAGE_ID, id)])
                .map_err(|error| (400, format!("invalid id: {error}")))?;
        }
        Ok(headers)
    }

    /// Takes the reference of a publication that is answered.
    fn take_reference(&mut self, ticket: u32) -> Option<Box<str>> {
        self.publications.as_mut()?.references.remove(&ticket)
    }

    /// Handles a delivery. Returns how the connection ends, if it does.
    pub(super) fn receive(
        &mut self,
        delivery: DeliveryItem<'_>,
        io: &mut Io<'_>,
        hub: &mut HubHandle,
    ) -> Option<WebSocketClose> {
        match self.output.handle(delivery, io, hub) {
            Some(DeliveryItem::PublishOutcome { ticket, outcome }) => {
                if let Some(reference) = self.take_reference(ticket) {
                    send_outcome(&reference, outcome, &hub.streams, io);
                }
            }
            Some(DeliveryItem::Rejection { ticket, reason, .. }) => {
                if let Some(reference) = self.take_reference(ticket) {
                    send_error(&reference, 422, &String::from_utf8_lossy(reason), io);
                }
            }
            Some(DeliveryItem::Refused) => {
                return Some(WebSocketClose {
                    code: CloseCode::TRY_AGAIN_LATER,
                    text: "too many subscriptions: connect again later",
                    reason: CloseReason::Done,
                });
            }
            Some(DeliveryItem::Close) => {
                return Some(WebSocketClose {
                    code: CloseCode::GOING_AWAY,
                    text: "the server ends: connect again",
                    reason: CloseReason::Drained,
                });
            }
            _ => {}
        }
        self.output.check(io, hub);
        None
    }

    /// Continues what has waited for the client to read all output.
    pub(super) fn flushed(&mut self, io: &Io<'_>, hub: &mut HubHandle) {
        self.output.flushed(self.is_in_hub, io, hub);
    }
}

impl Publications {
    /// Adds a publication with its reference. Returns its ticket.
    fn add(&mut self, reference: &str) -> u32 {
        self.ticket = self.ticket.wrapping_add(1);
        self.references.insert(self.ticket, reference.into());
        self.ticket
    }
}

/// Answers a publication with the outcome.
fn send_outcome(reference: &str, outcome: PublishOutcome, streams: &StreamDirectory, io: &mut Io<'_>) {
    match outcome {
        PublishOutcome::Stored { stream, sequence, duplicate } => send_json(io, |out| {
            let stream = streams.name(stream);
            let duplicate = if duplicate { ",\"duplicate\":true" } else { "" };
            // Names of streams are letters, digits, `-` and `_`: nothing to escape.
            write!(
                out,
                "{{\"ack\":{{{}\"stream\":\"{stream}\",\"seq\":{sequence}{duplicate}}}}}",
                field(reference)
            )
        }),
        PublishOutcome::Forwarded { subscriptions } => send_json(io, |out| {
            write!(
                out,
                "{{\"ack\":{{{}\"stream\":null,\"subscriptions\":{subscriptions}}}}}",
                field(reference)
            )
        }),
        PublishOutcome::Refused(refusal) => {
            let (status, reason) = refusal_status(refusal, streams.name(refusal.stream()), "");
            send_error(reference, status.code(), &reason, io);
        }
    }
}

fn send_error(reference: &str, code: u16, reason: &str, io: &mut Io<'_>) {
    // An escape has at most six bytes.
    let reason: String = reason.chars().take(REASON_LENGTH_MAX).collect();
    let reason = serde_json::Value::from(reason);
    send_json(io, |out| {
        write!(out, "{{\"error\":{{{}\"code\":{code},\"reason\":{reason}}}}}", field(reference))
    });
}

/// Characters of a reason; the rest is cut. The names of unknown fields in it are the client's.
const REASON_LENGTH_MAX: usize = 128;

const _: () = assert!(6 * REASON_LENGTH_MAX + super::limits::REFERENCE_SIZE_MAX + 64 <= ANSWER_SIZE_MAX);

/// The member `ref` of an answer.
fn field(reference: &str) -> String {
    if reference.is_empty() { String::new() } else { format!("\"ref\":{reference},") }
}

/// Sends a text message. A client that does not read its answers is a slow consumer.
fn send_json(io: &mut Io<'_>, write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) {
    if io.room() < ANSWER_SIZE_MAX {
        return io.end_slow_consumer();
    }
    let _ = io.send_with(|out| {
        encode_frame_around(out, Opcode::Text, |out| {
            // Writing to a vector does not fail.
            let _ = write(out);
        });
    });
}
