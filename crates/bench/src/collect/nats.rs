//! A NATS publisher. The acknowledgement of each message goes to an inbox with the message's number as its last token,
//! which identifies the message.

use std::sync::Arc;

use stilling_wire::nats::{
    Connect, Headers, NatsLimits, PING, PONG, Pub, PubAckResponse, ServerDecoder, ServerEvent, encode_sub,
};

use super::ack_window::Ack;
use super::buffer::ReceiveBuffer;
use super::client_codec::{ClientCodec, CodecEvent};
use super::collect_run::CollectRun;
use super::pattern::{Pattern, PayloadId};
use super::tally::MessageFailure;

const INBOX_SID: &[u8] = b"1";

/// Encodes the CONNECT of a load generator.
pub(crate) fn connect(out: &mut Vec<u8>) {
    let options = Connect {
        verbose: false,
        pedantic: false,
        headers: true,
        no_responders: true,
        lang: Some("rust".into()),
        version: Some(env!("CARGO_PKG_VERSION").into()),
        name: Some("stilling bench".into()),
        protocol: 1,
        ..Connect::default()
    };
    options.encode(out);
}

/// Limits under which every message is decoded whole.
pub(super) fn limits() -> NatsLimits {
    NatsLimits { whole_size_max: u32::MAX, ..NatsLimits::for_client() }
}

pub(super) struct Nats {
    pattern: Arc<Pattern>,
    client: u16,
    confirmed: bool,
    /// Prefix of message ids, if messages have ids: `<run>.<client>.`
    ids: Option<String>,
    headers: Vec<u8>,
    stream: Option<String>,
    limits: NatsLimits,
    decoder: ServerDecoder,
    /// `_INBOX.<run>.<client>.`
    inboxes: String,
    /// The same with the number of the connection, to detect answers for an earlier connection.
    inbox: Vec<u8>,
    connections: u32,
    /// `PUB <subject> <inbox>`, or `PUB <subject>` and a blank.
    before_number: Vec<u8>,
    subject: Vec<u8>,
    /// ` <size> CR LF`
    after_number: Vec<u8>,
    /// Text before the sequence in the last fully parsed, correct acknowledgement, for the fast path.
    known: Vec<u8>,
}

impl Nats {
    pub(super) fn new(run: &CollectRun, client: u16) -> Nats {
        let plan = &run.plan;
        Nats {
            pattern: Arc::clone(&run.pattern),
            client,
            confirmed: plan.confirmed,
            ids: plan.message_ids.then(|| format!("{}.{client}.", run.id)),
            headers: Vec::new(),
            stream: plan.stream.clone(),
            limits: limits(),
            decoder: ServerDecoder::default(),
            inboxes: format!("_INBOX.{}.{client}.", run.id),
            inbox: Vec::new(),
            connections: 0,
            before_number: Vec::new(),
            subject: format!("{}.{client}", plan.subject).into_bytes(),
            after_number: format!("{}{}\r\n", if plan.confirmed { " " } else { "" }, plan.size).into_bytes(),
            known: Vec::new(),
        }
    }

    fn publish_with_id(&mut self, counter: u64, out: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        let number = digits.format(counter).as_bytes();
        self.headers.clear();
        for piece in [
            b"NATS/1.0\r\nNats-Msg-Id: ",
            self.ids.as_deref().unwrap_or_default().as_bytes(),
            number,
            b"\r\n\r\n",
        ] {
            self.headers.extend_from_slice(piece);
        }
        let reply = if self.confirmed { [&self.inbox[..], number].concat() } else { Vec::new() };
        let mut payload = Vec::with_capacity(self.pattern.size());
        self.pattern.write(PayloadId { client: self.client, counter }, &mut payload);
        let reply = self.confirmed.then_some(&reply[..]);
        Pub { subject: &self.subject, reply, headers: &self.headers, payload: &payload }.encode(out);
    }

