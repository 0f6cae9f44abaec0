//! Publishers over HTTP, NATS and WebSocket. A message is sent again until it is stored or rejected.

use std::time::Duration;

use stilling_ring::Time;

use super::decode::{self, ClientOpcode, ServerFrame};
use super::ledger::Outcome;
use super::message::{SentMessage, is_gated};
use super::world::BroadcastContext;
use crate::SplitMix64;
use crate::streams::message::MessageName;
use crate::streams::publication_queue::PublicationQueue;
use crate::streams::stepped_client::StepEnd;
use crate::streams::wire::{ClientWire, NatsInput, NatsMessage, WireError, number_of};

/// Timeout of a publication: longer than any disk hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublisherProtocol {
    Http,
    Nats,
    WebSocket,
}

#[derive(Debug)]
pub(super) struct BroadcastPublisher {
    number: u32,
    protocol: PublisherProtocol,
    stream: usize,
    queue: PublicationQueue,
    pause: Duration,
    /// The WebSocket is open.
    is_upgraded: bool,
}

impl BroadcastPublisher {
    pub(super) fn draw(
        (number, stream): (u32, usize),
        total: u32,
        pace: Duration,
        random: &mut SplitMix64,
    ) -> BroadcastPublisher {
        let protocol =
            [PublisherProtocol::Http, PublisherProtocol::Nats, PublisherProtocol::WebSocket][random.index(3)];
        let window = if protocol == PublisherProtocol::Http { 1 } else { random.between(1, 12) as usize };
        BroadcastPublisher {
            number,
            protocol,
            stream,
            queue: PublicationQueue::new(total, window, ANSWER_TIMEOUT, Time::ZERO),
            pause: Duration::from_micros(random.between(50, 2 * pace.as_micros() as u64)),
            is_upgraded: false,
        }
    }

    pub(super) fn is_on_nats(&self) -> bool {
        self.protocol == PublisherProtocol::Nats
    }

    pub(super) fn dialled(&mut self, wire: &mut ClientWire) {
        self.is_upgraded = false;
        match self.protocol {
            PublisherProtocol::Http => {}
            PublisherProtocol::Nats => {
                wire.line("CONNECT {\"verbose\":false,\"headers\":true}");
                wire.line(&format!("SUB {}* 1", self.inbox(wire.attempt)));
            }
            // No stream has this subject: the subscription receives nothing.
            PublisherProtocol::WebSocket => {
                decode::request_websocket(wire, &format!("/subscribe/quiet.{}", self.number));
            }
        }
    }

    /// Handles the loss of the connection and of its pending answers.
    pub(super) fn lost(&mut self) {
        let waiting = self.queue.take_waiting();
        waiting.into_iter().for_each(|message| self.queue.send_again(message));
    }

    fn name(&self, message: u32) -> MessageName {
        MessageName { publisher: self.number, message }
    }

    /// Prefix of its reply subjects on a connection: answers to an earlier connection are not for this one.
    fn inbox(&self, attempt: u32) -> String {
        format!("_INBOX.{}.{attempt}.", self.number)
    }

    /// Handles what has been received.
    pub(super) fn receive(
        &mut self,
        wire: &mut ClientWire,
        run: u32,
        context: &mut BroadcastContext<'_>,
    ) -> Result<(), WireError> {
        match self.protocol {
            PublisherProtocol::Http => {
                while let Some((status, body, is_kept)) = wire.next_answer()? {
                    let message = self
                        .queue
                        .first_waiting()
                        .ok_or_else(|| WireError::Wrong(format!("unexpected answer {status} {body}")))?;
                    let outcome = http_outcome(status, &body).map_err(WireError::Wrong)?;
                    self.answered((message, run), &outcome, context).map_err(WireError::Wrong)?;
                    if !is_kept {
                        return Err(WireError::Ended("the server closes".to_owned()));
                    }
                }
            }
            PublisherProtocol::Nats => {
                while let Some(input) = wire.next_nats()? {
                    if let NatsInput::Message(message) = input {
                        let answer = self.receive_nats(&message, (wire.attempt, run), context);
                        answer.map_err(WireError::Wrong)?;
                    }
                }
            }
            PublisherProtocol::WebSocket => self.receive_websocket(wire, run, context)?,
        }
        Ok(())
    }

    fn receive_nats(
        &mut self,
        NatsMessage { subject, payload, .. }: &NatsMessage,
        (attempt, run): (u32, u32),
        context: &mut BroadcastContext<'_>,
    ) -> Result<(), String> {
        let message = subject.strip_prefix(&self.inbox(attempt)).and_then(|rest| rest.parse().ok());
        let message = message.ok_or_else(|| format!("unexpected message on {subject}"))?;
        let outcome = outcome_of(&String::from_utf8_lossy(payload))?;
        self.answered((message, run), &outcome, context)
    }

