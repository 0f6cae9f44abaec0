//! Loom models: every interleaving of the crate's protocols, within bounds that keep a model to seconds.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p stilling-ring --release --test loom`
//!
//! A lost wake shows up as a deadlock, a misused mailbox slot as a race, a lost item as a leak.
#![cfg(loom)]

use loom::thread;
use stilling_ring::sync::{Arc, AtomicU32, Condvar, Mutex, Ordering};
use stilling_ring::{BlockWriter, EventCount, Receiver, SharedBlock, Wake, mailbox};

fn model(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

/// A model of a driver's wait: one bit that ends the current sleep or the next one.
struct TestWaker {
    is_signalled: Mutex<bool>,
    condvar: Condvar,
}

impl TestWaker {
    fn new() -> Arc<TestWaker> {
        Arc::new(TestWaker { is_signalled: Mutex::new(false), condvar: Condvar::new() })
    }

    fn signal(&self) {
        let mut is_signalled = self.is_signalled.lock().unwrap();
        *is_signalled = true;
        self.condvar.notify_one();
    }

    fn sleep(&self) {
        let mut is_signalled = self.is_signalled.lock().unwrap();
        while !*is_signalled {
            is_signalled = self.condvar.wait(is_signalled).unwrap();
        }
        *is_signalled = false;
    }
}

fn wake_for(waker: &Arc<TestWaker>) -> Arc<Wake> {
    let waker = Arc::clone(waker);
    Arc::new(Wake::new(move || waker.signal()))
}

/// Pops the next item from any of the mailboxes; sleeps as a shard does.
fn next(receivers: &mut [Receiver<usize>], wake: &Wake, waker: &TestWaker) -> usize {
    loop {
        if let Some(item) = receivers.iter_mut().find_map(Receiver::pop) {
            return item;
        }
        wake.set_parked();
        if receivers.iter().all(Receiver::is_empty) {
            waker.sleep();
        }
        wake.clear_parked();
    }
}

/// Row 4.38: three items through two slots, so that a slot is used twice, in order and without a loss.
#[test]
fn a_mailbox_keeps_order_when_it_wraps() {
    model(3, || {
        let (mut sender, mut receiver) = mailbox::<usize>(2);
        let producer = thread::spawn(move || {
            for item in 0..3 {
                while sender.push(item).is_err() {
                    thread::yield_now();
                }
                sender.publish();
            }
        });
        for expected in 0..3 {
            loop {
                if let Some(item) = receiver.pop() {
                    assert_eq!(item, expected);
                    break;
                }
                thread::yield_now();
            }
        }
        producer.join().unwrap();
        assert!(receiver.is_closed() && receiver.pop().is_none());
    });
}

#[test]
fn a_batch_becomes_visible_at_once() {
    model(3, || {
        let (mut sender, mut receiver) = mailbox::<usize>(4);
        let producer = thread::spawn(move || {
            sender.push(1).unwrap();
            sender.push(2).unwrap();
            sender.publish();
        });
        if let Some(item) = receiver.pop() {
            assert_eq!((item, receiver.pop()), (1, Some(2)));
        }
        producer.join().unwrap();
    });
}

/// Row 4.12: loom's counted pointers report every item that is dropped twice or never.
#[test]
fn either_end_may_go_at_any_time() {
    model(3, || {
        let witness = Arc::new(());
        let (mut sender, mut receiver) = mailbox::<Arc<()>>(2);
        let producer = thread::spawn({
            let witness = Arc::clone(&witness);
            move || {
                sender.push(Arc::clone(&witness)).unwrap();
                sender.publish();
                let _ = sender.push(witness);
            }
        });
        drop(receiver.pop());
        drop(receiver);
        producer.join().unwrap();
        assert_eq!(Arc::strong_count(&witness), 1);
    });
}

/// A receiver that sees the sender closed finds everything the sender published.
#[test]
fn closed_means_nothing_more_will_come() {
    model(3, || {
        let (mut sender, mut receiver) = mailbox::<usize>(2);
        let producer = thread::spawn(move || {
            sender.push(7).unwrap();
            sender.publish();
        });
        if receiver.is_closed() {
            assert_eq!(receiver.pop(), Some(7));
        }
        producer.join().unwrap();
    });
}

/// Row 4.38: the consumer sleeps between items, and no wake is lost.
#[test]
fn parking_loses_no_wake() {
    model(4, || {
        let waker = TestWaker::new();
        let wake = wake_for(&waker);
        let (mut sender, receiver) = mailbox::<usize>(2);
        let producer = thread::spawn({
            let wake = Arc::clone(&wake);
            move || {
                for item in 0..2 {
                    sender.push(item).unwrap();
                    sender.publish();
                    wake.notify();
                }
            }
        });
        let mut receivers = [receiver];
        for expected in 0..2 {
            assert_eq!(next(&mut receivers, &wake, &waker), expected);
        }
        producer.join().unwrap();
    });
}

/// Row 4.38: two producers find one parked consumer: exactly one wakes it, and no item is missed.
#[test]
fn parking_loses_no_wake_with_two_producers() {
    model(3, || {
        let waker = TestWaker::new();
        let wake = wake_for(&waker);
        let (mut receivers, producers): (Vec<_>, Vec<_>) = (0..2)
            .map(|item| {
                let (mut sender, receiver) = mailbox::<usize>(1);
                let wake = Arc::clone(&wake);
                let producer = thread::spawn(move || {
                    sender.push(item).unwrap();
                    sender.publish();
                    wake.notify();
                });
                (receiver, producer)
            })
            .unzip();
        let sum = next(&mut receivers, &wake, &waker) + next(&mut receivers, &wake, &waker);
        assert_eq!(sum, 1);
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

/// Removes one piece of work; sleeps as an idle worker does.
fn take(events: &EventCount, open: &AtomicU32) {
    let try_take = || open.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
    loop {
        if try_take() {
            return;
        }
        let ticket = events.listen();
        if try_take() {
            events.cancel(ticket);
            return;
        }
        events.wait(ticket);
    }
}

/// Row 4.38: two sleepers and two producers with one piece of work each.
#[test]
fn an_event_count_loses_no_wake_with_two_producers() {
    model(3, || {
        let events = Arc::new(EventCount::new());
        let open = Arc::new(AtomicU32::new(0));
        let sleeper = thread::spawn({
            let (events, open) = (Arc::clone(&events), Arc::clone(&open));
            move || take(&events, &open)
        });
        let producer = thread::spawn({
            let (events, open) = (Arc::clone(&events), Arc::clone(&open));
            move || {
                open.fetch_add(1, Ordering::Release);
                events.notify_one();
                take(&events, &open);
            }
        });
        open.fetch_add(1, Ordering::Release);
        events.notify_one();
        sleeper.join().unwrap();
        producer.join().unwrap();
        assert_eq!((open.load(Ordering::Relaxed), events.sleepers()), (0, 0));
    });
}

/// Row 4.38: a batch of two wakes both sleepers.
#[test]
fn an_event_count_wakes_as_many_as_there_is_work() {
    model(3, || {
        let events = Arc::new(EventCount::new());
        let open = Arc::new(AtomicU32::new(0));
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let (events, open) = (Arc::clone(&events), Arc::clone(&open));
                thread::spawn(move || take(&events, &open))
            })
            .collect();
        open.fetch_add(2, Ordering::Release);
        events.notify(2);
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        assert_eq!((open.load(Ordering::Relaxed), events.sleepers()), (0, 0));
    });
}

/// Row 4.38: closing a pool wakes every sleeper, also a thread that is just falling asleep.
#[test]
fn an_event_count_wakes_all() {
    model(3, || {
        let events = Arc::new(EventCount::new());
        let closed = Arc::new(AtomicU32::new(0));
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let (events, closed) = (Arc::clone(&events), Arc::clone(&closed));
                thread::spawn(move || {
                    loop {
                        let ticket = events.listen();
                        if closed.load(Ordering::Acquire) == 1 {
                            return events.cancel(ticket);
                        }
                        events.wait(ticket);
                    }
                })
            })
            .collect();
        closed.store(1, Ordering::Release);
        events.notify_all();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

/// A reader sees the bytes that were committed when its reference was made, whatever the writer does meanwhile; a block
/// is reset only after its last reader. The writer may read concurrently.
#[test]
fn a_shared_block_is_not_written_where_it_is_read() {
    model(3, || {
        let (mut sender, mut receiver) = mailbox::<(SharedBlock, usize)>(2);
        let reader = thread::spawn(move || {
            let mut seen = 0;
            while seen < 2 {
                match receiver.pop() {
                    Some((block, at)) => {
                        assert_eq!(block.bytes(at..at + 2), [at as u8; 2]);
                        seen += 1;
                    }
                    None => thread::yield_now(),
                }
            }
        });
        let mut writer = BlockWriter::new(4);
        for at in [0_u8, 2] {
            writer.append(&[at; 2]).unwrap();
            sender.push((writer.share(), at.into())).unwrap();
            sender.publish();
        }
        assert_eq!(writer.peek(0..4), [0, 0, 2, 2]);
        let is_free = !writer.is_shared();
        if writer.reset() {
            writer.append(&[9; 4]).unwrap();
        } else {
            assert!(!is_free);
        }
        reader.join().unwrap();
        assert!(writer.reset());
    });
}
