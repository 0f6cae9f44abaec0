//! A shard's requests to the hub in one turn, in order, in one piece of memory.
//!
//! ```text
//!   bytes       │ subject reply headers payload │ filter queue │ …          copied once, from the receive buffer
//!   requests    [ Publish 0.. ] [ Register .. ] [ Barrier ] …               positions of their parts in `bytes`
//!   blocks      [ block 0 ] [ block 1 ] …                                   payloads that are not copied
//! ```
//!
//! Publication batches circulate: the hub returns them empty, and they keep their memory.

use stilling_ring::SharedBlock;

use crate::limits::PUBLICATION_BATCH_SIZE;
use crate::loss::Loss;
use crate::payload::{Payload, add_block};
use crate::resume::{CatchUpRequest, StartFrom};
use crate::time::UnixNanos;

/// Identifies a connection in the hub: its shard and its token in that shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ClientId {
    /// Number of the shard.
    pub shard: u32,
    /// Token of the connection in its shard.
    pub token: u64,
}

/// Options of a client's connection that concern the hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientOptions {
    /// The client supports headers; otherwise they are omitted.
    pub headers: bool,
    /// The client gets an immediate `503 No Responders` status for a request without subscribers.
    pub no_responders: bool,
    /// The client does not receive its own publications.
    pub no_echo: bool,
}

/// Protocol through which a message entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ingress {
    /// NATS client protocol.
    #[default]
    Nats,
    /// `POST /publish`.
    Http,
    /// Syslog.
    Syslog,
    /// A protocol of the embedding program.
    Custom,
    /// WebSocket.
    WebSocket,
    /// CoAP.
    Coap,
}

impl Ingress {
    /// All protocols in numeric order.
    pub const ALL: [Ingress; 6] =
        [Ingress::Nats, Ingress::Http, Ingress::Syslog, Ingress::Custom, Ingress::WebSocket, Ingress::Coap];

    /// Returns the protocol's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Ingress::Nats => "nats",
            Ingress::Http => "http",
            Ingress::Syslog => "syslog",
            Ingress::Custom => "custom",
            Ingress::WebSocket => "websocket",
            Ingress::Coap => "coap",
        }
    }
}

/// A message to publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Publication<'a> {
    /// Protocol of the publisher.
    pub ingress: Ingress,
    /// Checked subject.
    pub subject: &'a [u8],
    /// Checked reply subject; empty if no answer is expected.
    pub reply: &'a [u8],
    /// NATS header block; empty if there is none.
    pub headers: &'a [u8],
    /// Payload of the message.
    pub payload: Payload<'a>,
    /// Ticket for a [`PublishOutcome`](crate::PublishOutcome), which is sent instead of an answer to `reply`.
    pub ticket: Option<u32>,
}

