//! Message ids of the server, to recognise its duplicates (RFC 7252 §4.5).

use std::collections::VecDeque;
use std::time::Instant;

use stilling_wire::coap::MessageId;

use super::limits::{EXCHANGE_LIFETIME, RECENT_IDS_MAX};

#[derive(Debug, Default)]
pub(crate) struct RecentIds {
    ids: VecDeque<(MessageId, Instant)>,
}

impl RecentIds {
    /// Notes an id. Returns whether it is new.
    pub(crate) fn insert(&mut self, id: MessageId, now: Instant) -> bool {
        while self.ids.front().is_some_and(|(_, at)| now.duration_since(*at) >= EXCHANGE_LIFETIME) {
            self.ids.pop_front();
        }
        if self.ids.iter().any(|(seen, _)| *seen == id) {
            return false;
        }
        if self.ids.len() == RECENT_IDS_MAX {
            self.ids.pop_front();
        }
        self.ids.push_back((id, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_duplicate_for_the_lifetime_of_an_exchange() {
        let start = Instant::now();
        let mut recent = RecentIds::default();
        assert!(recent.insert(7, start));
        assert!(!recent.insert(7, start + EXCHANGE_LIFETIME / 2));
        assert!(recent.insert(7, start + EXCHANGE_LIFETIME));
    }

    #[test]
    fn the_oldest_id_makes_room() {
        let start = Instant::now();
        let mut recent = RecentIds::default();
        for id in 0..=RECENT_IDS_MAX as u16 {
            assert!(recent.insert(id, start));
        }
        assert_eq!(recent.ids.len(), RECENT_IDS_MAX);
        assert!(!recent.insert(1, start), "the second oldest remains");
        assert!(recent.insert(0, start), "the oldest was forgotten");
    }
}
