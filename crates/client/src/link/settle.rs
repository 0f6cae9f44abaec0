//! How a message leaves the link: by an answer, or with a reason. Each is counted once, its room is released once, and
//! whoever waits is told once.

use std::time::{Duration, Instant};

use super::answer::{Verdict, judge};
use super::window::{Cause, Stage};
use super::{Link, State};
use crate::config::Keep;
use crate::entry::{Entry, Unwanted};
use crate::handshake::Greeting;
use crate::limits::{UNWANTED_PART, UNWANTED_PASSED_MAX};
use crate::outcome::{Counts, Failure, Outcome, Reason};
use crate::trouble::{Trouble, evidence};

/// What the driver passes on to callers after each turn.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The link's own figures.
    pub(crate) counts: Counts,
    /// Messages that are no longer held, and what they counted.
    pub(crate) released: (u64, u64),
    /// What was dropped without anybody waiting for it.
    pub(crate) failures: Vec<Failure>,
    /// What was wrong last; nothing while the connection is there.
    pub(crate) trouble: Option<Trouble>,
    /// The connection is there.
    pub(crate) is_ready: bool,
}

impl Link {
    /// What has happened since the last call.
    pub(crate) fn news(&mut self) -> News {
        News {
            counts: self.counts,
            released: std::mem::take(&mut self.released),
            failures: std::mem::take(&mut self.failures),
            trouble: self.trouble.clone(),
            is_ready: matches!(self.state, State::Ready { .. }),
        }
    }

    /// An answer has come for the message with this token.
    pub(super) fn answered(&mut self, now: Instant, token: u64, headers: &[u8], payload: &[u8]) {
        let Some(flight) = self.window.get_mut(token) else {
            self.counts.stray_answers += 1;
            return;
        };
        let was_interrupted = matches!(flight.stage, Stage::Sent { cause: Cause::Interrupted, .. });
        let verdict = judge(headers, payload);
        let is_taken_again = flight.entry.unwanted.is_some() && matches!(verdict, Verdict::Stored { .. });
        // The connection was to blame, and this one works; or the stream was, and it takes messages again. What the server
        // itself has put off earns nothing: it may be flooded still.
        if is_taken_again || was_interrupted && !matches!(verdict, Verdict::Later(_)) {
            self.budget.recovered();
        }
        match verdict {
            Verdict::Stored { stream, sequence, duplicate } => {
                self.deliver(now, token, Outcome::Delivered { stream, sequence, duplicate });
            }
            Verdict::Later(hint) => {
                self.counts.hints += 1;
                // What was on its way when the first refusal came is refused for the same reason: that is one failure.
                if self.resume_at.is_none_or(|at| now >= at) {
                    self.ladder.failed();
                    self.pause(now, hint.unwrap_or(Duration::ZERO));
                } else if let Some(hint) = hint {
                    self.resume_at = self.resume_at.max(Some(now + hint));
                }
                self.window.set(token, Stage::Due(now, Cause::Declined));
                if let Some(flight) = self.window.get_mut(token) {
                    flight.entry.attempts += 1;
                }
                self.review_due = true;
            }
            Verdict::NotTaken(reason) => {
                self.unwanted(now, token, reason, Some(now + self.config.no_stream_timeout));
            }
            Verdict::Hung(reason) => {
                self.unwanted(now, token, reason, None);
                self.review_due = true;
            }
            Verdict::Refused(reason) => self.drop_token(token, reason),
        }
    }