/// A request from a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HubRequest<'a> {
    /// Publishes a message.
    Publish(Publication<'a>),
    /// Changes the subscriptions of the shard; made by its [`ShardSubscriptions`](crate::ShardSubscriptions).
    Interest(InterestChange<'a>),
    /// Sends a subscription the records of a stream; follows the connection's [`InterestChange`].
    CatchUp(CatchUpRequest<'a>),
    /// Requests a `PONG` after all earlier requests have been processed.
    Barrier,
    /// Continues the consumer that waits for this mark: its last messages have been sent.
    MarkReached {
        /// Mark behind those messages.
        mark: u64,
    },
    /// Ends the connection's pull requests because the server drains.
    CancelPulls,
    /// Closes the connection when all its publications are answered.
    CloseAfterAcks,
    /// Removes the connection, which is closed.
    Disconnect,
    /// Reports losses before the hub.
    LossReport(LossReport<'a>),
}

/// Identifies a registration of a shard: a filter without a queue, or one queue subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegistrationId {
    /// Index in the shard's table.
    pub number: u32,
    /// Distinguishes successive registrations with the same index.
    pub serial: u32,
}

/// A change of a shard's subscriptions. The connection is the requesting one, unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterestChange<'a> {
    /// The connection is the shard's first with this filter, or a member of a queue group.
    Register {
        /// Identifier of the registration.
        id: RegistrationId,
        /// Checked filter.
        filter: &'a [u8],
        /// Queue group: one member gets each message. Empty: none.
        queue: &'a [u8],
    },
    /// Further connections now share the filter, which only this one had.
    Share {
        /// Identifier of the registration.
        id: RegistrationId,
        /// Checked filter; registered now if the hub had no room for it before.
        filter: &'a [u8],
    },
    /// Only this connection still has the filter.
    Unshare {
        /// Identifier of the registration.
        id: RegistrationId,
    },
    /// Requests the number of processed requests, to be sent after all earlier deliveries.
    Sync,
    /// The only connection, or all of several, ended the subscription.
    Unregister {
        /// Identifier of the registration.
        id: RegistrationId,
        /// Total number of messages after which the registration ends; `None`: at once.
        after: Option<u32>,
        /// Several connections shared it.
        is_shared: bool,
    },
}

/// Messages that were refused, shed or lost before the hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossReport<'a> {
    /// Protocol of the publisher.
    pub ingress: Ingress,
    /// Subject; its stream gets a marker. Empty: the losses are only counted.
    pub subject: &'a [u8],
    /// Reason of the losses.
    pub loss: Loss,
    /// Number of lost messages.
    pub count: u64,
    /// Time of the first loss.
    pub from_ns: UnixNanos,
    /// Time of the last loss.
    pub to_ns: UnixNanos,
}

/// Requests of one shard, in order.
#[derive(Debug, Default)]
pub struct PublicationBatch {
    /// Number of the shard's requests before the first one here.
    first: u64,
    /// When the shard handed it over; `None` if it was handed over within a turn.
    sent: Option<UnixNanos>,
    bytes: Vec<u8>,
    entries: Vec<EncodedRequest>,
    /// Blocks of payloads passed by reference.
    blocks: Vec<SharedBlock>,
    shared_size: usize,
}

/// Initial bytes of a growing batch.
const GROWING_SIZE_MIN: usize = 256;

/// Requests for which a batch reserves memory at its first use: enough to fill it without any bytes.
const ENTRIES_RESERVED: usize = PUBLICATION_BATCH_SIZE / size_of::<EncodedRequest>() + 1;

/// Block number of a payload in `bytes`.
const NO_BLOCK: u32 = u32::MAX;

/// A request with its parts in `bytes`, contiguous from `start`; a payload may be in a block.
#[derive(Clone, Copy, Debug)]
struct EncodedRequest {
    token: u64,
    client_options: ClientOptions,
    start: u32,
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug)]
enum RequestKind {
    Publish {
        ingress: Ingress,
        subject: u16,
        reply: u16,
        headers: u32,
        payload: u32,
        /// Block of the payload and its offset there, or [`NO_BLOCK`].
        block: u32,
        block_start: u32,
        ticket: Option<u32>,
    },
    Register {
        id: RegistrationId,
        filter: u16,
        queue: u16,
    },
    Share {
        id: RegistrationId,
        filter: u16,
    },
    Unshare {
        id: RegistrationId,
    },
    Sync,
    Unregister {
        id: RegistrationId,
        after: Option<u32>,
        is_shared: bool,
    },
    CatchUp {
        stream: u32,
        filter: u16,
        from: StartFrom,
    },
    Barrier,
    MarkReached {
        mark: u64,
    },
    CancelPulls,
    CloseAfterAcks,
    Disconnect,
    LossReport {
        ingress: Ingress,
        subject: u16,
        loss: Loss,
        count: u64,
        from_ns: UnixNanos,
        to_ns: UnixNanos,
    },
}

impl PublicationBatch {
    /// Creates an empty batch. It allocates at its first use.
    #[must_use]
    pub fn new() -> PublicationBatch {
        PublicationBatch::default()
    }

