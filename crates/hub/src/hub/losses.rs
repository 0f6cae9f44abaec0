//! What was lost before the hub: counted at once, and told in the stream that it would have been in.
//!
//! A reader of a stream is to see that something is missing, where it is missing. A marker is a record of its own kind:
//!
//! ```text
//!   1 <13>a   2 <13>b   3 {"lost":120,"reason":"shed","from":"2026-…","to":"2026-…"}   4 <11>c
//! ```
//!
//! Markers must not become a flood of their own: a stream gets one at once and the next a second later, with the sum.

use stilling_journal::{Kind, Record};

use super::api::time;
use super::unsent::Visible;
use super::{Hub, Now, Outlets};
use crate::intake::Lost;
use crate::limits::MARKER_EVERY_NS;
use crate::storage::Storage;
use crate::stream::{Durability, LostBefore};
use crate::subscriptions::STREAMS;

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Counts what was lost, and has the stream of its subject marked.
    pub(super) fn lose(&mut self, lost: &Lost<'_>, now: Now) {
        let &Lost { door, subject, loss, count, from_ns, to_ns } = lost;
        self.ledger.add(door, loss, count);
        if subject.is_empty() {
            return;
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        self.interest.find(subject, &mut found);
        let number = found.iter().find(|&&id| id >= STREAMS).map(|&id| (id - STREAMS) as usize);
        self.found = found;
        let Some(number) = number else { return };
        let sum = self.streams[number].lost.get_or_insert_with(|| LostBefore {
            subject: subject.to_vec(),
            loss,
            count: 0,
            from_ns,
            to_ns,
        });
        sum.count += count;
        sum.from_ns = sum.from_ns.min(from_ns);
        sum.to_ns = sum.to_ns.max(to_ns);
        self.write_marker(number, now);
    }

    /// Writes the markers whose time has come.
    pub(super) fn mark_losses(&mut self, now: Now) {
        for number in 0..self.streams.len() {
            if self.streams[number].lost.is_some() {
                self.write_marker(number, now);
            }
        }
    }

    fn write_marker(&mut self, number: usize, now: Now) {
        let stream = &mut self.streams[number];
        if stream.marked_ns.is_some_and(|last| now.steady_ns < last.saturating_add(MARKER_EVERY_NS)) {
            return;
        }
        let Some(lost) = stream.lost.take() else { return };
        if stream.frozen.is_some() || stream.config.durability == Durability::None {
            // Nobody reads it again; the ledger has the count.
            return;
        }
        let text = format!(
            "{{\"lost\":{},\"reason\":\"{}\",\"from\":\"{}\",\"to\":\"{}\"}}",
            lost.count,
            lost.loss.name(),
            time(lost.from_ns),
            time(lost.to_ns)
        );
        let record =
            Record { kind: Kind::Loss, subject: &lost.subject, headers: b"", payload: text.as_bytes() };
        let is_on_disk = stream.config.durability == Durability::Disk;
        let outcome = match is_on_disk {
            true => self.fill(number, &record, now.unix_ns),
            false => Ok(stream.keep(&record, now.unix_ns, self.memory_batch_size)),
        };
        let stream = &mut self.streams[number];
        match outcome {
            // No batch is free: a little later.
            Err(_) => stream.lost = Some(lost),
            // It is short, so it always fits; the count stands in the ledger all the same.
            Ok(Err(_)) => {}
            Ok(Ok(())) => {
                stream.marked_ns = Some(now.steady_ns);
                let sequence = stream.next;
                stream.next += 1;
                if !is_on_disk {
                    stream.visible = sequence;
                    let visible =
                        Visible { stream: number, sequence, time_ns: now.unix_ns, now_ns: now.steady_ns };
                    self.follow(visible, &record);
                }
            }
        }
    }
}
