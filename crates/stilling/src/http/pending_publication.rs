//! Collects the outcomes of the messages of one body, and builds the response from them.

use stilling_hub::{PublishOutcome, RefusalReason};
use stilling_wire::http1::Status;

use super::publish_admission::PublishRejection;
use super::response::Response;
use crate::overview::Overview;

/// The outcomes so far.
#[derive(Debug, Default)]
pub(super) struct PendingPublication {
    /// The number of messages.
    expected: u32,
    received: u32,
    stored: u32,
    /// The number of the stream that stored the first message, and the sequences of the first and the last.
    stream: u32,
    first: u64,
    last: u64,
    is_duplicate: bool,
    /// The minimum number of subscriptions that a message reached, if no stream has the subject.
    subscriptions: u32,
    refusal: Option<RefusalReason>,
    /// The gate's reason, if the refusal is its.
    reason: String,
}

impl PendingPublication {
    pub(super) fn new(expected: u32) -> PendingPublication {
        PendingPublication { expected, ..PendingPublication::default() }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.received == self.expected
    }

    pub(super) fn record_outcome(&mut self, outcome: PublishOutcome) {
        self.received += 1;
        match outcome {
            PublishOutcome::Stored { stream, sequence, duplicate } => {
                if self.stored == 0 {
                    (self.stream, self.first) = (stream, sequence);
                }
                self.stored += 1;
                self.last = sequence;
                self.is_duplicate |= duplicate;
            }
            PublishOutcome::Forwarded { subscriptions } => {
                self.subscriptions =
                    if self.received == 1 { subscriptions } else { self.subscriptions.min(subscriptions) };
            }
            PublishOutcome::Refused(refusal) => self.refusal = self.refusal.or(Some(refusal)),
        }
    }

    /// Records that a gate rejected a message.
    pub(super) fn record_rejection(&mut self, stream: u32, reason: &[u8]) {
        if self.refusal.is_none() {
            self.reason = String::from_utf8_lossy(reason).into_owned();
        }
        self.record_outcome(PublishOutcome::Refused(RefusalReason::Gate { stream }));
    }

    /// The response to the client, once all outcomes have arrived.
    pub(super) fn response(&self, overview: &Overview) -> Response {
        self.response_with_names(|stream| {
            let counters = overview.hub.get().and_then(|hub| hub.streams.get(stream as usize));
            counters.map_or("", |stream| stream.name.as_str())
        })
    }

    /// The response; `name` maps a stream's number to its name.
    fn response_with_names<'a>(&self, name: impl Fn(u32) -> &'a str) -> Response {
        let &PendingPublication { expected, stored, first, last, .. } = self;
        if let Some(refusal) = self.refusal {
            let (status, reason) = refusal_status(refusal, name(refusal.stream()), &self.reason);
            let mut rejection = PublishRejection::new(status, reason);
            if expected > 1 {
                let what = match stored {
                    0 => format!("; none of {expected} messages were stored"),
                    _ => format!("; {stored} of {expected} messages were stored, from {first} to {last}"),
                };
                rejection.reason.to_mut().push_str(&what);
            }
            return rejection.into();
        }
        let text = if stored > 0 {
            let duplicate = if self.is_duplicate { ",\"duplicate\":true" } else { "" };
            // Names of streams are letters, digits, `-` and `_`: nothing to escape.
            format!("{{\"stream\":\"{}\",\"first\":{first},\"last\":{last}{duplicate}}}\n", name(self.stream))
        } else {
            format!(
                "{{\"stream\":null,\"subscriptions\":{},\"note\":\"no stream has this subject: the message was not stored\"}}\n",
                self.subscriptions
            )
        };
        Response::json(text).with_header("Cache-Control", "no-store")
    }
}

