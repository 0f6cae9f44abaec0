//! A request that a worker process answers: the session's half of it; the other half is `crate::app`.
//!
//! ```text
//!   head, body ─► Question ─► queue ─► slot ─► Said::Answer … Piece … last ─► client
//!                                       │ ▲
//!                              Said::Ask▼ │ Heard::Body        (bodies longer than the first buffer)
//! ```
//!
//! The session reads a body up to the first buffer before it asks for a slot, so that a slow upload holds none.
//! What comes behind is read only when the process asks for it, and an answer is asked on only when the client has
//! taken the piece before: in each direction one piece is under way.

use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_wire::http1::{RequestHead, Status};
use stilling_workers::{JobContext, Outcome, Position, Reply};

use super::answer;
use super::counters::Held;
use super::service::{HttpService, JobOutcome, Work};
use super::session::{Begun, HttpSession, Kept, Waiting};
use crate::app::limits::{FIRST_BODY_MAX, PIECE_SIZE_MAX};
use crate::app::{self, Answer, BodyFraming, Heard, Piece, Question, Refusal, Said};

/// What is kept of a request to a worker process, outside of the connection's slot.
pub(super) struct Forward {
    /// The request, until it is in the queue.
    question: Option<Box<Question>>,
    /// The way to a job that speaks in parts.
    reply: Option<Box<Reply<Heard>>>,
    /// The process waits for more of the body.
    is_asked: bool,
    /// Something of the answer has been sent.
    has_begun: bool,
    /// What has come of the body since it was last asked for.
    body: Vec<u8>,
    /// How long the client has been waited for, for this body. With the bytes that have come it makes the body's rate,
    /// which counts over the whole of it: a client that trickles holds the slot no longer than its minimum allows.
    waited: Duration,
    /// The part of the answer that is on its way to the client, and how far it is.
    piece: Option<(Piece, usize)>,
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forward").field("is_asked", &self.is_asked).finish_non_exhaustive()
    }
}

impl Forward {
    fn of(question: Option<Box<Question>>) -> Box<Forward> {
        Box::new(Forward {
            question,
            reply: None,
            is_asked: false,
            has_begun: false,
            body: Vec::new(),
            waited: Duration::ZERO,
            piece: None,
        })
    }
}

impl HttpSession {
    /// Gives a request without a body to a worker process.
    pub(super) fn forward(&mut self, head: &RequestHead<'_>, io: &mut Io<'_, HttpService>) {
        let mut question = self.question(head, io);
        match question.hold_head(io.service.config.requests_held_max) {
            true => self.ask(question, io),
            false => self.shed(io),
        }
    }

    /// Begins to keep a request with a body. False: there is no room, and the client has been told.
    pub(super) fn begin_forward(&mut self, head: &RequestHead<'_>, io: &mut Io<'_, HttpService>) -> bool {
        let mut question = self.question(head, io);
        let has_room = question.hold_head(io.service.config.requests_held_max);
        match has_room {
            true => self.kept = Kept::Forward(Forward::of(Some(question))),
            false => self.shed(io),
        }
        has_room
    }

    fn question(&self, head: &RequestHead<'_>, io: &mut Io<'_, HttpService>) -> Box<Question> {
        let held = Held::new(&io.service.counters);
        Question::new(head, self.peer.as_deref().copied(), io.service.take_buffer(), held)
    }

    /// A piece of the body has come.
    pub(super) fn forward_body(&mut self, piece: &[u8], io: &mut Io<'_, HttpService>) {
        let Kept::Forward(forward) = &mut self.kept else { return };
        match &mut forward.question {
            Some(question) => {
                if !question.push(piece, io.service.config.requests_held_max) {
                    self.shed(io);
                } else if question.body.len() >= FIRST_BODY_MAX {
                    self.ask_kept(io);
                }
            }
            None => {
                forward.body.extend_from_slice(piece);
                if forward.body.len() >= PIECE_SIZE_MAX {
                    self.reply_body(false, io);
                }
            }
        }
    }

    /// The body is complete.
    pub(super) fn forward_end(&mut self, io: &mut Io<'_, HttpService>) {
        let Kept::Forward(forward) = &mut self.kept else { return };
        match &mut forward.question {
            Some(question) => {
                question.goes_on = false;
                self.ask_kept(io);
            }
            None => self.reply_body(true, io),
        }
    }

