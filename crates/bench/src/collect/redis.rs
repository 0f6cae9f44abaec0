//! A Redis publisher: `XADD` of one field. Answers carry no message number and arrive in order.

use std::sync::Arc;

use super::ack_window::Ack;
use super::buffer::ReceiveBuffer;
use super::client_codec::{ClientCodec, CodecEvent};
use super::collect_run::CollectRun;
use super::limits::REDIS_ANSWER_SIZE_MAX;
use super::nats::number;
use super::pattern::{Pattern, PayloadId};
use super::tally::MessageFailure;

pub(super) struct Redis {
    pattern: Arc<Pattern>,
    client: u16,
    before_payload: Vec<u8>,
}

impl Redis {
    pub(super) fn new(run: &CollectRun, client: u16) -> Redis {
        let key = &run.plan.subject;
        let before = format!(
            "*5\r\n$4\r\nXADD\r\n${}\r\n{key}\r\n$1\r\n*\r\n$1\r\np\r\n${}\r\n",
            key.len(),
            run.plan.size
        );
        Redis { pattern: Arc::clone(&run.pattern), client, before_payload: before.into_bytes() }
    }
}

impl ClientCodec for Redis {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    #[inline]
    fn publish(&mut self, counter: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before_payload);
        self.pattern.write(PayloadId { client: self.client, counter }, out);
        out.extend_from_slice(b"\r\n");
    }

    fn barrier(&mut self, _: &mut Vec<u8>) -> bool {
        false
    }

    fn pong(&mut self, _: &mut Vec<u8>) {}

    fn next(&mut self, input: &mut ReceiveBuffer) -> Option<CodecEvent> {
        let (consumed, event) = answer(input.unread())?;
        input.consume(consumed);
        Some(event)
    }

    fn expects_greeting(&self) -> bool {
        false
    }
}

/// Decodes the first answer in `unread` and its length: `$<size> CR LF <time>-<number> CR LF`, or `-<error> CR LF`.
fn answer(unread: &[u8]) -> Option<(usize, CodecEvent)> {
    let line = |from: usize| {
        let end = from + unread[from..].windows(2).position(|pair| pair == b"\r\n")?;
        Some((&unread[from..end], end + 2))
    };
    let too_long = || {
        (unread.len() > REDIS_ANSWER_SIZE_MAX)
            .then(|| (0, CodecEvent::ProtocolError("an answer without an end".to_owned())))
    };
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
    let Some((first, end)) = line(0).filter(|(_, end)| *end <= REDIS_ANSWER_SIZE_MAX) else {
        return too_long();
    };
    match first.split_first() {
        Some((b'-', text)) => {
            let event =
                CodecEvent::Failed { counter: None, failure: MessageFailure::Refused, detail: shown(text) };
            Some((end, event))
        }
        Some((b'$', size)) if number(size).is_some_and(|size| size <= 64) => {
            let (id, end) = line(end)?;
            let dash = id.iter().position(|&byte| byte == b'-');
            let position = dash.and_then(|dash| Some((number(&id[..dash])?, number(&id[dash + 1..])?)));
            let is_whole = number(size) == Some(id.len() as u64);
            let event = match position.filter(|_| is_whole) {
                Some(position) => CodecEvent::Ack(Ack { counter: None, position }),
                None => CodecEvent::Failed {
                    counter: None,
                    failure: MessageFailure::BadAcknowledgement,
                    detail: shown(id),
                },
            };
            Some((end, event))
        }
        _ => Some((end, CodecEvent::ProtocolError(format!("no answer to XADD: {:?}", shown(first))))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_is_an_acknowledgement() {
        let whole = b"$15\r\n1700000000000-3\r\n";
        let ack = CodecEvent::Ack(Ack { counter: None, position: (1_700_000_000_000, 3) });
        assert_eq!(answer(whole), Some((whole.len(), ack)));
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end]), None, "{end}");
        }
        let bad = |text: &[u8], expected: MessageFailure| {
            let Some((consumed, CodecEvent::Failed { counter: None, failure, .. })) = answer(text) else {
                panic!("{:?}", answer(text))
            };
            assert_eq!((consumed, failure), (text.len(), expected));
        };
        bad(b"-OOM command not allowed\r\n", MessageFailure::Refused);
        bad(b"$14\r\n1700000000000-3\r\n", MessageFailure::BadAcknowledgement);
        bad(b"$3\r\n1-x\r\n", MessageFailure::BadAcknowledgement);
        assert!(matches!(answer(b":1\r\n"), Some((4, CodecEvent::ProtocolError(_)))));
        assert!(matches!(answer(&[b'$'; 600]), Some((0, CodecEvent::ProtocolError(_)))));
    }
}
