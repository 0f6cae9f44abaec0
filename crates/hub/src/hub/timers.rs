//! Time-dependent work of the hub: the next check, retention, and disk stalls.

use std::time::Duration;

use super::{Hub, Now, ShardSenders};
use crate::limits::{MARKER_EVERY_NS, STALE_REGISTRATIONS_EVERY_NS};
use crate::storage::Storage;
use crate::time::SteadyNanos;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    /// Returns the maximum time that the hub may sleep before timed work must be checked.
    pub fn next_check_in(&self) -> Option<Duration> {
        let markers = self.losses.has_any_unmarked().then_some(MARKER_EVERY_NS);
        let stale = self.router.has_disconnected().then_some(STALE_REGISTRATIONS_EVERY_NS);
        let all = [
            markers,
            stale,
            self.consumers.next_check_in(),
            self.catch_ups.next_check_in(),
            self.streams.next_check_in(),
        ];
        all.into_iter().flatten().min().map(Duration::from_nanos)
    }

    /// Starts retention, one stream after the other.
    pub(super) fn retain(&mut self, now: Now) {
        if let Some((stream, retention, keep_from)) = self.streams.next_retention(now.steady_ns) {
            // Without room for the request it is repeated in the stream's next round.
            self.storage.retain(stream, retention, now.unix_ns, keep_from);
        }
    }

    /// Times the outstanding writes and collects log lines. Closing connections do not wait for a stream without room,
    /// or with a hung disk while other disks respond: they would occupy slots of new connections.
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

    /// Takes a log line about a change of a stream's condition: the reason and the remedy.
    pub fn next_notice(&mut self) -> Option<String> {
        self.losses.next_notice()
    }
}
