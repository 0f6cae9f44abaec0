//! One connection: sends the request over and over and believes nothing that comes back.
//!
//! Answers are decoded strictly and their bodies compared as they come, so an answer of any size
//! needs no memory. Only as many answers are read as requests have gone out; a byte beyond them is a
//! failure. A connection that the server has announced to close is watched until it does.

use std::sync::Arc;

use stilling_engine::{CloseReason, Io, Session};
use stilling_wire::http1::{
    DecodeError, Finish, ReplyEvent, ReplyLength, ReplyStep, ResponseDecoder, ResponseHead,
};

use super::{Generator, Task};
use crate::http::error::objection;
use crate::http::seats::Moment;
use crate::http::tally::Failure;

/// The status by which a server sheds load.
const SHED: u16 = 503;

pub(crate) struct Client {
    task: Arc<Task>,
    decoder: ResponseDecoder,
    seat: u32,
    /// The status of the answer being read.
    status: u16,
    /// Bytes of its body so far.
    body_at: u64,
    /// Its body differs from the expected one.
    body_differs: bool,
    /// The server said that this answer is the connection's last one.
    last: bool,
    opened: bool,
}

/// What an answer is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Right,
    Shed,
    Wrong(Failure),
}

impl Client {
    pub(crate) fn new(task: &Arc<Task>, seat: u32) -> Self {
        Client {
            task: Arc::clone(task),
            decoder: ResponseDecoder::default(),
            seat,
            status: 0,
            body_at: 0,
            body_differs: false,
            last: false,
            opened: false,
        }
    }

    fn head(&mut self, head: &ResponseHead<'_>, io: &mut Io<'_>, service: &mut Generator) {
        self.status = head.status;
        self.body_at = 0;
        self.body_differs = false;
        self.last = !head.persistent;
        service.tally.status(head.status);
        if head.body == ReplyLength::None {
            self.answered(io, service);
        }
    }

    fn body(&mut self, piece: &[u8]) {
        if self.status == self.task.plan.expect_status && !self.body_differs {
            let rest = usize::try_from(self.body_at).ok().and_then(|at| self.task.expected_body.get(at..));
            self.body_differs = !rest.is_some_and(|rest| rest.starts_with(piece));
        }
        if !self.body_differs {
            // From the first difference on it stands still and tells where that piece began.
            self.body_at += piece.len() as u64;
        }
    }

    fn verdict(&self) -> Verdict {
        if self.status == self.task.plan.expect_status {
            let whole = self.body_at == self.task.expected_body.len() as u64;
            if whole && !self.body_differs { Verdict::Right } else { Verdict::Wrong(Failure::WrongBody) }
        } else if self.status == SHED {
            Verdict::Shed
        } else {
            Verdict::Wrong(Failure::UnexpectedStatus)
        }
    }

    /// An answer is complete.
    fn answered(&mut self, io: &mut Io<'_>, service: &mut Generator) {
        let now = io.now();
        let Some(moment) = service.seats.end(self.seat) else { return };
        match self.verdict() {
            Verdict::Right => service.succeeded(moment, now),
            Verdict::Shed => service.was_shed(moment, now),
            Verdict::Wrong(failure) => service.failed(failure, 1, || self.describe(failure)),
        }
        if self.last || !self.task.plan.keep_alive {
            service.seats.shut(self.seat);
            service.take_back(self.seat);
        }
    }

    #[cold]
    fn describe(&self, failure: Failure) -> String {
        match failure {
            Failure::WrongBody if self.body_differs => {
                format!("the body differs from the expected one at or after byte {}", self.body_at)
            }
            Failure::WrongBody => {
                format!("the body has {} bytes instead of {}", self.body_at, self.task.expected_body.len())
            }
            _ => format!("status {} instead of {}", self.status, self.task.plan.expect_status),
        }
    }

    /// Sends what is to be sent now, and waits for answers no longer than allowed.
    fn fill(&mut self, io: &mut Io<'_>, service: &mut Generator) {
        let now = io.now();
        while service.seats.has_room(self.seat) {
            let Some(intended) = service.next_request(now) else { break };
            self.send(Moment { intended, sent: now }, io, service);
            if service.is_open_loop() {
                // One by one, so that the requests spread over the connections.
                break;
            }
        }
        service.seats.line_up(self.seat);
        self.keep_deadline(io, service);
    }

    fn send(&mut self, moment: Moment, io: &mut Io<'_>, service: &mut Generator) {
        service.seats.begin(self.seat, moment);
        if io.send(&self.task.request).is_err() {
            self.give_up(Failure::Local, || "no room for a request".to_owned(), io, service);
        }
    }

    fn keep_deadline(&self, io: &mut Io<'_>, service: &mut Generator) {
        let waits = service.seats.in_flight(self.seat) > 0 || self.last;
        let deadline = waits.then(|| io.now().after(self.task.plan.timeout));
        io.set_deadline(deadline);
    }

