//! The messages of a publisher: which to send next, and which lack an answer.

use std::collections::BTreeSet;
use std::time::Duration;

use stilling_ring::Time;

use super::stepped_client::StepEnd;
use super::wire::WireError;

#[derive(Debug)]
pub(super) struct PublicationQueue {
    total: u32,
    /// Publications without an answer at once.
    window: usize,
    /// Longest time without an answer.
    timeout: Duration,
    next: u32,
    waiting: BTreeSet<u32>,
    again: BTreeSet<u32>,
    resume_at: Time,
    answered_at: Time,
}

impl PublicationQueue {
    pub(super) fn new(total: u32, window: usize, timeout: Duration, start: Time) -> PublicationQueue {
        PublicationQueue {
            total,
            window,
            timeout,
            next: 0,
            waiting: BTreeSet::new(),
            again: BTreeSet::new(),
            resume_at: start,
            answered_at: start,
        }
    }

    /// Checks that answers do not take too long.
    pub(super) fn check_answers(&self, now: Time) -> Result<(), WireError> {
        match !self.waiting.is_empty() && now > self.answered_at.after(self.timeout) {
            true => Err(WireError::Wrong(format!("{:?} were never answered", self.waiting))),
            false => Ok(()),
        }
    }

    /// The message to send now, if there is one, which then waits for its answer.
    pub(super) fn next_to_send(&mut self, now: Time) -> Option<u32> {
        if now < self.resume_at || self.waiting.len() >= self.window {
            return None;
        }
        let message = self.again.pop_first().or_else(|| {
            let next = Some(self.next).filter(|next| *next < self.total);
            self.next += u32::from(next.is_some());
            next
        })?;
        if self.waiting.is_empty() {
            self.answered_at = now;
        }
        self.waiting.insert(message);
        Some(message)
    }

    /// The only message that waits, of a publisher that sends one at a time.
    pub(super) fn first_waiting(&self) -> Option<u32> {
        self.waiting.first().copied()
    }

    /// Notes an answer.
    pub(super) fn answered(&mut self, message: u32, now: Time) -> Result<(), String> {
        if !self.waiting.remove(&message) {
            return Err(format!("message {message} was answered, but was not pending"));
        }
        self.answered_at = now;
        Ok(())
    }

    /// Sends a message again.
    pub(super) fn send_again(&mut self, message: u32) {
        self.again.insert(message);
    }

    /// Sends nothing before this time.
    pub(super) fn resume_at(&mut self, at: Time) {
        self.resume_at = at;
    }

    /// Begins on a new connection.
    pub(super) fn restart_timeout(&mut self, now: Time) {
        self.answered_at = now;
    }

    /// Messages whose answers were lost with the connection.
    pub(super) fn take_waiting(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.waiting)
    }

    /// What the publisher does after sending.
    pub(super) fn step_end(&self, now: Time) -> StepEnd {
        let has_more = !self.again.is_empty() || self.next < self.total;
        if !has_more && self.waiting.is_empty() {
            return StepEnd::Done;
        }
        let more = Some(self.resume_at).filter(|at| has_more && *at > now);
        let late =
            (!self.waiting.is_empty()).then(|| self.answered_at.after(self.timeout + Duration::from_secs(1)));
        StepEnd::Continue(more.into_iter().chain(late).min())
    }
}
