//! Primitives for memory shared between threads.
//!
//! Shards own everything they touch; the few places where two threads meet are in this crate:
//!
//! - [`mailbox`]: a bounded queue between exactly two threads;
//! - [`Wake`]: wakes one consumer that sleeps in its own event loop;
//! - [`EventCount`]: wakes idle threads, one per piece of work;
//! - [`BlockWriter`], [`SharedBlock`]: memory that one thread fills and others read;
//! - [`InlineFn`]: a closure that moves through a queue without an allocation;
//! - [`Clock`]: monotonic time.
//!
//! They import their atomics from [`sync`], so that the loom models in `tests/loom.rs` check the code that ships.
//! [`SplitMix64`], the pseudo-random number generator, is here because every crate depends on this one.
//!
//! To sleep without losing a wake, a consumer first calls [`Wake::set_parked`], then checks its mailboxes once more.
//!
//! ```
//! use std::sync::Arc;
//! use std::thread;
//! use stilling_ring::{Wake, mailbox};
//!
//! let (mut sender, mut receiver) = mailbox::<u32>(64);
//! let consumer = thread::current();
//! let wake = Arc::new(Wake::new(move || consumer.unpark()));
//!
//! let producer = thread::spawn({
//!     let wake = Arc::clone(&wake);
//!     move || {
//!         for item in 0..10 {
//!             sender.push(item).expect("ten items fit into sixty-four slots");
//!         }
//!         sender.publish(); // one publication and at most one wake for the whole batch
//!         wake.notify();
//!     }
//! });
//!
//! let mut sum = 0;
//! for _ in 0..10 {
//!     sum += loop {
//!         if let Some(item) = receiver.pop() {
//!             break item;
//!         }
//!         wake.set_parked();
//!         if receiver.is_empty() {
//!             thread::park();
//!         }
//!         wake.clear_parked();
//!     };
//! }
//! assert_eq!(sum, 45);
//! producer.join().unwrap();
//! ```

mod block;
mod event_count;
mod inline_fn;
mod mailbox;
pub mod planted;
mod random;
pub mod sync;
mod time;
mod wake;

pub use block::{BlockWriter, SharedBlock};
pub use event_count::{EventCount, WaitTicket};
pub use inline_fn::{CAPTURE_ALIGN_MAX, CAPTURE_SIZE_MAX, InlineFn};
pub use mailbox::{CAPACITY_MAX, MailboxFull, Receiver, Sender, VacantSlot, mailbox};
pub use random::SplitMix64;
pub use time::{Clock, ManualTime, Time};
pub use wake::Wake;