    /// The message's stream does not take it now. It alone waits, longer each time and aside: the others have done nothing
    /// wrong. Only when as many lie aside as may does it keep its place, so that a stream that comes back in time finds all
    /// of its messages, however fast they came.
    fn unwanted(&mut self, now: Instant, token: u64, reason: Reason, until: Option<Instant>) {
        let Some(flight) = self.window.get_mut(token) else { return };
        let before = flight.entry.unwanted.as_ref().and_then(|unwanted| unwanted.until);
        let until = until.map(|until| before.unwrap_or(until));
        flight.entry.unwanted = Some(Unwanted { until, reason: reason.clone() });
        let longest = self.config.ladder.wait_max;
        let factor = 1 << flight.entry.attempts.min(16);
        let wait = self.ladder.wait().checked_mul(factor).map_or(longest, |wait| wait.min(longest));
        let wait = self.random.jitter(wait);
        flight.entry.attempts += 1;
        let is_tried = self.config.keep == Keep::Attempts
            && flight.entry.tried(self.rounds) >= u64::from(self.ladder.attempts());
        let cost_max = self.config.spool_size / UNWANTED_PART;
        if is_tried || until.is_some_and(|until| now >= until) {
            self.drop_token(token, reason);
        } else {
            self.window.set_aside(token, cost_max);
            let at = now + wait;
            let at = until.map_or(at, |until| at.min(until));
            self.window.set(token, Stage::Due(at, Cause::Declined));
        }
    }

    /// Those that their stream has not taken in the time for it, and that nothing lets be tried once more; on disk, where the
    /// oldest message keeps the room of all behind it, also those that too many have passed. Returns whether there were any.
    pub(super) fn drop_unwanted(&mut self, now: Instant) -> bool {
        self.unwanted_at = None;
        if self.window.due() == 0 {
            return false;
        }
        let dropped_before = self.counts.dropped;
        let is_on_disk = matches!(self.config.keep, Keep::Directory(_));
        let cost_max = self.config.spool_size / UNWANTED_PART;
        let next = self.window.next_token();
        let ends = self.window.iter().filter_map(|(token, flight)| match flight.stage {
            Stage::Due(..) => {
                let until = flight.entry.unwanted.as_ref()?.until?;
                let is_much = next - token > UNWANTED_PASSED_MAX || self.window.passed(flight) > cost_max;
                let is_passed = is_on_disk && is_much;
                Some((token, if is_passed { now } else { until }))
            }
            Stage::Sent { .. } => None,
        });
        for (token, end) in ends.collect::<Vec<_>>() {
            if now < end {
                self.unwanted_at = Some(self.unwanted_at.map_or(end, |first| first.min(end)));
            } else if let Some(flight) = self.window.get_mut(token)
                && let Some(Unwanted { reason, .. }) = flight.entry.unwanted.clone()
            {
                self.drop_token(token, reason);
            }
        }
        self.counts.dropped > dropped_before
    }

    /// The server has read everything before its last PONG.
    pub(super) fn passed(&mut self, now: Instant) {
        let Some(barrier) = self.talk.barriers.pop_front() else { return };
        self.talk.pinged = (!self.talk.barriers.is_empty()).then_some(now);
        if !self.is_one_way() {
            return;
        }
        for token in self.window.tokens().into_iter().take_while(|token| *token < barrier) {
            let outcome = Outcome::Delivered { stream: String::new(), sequence: 0, duplicate: false };
            self.deliver(now, token, outcome);
        }
    }

    /// The server has said `-ERR`.
    pub(super) fn refused(&mut self, text: &[u8], greeting: Greeting) -> Result<(), Trouble> {
        /// What stands before the subject.
        const PERMISSION: &[u8] = b"permissions violation for publish to ";
        let lower = text.to_ascii_lowercase();
        if lower.starts_with(PERMISSION) {
            let subject = text[PERMISSION.len()..].trim_ascii();
            let subject =
                subject.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(subject);
            for token in self.window.tokens() {
                let is_it = self
                    .window
                    .get_mut(token)
                    .is_some_and(|flight| flight.entry.message.subject().eq_ignore_ascii_case(subject));
                if is_it {
                    self.drop_token(token, Reason::NotPermitted(evidence(text)));
                }
            }
            return Ok(());
        }
        if lower.starts_with(b"invalid publish subject") || lower.starts_with(b"invalid subject") {
            // It does not say which one; its message will be late and tried again as often as allowed.
            self.trouble = Some(Trouble::said(text));
            return Ok(());
        }
        if lower.starts_with(b"maximum payload") {
            // Sent again it would end the next connection, too.
            let size_of =
                |(token, flight): (u64, &super::window::Flight)| (flight.entry.message.size(), token);
            if let Some((size, token)) = self.window.iter().map(size_of).max() {
                self.drop_token(
                    token,
                    Reason::TooLarge {
                        size,
                        size_max: greeting.payload_size_max.min(size.saturating_sub(1)),
                    },
                );
            }
        }
        Err(Trouble::said(text))
    }