    /// Classifies the answer to message `counter`.
    fn verdict(&mut self, counter: u64, headers: &[u8], payload: &[u8]) -> CodecEvent {
        let answer = || String::from_utf8_lossy(payload).into_owned();
        let bad = |failure, detail| CodecEvent::Failed { counter: Some(counter), failure, detail };
        if let Some(sequence) = after(payload, &self.known).filter(|_| headers.is_empty()) {
            return CodecEvent::Ack(Ack { counter: Some(counter), position: (0, sequence) });
        }
        let status = Headers::parse(headers).ok().and_then(|headers| headers.status());
        if let Some(status) = status {
            return bad(MessageFailure::Refused, format!("status {} to message {counter}", status.code));
        }
        match PubAckResponse::parse(payload) {
            Err(error) => bad(MessageFailure::BadAcknowledgement, format!("{error} in {:?}", answer())),
            Ok(PubAckResponse::Rejected(refusal)) => {
                bad(MessageFailure::Refused, format!("{} {}", refusal.code, refusal.description))
            }
            Ok(PubAckResponse::Stored(ack))
                if self.stream.as_deref().is_some_and(|name| name != ack.stream) =>
            {
                bad(MessageFailure::WrongStream, answer())
            }
            Ok(PubAckResponse::Stored(ack)) if ack.duplicate && self.ids.is_some() => {
                CodecEvent::Ack(Ack { counter: Some(counter), position: (0, ack.sequence) })
            }
            Ok(PubAckResponse::Stored(ack)) if ack.duplicate => bad(MessageFailure::FalseDuplicate, answer()),
            Ok(PubAckResponse::Stored(ack)) => {
                let digits = payload.iter().rev().skip(1).take_while(|byte| byte.is_ascii_digit()).count();
                let known = &payload[..payload.len().saturating_sub(1 + digits)];
                if known.trim_ascii_end().ends_with(b"\"seq\":") {
                    known.clone_into(&mut self.known);
                }
                CodecEvent::Ack(Ack { counter: Some(counter), position: (0, ack.sequence) })
            }
        }
    }
}

/// Fast path: the sequence of an acknowledgement that begins with `known`, as an earlier one did.
fn after(payload: &[u8], known: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(known)?.strip_suffix(b"}")?;
    (!known.is_empty()).then(|| number(digits)).flatten().filter(|&sequence| sequence > 0)
}

/// Parses up to 18 decimal digits.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |number: u64, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

impl ClientCodec for Nats {
    fn begin(&mut self, out: &mut Vec<u8>) {
        self.decoder = ServerDecoder::default();
        self.connections += 1;
        self.inbox = format!("{}{}.", self.inboxes, self.connections).into_bytes();
        self.before_number = [&b"PUB "[..], &self.subject, b" "].concat();
        connect(out);
        if self.confirmed {
            self.before_number.extend_from_slice(&self.inbox);
            encode_sub(out, &[&self.inbox[..], b"*"].concat(), None, INBOX_SID);
        }
    }

    #[inline]
    fn publish(&mut self, counter: u64, out: &mut Vec<u8>) {
        if self.ids.is_some() {
            return self.publish_with_id(counter, out);
        }
        out.extend_from_slice(&self.before_number);
        if self.confirmed {
            out.extend_from_slice(itoa::Buffer::new().format(counter).as_bytes());
        }
        out.extend_from_slice(&self.after_number);
        self.pattern.write(PayloadId { client: self.client, counter }, out);
        out.extend_from_slice(b"\r\n");
    }

    fn barrier(&mut self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(PING);
        true
    }

    fn pong(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(PONG);
    }