    fn receive_websocket(
        &mut self,
        wire: &mut ClientWire,
        run: u32,
        context: &mut BroadcastContext<'_>,
    ) -> Result<(), WireError> {
        if !self.is_upgraded {
            match decode::next_head(wire).map_err(WireError::Wrong)? {
                None => return Ok(()),
                Some(101) => self.is_upgraded = true,
                Some(status) => return Err(WireError::Ended(format!("the server answers {status}"))),
            }
        }
        while let Some(frame) = decode::next_frame(wire).map_err(WireError::Wrong)? {
            match frame {
                ServerFrame::Text(text) => {
                    let message = number_of(&text, "ref").and_then(|number| u32::try_from(number).ok());
                    let message =
                        message.ok_or_else(|| WireError::Wrong(format!("unexpected message {text}")))?;
                    let outcome = outcome_of(&text).map_err(WireError::Wrong)?;
                    self.answered((message, run), &outcome, context).map_err(WireError::Wrong)?;
                }
                ServerFrame::Ping(payload) => {
                    let mask = (context.random.bits() as u32).to_be_bytes();
                    decode::send_frame(wire, (ClientOpcode::Pong, true), &payload, mask);
                }
                ServerFrame::Pong => {}
                ServerFrame::Close(code) => return Err(WireError::Ended(format!("closed with {code}"))),
                other => return Err(WireError::Wrong(format!("unexpected {other:?}"))),
            }
        }
        Ok(())
    }

    fn answered(
        &mut self,
        (message, run): (u32, u32),
        outcome: &Outcome,
        context: &mut BroadcastContext<'_>,
    ) -> Result<(), String> {
        self.queue.answered(message, context.now)?;
        let totals = &mut *context.totals;
        match outcome {
            Outcome::Stored { is_duplicate, .. } => {
                totals.acknowledged += 1;
                totals.duplicates += u64::from(*is_duplicate);
            }
            Outcome::Rejected(_) => totals.rejected += 1,
            Outcome::Refused => {
                totals.refused += 1;
                self.queue.send_again(message);
                let span = Duration::from_millis(context.random.between(20, 500));
                self.queue.resume_at(context.now.after(span));
            }
        }
        context.ledger.answer((self.stream, run), self.name(message), outcome)
    }

    /// Sends what may be sent.
    pub(super) fn send_more(
        &mut self,
        wire: &mut ClientWire,
        context: &mut BroadcastContext<'_>,
    ) -> Result<StepEnd, WireError> {
        self.queue.check_answers(context.now)?;
        let is_ready = match self.protocol {
            PublisherProtocol::WebSocket => self.is_upgraded,
            PublisherProtocol::Http | PublisherProtocol::Nats => wire.is_connected(),
        };
        while is_ready && let Some(message) = self.queue.next_to_send(context.now) {
            self.send(message, wire, context);
            if context.random.chance(400) {
                self.queue.resume_at(context.now.after(self.pause));
            }
        }
        Ok(self.queue.step_end(context.now))
    }

    fn send(&mut self, message: u32, wire: &mut ClientWire, context: &mut BroadcastContext<'_>) {
        let (name, stream) = (self.name(message), self.stream);
        let lots = context.ledger.known_lots(stream);
        let random = &mut *context.random;
        let sent = context.ledger.send(stream, name, || match is_gated(stream) {
            true => SentMessage::for_gate(stream, name, lots, random),
            false => SentMessage::plain(stream, name),
        });
        let id = format!("{}-{message}", self.number);
        let SentMessage { subject, payload, .. } = sent;
        match self.protocol {
            PublisherProtocol::Http => {
                wire.line(&format!("POST /publish/{subject} HTTP/1.1"));
                wire.line("Host: localhost");
                wire.line(&format!("Nats-Msg-Id: {id}"));
                wire.line(&format!("Content-Length: {}\r\n", payload.len()));
                wire.bytes(payload);
            }
            PublisherProtocol::Nats => {
                let reply = format!("{}{message}", self.inbox(wire.attempt));
                wire.publish(subject, &reply, &id, payload);
            }
            PublisherProtocol::WebSocket => {
                let payload = String::from_utf8_lossy(payload);
                let body = match is_gated(stream) {
                    true => format!("\"data\":{payload}"),
                    false => format!("\"text\":\"{payload}\""),
                };
                let text = format!(
                    "{{\"publish\":{{\"subject\":\"{subject}\",{body},\"id\":\"{id}\",\"ref\":{message}}}}}"
                );
                send_text(wire, text.as_bytes(), context.random);
            }
        }
    }
}

/// Sends a text message in one or two frames.
fn send_text(wire: &mut ClientWire, text: &[u8], random: &mut SplitMix64) {
    let mask = (random.bits() as u32).to_be_bytes();
    if random.chance(850) {
        return decode::send_frame(wire, (ClientOpcode::Text, true), text, mask);
    }
    let (first, second) = text.split_at(random.index(text.len()));
    decode::send_frame(wire, (ClientOpcode::Text, false), first, mask);
    decode::send_frame(wire, (ClientOpcode::Continuation, true), second, mask);
}

fn http_outcome(status: u16, body: &str) -> Result<Outcome, String> {
    match status {
        200 => {
            let sequence = number_of(body, "first").ok_or_else(|| format!("200 was answered with {body}"))?;
            Ok(Outcome::Stored { sequence, is_duplicate: body.contains("\"duplicate\":true") })
        }
        422 => Ok(Outcome::Rejected(body.to_owned())),
        503 | 507 => Ok(Outcome::Refused),
        _ => Err(format!("it was answered {status}: {body}")),
    }
}

/// The outcome in an answer over NATS or WebSocket.
fn outcome_of(text: &str) -> Result<Outcome, String> {
    if !text.contains("\"error\"") {
        let sequence = number_of(text, "seq").ok_or_else(|| format!("unexpected answer {text}"))?;
        return Ok(Outcome::Stored { sequence, is_duplicate: text.contains("\"duplicate\":true") });
    }
    match number_of(text, "code") {
        Some(422) => Ok(Outcome::Rejected(text.to_owned())),
        Some(503) => Ok(Outcome::Refused),
        _ => Err(format!("unexpected error {text}")),
    }
}
