//! The send order of the link: messages that a lost connection left unanswered, then messages that the server declined,
//! as far as the budget allows, then new ones.
//!
//! The budget delays only retries. New messages wait for those of a lost connection, to keep the order, but not for
//! messages that the server itself deferred.

use std::time::Instant;

use stilling_wire::nats::Pub;

use super::PublisherLink;
use super::send_window::{SendCause, SendStage};
use crate::config::SpoolMode;
use crate::handshake::ServerLimits;
use crate::limits::{ONE_WAY_BATCH, OUTPUT_SIZE, PARKED_SPOOL_DIVISOR};
use crate::outcome::DropReason;

impl PublisherLink {
    pub(super) fn send_due(&mut self, now: Instant, server_limits: ServerLimits) {
        self.send_at = None;
        if self.connection.drain_until.is_some() {
            return;
        }
        if let Some(at) = self.resume_at.filter(|at| now < *at) {
            self.send_at = Some(at);
            return;
        }
        self.resume_at = None;
        if self.window.due() > 0 && !self.send_again(now, server_limits) {
            return;
        }
        while self.window.span() < self.unacknowledged
            && self.output().len() < OUTPUT_SIZE
            && !self.is_passed_limit_reached()
        {
            let Some(entry) = self.spool.pop() else { break };
            if entry.is_cancelled() {
                self.drop_entry(entry, DropReason::TimedOut);
                continue;
            }
            let token = self.window.next_token();
            self.window.push(entry, SendStage::Due(now, SendCause::First));
            if self.write(now, token, SendCause::First, server_limits) {
                self.budget.record_first_send();
            }
            if self.is_one_way() && self.window.next_token() - self.connection.barrier_token >= ONE_WAY_BATCH
            {
                self.connection.ping(now, self.window.next_token());
            }
        }
        // When all PINGs are answered, another one confirms the one-way messages since the last barrier.
        let is_behind =
            self.connection.barrier_token < self.window.next_token() && self.connection.barriers.is_empty();
        if self.is_one_way() && is_behind {
            self.connection.ping(now, self.window.next_token());
        }
    }

    /// Whether the limit on bytes that pass a parked message is reached: on disk the oldest message keeps the space of
    /// all later ones.
    fn is_passed_limit_reached(&self) -> bool {
        matches!(self.config.spool_mode, SpoolMode::Directory(_))
            && self.window.cost_passed_parked() > self.config.spool_size / PARKED_SPOOL_DIVISOR
    }

    /// Sends due messages of the window. Returns false if some remain that new messages must not pass.
    fn send_again(&mut self, now: Instant, server_limits: ServerLimits) -> bool {
        let due = self.window.iter().filter_map(|(token, flight)| match flight.stage {
            SendStage::Due(at, cause) => Some((token, at, cause)),
            SendStage::Sent { .. } => None,
        });
        // The time of the next token, once the budget is empty, and the time at which the next message is due.
        let (mut permitted_at, mut next_at) = (None, None);
        for (token, at, cause) in due.collect::<Vec<_>>() {
            if at > now {
                next_at = Some(next_at.map_or(at, |first: Instant| first.min(at)));
                continue;
            }
            if self.output().len() >= OUTPUT_SIZE {
                return false;
            }
            if cause != SendCause::First {
                if permitted_at.is_none() {
                    permitted_at = self.budget.try_acquire(now).err();
                }
                match (permitted_at, cause) {
                    (None, _) => {}
                    (Some(at), SendCause::Declined) => {
                        self.schedule_send(at);
                        continue;
                    }
                    (Some(at), _) => {
                        self.schedule_send(at);
                        return false;
                    }
                }
            }
            if self.write(now, token, cause, server_limits) {
                self.counts.retried += u64::from(cause != SendCause::First);
            }
        }
        if let Some(at) = next_at {
            // Without a token an earlier attempt is useless.
            self.schedule_send(permitted_at.map_or(at, |permitted| at.max(permitted)));
        }
        true
    }

    fn schedule_send(&mut self, at: Instant) {
        self.send_at = Some(self.send_at.map_or(at, |first| first.min(at)));
    }

    /// Writes a message of the window. Returns false if it was dropped instead.
    fn write(&mut self, now: Instant, token: u64, cause: SendCause, server_limits: ServerLimits) -> bool {
        let is_one_way = self.is_one_way();
        let Some(flight) = self.window.get_mut(token) else { return false };
        let (size, size_max) = (flight.entry.message.size(), server_limits.payload_size_max);
        if size > size_max {
            self.drop_token(token, DropReason::TooLarge { size, size_max });
            return false;
        }
        if flight.entry.is_cancelled() {
            self.drop_token(token, DropReason::TimedOut);
            return false;
        }
        let before = self.connection.out.len();
        let message = &flight.entry.message;
        let headers = message.headers();
        if !is_one_way {
            self.inbox.subject(token, &mut self.reply);
        }
        let reply = (!is_one_way).then_some(&self.reply[..]);
        Pub { subject: message.subject(), reply, headers, payload: message.payload() }
            .encode(&mut self.connection.out);
        self.connection.written += (self.connection.out.len() - before) as u64;
        self.window.set(token, SendStage::Sent { at: now, end: self.connection.written, cause });
        let late_at = now + self.config.acknowledge_timeout;
        self.answer_at = Some(self.answer_at.map_or(late_at, |first| first.min(late_at)));
        true
    }
}