    fn next(&mut self, input: &mut ReceiveBuffer) -> Option<CodecEvent> {
        let (consumed, event) = {
            let step = match self.decoder.decode(&self.limits, input.unread()) {
                Ok(step) => step,
                Err(error) => return Some(CodecEvent::ProtocolError(error.to_string())),
            };
            let event = match step.event {
                ServerEvent::NeedMore => None,
                ServerEvent::Message(message) => {
                    let counter = message.subject.strip_prefix(&self.inbox[..]).and_then(number);
                    Some(match counter {
                        Some(counter) => self.verdict(counter, message.headers, message.payload),
                        None => CodecEvent::Unmatched {
                            failure: MessageFailure::BadAcknowledgement,
                            detail: format!("a message to {}", String::from_utf8_lossy(message.subject)),
                        },
                    })
                }
                ServerEvent::Ping => Some(CodecEvent::Ping),
                ServerEvent::Pong => Some(CodecEvent::Pong),
                ServerEvent::Info(_) | ServerEvent::Ok => Some(CodecEvent::Ignored),
                ServerEvent::Err(text) => {
                    Some(CodecEvent::ProtocolError(String::from_utf8_lossy(text).into_owned()))
                }
                // With these limits messages are never split.
                ServerEvent::MessageStart(_) | ServerEvent::Piece(_) | ServerEvent::MessageEnd => {
                    Some(CodecEvent::ProtocolError("a message in pieces".to_owned()))
                }
            };
            (step.consumed, event)
        };
        input.consume(consumed);
        event
    }

    fn expects_greeting(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::CollectPlan;

    fn nats() -> Nats {
        let run = CollectRun::new(CollectPlan::new(([127, 0, 0, 1], 9).into()));
        let mut nats = Nats::new(&run, 3);
        nats.begin(&mut Vec::new());
        nats
    }

    #[test]
    fn an_acknowledgement_counts_only_if_every_part_of_it_is_right() {
        let mut nats = nats();
        let ack =
            |counter, sequence| CodecEvent::Ack(Ack { counter: Some(counter), position: (0, sequence) });
        let mut check = |payload: &str, expected: Result<u64, MessageFailure>| match (
            nats.verdict(7, b"", payload.as_bytes()),
            expected,
        ) {
            (event, Ok(sequence)) => assert_eq!(event, ack(7, sequence), "{payload}"),
            (CodecEvent::Failed { counter: Some(7), failure, .. }, Err(expected)) => {
                assert_eq!(failure, expected, "{payload}");
            }
            (event, _) => panic!("{payload}: {event:?}"),
        };
        // Twice: the second one takes the fast path of a known form.
        for _ in 0..2 {
            check(r#"{"stream":"events", "seq":41}"#, Ok(41));
            check(r#"{"stream":"other", "seq":42}"#, Err(MessageFailure::WrongStream));
            check(r#"{"stream":"events", "seq":42,"duplicate":true}"#, Err(MessageFailure::FalseDuplicate));
            check(r#"{"stream":"events", "seq":0}"#, Err(MessageFailure::BadAcknowledgement));
            check(r#"{"stream":"events", "seq":4x}"#, Err(MessageFailure::BadAcknowledgement));
            check(r#"{"stream":"events", "seq":43} "#, Ok(43));
            check("", Err(MessageFailure::BadAcknowledgement));
            check(r#"{"error":{"code":503,"description":"full"},"seq":0}"#, Err(MessageFailure::Refused));
        }
        let event = nats.verdict(8, b"NATS/1.0 503\r\n\r\n", b"");
        assert!(matches!(event, CodecEvent::Failed { failure: MessageFailure::Refused, .. }), "{event:?}");
    }

    #[test]
    fn what_comes_for_an_earlier_connection_is_not_for_this_one() {
        let mut nats = nats();
        let mut line = b"MSG ".to_vec();
        line.extend_from_slice(&nats.inbox);
        line.extend_from_slice(b"5 1 29\r\n{\"stream\":\"events\", \"seq\":41}\r\n");
        let mut buffer = ReceiveBuffer::default();
        buffer.fill(&mut &line[..]).expect("it reads");
        let event = nats.next(&mut buffer);
        assert_eq!(event, Some(CodecEvent::Ack(Ack { counter: Some(5), position: (0, 41) })));
        nats.begin(&mut Vec::new());
        buffer.fill(&mut &line[..]).expect("it reads");
        assert!(matches!(nats.next(&mut buffer), Some(CodecEvent::Unmatched { .. })));
        assert_eq!(nats.next(&mut buffer), None);
    }
}
