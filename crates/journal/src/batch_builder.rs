//! Building batches beside the thread that writes: payloads that lie in shared blocks are copied in, and the CRC is taken.
//!
//! ```text
//!   hub ─┬─ batches with much to copy ──▶ builder ─▶┐
//!        └─ built batches, other requests ─────────▶┴─ writer: all of them in the order of their numbers
//! ```
//!
//! A write may take seconds, and a disk may hang. Meanwhile the builder goes on, so that the batches that wait for the disk
//! hold no shared blocks. A batch with little to copy is built by the hub: waking a thread takes longer.

use std::sync::Arc;
use std::thread;

use stilling_ring::{Receiver, Sender, Wake, mailbox};

use crate::request::JournalRequest;

/// A request and its place among all of them.
pub(crate) struct NumberedRequest {
    pub(crate) number: u64,
    pub(crate) request: JournalRequest,
}

/// The hub's ends of both ways.
pub(crate) struct RequestSender {
    direct: Sender<NumberedRequest>,
    /// `None` when the threads have died.
    to_build: Option<Sender<NumberedRequest>>,
    next: u64,
    writer: Arc<Wake>,
    builder: Arc<Wake>,
}

/// The writer's ends of both ways.
pub(crate) struct RequestReceiver {
    direct: Receiver<NumberedRequest>,
    built: Receiver<NumberedRequest>,
    next: u64,
}

/// What the thread that builds does, one batch at a time.
pub(crate) struct BatchBuilder {
    to_build: Receiver<NumberedRequest>,
    built: Sender<NumberedRequest>,
    writer: Arc<Wake>,
}

/// Both ways for `capacity` requests, and the builder between. The wakes are those of the writer and of the builder.
pub(crate) fn request_channel(
    capacity: usize,
    (writer, builder): (Arc<Wake>, Arc<Wake>),
) -> (RequestSender, BatchBuilder, RequestReceiver) {
    let (direct, direct_end) = mailbox(capacity);
    let (to_build, to_build_end) = mailbox(capacity);
    let (built, built_end) = mailbox(capacity);
    let sender =
        RequestSender { direct, to_build: Some(to_build), next: 0, writer: Arc::clone(&writer), builder };
    let builder = BatchBuilder { to_build: to_build_end, built, writer };
    (sender, builder, RequestReceiver { direct: direct_end, built: built_end, next: 0 })
}

impl RequestSender {
    /// Adds a request that the writer takes as it is.
    ///
    /// # Errors
    /// The request, if there is no room.
    pub(crate) fn push(&mut self, request: JournalRequest) -> Result<(), JournalRequest> {
        let numbered = NumberedRequest { number: self.next, request };
        self.direct.push(numbered).map_err(|full| full.0.request)?;
        self.next += 1;
        Ok(())
    }

    /// Adds a request whose batch the builder builds.
    ///
    /// # Errors
    /// The request, if there is no room.
    pub(crate) fn push_unbuilt(&mut self, request: JournalRequest) -> Result<(), JournalRequest> {
        let Some(to_build) = &mut self.to_build else { return Err(request) };
        let numbered = NumberedRequest { number: self.next, request };
        to_build.push(numbered).map_err(|full| full.0.request)?;
        self.next += 1;
        Ok(())
    }

    /// Makes all requests visible to the threads.
    pub(crate) fn publish(&mut self) {
        if self.direct.publish() {
            self.writer.notify();
        }
        if self.to_build.as_mut().is_some_and(Sender::publish) {
            self.builder.notify();
        }
    }

    /// Has both threads end behind what they were given.
    pub(crate) fn close(&mut self) {
        self.publish();
        // This one first: where only the other one is closed the builder has died.
        let (direct, _) = mailbox(1);
        drop(std::mem::replace(&mut self.direct, direct));
        self.writer.force();
        self.lose_builder();
    }

    /// Drops what the builder was given, if its end is gone: batches that lie there would hold blocks.
    pub(crate) fn lose_builder(&mut self) {
        if self.to_build.take().is_some() {
            self.builder.force();
        }
    }
}

impl RequestReceiver {
    /// The next request, if it has come.
    pub(crate) fn pop(&mut self) -> Option<JournalRequest> {
        let is_next = |numbered: &NumberedRequest| numbered.number == self.next;
        let numbered = if self.built.peek().is_some_and(is_next) {
            self.built.pop()
        } else if self.direct.peek().is_some_and(is_next) {
            self.direct.pop()
        } else {
            None
        };
        self.next += u64::from(numbered.is_some());
        numbered.map(|numbered| numbered.request)
    }

    /// Whether the next request has come.
    pub(crate) fn has_next(&mut self) -> bool {
        let is_next = |numbered: &NumberedRequest| numbered.number == self.next;
        self.built.peek().is_some_and(is_next) || self.direct.peek().is_some_and(is_next)
    }

    /// Whether the hub's end is gone, and the builder has passed on all that it was given.
    pub(crate) fn is_closed(&self) -> bool {
        self.direct.is_closed() && self.built.is_closed()
    }

    /// Whether the hub's end is gone.
    pub(crate) fn is_left(&self) -> bool {
        self.direct.is_closed()
    }

    /// Whether the builder has ended although the hub's end is there.
    pub(crate) fn has_lost_builder(&self) -> bool {
        // In this order: the hub closes the other one first.
        self.built.is_closed() && !self.direct.is_closed()
    }
}

impl BatchBuilder {
    /// Builds the oldest batch and passes it on. Returns whether there was one.
    pub(crate) fn turn(&mut self) -> bool {
        let Some(mut numbered) = self.to_build.pop() else { return false };
        if let JournalRequest::Append { batch, .. } = &mut numbered.request {
            batch.build();
        }
        // There is room: never are more batches unanswered than the mailbox has places.
        let _ = self.built.push(numbered);
        self.built.publish();
        self.writer.notify();
        true
    }

    /// Whether there is a batch.
    pub(crate) fn has_work(&self) -> bool {
        !self.to_build.is_empty()
    }

    /// Whether nothing more comes from the hub, or goes to the writer.
    fn is_closed(&self) -> bool {
        self.to_build.is_closed() || self.built.is_closed()
    }

    /// The life of its thread.
    pub(crate) fn run(mut self, wake: &Wake) {
        loop {
            // Asked first: what is there afterwards is all there will be.
            let is_last = self.is_closed();
            if self.turn() {
                continue;
            }
            if is_last {
                return;
            }
            wake.park();
            if !self.has_work() && !self.is_closed() {
                thread::park();
            }
            wake.unpark();
        }
    }
}
