//! Loss markers: records of losses in the stream that would have contained the messages.

use stilling_journal::{Record, RecordKind};

use super::{Hub, Now, ShardSenders};
use crate::fan_out::VisibleRecord;
use crate::payload::Payload;
use crate::publication_batch::LossReport;
use crate::storage::Storage;
use crate::stream::Durability;
use crate::stream_writer::ApplyError;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    /// Counts losses, and schedules a marker in the stream of their subject.
    pub(super) fn record_loss(&mut self, lost: &LossReport<'_>, now: Now) {
        let &LossReport { ingress, subject, loss, count, .. } = lost;
        self.losses.count(ingress, loss, count);
        if subject.is_empty() {
            return;
        }
        if let Some(number) = self.router.stream_of(subject) {
            self.losses.add_to_marker(number, lost);
            self.write_marker(number, now);
        }
    }

    pub(super) fn write_due_markers(&mut self, now: Now) {
        for number in 0..self.streams.len() {
            if self.losses.has_unmarked(number) {
                self.write_marker(number, now);
            }
        }
    }

    fn write_marker(&mut self, number: usize, now: Now) {
        let Some(marker) = self.losses.take_due_marker(number, now.steady_ns) else { return };
        let stream = &mut self.streams[number];
        if stream.frozen.is_some() || stream.config.durability == Durability::None {
            // Nothing could read the marker; the losses are counted anyway.
            return;
        }
        let text = marker.payload();
        let (subject, payload) = (marker.subject(), Payload::from(text.as_bytes()));
        let record = Record { kind: RecordKind::Loss, subject, headers: b"", payload };
        let is_on_disk = stream.config.durability == Durability::Disk;
        match stream.apply(&record, None, &mut self.storage, now) {
            // Retried later.
            Err(ApplyError::NoBatch) => self.losses.put_marker_back(number, marker),
            // A marker is short and always fits; the losses are counted anyway.
            Err(ApplyError::TooLarge) => {}
            Ok(sequence) => {
                self.losses.note_marked(number, now.steady_ns);
                if !is_on_disk {
                    let visible = VisibleRecord {
                        stream: number,
                        sequence,
                        time_ns: now.unix_ns,
                        now_ns: now.steady_ns,
                    };
                    self.delivery().follow(visible, &record);
                }
            }
        }
    }
}
