//! Losses: counts, pending markers of streams, and pending log lines.
//!
//! A loss marker shows the reader of a stream where messages are missing. It is a record of its own kind:
//!
//! ```text
//!   1 <13>a   2 <13>b   3 {"lost":120,"reason":"shed","from":"2026-…","to":"2026-…"}   4 <11>c
//! ```
//!
//! Markers are rate-limited: a stream gets one at once and the next a second later, with the sum.

use std::collections::VecDeque;

use crate::limits::{MARKER_EVERY_NS, NOTICES_MAX};
use crate::loss::Loss;
use crate::loss_counts::LossCounts;
use crate::publication_batch::{Ingress, LossReport};
use crate::time::{SteadyNanos, UnixNanos, rfc3339};

#[derive(Debug)]
pub(crate) struct LossTracker {
    loss_counts: LossCounts,
    markers: Vec<LossMarkers>,
    notices: VecDeque<String>,
}

#[derive(Debug, Default)]
struct LossMarkers {
    next: Option<LossMarker>,
    last_ns: Option<SteadyNanos>,
}

/// Content of a marker: losses of messages that belong to a stream.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct LossMarker {
    /// Subject of the first lost message.
    subject: Vec<u8>,
    loss: Loss,
    count: u64,
    from_ns: UnixNanos,
    to_ns: UnixNanos,
}

impl LossMarker {
    pub(crate) fn subject(&self) -> &[u8] {
        &self.subject
    }

    pub(crate) fn payload(&self) -> String {
        format!(
            "{{\"lost\":{},\"reason\":\"{}\",\"from\":\"{}\",\"to\":\"{}\"}}",
            self.count,
            self.loss.name(),
            rfc3339(self.from_ns),
            rfc3339(self.to_ns)
        )
    }
}

impl LossTracker {
    pub(crate) fn new(streams: usize) -> LossTracker {
        let markers = (0..streams).map(|_| LossMarkers::default()).collect();
        LossTracker { loss_counts: LossCounts::default(), markers, notices: VecDeque::new() }
    }

    pub(crate) fn loss_counts(&self) -> &LossCounts {
        &self.loss_counts
    }

    pub(crate) fn count(&mut self, ingress: Ingress, loss: Loss, count: u64) {
        self.loss_counts.add(ingress, loss, count);
    }

    /// Adds losses, already counted, to the next marker of a stream.
    pub(crate) fn add_to_marker(&mut self, stream: usize, lost: &LossReport<'_>) {
        let &LossReport { subject, loss, count, from_ns, to_ns, .. } = lost;
        let sum = self.markers[stream].next.get_or_insert_with(|| LossMarker {
            subject: subject.to_vec(),
            loss,
            count: 0,
            from_ns,
            to_ns,
        });
        sum.count += count;
        sum.from_ns = sum.from_ns.min(from_ns);
        sum.to_ns = sum.to_ns.max(to_ns);
    }

    pub(crate) fn has_unmarked(&self, stream: usize) -> bool {
        self.markers[stream].next.is_some()
    }

    pub(crate) fn has_any_unmarked(&self) -> bool {
        self.markers.iter().any(|markers| markers.next.is_some())
    }

    /// Takes the next marker of a stream, if there is one and the minimum interval has passed.
    pub(crate) fn take_due_marker(&mut self, stream: usize, now_ns: SteadyNanos) -> Option<LossMarker> {
        let markers = &mut self.markers[stream];
        if markers.last_ns.is_some_and(|last| now_ns < last.after(MARKER_EVERY_NS)) {
            return None;
        }
        markers.next.take()
    }

    pub(crate) fn put_marker_back(&mut self, stream: usize, marker: LossMarker) {
        self.markers[stream].next = Some(marker);
    }

    pub(crate) fn note_marked(&mut self, stream: usize, now_ns: SteadyNanos) {
        self.markers[stream].last_ns = Some(now_ns);
    }

    pub(crate) fn has_room_for_notice(&self) -> bool {
        self.notices.len() < NOTICES_MAX
    }

    /// Appends a log line; requires [room](Self::has_room_for_notice).
    pub(crate) fn push_notice(&mut self, line: String) {
        self.notices.push_back(line);
    }

    pub(crate) fn next_notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> SteadyNanos {
        SteadyNanos::from_nanos(nanos)
    }

    fn lost(subject: &str, count: u64, from_ns: u64, to_ns: u64) -> LossReport<'_> {
        let (subject, loss) = (subject.as_bytes(), Loss::Shed);
        let [from_ns, to_ns] = [from_ns, to_ns].map(UnixNanos::from_nanos);
        LossReport { ingress: Ingress::Syslog, subject, loss, count, from_ns, to_ns }
    }

    #[test]
    fn a_marker_has_the_sum_of_what_was_lost_since_the_last_one() {
        let mut losses = LossTracker::new(2);
        assert!(!losses.has_any_unmarked());
        losses.add_to_marker(1, &lost("a", 2, 3_000_000_000, 4_000_000_000));
        losses.add_to_marker(1, &lost("b", 5, 1_000_000_000, 2_000_000_000));
        assert!(losses.has_unmarked(1) && !losses.has_unmarked(0) && losses.has_any_unmarked());
        assert_eq!(losses.take_due_marker(0, at(7)), None);
        let marker = losses.take_due_marker(1, at(7)).expect("the first is due at once");
        assert_eq!(marker.subject(), b"a");
        assert_eq!(
            marker.payload(),
            r#"{"lost":7,"reason":"shed","from":"1970-01-01T00:00:01Z","to":"1970-01-01T00:00:04Z"}"#
        );
        assert!(!losses.has_any_unmarked());
        losses.put_marker_back(1, marker);
        losses.add_to_marker(1, &lost("c", 1, 0, 0));
        let again = losses.take_due_marker(1, at(7)).map(|marker| marker.count);
        assert_eq!(again, Some(8), "one that found no room is not lost");
    }

    #[test]
    fn the_next_marker_of_a_stream_waits_for_a_second() {
        let mut losses = LossTracker::new(2);
        losses.note_marked(0, at(5));
        for stream in [0, 1] {
            losses.add_to_marker(stream, &lost("a", 1, 0, 0));
        }
        assert_eq!(losses.take_due_marker(0, at(4 + MARKER_EVERY_NS)), None);
        assert!(losses.has_unmarked(0), "it stays");
        assert!(losses.take_due_marker(1, at(4)).is_some(), "the other stream has its own time");
        assert!(losses.take_due_marker(0, at(5 + MARKER_EVERY_NS)).is_some());
    }

    #[test]
    fn losses_are_counted_and_log_lines_wait_in_order() {
        let mut losses = LossTracker::new(0);
        losses.count(Ingress::Http, Loss::Hung, 3);
        assert_eq!(
            (losses.loss_counts().count(Ingress::Http, Loss::Hung), losses.loss_counts().total()),
            (3, 3)
        );
        for number in 0..NOTICES_MAX {
            assert!(losses.has_room_for_notice());
            losses.push_notice(number.to_string());
        }
        assert!(!losses.has_room_for_notice());
        assert_eq!(losses.next_notice().as_deref(), Some("0"));
        assert!(losses.has_room_for_notice());
    }
}