    /// Those that were tried as often as the ladder allows: their callers go on without them, and where nothing keeps
    /// them they are dropped. So are those whose callers have gone.
    pub(super) fn review(&mut self) {
        let (rounds, attempts) = (self.rounds, u64::from(self.ladder.attempts()));
        let is_kept = self.config.keep != Keep::Attempts;
        let stays = |entry: &mut Entry| {
            let is_patient = entry.unwanted.as_ref().is_some_and(|unwanted| unwanted.until.is_some());
            let is_tried = entry.tried(rounds) >= attempts && !is_patient;
            if is_tried
                && is_kept
                && let Some(ticket) = entry.ticket.take()
            {
                ticket.tell(Outcome::Queued);
            }
            !entry.is_abandoned() && (is_kept || !is_tried)
        };
        for token in self.window.tokens() {
            let Some(flight) = self.window.get_mut(token) else { continue };
            // What is with the server may still be answered.
            if matches!(flight.stage, Stage::Due(..)) && !stays(&mut flight.entry) {
                let reason = self.reason_of(token);
                self.drop_token(token, reason);
            }
        }
        for entry in self.spool.review(&mut |entry| stays(entry)) {
            let reason = self.reason_for(&entry);
            self.drop_entry(entry, reason);
        }
    }

    fn reason_of(&mut self, token: u64) -> Reason {
        let (rounds, trouble) = (self.rounds, self.trouble.clone());
        self.window.get_mut(token).map_or(Reason::Closed, |flight| given_up(&flight.entry, rounds, trouble))
    }

    fn reason_for(&self, entry: &Entry) -> Reason {
        given_up(entry, self.rounds, self.trouble.clone())
    }

    fn deliver(&mut self, now: Instant, token: u64, outcome: Outcome) {
        let Some(flight) = self.window.take(token) else { return };
        let entry = flight.entry;
        self.ladder.succeeded();
        self.counts.delivered += 1;
        self.counts.delivered_bytes += entry.message.payload().len() as u64;
        let is_duplicate = matches!(outcome, Outcome::Delivered { duplicate: true, .. });
        self.counts.duplicates += u64::from(is_duplicate);
        if let Some(since) = entry.since {
            self.counts.note_time(now.saturating_duration_since(since));
        }
        self.release(entry.cost);
        if let Some(ticket) = entry.ticket {
            ticket.tell(outcome);
        }
    }

    pub(super) fn drop_token(&mut self, token: u64, reason: Reason) {
        if let Some(flight) = self.window.take(token) {
            self.drop_entry(flight.entry, reason);
        }
    }

    pub(super) fn drop_entry(&mut self, entry: Entry, reason: Reason) {
        let is_told = entry.ticket.as_ref().is_some_and(|it| it.tell(Outcome::Dropped(reason.clone())));
        // A caller who wanted it not to be sent any more has been told so already.
        if is_told || entry.is_abandoned() {
            self.counts.dropped += 1;
            self.release(entry.cost);
        } else {
            let subject = String::from_utf8_lossy(entry.message.subject()).into_owned();
            self.count_drop(entry.cost, subject, entry.message.id(), reason);
        }
    }

    /// A message is gone and nobody waits for it: that is told to whoever asks.
    pub(super) fn count_drop(&mut self, cost: u64, subject: String, id: String, reason: Reason) {
        self.counts.dropped += 1;
        self.failures.push(Failure { subject, id, reason });
        self.release(cost);
    }

    fn release(&mut self, cost: u64) {
        self.released.0 += 1;
        self.released.1 += cost;
    }
}

fn given_up(entry: &Entry, rounds: u64, trouble: Option<Trouble>) -> Reason {
    if entry.is_abandoned() {
        return Reason::TimedOut;
    }
    Reason::GaveUp { attempts: u32::try_from(entry.tried(rounds)).unwrap_or(u32::MAX), trouble }
}
