//! One connection: sends the request repeatedly and verifies every answer.
//!
//! Answers are decoded strictly and their bodies compared as they arrive, so an answer of any size needs no memory. The
//! session reads only as many answers as it has sent requests; any further byte is a failure. After an announced close
//! the connection is watched until it closes.

use std::sync::Arc;

use stilling_engine::{CloseReason, Io, Session};
use stilling_wire::http1::{
    HttpDecodeError, InputEnd, ResponseBodyLength, ResponseDecoder, ResponseEvent, ResponseHead, ResponseStep,
};

use super::{GeneratorShared, LoadGenerator};
use crate::http::error::error_detail;
use crate::http::slots::RequestTimes;
use crate::http::tally::RequestFailure;

const SHED: u16 = 503;

pub(crate) struct GeneratorSession {
    shared: Arc<GeneratorShared>,
    decoder: ResponseDecoder,
    slot: u32,
    status: u16,
    /// Bytes of its body so far.
    body_at: u64,
    body_differs: bool,
    /// The server announced this answer as the connection's last one.
    last: bool,
    opened: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseCheck {
    Correct,
    Shed,
    Wrong(RequestFailure),
}

impl GeneratorSession {
    pub(crate) fn new(shared: &Arc<GeneratorShared>, slot: u32) -> Self {
        GeneratorSession {
            shared: Arc::clone(shared),
            decoder: ResponseDecoder::default(),
            slot,
            status: 0,
            body_at: 0,
            body_differs: false,
            last: false,
            opened: false,
        }
    }

    fn head(&mut self, head: &ResponseHead<'_>, io: &mut Io<'_>, service: &mut LoadGenerator) {
        self.status = head.status;
        self.body_at = 0;
        self.body_differs = false;
        self.last = !head.persistent;
        service.tally.status(head.status);
        if head.body == ResponseBodyLength::None {
            self.handle_response(io, service);
        }
    }

    fn body(&mut self, piece: &[u8]) {
        if self.status == self.shared.plan.expect_status && !self.body_differs {
            let rest = usize::try_from(self.body_at).ok().and_then(|at| self.shared.expected_body.get(at..));
            self.body_differs = !rest.is_some_and(|rest| rest.starts_with(piece));
        }
        if !self.body_differs {
            // `body_at` stays at the start of the first piece that differs, for the report.
            self.body_at += piece.len() as u64;
        }
    }

    fn verdict(&self) -> ResponseCheck {
        if self.status == self.shared.plan.expect_status {
            let whole = self.body_at == self.shared.expected_body.len() as u64;
            if whole && !self.body_differs {
                ResponseCheck::Correct
            } else {
                ResponseCheck::Wrong(RequestFailure::WrongBody)
            }
        } else if self.status == SHED {
            ResponseCheck::Shed
        } else {
            ResponseCheck::Wrong(RequestFailure::UnexpectedStatus)
        }
    }

    fn handle_response(&mut self, io: &mut Io<'_>, service: &mut LoadGenerator) {
        let now = io.now();
        let Some(times) = service.slots.end(self.slot) else { return };
        match self.verdict() {
            ResponseCheck::Correct => service.record_success(times, now),
            ResponseCheck::Shed => service.record_shed(times, now),
            ResponseCheck::Wrong(failure) => service.record_failure(failure, 1, || self.describe(failure)),
        }
        if self.last || !self.shared.plan.keep_alive {
            service.slots.mark_closing(self.slot);
            service.requeue(self.slot);
        }
    }

    #[cold]
    fn describe(&self, failure: RequestFailure) -> String {
        match failure {
            RequestFailure::WrongBody if self.body_differs => {
                format!("the body differs from the expected one at or after byte {}", self.body_at)
            }
            RequestFailure::WrongBody => {
                format!("the body has {} bytes instead of {}", self.body_at, self.shared.expected_body.len())
            }
            _ => format!("status {} instead of {}", self.status, self.shared.plan.expect_status),
        }
    }

    /// Sends the due requests and sets the deadline of the answers.
    fn fill(&mut self, io: &mut Io<'_>, service: &mut LoadGenerator) {
        let now = io.now();
        while service.slots.has_room(self.slot) {
            let Some(intended) = service.next_request(now) else { break };
            self.send(RequestTimes { intended, sent: now }, io, service);
            if service.is_open_loop() {
                // One request at a time, so that requests spread over the connections.
                break;
            }
        }
        service.slots.mark_ready(self.slot);
        self.update_deadline(io, service);
    }

    fn send(&mut self, times: RequestTimes, io: &mut Io<'_>, service: &mut LoadGenerator) {
        service.slots.begin(self.slot, times);
        if io.send(&self.shared.request).is_err() {
            self.fail_connection(RequestFailure::Local, || "no room for a request".to_owned(), io, service);
        }
    }

    fn update_deadline(&self, io: &mut Io<'_>, service: &mut LoadGenerator) {
        let waits = service.slots.in_flight(self.slot) > 0 || self.last;
        let deadline = waits.then(|| io.now().after(self.shared.plan.timeout));
        io.set_deadline(deadline);
    }

