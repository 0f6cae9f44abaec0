//! What became of the messages of one body: the hub's verdicts, and the answer to the client that they come to.

use stilling_hub::{Refusal, Verdict};
use stilling_wire::http1::Status;

use super::admission::Objection;
use super::response::Response;
use crate::overview::Overview;

/// The messages of one body that the hub has.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Verdicts that are to come in all.
    expected: u32,
    told: u32,
    stored: u32,
    /// The stream that took them, by its number, and the sequences of the first and the last.
    stream: u32,
    first: u64,
    last: u64,
    is_duplicate: bool,
    /// The fewest subscriptions that one of them went to, if no stream wants the subject.
    subscriptions: u32,
    /// Why the first was not taken that was not.
    refusal: Option<Refusal>,
}

impl Published {
    pub(super) fn new(expected: u32) -> Published {
        Published { expected, ..Published::default() }
    }

    /// Whether the hub has given all verdicts.
    pub(super) fn is_complete(&self) -> bool {
        self.told == self.expected
    }

    pub(super) fn note(&mut self, verdict: Verdict) {
        self.told += 1;
        match verdict {
            Verdict::Stored { stream, sequence, duplicate } => {
                if self.stored == 0 {
                    (self.stream, self.first) = (stream, sequence);
                }
                self.stored += 1;
                self.last = sequence;
                self.is_duplicate |= duplicate;
            }
            Verdict::Passed { subscriptions } => {
                self.subscriptions =
                    if self.told == 1 { subscriptions } else { self.subscriptions.min(subscriptions) };
            }
            Verdict::Refused(refusal) => self.refusal = self.refusal.or(Some(refusal)),
        }
    }

    /// The answer to the client, once all verdicts are there.
    pub(super) fn response(&self, see: &Overview) -> Response {
        let name = |stream: u32| {
            let counters = see.hub.get().and_then(|hub| hub.streams.get(stream as usize));
            counters.map_or("", |stream| stream.name.as_str())
        };
        let &Published { expected, stored, first, last, .. } = self;
        if let Some(refusal) = self.refusal {
            let mut objection = objection(refusal, name(refusal.stream()));
            if expected > 1 {
                let what = match stored {
                    0 => format!("; none of {expected} messages were stored"),
                    _ => format!("; {stored} of {expected} messages were stored, from {first} to {last}"),
                };
                objection.why.to_mut().push_str(&what);
            }
            return objection.into();
        }
        let text = if stored > 0 {
            let duplicate = if self.is_duplicate { ",\"duplicate\":true" } else { "" };
            // Names of streams are letters, digits, `-` and `_`.
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

fn objection(refusal: Refusal, stream: &str) -> Objection {
    match refusal {
        Refusal::Frozen { .. } => Objection::new(
            Status::ServiceUnavailable,
            format!(
                "the stream {stream} is frozen after an error of its disk, until the server starts again"
            ),
        ),
        Refusal::Closed { .. } => Objection::new(
            Status::ServiceUnavailable,
            format!("the stream {stream} is not open yet; nothing is taken before it is"),
        ),
        Refusal::Hung { .. } => Objection::new(
            Status::ServiceUnavailable,
            format!("the disk of the stream {stream} does not answer; nothing more is taken before it does"),
        ),
        Refusal::NoRoom { .. } => Objection::new(
            Status::ServiceUnavailable,
            format!("the disk of the stream {stream} has no room; nothing more is taken before it has"),
        ),
        Refusal::TooLarge { .. } => Objection::new(
            Status::ContentTooLarge,
            format!("the message is longer than the stream {stream} takes"),
        ),
        Refusal::WrongLastSequence { last, .. } => Objection::new(
            Status::PreconditionFailed,
            format!("the last sequence of the stream {stream} is {last}, not the expected one"),
        ),
        Refusal::WrongStream { .. } => Objection::new(
            Status::PreconditionFailed,
            format!("the subject belongs to the stream {stream}, not to the expected one"),
        ),
        Refusal::UnknownCondition { .. } => Objection::new(
            Status::BadRequest,
            format!("the stream {stream} does not know one of the conditions"),
        ),
    }
}
