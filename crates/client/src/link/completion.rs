//! Completion of messages: by an answer, or dropped with a reason. Each message is counted once, its room is released
//! once, and its caller is notified once.

use std::time::{Duration, Instant};

use super::publish_response::{PublishResponse, parse_response};
use super::send_window::{SendCause, SendStage};
use super::{LinkState, PublisherLink};
use crate::config::SpoolMode;
use crate::connection_error::{ConnectionError, quote};
use crate::handshake::ServerLimits;
use crate::limits::{PARKED_PASSED_MAX, PARKED_SPOOL_DIVISOR};
use crate::outcome::{DropReason, PublishFailure, PublishOutcome, PublisherCounts};
use crate::spool_entry::{SpoolEntry, StreamRejection};

/// The changes of a turn that the thread passes to callers.
#[derive(Debug, Default)]
pub(crate) struct LinkUpdate {
    pub(crate) counts: PublisherCounts,
    /// Number and cost of the messages no longer held.
    pub(crate) released: (u64, u64),
    /// Dropped messages without a waiting caller.
    pub(crate) failures: Vec<PublishFailure>,
    pub(crate) connection_error: Option<ConnectionError>,
    pub(crate) is_ready: bool,
}

impl PublisherLink {
    pub(crate) fn take_update(&mut self) -> LinkUpdate {
        LinkUpdate {
            counts: self.counts,
            released: std::mem::take(&mut self.released),
            failures: std::mem::take(&mut self.failures),
            connection_error: self.connection_error.clone(),
            is_ready: matches!(self.state, LinkState::Ready { .. }),
        }
    }

    pub(super) fn handle_response(&mut self, now: Instant, token: u64, headers: &[u8], payload: &[u8]) {
        let Some(flight) = self.window.get_mut(token) else {
            self.counts.stray_answers += 1;
            return;
        };
        let was_interrupted = matches!(flight.stage, SendStage::Sent { cause: SendCause::Interrupted, .. });
        let response = parse_response(headers, payload);
        let is_accepted_again =
            flight.entry.rejection.is_some() && matches!(response, PublishResponse::Stored { .. });
        // Refunds the retry if its cause is over: a lost connection that was replaced, or a stream that accepts
        // messages again. A message that the server defers is not refunded: the server may still be overloaded.
        if is_accepted_again || was_interrupted && !matches!(response, PublishResponse::RetryLater(_)) {
            self.budget.refund();
        }
        match response {
            PublishResponse::Stored { stream, sequence, duplicate } => {
                self.deliver(now, token, PublishOutcome::Delivered { stream, sequence, duplicate });
            }
            PublishResponse::RetryLater(hint) => {
                self.counts.deferrals += 1;
                // Messages in flight at the first such answer are deferred for the same reason: all of them count as
                // one failure.
                if self.resume_at.is_none_or(|at| now >= at) {
                    self.backoff.record_failure();
                    self.pause(now, hint.unwrap_or(Duration::ZERO));
                } else if let Some(hint) = hint {
                    self.resume_at = self.resume_at.max(Some(now + hint));
                }
                self.window.set(token, SendStage::Due(now, SendCause::Declined));
                if let Some(flight) = self.window.get_mut(token) {
                    flight.entry.attempts += 1;
                }
                self.needs_exhausted_check = true;
            }
            PublishResponse::StreamUnavailable(reason) => {
                self.retry_or_drop_rejected(now, token, reason, Some(now + self.config.no_stream_timeout));
            }
            PublishResponse::DiskHung(reason) => {
                self.retry_or_drop_rejected(now, token, reason, None);
                self.needs_exhausted_check = true;
            }
            PublishResponse::Refused(reason) => self.drop_token(token, reason),
        }
    }

