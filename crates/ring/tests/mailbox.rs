//! The mailbox against an oracle, between two real threads, and when an end is dropped.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use stilling_ring::{MailboxFull, mailbox};

#[derive(Clone, Copy, Debug)]
enum MailboxOp {
    Push,
    PushWith,
    Publish,
    Pop,
    Peek,
}

fn op() -> impl Strategy<Value = MailboxOp> {
    prop_oneof![
        4 => Just(MailboxOp::Push),
        2 => Just(MailboxOp::PushWith),
        3 => Just(MailboxOp::Publish),
        5 => Just(MailboxOp::Pop),
        1 => Just(MailboxOp::Peek),
    ]
}

proptest! {
    /// Row 4.3: order, bounds, visibility and the drop of every item match a plain queue, step by step.
    #[test]
    fn a_mailbox_behaves_like_a_plain_queue(capacity in 1_usize..9, ops in prop::collection::vec(op(), 0..200)) {
        let witness = Arc::new(());
        let capacity_real = capacity.next_power_of_two();
        let (mut sender, mut receiver) = mailbox::<(u64, Arc<()>)>(capacity);
        prop_assert_eq!(sender.capacity(), capacity_real);
        let mut hidden: VecDeque<u64> = VecDeque::new();
        let mut visible: VecDeque<u64> = VecDeque::new();
        let (mut pushed, mut popped) = (0_u64, 0_u64);
        for op in ops {
            let full = hidden.len() + visible.len() == capacity_real;
            match op {
                MailboxOp::Push => {
                    match sender.push((pushed, Arc::clone(&witness))) {
                        Ok(()) => prop_assert!(!full),
                        Err(MailboxFull((item, _))) => {
                            prop_assert!(full);
                            prop_assert_eq!(item, pushed);
                        }
                    }
                }
                MailboxOp::PushWith => {
                    let mut called = false;
                    let done = sender.push_with(|| { called = true; (pushed, Arc::clone(&witness)) }).is_ok();
                    prop_assert_eq!(done, !full);
                    prop_assert_eq!(called, !full);
                }
                MailboxOp::Publish => {
                    prop_assert_eq!(sender.publish(), !hidden.is_empty());
                    visible.append(&mut hidden);
                }
                MailboxOp::Pop => {
                    let expected = visible.pop_front();
                    popped += u64::from(expected.is_some());
                    prop_assert_eq!(receiver.pop().map(|(item, _)| item), expected);
                }
                MailboxOp::Peek => prop_assert_eq!(receiver.peek().map(|(item, _)| *item), visible.front().copied()),
            }
            if matches!(op, MailboxOp::Push | MailboxOp::PushWith) && !full {
                hidden.push_back(pushed);
                pushed += 1;
            }
            prop_assert_eq!(sender.pushed(), pushed);
            prop_assert_eq!(sender.popped(), popped);
            prop_assert_eq!(receiver.is_empty(), visible.is_empty());
            prop_assert_eq!(Arc::strong_count(&witness), 1 + hidden.len() + visible.len());
        }
        drop(sender);
        prop_assert!(receiver.is_closed());
        prop_assert_eq!(Arc::strong_count(&witness), 1 + visible.len(), "unpublished items go with the sender");
        while let Some(expected) = visible.pop_front() {
            prop_assert_eq!(receiver.pop().map(|(item, _)| item), Some(expected));
        }
        prop_assert!(receiver.pop().is_none());
    }
}

/// Row 4.12: every item is dropped exactly once, in either order of dropping the ends.
#[test]
fn items_left_behind_are_dropped_exactly_once() {
    for sender_first in [true, false] {
        let witness = Arc::new(());
        let (mut sender, mut receiver) = mailbox::<Arc<()>>(8);
        for _ in 0..4 {
            sender.push(Arc::clone(&witness)).unwrap();
        }
        sender.publish();
        drop(receiver.pop());
        sender.push(Arc::clone(&witness)).unwrap();
        assert_eq!(Arc::strong_count(&witness), 5);
        if sender_first {
            drop(sender);
            assert!(receiver.is_closed());
            drop(receiver);
        } else {
            drop(receiver);
            assert!(sender.is_closed());
            drop(sender);
        }
        assert_eq!(Arc::strong_count(&witness), 1, "sender first: {sender_first}");
    }
}

#[test]
fn a_panic_while_building_pushes_nothing() {
    let (mut sender, mut receiver) = mailbox::<u8>(2);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sender.push_with(|| std::panic::resume_unwind(Box::new("no item"))).is_ok()
    }));
    assert!(outcome.is_err());
    assert!(!sender.publish());
    sender.push(5).unwrap();
    sender.publish();
    assert_eq!((receiver.pop(), receiver.pop()), (Some(5), None));
}

/// Row 4.38: a million items through a few slots, in batches of changing length, all in order.
#[test]
fn two_threads_lose_and_reorder_nothing() {
    const ITEMS: u64 = 1_000_000;
    let (mut sender, mut receiver) = mailbox::<u64>(64);
    let producer = thread::spawn(move || {
        let (mut next, mut batch) = (0, 1);
        while next < ITEMS {
            let end = ITEMS.min(next + batch);
            while next < end && sender.push(next).is_ok() {
                next += 1;
            }
            if !sender.publish() {
                thread::yield_now();
            }
            batch = batch % 97 + 1;
        }
    });
    let mut expected = 0;
    while expected < ITEMS {
        match receiver.pop() {
            Some(item) => {
                assert_eq!(item, expected);
                expected += 1;
            }
            None => {
                assert!(!receiver.is_closed() || !receiver.is_empty(), "{expected} of {ITEMS} arrived");
                thread::yield_now();
            }
        }
    }
    producer.join().unwrap();
    assert!(receiver.is_closed() && receiver.is_empty());
}