    #[cold]
    fn fail_connection(
        &mut self,
        failure: RequestFailure,
        detail: impl FnOnce() -> String,
        io: &mut Io<'_>,
        service: &mut LoadGenerator,
    ) {
        let count = service.slots.in_flight(self.slot).max(1);
        service.drop_in_flight(self.slot);
        service.record_failure(failure, count.into(), detail);
        service.slots.mark_closing(self.slot);
        io.abort(CloseReason::ProtocolError);
    }

    /// Reads as many answers as are expected; returns the consumed bytes.
    fn read(
        &mut self,
        bytes: &[u8],
        io: &mut Io<'_>,
        service: &mut LoadGenerator,
    ) -> Result<usize, HttpDecodeError> {
        let mut consumed = 0;
        while service.slots.in_flight(self.slot) > 0 {
            let unread = &bytes[consumed..];
            let ResponseStep { consumed: step, event } =
                self.decoder.decode(&self.shared.limits, self.shared.reply_to, unread)?;
            consumed += step;
            match event {
                ResponseEvent::NeedMore => return Ok(consumed),
                ResponseEvent::Interim(_) => {}
                ResponseEvent::Head(head) => self.head(&head, io, service),
                ResponseEvent::Body(piece) => self.body(piece),
                ResponseEvent::End => self.handle_response(io, service),
            }
        }
        if consumed < bytes.len() {
            let extra = &bytes[consumed..];
            self.fail_connection(
                RequestFailure::ExtraBytes,
                || excerpt("bytes without a request: ", extra),
                io,
                service,
            );
        }
        Ok(bytes.len())
    }
}

fn excerpt(what: &str, bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    format!("{what}\"{}\"", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}

impl Session for GeneratorSession {
    type Service = LoadGenerator;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut LoadGenerator) {
        let (now, token) = (io.now(), io.token());
        self.opened = true;
        service.handle_connected(self.slot, token);
        if !self.shared.plan.keep_alive {
            // With a connection per request, the request starts with the connection.
            if io.send(&self.shared.request).is_err() {
                self.fail_connection(
                    RequestFailure::Local,
                    || "no room for a request".to_owned(),
                    io,
                    service,
                );
            }
            self.update_deadline(io, service);
        } else if self.shared.plan.holds() {
            service.count_request(now);
            self.send(RequestTimes { intended: now, sent: now }, io, service);
            self.update_deadline(io, service);
        } else {
            self.fill(io, service);
        }
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut LoadGenerator) -> usize {
        let owed = service.slots.in_flight(self.slot);
        let consumed = match self.read(bytes, io, service) {
            Ok(consumed) => consumed,
            Err(error) => {
                self.fail_connection(RequestFailure::BadResponse, || error_detail(&error), io, service);
                bytes.len()
            }
        };
        let still_owed = service.slots.in_flight(self.slot);
        if still_owed == owed || io.is_finishing() {
            return consumed;
        }
        if self.shared.plan.keep_alive || self.last {
            self.fill(io, service);
        } else {
            // The server keeps the connection despite `Connection: close`.
            io.finish(CloseReason::Done);
        }
        consumed
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut LoadGenerator) {
        let in_body = self.decoder.in_body();
        if in_body && self.decoder.finish() == Ok(InputEnd::End) {
            self.handle_response(io, service);
        }
        let owed = service.slots.in_flight(self.slot);
        if owed > 0 {
            let part = if self.decoder.in_head() {
                "in the head of an answer"
            } else if in_body {
                "in the body of an answer"
            } else {
                "instead of an answer"
            };
            self.fail_connection(
                RequestFailure::CutOff,
                || format!("the server closed the connection {part}"),
                io,
                service,
            );
        } else {
            if self.shared.plan.holds() {
                service.record_failure(RequestFailure::CutOff, 1, || {
                    "the server closed a held connection".to_owned()
                });
            }
            service.slots.mark_closing(self.slot);
            io.finish(CloseReason::PeerClosed);
        }
    }

    fn delivered(&mut self, (): (), io: &mut Io<'_>, service: &mut LoadGenerator) {
        self.fill(io, service);
    }

    fn deadline(&mut self, io: &mut Io<'_>, service: &mut LoadGenerator) {
        let seconds = self.shared.plan.timeout.as_secs_f64();
        if service.slots.in_flight(self.slot) > 0 {
            self.fail_connection(
                RequestFailure::Timeout,
                || format!("no answer within {seconds} s"),
                io,
                service,
            );
        } else if self.last {
            let detail = || format!("the server announced a close, but did not close within {seconds} s");
            self.fail_connection(RequestFailure::Timeout, detail, io, service);
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut LoadGenerator) {
        service.handle_closed(self.slot, reason, self.opened);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_most_of_its_slot_free() {
        assert!(size_of::<GeneratorSession>() <= 96, "{}", size_of::<GeneratorSession>());
    }

    #[test]
    fn unexpected_bytes_are_shown_shortened_and_in_print() {
        assert_eq!(excerpt("got ", b"\r\n\0a"), "got \"\\r\\n\\x00a\"");
        assert_eq!(excerpt("", &[b'a'; 100]).len(), 42);
    }
}