/// The status and the reason of a refused message, over HTTP and over WebSocket. `reason`: that of a gate.
pub(crate) fn refusal_status(refusal: RefusalReason, stream: &str, reason: &str) -> (Status, String) {
    match refusal {
        RefusalReason::Frozen { .. } => (
            Status::ServiceUnavailable,
            format!("the stream {stream} is frozen after an error until the server restarts"),
        ),
        RefusalReason::Closed { .. } => (
            Status::ServiceUnavailable,
            format!("the stream {stream} is not open yet and accepts nothing until then"),
        ),
        RefusalReason::Hung { .. } => (
            Status::ServiceUnavailable,
            format!(
                "the disk of the stream {stream} does not answer; the stream accepts nothing until it does"
            ),
        ),
        RefusalReason::NoRoom { .. } => (
            Status::ServiceUnavailable,
            format!("the disk of the stream {stream} has no room; the stream accepts nothing until it has"),
        ),
        RefusalReason::TooLarge { .. } => {
            (Status::ContentTooLarge, format!("the message is longer than the stream {stream} accepts"))
        }
        RefusalReason::WrongLastSequence { last, .. } => (
            Status::PreconditionFailed,
            format!("the last sequence of the stream {stream} is {last}, not the expected one"),
        ),
        RefusalReason::WrongStream { .. } => (
            Status::PreconditionFailed,
            format!("the subject belongs to the stream {stream}, not to the expected one"),
        ),
        RefusalReason::UnknownCondition { .. } => {
            (Status::BadRequest, format!("the stream {stream} does not support one of the conditions"))
        }
        RefusalReason::Gate { .. } => (Status::UnprocessableContent, reason.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::response::ResponseBody;
    use super::*;

    const HUNG: PublishOutcome = PublishOutcome::Refused(RefusalReason::Hung { stream: 1 });

    fn stored(sequence: u64) -> PublishOutcome {
        PublishOutcome::Stored { stream: 0, sequence, duplicate: false }
    }

    fn answer(outcomes: &[PublishOutcome]) -> (Status, String) {
        let mut published = PendingPublication::new(outcomes.len() as u32);
        for &outcome in outcomes {
            assert!(!published.is_complete());
            published.record_outcome(outcome);
        }
        assert!(published.is_complete());
        let response = published.response_with_names(|stream| ["orders", "events"][stream as usize]);
        match response.body {
            ResponseBody::Bytes(text) => (response.status, String::from_utf8(text).unwrap()),
            body => panic!("{body:?}"),
        }
    }

    #[test]
    fn stored_messages_are_answered_with_their_range() {
        let (status, text) = answer(&[stored(7), stored(8), stored(9)]);
        assert_eq!((status, text.as_str()), (Status::Ok, "{\"stream\":\"orders\",\"first\":7,\"last\":9}\n"));
        let duplicate = PublishOutcome::Stored { stream: 1, sequence: 3, duplicate: true };
        assert_eq!(
            answer(&[duplicate]).1,
            "{\"stream\":\"events\",\"first\":3,\"last\":3,\"duplicate\":true}\n"
        );
        let (_, text) = answer(&[duplicate, stored(4)]);
        assert!(text.ends_with(",\"duplicate\":true}\n"), "one of them is enough: {text}");
    }

    #[test]
    fn a_rejection_after_stored_messages_gives_their_range() {
        for refused_at in 0..3 {
            let mut outcomes = vec![stored(41), stored(42)];
            outcomes.insert(refused_at, HUNG);
            let (status, text) = answer(&outcomes);
            assert_eq!(status, Status::ServiceUnavailable);
            assert!(text.starts_with("the disk of the stream events does not answer"), "{text}");
            assert!(text.ends_with("; 2 of 3 messages were stored, from 41 to 42\n"), "{text}");
        }
    }

    #[test]
    fn a_rejection_of_several_messages_states_that_none_were_stored() {
        assert!(answer(&[HUNG, HUNG]).1.ends_with("; none of 2 messages were stored\n"));
        assert!(!answer(&[HUNG]).1.contains("stored"));
    }

    #[test]
    fn the_first_refusal_is_reported() {
        let too_large = PublishOutcome::Refused(RefusalReason::TooLarge { stream: 0 });
        assert_eq!(answer(&[stored(1), too_large, HUNG]).0, Status::ContentTooLarge);
        assert_eq!(answer(&[stored(1), HUNG, too_large]).0, Status::ServiceUnavailable);
    }

    /// The answer to a rejected message is the gate's reason.
    #[test]
    fn a_rejection_by_a_gate_is_answered_with_its_reason() {
        let mut published = PendingPublication::new(2);
        published.record_rejection(0, b"the price is 7");
        published.record_rejection(0, b"another reason");
        let response = published.response_with_names(|_| "orders");
        assert_eq!(response.status, Status::UnprocessableContent);
        let ResponseBody::Bytes(text) = response.body else { panic!("{:?}", response.body) };
        assert_eq!(text, b"the price is 7; none of 2 messages were stored\n");
    }

    #[test]
    fn the_fewest_subscriptions_of_a_message_are_reported() {
        let passed = |subscriptions| PublishOutcome::Forwarded { subscriptions };
        for (outcomes, fewest) in [
            (vec![passed(3)], 3),
            (vec![passed(3), passed(1), passed(2)], 1),
            (vec![passed(0), passed(2)], 0),
            (vec![passed(2), passed(5)], 2),
        ] {
            let (status, text) = answer(&outcomes);
            assert_eq!(status, Status::Ok);
            let begin = format!("{{\"stream\":null,\"subscriptions\":{fewest},");
            assert!(text.starts_with(&begin), "{text}");
        }
    }
}