    /// All that has been received has been looked at: what there is of the body goes on.
    pub(super) fn forward_what_came(&mut self, io: &mut Io<'_, HttpService>) {
        if let Kept::Forward(forward) = &self.kept
            && forward.is_asked
            && !forward.body.is_empty()
        {
            self.reply_body(false, io);
        }
    }

    fn ask_kept(&mut self, io: &mut Io<'_, HttpService>) {
        let Kept::Forward(forward) = &mut self.kept else { return };
        forward.waited = io.now().since(self.since);
        if let Some(question) = forward.question.take() {
            self.ask(question, io);
        }
    }

    /// Puts the request into the queue.
    fn ask(&mut self, question: Box<Question>, io: &mut Io<'_, HttpService>) {
        let ticket = self.next_ticket(io);
        let speaker = io.service.lane.speaker(ticket);
        let job = move |context: &mut JobContext| JobOutcome::app(app::exchange(question, context, speaker));
        match self.give(Begun::No, io, job) {
            Some(position) => {
                self.waiting = Waiting::App(position);
                let deadline = self.since.after(io.service.config.queue_age_max);
                io.set_deadline(Some(deadline));
            }
            None => self.refuse_forward(Status::ServiceUnavailable, io),
        }
    }

    /// No process has taken the request for as long as it may wait; or one has, and keeps the time itself.
    pub(super) fn forward_is_late(&mut self, position: Position, io: &mut Io<'_, HttpService>) {
        if !io.service.lane.is_waiting(position) {
            return io.set_deadline(None);
        }
        self.job = self.job.wrapping_add(1);
        io.service.counters.jobs_expired.add(1);
        self.refuse_forward(Status::ServiceUnavailable, io);
    }

    /// Answers instead of a process.
    fn refuse_forward(&mut self, status: Status, io: &mut Io<'_, HttpService>) {
        let is_cut_short = self.decoder.in_body();
        self.terms.persistent &= !is_cut_short;
        let persistent = answer::send_status(&self.terms, status, io);
        self.end_forward(persistent, is_cut_short, io);
    }

    /// The answer is with the system, or on its way there for good.
    fn end_forward(&mut self, persistent: bool, is_cut_short: bool, io: &mut Io<'_, HttpService>) {
        self.kept = Kept::Nothing;
        if is_cut_short {
            // The client may still be sending the body that nobody wanted.
            io.resume();
            return io.finish_lingering(CloseReason::Done);
        }
        self.answered(persistent, io);
        io.resume();
    }

    /// The job has said something.
    pub(super) fn forwarded(&mut self, outcome: Outcome<JobOutcome>, io: &mut Io<'_, HttpService>) {
        let has_begun = matches!(&self.kept, Kept::Forward(forward) if forward.has_begun);
        let said = match outcome {
            Outcome::Done(JobOutcome(Work::App(said))) | Outcome::Part(JobOutcome(Work::App(said))) => said,
            Outcome::Expired => {
                io.service.counters.jobs_expired.add(1);
                Said::Refused(Refusal::Unavailable)
            }
            _ if has_begun => Said::Broken,
            _ => return self.refuse_forward(Status::InternalServerError, io),
        };
        match said {
            Said::Answer(answer, reply) => self.begin_answer(answer, reply, io),
            Said::Piece(piece) => self.send_piece(piece, io),
            Said::Ask(reply) => self.is_asked(reply, io),
            Said::Refused(Refusal::Unavailable) => self.refuse_forward(Status::ServiceUnavailable, io),
            Said::Refused(Refusal::Bad) => self.refuse_forward(Status::BadGateway, io),
            Said::Refused(Refusal::Late) => self.refuse_forward(Status::GatewayTimeout, io),
            Said::Broken => io.abort(CloseReason::AnswerBroken),
        }
    }

    /// The process takes more of the body.
    fn is_asked(&mut self, reply: Option<Box<Reply<Heard>>>, io: &mut Io<'_, HttpService>) {
        let Kept::Forward(forward) = &mut self.kept else { return };
        if reply.is_some() {
            forward.reply = reply;
        }
        forward.is_asked = true;
        // The client's time goes on: until now it was the process's.
        self.waiting = Waiting::Body;
        self.since = io.now().before(forward.waited);
        self.keep_deadline(io);
        io.resume();
    }

