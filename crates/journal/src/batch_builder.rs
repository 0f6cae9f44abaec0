//! Batch building beside the writer's thread: copies payloads from shared blocks and computes CRCs.
//!
//! ```text
//!   hub ─┬─ batches with much to copy ──▶ builder ─▶┐
//!        └─ built batches, other requests ─────────▶┴─ writer: all of them in the order of their numbers
//! ```
//!
//! A write may take seconds, and a disk may hang. The builder continues meanwhile, so that batches waiting for the disk
//! hold no shared blocks. The hub builds batches with little to copy itself, because waking a thread takes longer.

use std::sync::Arc;
use std::thread;

use stilling_ring::{Receiver, Sender, Wake, mailbox};

use crate::request::JournalRequest;

pub(crate) struct NumberedRequest {
    pub(crate) number: u64,
    pub(crate) request: JournalRequest,
}

pub(crate) struct RequestSender {
    direct: Sender<NumberedRequest>,
    /// `None` after the threads have panicked.
    to_build: Option<Sender<NumberedRequest>>,
    next: u64,
    writer: Arc<Wake>,
    builder: Arc<Wake>,
}

pub(crate) struct RequestReceiver {
    direct: Receiver<NumberedRequest>,
    built: Receiver<NumberedRequest>,
    next: u64,
}

/// The work of the builder's thread, one batch at a time.
pub(crate) struct BatchBuilder {
    to_build: Receiver<NumberedRequest>,
    built: Sender<NumberedRequest>,
    writer: Arc<Wake>,
}

/// Both channels for `capacity` requests, and the builder between them. The wakes are those of the writer and of the
/// builder.
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
    /// Adds a request for the writer.
    ///
    /// # Errors
    /// The request, if there is no room.
    pub(crate) fn push(&mut self, request: JournalRequest) -> Result<(), JournalRequest> {
        let numbered = NumberedRequest { number: self.next, request };
        self.direct.push(numbered).map_err(|full| full.0.request)?;
        self.next += 1;
        Ok(())
    }

    /// Adds a request with an unbuilt batch, which the builder builds first.
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

    pub(crate) fn publish(&mut self) {
        if self.direct.publish() {
            self.writer.notify();
        }
        if self.to_build.as_mut().is_some_and(Sender::publish) {
            self.builder.notify();
        }
    }

    /// Makes both threads end after the requests sent so far.
    pub(crate) fn close(&mut self) {
        self.publish();
        // This channel first: if only the other one is closed, the builder has panicked.
        let (direct, _) = mailbox(1);
        drop(std::mem::replace(&mut self.direct, direct));
        self.writer.force();
        self.lose_builder();
    }

    /// Drops the requests sent to a builder that has ended: their batches would hold blocks.
    pub(crate) fn lose_builder(&mut self) {
        if self.to_build.take().is_some() {
            self.builder.force();
        }
    }
}

impl RequestReceiver {
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

    pub(crate) fn has_next(&mut self) -> bool {
        let is_next = |numbered: &NumberedRequest| numbered.number == self.next;
        self.built.peek().is_some_and(is_next) || self.direct.peek().is_some_and(is_next)
    }

    /// Whether the hub's end is dropped, and the builder has passed on all of its requests.
    pub(crate) fn is_closed(&self) -> bool {
        self.direct.is_closed() && self.built.is_closed()
    }

    pub(crate) fn is_sender_closed(&self) -> bool {
        self.direct.is_closed()
    }

    /// Whether the builder has ended while the hub's end exists.
    pub(crate) fn has_lost_builder(&self) -> bool {
        // In this order: the hub closes the direct channel first.
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
        // There is room: the number of unanswered batches never exceeds the mailbox's capacity.
        let _ = self.built.push(numbered);
        self.built.publish();
        self.writer.notify();
        true
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.to_build.is_empty()
    }

    /// Whether the hub's or the writer's end is dropped.
    fn is_closed(&self) -> bool {
        self.to_build.is_closed() || self.built.is_closed()
    }

    pub(crate) fn run(mut self, wake: &Wake) {
        loop {
            // Checked before the turn: once it is closed, no request can arrive after that turn.
            let is_last = self.is_closed();
            if self.turn() {
                continue;
            }
            if is_last {
                return;
            }
            wake.set_parked();
            if !self.has_work() && !self.is_closed() {
                thread::park();
            }
            wake.clear_parked();
        }
    }
}
