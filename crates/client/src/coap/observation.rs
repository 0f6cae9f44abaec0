//! An observation of the client (RFC 7641 §3): order of notifications and registration.

use std::time::{Duration, Instant};

use stilling_wire::coap::{ObserveSequence, Token};

use super::limits::{NOTIFICATION_AGE_MAX, REREGISTRATION_DELAY};
use super::request::CoapRequest;
use crate::backoff::JitterRng;

#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) request: CoapRequest,
    pub(crate) token: Token,
    newest: Option<(ObserveSequence, Instant)>,
    registers_at: Instant,
}

impl Observation {
    pub(crate) fn new(request: CoapRequest, token: Token, now: Instant) -> Observation {
        Observation { request, token, newest: None, registers_at: now }
    }

    /// Notes a notification. Returns whether it is newer than all earlier ones (RFC 7641 §3.4).
    pub(crate) fn advance(
        &mut self,
        sequence: ObserveSequence,
        max_age: Duration,
        random: &mut JitterRng,
        now: Instant,
    ) -> bool {
        let is_newer = self.newest.is_none_or(|(newest, at)| {
            sequence.is_newer_than(newest) || now.duration_since(at) > NOTIFICATION_AGE_MAX
        });
        if is_newer {
            self.newest = Some((sequence, now));
            let delay = REREGISTRATION_DELAY + random.jitter(REREGISTRATION_DELAY * 2);
            self.registers_at = crate::limits::deadline(now, max_age + delay);
        }
        is_newer
    }

    /// When the newest state is no longer fresh and the server must have forgotten the client.
    pub(crate) fn registers_at(&self) -> Instant {
        self.registers_at
    }
}