    /// Gives the process what has come of the body.
    fn reply_body(&mut self, is_last: bool, io: &mut Io<'_, HttpService>) {
        let Kept::Forward(forward) = &mut self.kept else { return };
        forward.is_asked = false;
        forward.waited = io.now().since(self.since);
        let body = std::mem::take(&mut forward.body);
        let Some(reply) = &mut forward.reply else { return io.abort(CloseReason::AnswerBroken) };
        // A part was said, and this is the first reply to it.
        let _ = reply.send(Heard::Body(body, is_last));
        self.waiting = Waiting::AppPart;
        io.set_deadline(None);
        io.pause();
    }

    /// Sends the answer, or its first part.
    fn begin_answer(
        &mut self,
        answer: Answer,
        reply: Option<Box<Reply<Heard>>>,
        io: &mut Io<'_, HttpService>,
    ) {
        let Answer { status, has_date, framing, head_len, piece } = answer;
        io.service.counters.count_answer_code(status);
        let is_cut_short = self.decoder.in_body();
        let persistent = self.terms.persistent
            && framing != BodyFraming::Close
            && !is_cut_short
            && !io.service.is_draining();
        self.terms.persistent = persistent;
        let date = io.service.date(io.now());
        let keep_alive_10 = self.terms.keep_alive_10;
        let body = &piece.bytes[piece.start..];
        // The caller keeps room for a head; a short body goes with it.
        let fits = head_len + body.len() + FRAMING_SIZE_MAX <= io.room();
        let sent = io.send_with(|out| {
            out.extend_from_slice(&piece.bytes[..head_len]);
            if !has_date {
                for part in [&b"Date: "[..], date.as_bytes(), b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
            match (persistent, keep_alive_10) {
                (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
                (true, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
                (true, false) => {}
            }
            match framing {
                BodyFraming::Length(length) => {
                    out.extend_from_slice(b"Content-Length: ");
                    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
                BodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
                BodyFraming::Close | BodyFraming::Bodiless => {}
            }
            out.extend_from_slice(b"\r\n");
            if fits {
                out.extend_from_slice(body);
            }
        });
        if sent.is_err() {
            // It has been closed for want of room.
            return;
        }
        if fits && piece.is_last {
            io.service.give_buffer(piece.bytes);
            return self.end_forward(persistent, is_cut_short, io);
        }
        let sent = if fits { piece.bytes.len() } else { piece.start };
        let forward = self.keep_forward();
        forward.has_begun = true;
        if reply.is_some() {
            forward.reply = reply;
        }
        self.send_from(piece, sent, io);
    }

    fn keep_forward(&mut self) -> &mut Forward {
        if !matches!(self.kept, Kept::Forward(_)) {
            self.kept = Kept::Forward(Forward::of(None));
        }
        match &mut self.kept {
            Kept::Forward(forward) => forward,
            _ => unreachable!("it has just been put there"),
        }
    }

    fn send_piece(&mut self, piece: Piece, io: &mut Io<'_, HttpService>) {
        let start = piece.start;
        self.send_from(piece, start, io);
    }

    fn send_from(&mut self, piece: Piece, sent: usize, io: &mut Io<'_, HttpService>) {
        self.keep_forward().piece = Some((piece, sent));
        self.forward_on(io);
    }

    /// Sends what there is room for; the rest when that has gone.
    pub(super) fn forward_on(&mut self, io: &mut Io<'_, HttpService>) {
        let Kept::Forward(forward) = &mut self.kept else { return };
        let Some((piece, sent)) = &mut forward.piece else { return };
        let rest = &piece.bytes[*sent..];
        let count = rest.len().min(io.room());
        if count > 0 {
            // There is room for as much.
            let _ = io.send(&rest[..count]);
            *sent += count;
        }
        if *sent < piece.bytes.len() {
            self.waiting = Waiting::Room;
            // Time is kept by the engine: what the client does not take is subject to the write timeout.
            io.set_deadline(None);
            io.resume();
            return io.again();
        }
        let is_last = piece.is_last;
        forward.piece = None;
        if is_last {
            let is_cut_short = self.decoder.in_body();
            return self.end_forward(self.terms.persistent, is_cut_short, io);
        }
        let Some(reply) = &mut forward.reply else { return io.abort(CloseReason::AnswerBroken) };
        // A part was said, and this is the first reply to it.
        let _ = reply.send(Heard::More);
        self.waiting = Waiting::AppPart;
        io.set_deadline(None);
        io.pause();
    }
}

/// Bytes that date, connection and framing may add to a process's own head.
const FRAMING_SIZE_MAX: usize = 256;
