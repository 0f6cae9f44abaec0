//! Message ids of the client: none is used twice within the lifetime of an exchange (RFC 7252 §4.4).

use std::time::Instant;

use stilling_wire::coap::MessageId;

use super::limits::{EXCHANGE_LIFETIME, MESSAGE_ID_GROUPS};

/// Ids per group.
const GROUP_SIZE: usize = 65_536 / MESSAGE_ID_GROUPS;

#[derive(Debug)]
pub(crate) struct MessageIds {
    next: MessageId,
    /// The last use of each group of neighbouring ids.
    last_used: [Option<Instant>; MESSAGE_ID_GROUPS],
    /// The group in use, whose time is that of this round.
    current: usize,
}

/// All ids were used within the lifetime of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IdsExhausted;

impl MessageIds {
    pub(crate) fn new(first: MessageId) -> MessageIds {
        MessageIds { next: first, last_used: [None; MESSAGE_ID_GROUPS], current: group(first) }
    }

    pub(crate) fn next(&mut self, now: Instant) -> Result<MessageId, IdsExhausted> {
        let group = group(self.next);
        let is_entered = group != self.current;
        if is_entered && self.last_used[group].is_some_and(|at| now.duration_since(at) < EXCHANGE_LIFETIME) {
            return Err(IdsExhausted);
        }
        self.current = group;
        self.last_used[group] = Some(now);
        let id = self.next;
        self.next = id.wrapping_add(1);
        Ok(id)
    }
}

fn group(id: MessageId) -> usize {
    usize::from(id) / GROUP_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_is_repeated_within_the_lifetime() {
        let start = Instant::now();
        let mut ids = MessageIds::new(60_000);
        let used: Vec<MessageId> = std::iter::from_fn(|| ids.next(start).ok()).collect();
        assert!(used.len() > 65_536 - GROUP_SIZE && used.len() <= 65_536, "{}", used.len());
        let mut sorted = used.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), used.len());
        assert!(ids.next(start + EXCHANGE_LIFETIME / 2).is_err());
        assert!(ids.next(start + EXCHANGE_LIFETIME).is_ok());
    }
}
