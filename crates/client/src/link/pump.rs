//! What the link writes, and in which order: what an earlier connection left first, then what the server did not take and
//! the budget lets be tried again, then what is new.
//!
//! The budget holds back only what is tried again. New messages wait for what a lost connection left, because of the order;
//! they do not wait for what the server itself has put off.

use std::time::Instant;

use stilling_wire::nats::Pub;

use super::Link;
use super::window::{Cause, Stage};
use crate::config::Keep;
use crate::handshake::Greeting;
use crate::limits::{ONE_WAY_BATCH, OUTPUT_SIZE, UNWANTED_PART};
use crate::outcome::Reason;

impl Link {
    /// Writes what may be sent: what is due again first, so that the order stays.
    pub(super) fn pump(&mut self, now: Instant, greeting: Greeting) {
        self.pump_at = None;
        if self.talk.drain_until.is_some() {
            return;
        }
        if let Some(at) = self.resume_at.filter(|at| now < *at) {
            self.pump_at = Some(at);
            return;
        }
        self.resume_at = None;
        if self.window.due() > 0 && !self.send_again(now, greeting) {
            return;
        }
        while self.window.span() < self.unacknowledged
            && self.output().len() < OUTPUT_SIZE
            && !self.is_passed_by_enough()
        {
            let Some(entry) = self.spool.pop() else { break };
            if entry.is_abandoned() {
                self.drop_entry(entry, Reason::TimedOut);
                continue;
            }
            let token = self.window.next_token();
            self.window.push(entry, Stage::Due(now, Cause::First));
            if self.write(now, token, Cause::First, greeting) {
                self.budget.sent_first();
            }
            if self.is_one_way() && self.window.next_token() - self.talk.barred >= ONE_WAY_BATCH {
                self.talk.ping(now, self.window.next_token());
            }
        }
        // The rest of a burst is asked for when the questions before it are answered.
        let is_behind = self.talk.barred < self.window.next_token() && self.talk.barriers.is_empty();
        if self.is_one_way() && is_behind {
            self.talk.ping(now, self.window.next_token());
        }
    }

    /// On disk the oldest message keeps the room of all behind it: past one aside goes no more than may.
    fn is_passed_by_enough(&self) -> bool {
        matches!(self.config.keep, Keep::Directory(_))
            && self.window.passed_aside() > self.config.spool_size / UNWANTED_PART
    }

    /// Sends what is due in the window; false: nothing new may be sent before the rest of it.
    fn send_again(&mut self, now: Instant, greeting: Greeting) -> bool {
        let due = self.window.iter().filter_map(|(token, flight)| match flight.stage {
            Stage::Due(at, cause) => Some((token, at, cause)),
            Stage::Sent { .. } => None,
        });
        // When the budget gives the next permission, once it has refused one; and when the next one is due.
        let (mut permitted_at, mut next_at) = (None, None);
        for (token, at, cause) in due.collect::<Vec<_>>() {
            if at > now {
                next_at = Some(next_at.map_or(at, |first: Instant| first.min(at)));
                continue;
            }
            if self.output().len() >= OUTPUT_SIZE {
                return false;
            }
            if cause != Cause::First {
                if permitted_at.is_none() {
                    permitted_at = self.budget.take(now).err();
                }
                match (permitted_at, cause) {
                    (None, _) => {}
                    (Some(at), Cause::Declined) => {
                        self.pump_by(at);
                        continue;
                    }
                    (Some(at), _) => {
                        self.pump_by(at);
                        return false;
                    }
                }
            }
            if self.write(now, token, cause, greeting) {
                self.counts.retried += u64::from(cause != Cause::First);
            }
        }
        if let Some(at) = next_at {
            // Without a permission it would be looked at in vain.
            self.pump_by(permitted_at.map_or(at, |permitted| at.max(permitted)));
        }
        true
    }

    fn pump_by(&mut self, at: Instant) {
        self.pump_at = Some(self.pump_at.map_or(at, |first| first.min(at)));
    }

    /// Writes a message of the window; false: it was dropped instead.
    fn write(&mut self, now: Instant, token: u64, cause: Cause, greeting: Greeting) -> bool {
        let is_one_way = self.is_one_way();
        let Some(flight) = self.window.get_mut(token) else { return false };
        let (size, size_max) = (flight.entry.message.size(), greeting.payload_size_max);
        if size > size_max {
            self.drop_token(token, Reason::TooLarge { size, size_max });
            return false;
        }
        if flight.entry.is_abandoned() {
            self.drop_token(token, Reason::TimedOut);
            return false;
        }
        let before = self.talk.out.len();
        let message = &flight.entry.message;
        let headers = message.headers();
        if !is_one_way {
            self.inbox.subject(token, &mut self.reply);
        }
        let reply = (!is_one_way).then_some(&self.reply[..]);
        Pub { subject: message.subject(), reply, headers, payload: message.payload() }
            .encode(&mut self.talk.out);
        self.talk.written += (self.talk.out.len() - before) as u64;
        self.window.set(token, Stage::Sent { at: now, end: self.talk.written, cause });
        let late_at = now + self.config.acknowledge_timeout;
        self.answer_at = Some(self.answer_at.map_or(late_at, |first| first.min(late_at)));
        true
    }
}
