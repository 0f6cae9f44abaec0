//! Requests for messages of a consumer: how they come in, and the statuses that end them.
//!
//! Each of these statuses carries what was asked for and not delivered, by which clients count what they have to ask for next.

use std::collections::VecDeque;

use super::roster::Pull;
use super::{Hub, Message, Outlets, SteadyNanos};
use crate::intake::Client;
use crate::storage::Storage;

/// Why a request ends before all that it asked for was delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PullEnd {
    /// It does not wait, and there is nothing more.
    NoMessages,
    /// Its time has passed.
    Timeout,
    /// The next message has more bytes than are left of it.
    TooLarge,
    /// Its consumer is gone.
    Deleted,
    /// There is no room for one more request.
    TooMany,
    /// The server drains.
    Shutdown,
}

impl PullEnd {
    const fn status(self) -> &'static str {
        match self {
            PullEnd::NoMessages => "404 No Messages",
            PullEnd::Timeout => "408 Request Timeout",
            PullEnd::TooLarge => "409 Message Size Exceeds MaxBytes",
            PullEnd::Deleted => "409 Consumer Deleted",
            PullEnd::TooMany => "409 Exceeded MaxWaiting",
            PullEnd::Shutdown => "409 Server Shutdown",
        }
    }
}

/// A request that is over: where its answer goes, and what that says.
#[derive(Debug)]
pub(super) struct Ended {
    reply: Vec<u8>,
    why: PullEnd,
    /// Messages and bytes that were asked for and not delivered.
    messages: u32,
    bytes: usize,
}

impl Ended {
    pub(super) fn new(pull: Pull, why: PullEnd) -> Ended {
        Ended { reply: pull.reply, why, messages: pull.left, bytes: pull.bytes_left.unwrap_or(0) }
    }

    fn headers(&self) -> Vec<u8> {
        let Ended { why, messages, bytes, .. } = self;
        let status = why.status();
        format!(
            "NATS/1.0 {status}\r\nNats-Pending-Messages: {messages}\r\nNats-Pending-Bytes: {bytes}\r\n\r\n"
        )
        .into_bytes()
    }
}

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Takes a request for messages, or ends it at once if there is no room for it.
    pub(super) fn pull(&mut self, number: u32, pull: Pull, now_ns: SteadyNanos) {
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        consumer.active_ns = now_ns;
        match self.consumers.add_pull(number, pull) {
            Ok(()) => self.advance(number, now_ns),
            Err(pull) => self.tell_ended(VecDeque::from([Ended::new(pull, PullEnd::TooMany)])),
        }
    }

    /// Removes a consumer, and ends the open requests for its messages.
    pub(super) fn delete_consumer(&mut self, number: u32) {
        let Some(consumer) = self.consumers.remove(number) else { return };
        let pulls = consumer.into_pulls().into_iter();
        self.tell_ended(pulls.map(|pull| Ended::new(pull, PullEnd::Deleted)).collect());
    }

    /// Ends the requests that do not wait, when there is nothing more for them.
    pub(super) fn end_pulls(&mut self, number: u32, now_ns: SteadyNanos) {
        self.end_pulls_if(number, |pull| {
            let is_late = pull.expires_ns.is_some_and(|at| at <= now_ns);
            match (is_late, pull.no_wait) {
                (true, _) => Some(PullEnd::Timeout),
                (false, true) => Some(PullEnd::NoMessages),
                (false, false) => None,
            }
        });
    }

    pub(super) fn end_pulls_if(&mut self, number: u32, why: impl Fn(&Pull) -> Option<PullEnd>) {
        if !self
            .consumers
            .get(number)
            .is_some_and(|consumer| consumer.pulls().iter().any(|p| why(p).is_some()))
        {
            return;
        }
        let ended = self.consumers.take_pulls(number, why);
        self.tell_ended(ended.into_iter().map(|(pull, why)| Ended::new(pull, why)).collect());
    }

    /// Ends the oldest requests as long as they have no room for a message of so many bytes.
    pub(super) fn end_pulls_too_small_for(&mut self, number: u32, size: usize) {
        let is_too_small = |pull: &Pull| pull.bytes_left.is_some_and(|left| left < size);
        while self.consumers.get(number).is_some_and(|c| c.pulls().front().is_some_and(is_too_small)) {
            let Some(pull) = self.consumers.take_pull(number) else { return };
            self.tell_ended(VecDeque::from([Ended::new(pull, PullEnd::TooLarge)]));
        }
    }

    /// Ends the requests of a client, since the server drains. Its clients then ask another server, or this one's successor.
    pub(super) fn end_pulls_of(&mut self, client: Client) {
        let mut from = 0;
        while let Some(number) = self.consumers.next_concerned(client, from) {
            from = number + 1;
            self.end_pulls_if(number, |pull| (pull.client == client).then_some(PullEnd::Shutdown));
        }
    }

    /// Answers open requests with the reason why no message comes, one at a time: each may have many subscribers.
    pub(super) fn tell_ended(&mut self, mut ended: VecDeque<Ended>) {
        while !self.has_begun()
            && let Some(one) = ended.pop_front()
        {
            self.send_status(&one.reply, b"", &one.headers());
        }
        if !ended.is_empty() {
            self.keep_ended(ended);
        }
    }

    /// Sends a message without payload that says something about the consumer itself.
    pub(super) fn send_status(&mut self, to: &[u8], reply: &[u8], headers: &[u8]) {
        self.send_by_subject(&Message { subject: to, reply, headers, payload: b"" });
    }
}
