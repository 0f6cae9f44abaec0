//! What depends on time alone: when the hub has to look again, retention, and disks.

use std::time::Duration;

use super::{Hub, Now, Outlets};
use crate::limits::{DEPARTED_REGISTRATIONS_EVERY_NS, MARKER_EVERY_NS};
use crate::storage::Storage;
use crate::time::SteadyNanos;

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// The longest time that the hub may sleep before something that depends on time has to be checked.
    pub fn next_check_in(&self) -> Option<Duration> {
        let markers = self.losses.has_any_unmarked().then_some(MARKER_EVERY_NS);
        let left = self.router.has_left().then_some(DEPARTED_REGISTRATIONS_EVERY_NS);
        let all = [markers, left, self.consumers.next_check_in(), self.streams.next_check_in()];
        all.into_iter().flatten().min().map(Duration::from_nanos)
    }

    /// Starts retention, of one stream after the other.
    pub(super) fn retain(&mut self, now: Now) {
        if let Some((stream, retention)) = self.streams.next_retention(now.steady_ns) {
            // Without room it is asked for again when its turn comes.
            self.storage.retain(stream, retention, now.unix_ns);
        }
    }

    /// Times the writes that are under way, and collects log lines. Connections that are to be closed do not wait for a stream
    /// without room, or whose disk hangs while others answer: they would keep the places of those that come.
    pub(super) fn check_disk_stalls(&mut self, now_ns: SteadyNanos) {
        for number in 0..self.streams.len() {
            if self.streams[number].watch_disk(now_ns) {
                for client in self.streams[number].take_closing() {
                    self.note_answered(client);
                }
            }
            let stream = &mut self.streams[number];
            while self.losses.has_room_for_notice()
                && let Some(line) = stream.health.next_line(&stream.config.name, now_ns)
            {
                self.losses.push_notice(line);
            }
        }
    }

    /// A line for the log: a change of a stream's condition, why, and what to do.
    pub fn next_notice(&mut self) -> Option<String> {
        self.losses.next_notice()
    }
}
