//! Connections that wait for room in the port, in order of arrival.
//!
//! The token of a connection that closes while it waits remains until the next connection of the same slot replaces
//! it: at most one token per slot of the shard.

use std::collections::{BTreeMap, HashMap};

use stilling_engine::Token;

#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    /// By arrival number.
    order: BTreeMap<u64, Token>,
    /// Arrival numbers by slot.
    numbers: HashMap<u32, u64>,
    next: u64,
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Appends a connection, unless it waits already.
    pub(super) fn push(&mut self, token: Token) {
        let number = self.numbers.entry(token.index()).or_insert(self.next);
        if self.order.get(number) == Some(&token) {
            return;
        }
        self.order.remove(number);
        *number = self.next;
        self.order.insert(self.next, token);
        self.next += 1;
    }

    /// Removes the connection that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Token> {
        let (_, token) = self.order.pop_first()?;
        self.numbers.remove(&token.index());
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_ordered_and_each_slot_waits_once() {
        let mut queue = WaitQueue::default();
        for generation in 0..100 {
            for index in 0..3 {
                queue.push(Token::new(index, generation));
            }
            queue.push(Token::new(1, generation));
        }
        assert_eq!((queue.order.len(), queue.numbers.len()), (3, 3));
        queue.push(Token::new(0, 100));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [Token::new(1, 99), Token::new(2, 99), Token::new(0, 100)]);
        assert!(queue.is_empty() && queue.numbers.is_empty());
    }
}