    /// Creates an empty batch with memory that grows with its contents.
    pub(crate) fn growing() -> PublicationBatch {
        PublicationBatch { bytes: Vec::with_capacity(GROWING_SIZE_MIN), ..PublicationBatch::default() }
    }

    /// Returns whether the batch has reached its size; a session's unfinished requests may still be added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes.len() + self.shared_size + self.entries.len() * size_of::<EncodedRequest>()
            >= PUBLICATION_BATCH_SIZE
    }

    /// Returns whether the batch has no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn set_first(&mut self, first: u64) {
        self.first = first;
    }

    /// Returns the time at which the shard handed it over at the end of a turn.
    #[must_use]
    pub fn sent(&self) -> Option<UnixNanos> {
        self.sent
    }

    /// Sets the [time](Self::sent) of the handover.
    pub fn set_sent(&mut self, sent: Option<UnixNanos>) {
        self.sent = sent;
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends a request of the connection `token`. Codecs bound the sizes: subjects, queues and sids below 64 KiB,
    /// messages below 4 GiB.
    #[inline]
    pub fn push(&mut self, token: u64, client_options: ClientOptions, request: &HubRequest<'_>) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(PUBLICATION_BATCH_SIZE + PUBLICATION_BATCH_SIZE / 4);
            self.entries.reserve(ENTRIES_RESERVED);
        }
        let start = self.bytes.len() as u32;
        let kind = match *request {
            HubRequest::Publish(Publication { ingress, subject, reply, headers, payload, ticket }) => {
                for part in [subject, reply, headers] {
                    self.bytes.extend_from_slice(part);
                }
                let (block, block_start) = match payload.block() {
                    None => {
                        self.bytes.extend_from_slice(payload.bytes());
                        (NO_BLOCK, 0)
                    }
                    Some((block, range)) => {
                        self.shared_size += range.len();
                        // A block is shorter than 4 GiB.
                        (add_block(&mut self.blocks, block), range.start as u32)
                    }
                };
                RequestKind::Publish {
                    ingress,
                    subject: subject.len() as u16,
                    reply: reply.len() as u16,
                    headers: headers.len() as u32,
                    payload: payload.len() as u32,
                    block,
                    block_start,
                    ticket,
                }
            }
            HubRequest::Interest(InterestChange::Register { id, filter, queue }) => {
                self.bytes.extend_from_slice(filter);
                self.bytes.extend_from_slice(queue);
                RequestKind::Register { id, filter: filter.len() as u16, queue: queue.len() as u16 }
            }
            HubRequest::Interest(InterestChange::Share { id, filter }) => {
                self.bytes.extend_from_slice(filter);
                RequestKind::Share { id, filter: filter.len() as u16 }
            }
            HubRequest::Interest(InterestChange::Unshare { id }) => RequestKind::Unshare { id },
            HubRequest::Interest(InterestChange::Sync) => RequestKind::Sync,
            HubRequest::Interest(InterestChange::Unregister { id, after, is_shared }) => {
                RequestKind::Unregister { id, after, is_shared }
            }
            HubRequest::CatchUp(CatchUpRequest { stream, filter, from }) => {
                self.bytes.extend_from_slice(filter);
                RequestKind::CatchUp { stream, filter: filter.len() as u16, from }
            }
            HubRequest::Barrier => RequestKind::Barrier,
            HubRequest::MarkReached { mark } => RequestKind::MarkReached { mark },
            HubRequest::CancelPulls => RequestKind::CancelPulls,
            HubRequest::CloseAfterAcks => RequestKind::CloseAfterAcks,
            HubRequest::Disconnect => RequestKind::Disconnect,
            HubRequest::LossReport(LossReport { ingress, subject, loss, count, from_ns, to_ns }) => {
                self.bytes.extend_from_slice(subject);
                RequestKind::LossReport {
                    ingress,
                    subject: subject.len() as u16,
                    loss,
                    count,
                    from_ns,
                    to_ns,
                }
            }
        };
        self.entries.push(EncodedRequest { token, client_options, start, kind });
    }

    /// Returns the request at `index` with its connection and options.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<(u64, ClientOptions, HubRequest<'_>)> {
        let EncodedRequest { token, client_options, start, kind } = *self.entries.get(index)?;
        let mut rest = &self.bytes[start as usize..];
        let mut part = |size: usize| {
            let (part, behind) = rest.split_at(size);
            rest = behind;
            part
        };
        let request = match kind {
            RequestKind::Publish {
                ingress,
                subject,
                reply,
                headers,
                payload,
                block,
                block_start,
                ticket,
            } => HubRequest::Publish(Publication {
                ingress,
                subject: part(subject.into()),
                reply: part(reply.into()),
                headers: part(headers as usize),
                payload: if block == NO_BLOCK {
                    part(payload as usize).into()
                } else {
                    let range = block_start as usize..block_start as usize + payload as usize;
                    Payload::shared(&self.blocks[block as usize], range)
                },
                ticket,
            }),
            RequestKind::Register { id, filter, queue } => HubRequest::Interest(InterestChange::Register {
                id,
                filter: part(filter.into()),
                queue: part(queue.into()),
            }),
            RequestKind::Share { id, filter } => {
                HubRequest::Interest(InterestChange::Share { id, filter: part(filter.into()) })
            }
            RequestKind::Unshare { id } => HubRequest::Interest(InterestChange::Unshare { id }),
            RequestKind::Sync => HubRequest::Interest(InterestChange::Sync),
            RequestKind::Unregister { id, after, is_shared } => {
                HubRequest::Interest(InterestChange::Unregister { id, after, is_shared })
            }
            RequestKind::CatchUp { stream, filter, from } => {
                HubRequest::CatchUp(CatchUpRequest { stream, filter: part(filter.into()), from })
            }
            RequestKind::Barrier => HubRequest::Barrier,
            RequestKind::MarkReached { mark } => HubRequest::MarkReached { mark },
            RequestKind::CancelPulls => HubRequest::CancelPulls,
            RequestKind::CloseAfterAcks => HubRequest::CloseAfterAcks,
            RequestKind::Disconnect => HubRequest::Disconnect,
            RequestKind::LossReport { ingress, subject, loss, count, from_ns, to_ns } => {
                HubRequest::LossReport(LossReport {
                    ingress,
                    subject: part(subject.into()),
                    loss,
                    count,
                    from_ns,
                    to_ns,
                })
            }
        };
        Some((token, client_options, request))
    }

    /// Empties the batch and releases the blocks of its payloads; keeps its memory except after an unusual burst.
    pub fn clear(&mut self) {
        self.blocks.clear();
        (self.first, self.shared_size, self.sent) = (0, 0, None);
        self.entries.clear();
        self.bytes.clear();
        // Only the lines of one HTTP body exceed this.
        self.entries.shrink_to(ENTRIES_RESERVED);
        if self.bytes.capacity() > 4 * PUBLICATION_BATCH_SIZE {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use stilling_ring::BlockWriter;

    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order() {
        let message = Publication {
            ingress: Ingress::Http,
            subject: b"a.b",
            reply: b"inbox",
            headers: b"NATS/1.0\r\n\r\n",
            payload: b"payload".into(),
            ticket: Some(7),
        };
        let id = RegistrationId { number: 3, serial: 7 };
        let requests = [
            HubRequest::Interest(InterestChange::Register { id, filter: b"a.*", queue: b"q" }),
            HubRequest::Publish(message),
            HubRequest::Barrier,
            HubRequest::Publish(Publication {
                reply: b"",
                headers: b"",
                payload: b"".into(),
                ticket: None,
                ..message
            }),
            HubRequest::Interest(InterestChange::Unregister { id, after: Some(3), is_shared: false }),
            HubRequest::Interest(InterestChange::Share { id, filter: b"a" }),
            HubRequest::Interest(InterestChange::Unshare { id }),
            HubRequest::MarkReached { mark: 1 << 40 },
            HubRequest::LossReport(LossReport {
                ingress: Ingress::Syslog,
                subject: b"a.c",
                loss: Loss::Shed,
                count: 1 << 33,
                from_ns: UnixNanos::from_nanos(1),
                to_ns: UnixNanos::from_nanos(2),
            }),
            HubRequest::CancelPulls,
            HubRequest::CloseAfterAcks,
            HubRequest::Disconnect,
        ];
        let client_options = ClientOptions { headers: true, ..ClientOptions::default() };
        let mut publication_batch = PublicationBatch::new();
        for round in 0..2 {
            for (token, request) in requests.iter().enumerate() {
                publication_batch.push(token as u64, client_options, request);
            }
            assert_eq!(publication_batch.len(), requests.len());
            for (token, request) in requests.iter().enumerate() {
                assert_eq!(
                    publication_batch.get(token),
                    Some((token as u64, client_options, *request)),
                    "round {round}"
                );
            }
            assert_eq!(publication_batch.get(requests.len()), None);
            publication_batch.clear();
            assert!(publication_batch.is_empty());
        }
    }

    #[test]
    fn payloads_of_blocks_stay_where_they_are_and_count_as_what_is_in_it() {
        let mut writer = BlockWriter::new(PUBLICATION_BATCH_SIZE);
        let mut publication_batch = PublicationBatch::new();
        let message = Publication {
            ingress: Ingress::Nats,
            subject: b"a",
            reply: b"r",
            headers: b"h",
            payload: b"inline".into(),
            ticket: None,
        };
        let mut ranges = Vec::new();
        for part in 0..4 {
            let range = writer.append(&[part; PUBLICATION_BATCH_SIZE / 4]).expect("there is room");
            assert!(!publication_batch.is_full());
            let payload = Payload::shared(writer.shared(), range.clone());
            publication_batch.push(
                1,
                ClientOptions::default(),
                &HubRequest::Publish(Publication { payload, ..message }),
            );
            publication_batch.push(1, ClientOptions::default(), &HubRequest::Publish(message));
            ranges.push(range);
        }
        assert!(publication_batch.is_full() && publication_batch.bytes.len() < 100);
        assert_eq!(publication_batch.blocks.len(), 1, "a block is there once");
        for (part, range) in ranges.into_iter().enumerate() {
            let Some((_, _, HubRequest::Publish(shared))) = publication_batch.get(2 * part) else {
                panic!("a message")
            };
            let (block, at) = shared.payload.block().expect("it is shared");
            assert!(block.is_same(writer.shared()) && at == range);
            assert_eq!(shared.payload.bytes(), [part as u8; PUBLICATION_BATCH_SIZE / 4]);
            assert_eq!((shared.subject, shared.reply, shared.headers), (&b"a"[..], &b"r"[..], &b"h"[..]));
            assert_eq!(
                publication_batch.get(2 * part + 1),
                Some((1, ClientOptions::default(), HubRequest::Publish(message)))
            );
        }
        assert!(!writer.reset());
        publication_batch.clear();
        assert!(writer.reset() && !publication_batch.is_full());
    }

    #[test]
    fn the_memory_of_a_burst_of_short_requests_is_given_back() {
        let mut publication_batch = PublicationBatch::new();
        for _ in 0..2 * ENTRIES_RESERVED {
            publication_batch.push(1, ClientOptions::default(), &HubRequest::Barrier);
        }
        assert!(publication_batch.entries.capacity() >= 2 * ENTRIES_RESERVED);
        publication_batch.clear();
        assert_eq!(publication_batch.entries.capacity(), ENTRIES_RESERVED);
    }

    /// A request is copied for each message, however short.
    #[test]
    fn a_request_is_no_longer_than_it_was_without_blocks() {
        assert!(size_of::<EncodedRequest>() <= 48, "{}", size_of::<EncodedRequest>());
    }
}
