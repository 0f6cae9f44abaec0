//! A syslog publisher over TCP: RFC 5424 messages in octet-counted frames (RFC 6587 §3.4.1), with the payload as the
//! message's text. The protocol has no answers.

use std::sync::Arc;

use super::buffer::ReceiveBuffer;
use super::client_codec::{ClientCodec, CodecEvent};
use super::collect_run::CollectRun;
use super::pattern::{Pattern, PayloadId};

/// Facility local0, severity info; no time, no process, no structured data.
const HEAD: &str = "<134>1 - - stilling-bench - - - ";

pub(super) struct Syslog {
    pattern: Arc<Pattern>,
    client: u16,
    before_payload: Vec<u8>,
}

impl Syslog {
    pub(super) fn new(run: &CollectRun, client: u16) -> Syslog {
        let before = format!("{} {HEAD}", HEAD.len() + run.plan.size as usize);
        Syslog { pattern: Arc::clone(&run.pattern), client, before_payload: before.into_bytes() }
    }
}

impl ClientCodec for Syslog {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    #[inline]
    fn publish(&mut self, counter: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before_payload);
        self.pattern.write(PayloadId { client: self.client, counter }, out);
    }

    fn barrier(&mut self, _: &mut Vec<u8>) -> bool {
        false
    }

    fn pong(&mut self, _: &mut Vec<u8>) {}

    fn next(&mut self, input: &mut ReceiveBuffer) -> Option<CodecEvent> {
        let unread = input.unread().len();
        input.consume(unread);
        (unread > 0).then(|| CodecEvent::ProtocolError("an answer over syslog, which has none".to_owned()))
    }

    fn expects_greeting(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use stilling_wire::syslog;

    use super::*;
    use crate::collect::{CollectPlan, CollectProtocol};

    #[test]
    fn a_frame_counts_its_octets() {
        let plan = CollectPlan {
            size: 20,
            protocol: CollectProtocol::Syslog,
            ..CollectPlan::new(([127, 0, 0, 1], 9).into())
        };
        let run = CollectRun::new(plan);
        let mut out = Vec::new();
        Syslog::new(&run, 1).publish(2, &mut out);
        let text = String::from_utf8(out).expect("it is text");
        let (size, message) = text.split_once(' ').expect("a count comes first");
        assert_eq!(size.parse(), Ok(message.len()));
        let record = syslog::parse(message.as_bytes());
        assert_eq!(run.pattern.check(record.message), Some(PayloadId { client: 1, counter: 2 }));
    }
}