    /// Handles a message that its stream does not accept now. It has a wait of its own, longer each time, and is parked
    /// so that others pass it. At the limit of parked messages it keeps its slot: a stream that recovers in time
    /// receives all of its messages, however fast they are published.
    fn retry_or_drop_rejected(
        &mut self,
        now: Instant,
        token: u64,
        reason: DropReason,
        until: Option<Instant>,
    ) {
        let Some(flight) = self.window.get_mut(token) else { return };
        let before = flight.entry.rejection.as_ref().and_then(|rejection| rejection.until);
        let until = until.map(|until| before.unwrap_or(until));
        flight.entry.rejection = Some(StreamRejection { until, reason: reason.clone() });
        let longest = self.config.backoff.wait_max;
        let factor = 1 << flight.entry.attempts.min(16);
        let wait = self.backoff.wait().checked_mul(factor).map_or(longest, |wait| wait.min(longest));
        let wait = self.random.jitter(wait);
        flight.entry.attempts += 1;
        let is_exhausted = self.config.spool_mode == SpoolMode::Attempts
            && flight.entry.attempts_made(self.failed_connections) >= u64::from(self.backoff.attempts());
        let cost_max = self.config.spool_size / PARKED_SPOOL_DIVISOR;
        if is_exhausted || until.is_some_and(|until| now >= until) {
            self.drop_token(token, reason);
        } else {
            self.window.park(token, cost_max);
            let at = now + wait;
            let at = until.map_or(at, |until| at.min(until));
            self.window.set(token, SendStage::Due(at, SendCause::Declined));
        }
    }

    /// Drops rejected messages at their deadline, unless a retry is in flight. On disk the oldest message keeps the
    /// space of all later ones, so those that too many messages have passed are dropped, too. Returns whether any were
    /// dropped.
    pub(super) fn drop_expired_rejections(&mut self, now: Instant) -> bool {
        self.rejection_deadline = None;
        if self.window.due() == 0 {
            return false;
        }
        let dropped_before = self.counts.dropped;
        let is_on_disk = matches!(self.config.spool_mode, SpoolMode::Directory(_));
        let cost_max = self.config.spool_size / PARKED_SPOOL_DIVISOR;
        let next = self.window.next_token();
        let ends = self.window.iter().filter_map(|(token, flight)| match flight.stage {
            SendStage::Due(..) => {
                let until = flight.entry.rejection.as_ref()?.until?;
                let is_over_limit =
                    next - token > PARKED_PASSED_MAX || self.window.cost_passed(flight) > cost_max;
                let is_passed = is_on_disk && is_over_limit;
                Some((token, if is_passed { now } else { until }))
            }
            SendStage::Sent { .. } => None,
        });
        for (token, end) in ends.collect::<Vec<_>>() {
            if now < end {
                self.rejection_deadline = Some(self.rejection_deadline.map_or(end, |first| first.min(end)));
            } else if let Some(flight) = self.window.get_mut(token)
                && let Some(StreamRejection { reason, .. }) = flight.entry.rejection.clone()
            {
                self.drop_token(token, reason);
            }
        }
        self.counts.dropped > dropped_before
    }

    /// The server has read everything before this PONG's PING.
    pub(super) fn handle_pong(&mut self, now: Instant) {
        let Some(barrier) = self.connection.barriers.pop_front() else { return };
        self.connection.ping_sent_at = (!self.connection.barriers.is_empty()).then_some(now);
        if !self.is_one_way() {
            return;
        }
        for token in self.window.tokens().into_iter().take_while(|token| *token < barrier) {
            let outcome = PublishOutcome::Delivered { stream: String::new(), sequence: 0, duplicate: false };
            self.deliver(now, token, outcome);
        }
    }

    pub(super) fn handle_server_error(
        &mut self,
        text: &[u8],
        server_limits: ServerLimits,
    ) -> Result<(), ConnectionError> {
        const PERMISSION: &[u8] = b"permissions violation for publish to ";
        let lower = text.to_ascii_lowercase();
        if lower.starts_with(PERMISSION) {
            let subject = text[PERMISSION.len()..].trim_ascii();
            let subject =
                subject.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(subject);
            for token in self.window.tokens() {
                let has_subject = self
                    .window
                    .get_mut(token)
                    .is_some_and(|flight| flight.entry.message.subject().eq_ignore_ascii_case(subject));
                if has_subject {
                    self.drop_token(token, DropReason::NotPermitted(quote(text)));
                }
            }
            return Ok(());
        }
        if lower.starts_with(b"invalid publish subject") || lower.starts_with(b"invalid subject") {
            // The error does not name the message: its answer becomes overdue, and it is retried as often as the
            // backoff allows.
            self.connection_error = Some(ConnectionError::from_server_text(text));
            return Ok(());
        }
        if lower.starts_with(b"maximum payload") {
            // Sent again, the message would end the next connection, too.
            let size_of = |(token, flight): (u64, &super::send_window::InFlightMessage)| {
                (flight.entry.message.size(), token)
            };
            if let Some((size, token)) = self.window.iter().map(size_of).max() {
                self.drop_token(
                    token,
                    DropReason::TooLarge {
                        size,
                        size_max: server_limits.payload_size_max.min(size.saturating_sub(1)),
                    },
                );
            }
        }
        Err(ConnectionError::from_server_text(text))
    }