    /// The connection is of no further use; whatever is in flight on it fails.
    #[cold]
    fn give_up(
        &mut self,
        failure: Failure,
        words: impl FnOnce() -> String,
        io: &mut Io<'_>,
        service: &mut Generator,
    ) {
        let count = service.seats.in_flight(self.seat).max(1);
        service.drop_in_flight(self.seat);
        service.failed(failure, count.into(), words);
        service.seats.shut(self.seat);
        io.abort(CloseReason::ProtocolError);
    }

    /// Reads answers as long as some are owed; returns how many bytes are done with.
    fn read(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Generator) -> Result<usize, DecodeError> {
        let mut consumed = 0;
        while service.seats.in_flight(self.seat) > 0 {
            let unread = &bytes[consumed..];
            let ReplyStep { consumed: step, event } =
                self.decoder.decode(&self.task.limits, self.task.answered, unread)?;
            consumed += step;
            match event {
                ReplyEvent::NeedMore => return Ok(consumed),
                ReplyEvent::Interim(_) => {}
                ReplyEvent::Head(head) => self.head(&head, io, service),
                ReplyEvent::Body(piece) => self.body(piece),
                ReplyEvent::End => self.answered(io, service),
            }
        }
        if consumed < bytes.len() {
            let extra = &bytes[consumed..];
            self.give_up(
                Failure::ExtraBytes,
                || excerpt("bytes that nobody asked for: ", extra),
                io,
                service,
            );
        }
        Ok(bytes.len())
    }
}

/// The first bytes of something unexpected, in print.
fn excerpt(what: &str, bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    format!("{what}\"{}\"", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}

impl Session for Client {
    type Service = Generator;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut Generator) {
        let (now, token) = (io.now(), io.token());
        self.opened = true;
        service.connected(self.seat, token);
        if !self.task.plan.keep_alive {
            // Its request began with the connection.
            if io.send(&self.task.request).is_err() {
                self.give_up(Failure::Local, || "no room for a request".to_owned(), io, service);
            }
            self.keep_deadline(io, service);
        } else if self.task.plan.holds() {
            service.count_request(now);
            self.send(Moment { intended: now, sent: now }, io, service);
            self.keep_deadline(io, service);
        } else {
            self.fill(io, service);
        }
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Generator) -> usize {
        let owed = service.seats.in_flight(self.seat);
        let consumed = match self.read(bytes, io, service) {
            Ok(consumed) => consumed,
            Err(error) => {
                self.give_up(Failure::BadResponse, || objection(&error), io, service);
                bytes.len()
            }
        };
        let still_owed = service.seats.in_flight(self.seat);
        if still_owed == owed || io.is_finishing() {
            return consumed;
        }
        if self.task.plan.keep_alive || self.last {
            self.fill(io, service);
        } else {
            // The server would keep the connection although it was asked not to.
            io.finish(CloseReason::Done);
        }
        consumed
    }

    fn ended(&mut self, io: &mut Io<'_>, service: &mut Generator) {
        let in_body = self.decoder.in_body();
        if in_body && self.decoder.finish() == Ok(Finish::End) {
            self.answered(io, service);
        }
        let owed = service.seats.in_flight(self.seat);
        if owed > 0 {
            let part = if self.decoder.in_head() {
                "in the head of an answer"
            } else if in_body {
                "in the body of an answer"
            } else {
                "instead of an answer"
            };
            self.give_up(Failure::CutOff, || format!("the server closed the connection {part}"), io, service);
        } else {
            if self.task.plan.holds() {
                service.failed(Failure::CutOff, 1, || "the server closed a held connection".to_owned());
            }
            service.seats.shut(self.seat);
            io.finish(CloseReason::PeerClosed);
        }
    }

    fn delivered(&mut self, (): (), io: &mut Io<'_>, service: &mut Generator) {
        self.fill(io, service);
    }

    fn deadline(&mut self, io: &mut Io<'_>, service: &mut Generator) {
        let seconds = self.task.plan.timeout.as_secs_f64();
        if service.seats.in_flight(self.seat) > 0 {
            self.give_up(Failure::Timeout, || format!("no answer within {seconds} s"), io, service);
        } else if self.last {
            let words = || format!("the server announced to close and had not after {seconds} s");
            self.give_up(Failure::Timeout, words, io, service);
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut Generator) {
        service.gone(self.seat, reason, self.opened);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_most_of_its_slot_free() {
        assert!(size_of::<Client>() <= 96, "{}", size_of::<Client>());
    }

    #[test]
    fn unexpected_bytes_are_shown_shortened_and_in_print() {
        assert_eq!(excerpt("got ", b"\r\n\0a"), "got \"\\r\\n\\x00a\"");
        assert_eq!(excerpt("", &[b'a'; 100]).len(), 42);
    }
}