    /// Handles messages that have used up the attempts of the backoff: their callers stop waiting, and the messages are
    /// dropped unless the spool retains them. Cancelled messages are dropped.
    pub(super) fn handle_exhausted(&mut self) {
        let (failed_connections, attempts) = (self.failed_connections, u64::from(self.backoff.attempts()));
        let is_retained = self.config.spool_mode != SpoolMode::Attempts;
        let is_held = |entry: &mut SpoolEntry| {
            let is_within_stream_timeout =
                entry.rejection.as_ref().is_some_and(|rejection| rejection.until.is_some());
            let is_exhausted =
                entry.attempts_made(failed_connections) >= attempts && !is_within_stream_timeout;
            if is_exhausted
                && is_retained
                && let Some(ticket) = entry.ticket.take()
            {
                ticket.complete(PublishOutcome::Queued);
            }
            !entry.is_cancelled() && (is_retained || !is_exhausted)
        };
        for token in self.window.tokens() {
            let Some(flight) = self.window.get_mut(token) else { continue };
            if matches!(flight.stage, SendStage::Due(..)) && !is_held(&mut flight.entry) {
                let reason = self.drop_reason_of_token(token);
                self.drop_token(token, reason);
            }
        }
        for entry in self.spool.retain(&mut |entry| is_held(entry)) {
            let reason = self.drop_reason_of_entry(&entry);
            self.drop_entry(entry, reason);
        }
    }

    fn drop_reason_of_token(&mut self, token: u64) -> DropReason {
        let (failed_connections, connection_error) = (self.failed_connections, self.connection_error.clone());
        self.window.get_mut(token).map_or(DropReason::Closed, |flight| {
            give_up_reason(&flight.entry, failed_connections, connection_error)
        })
    }

    fn drop_reason_of_entry(&self, entry: &SpoolEntry) -> DropReason {
        give_up_reason(entry, self.failed_connections, self.connection_error.clone())
    }

    fn deliver(&mut self, now: Instant, token: u64, outcome: PublishOutcome) {
        let Some(flight) = self.window.remove(token) else { return };
        let entry = flight.entry;
        self.backoff.record_success();
        self.counts.delivered += 1;
        self.counts.delivered_bytes += entry.message.payload().len() as u64;
        let is_duplicate = matches!(outcome, PublishOutcome::Delivered { duplicate: true, .. });
        self.counts.duplicates += u64::from(is_duplicate);
        if let Some(since) = entry.since {
            self.counts.record_send_time(now.saturating_duration_since(since));
        }
        self.release(entry.cost);
        if let Some(ticket) = entry.ticket {
            ticket.complete(outcome);
        }
    }

    pub(super) fn drop_token(&mut self, token: u64, reason: DropReason) {
        if let Some(flight) = self.window.remove(token) {
            self.drop_entry(flight.entry, reason);
        }
    }

    pub(super) fn drop_entry(&mut self, entry: SpoolEntry, reason: DropReason) {
        let is_reported =
            entry.ticket.as_ref().is_some_and(|it| it.complete(PublishOutcome::Dropped(reason.clone())));
        // The caller of a cancelled message already has its outcome.
        if is_reported || entry.is_cancelled() {
            self.counts.dropped += 1;
            self.release(entry.cost);
        } else {
            let subject = String::from_utf8_lossy(entry.message.subject()).into_owned();
            self.count_drop(entry.cost, subject, entry.message.id(), reason);
        }
    }

    pub(super) fn count_drop(&mut self, cost: u64, subject: String, id: String, reason: DropReason) {
        self.counts.dropped += 1;
        self.failures.push(PublishFailure { subject, id, reason });
        self.release(cost);
    }

    fn release(&mut self, cost: u64) {
        self.released.0 += 1;
        self.released.1 += cost;
    }
}

fn give_up_reason(
    entry: &SpoolEntry,
    failed_connections: u64,
    connection_error: Option<ConnectionError>,
) -> DropReason {
    if entry.is_cancelled() {
        return DropReason::TimedOut;
    }
    DropReason::AttemptsExhausted {
        attempts: u32::try_from(entry.attempts_made(failed_connections)).unwrap_or(u32::MAX),
        connection_error,
    }
}
