//! A request that a worker process answers: the session's half of it; the other half is `crate::app`.
//!
//! ```text
//!   head, body ─► Question ─► desk ─► Said::Answer … Piece … last ─► client
//!                              │ ▲
//!                     Said::Ask▼ │ Heard::Body        (bodies longer than the first buffer)
//! ```
//!
//! The session reads the body before it asks for a slot, so that a slow upload holds none, and asks the answer on before
//! the client has taken what came, so that a slow reader holds none. Both are bounded (`app::limits`). Of a longer body
//! the next piece is read when the process has taken the one before; of a longer answer it is asked for when the client
//! has. As long as that holds a slot, the client has to keep to `SLOT_RATE_MIN`.

use std::collections::VecDeque;
use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_ring::Time;
use stilling_wire::http1::{RequestHead, Status};

use super::answer;
use super::counters::Held;
use super::service::{HttpService, Timeouts};
use super::session::{HttpSession, Kept, Waiting};
use crate::app::limits::{ANSWER_HELD_MAX, CLIENT_LOOK, HELD_SHARE, PIECE_SIZE_MAX, SLOT_RATE_MIN};
use crate::app::{Answer, BodyFraming, ExchangeId, Heard, Piece, Question, Refusal, Said};

/// What is kept of a request to a worker process, outside of the connection's slot.
pub(super) struct Forward {
    /// The request, until it is in the queue.
    question: Option<Box<Question>>,
    /// The exchange, once there is one and until its answer has come as a whole. Meanwhile the request may have a slot.
    pub(super) exchange: Option<ExchangeId>,
    /// The process waits for more of the body.
    is_asked: bool,
    /// What has come of the body since it was last asked for.
    body: Vec<u8>,
    /// How long the client has been waited for, for this body. With the bytes that have come it makes the body's rate,
    /// which counts over the whole of it: a client that trickles holds the slot no longer than its minimum allows.
    waited: Duration,
    /// The parts of the answer that are on their way to the client.
    pieces: VecDeque<Piece>,
    /// Counts these as held, and the one that the process may add.
    held: Option<Held>,
    /// The exchange waits to be asked for the next piece.
    owes_more: bool,
    /// When the rest of the foremost was offered to the client.
    offered: Time,
    /// How long the client has taken over what it was offered, and the bytes of that which it has taken.
    taking: Duration,
    taken: u64,
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forward").field("is_asked", &self.is_asked).finish_non_exhaustive()
    }
}

impl Forward {
    fn of(question: Option<Box<Question>>, exchange: Option<ExchangeId>) -> Box<Forward> {
        Box::new(Forward {
            question,
            exchange,
            is_asked: false,
            body: Vec::new(),
            waited: Duration::ZERO,
            pieces: VecDeque::new(),
            held: None,
            owes_more: false,
            offered: Time::ZERO,
            taking: Duration::ZERO,
            taken: 0,
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
            true => self.kept = Kept::Forward(Forward::of(Some(question), None)),
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
                let max = io.service.config.requests_held_max;
                if !question.push(piece, max) {
                    self.shed(io);
                } else if !question.may_grow(max) {
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
        // From here on the time and the bytes count that the slot is held for.
        (forward.waited, self.body_received) = (Duration::ZERO, 0);
        if let Some(question) = forward.question.take() {
            self.ask(question, io);
        }
    }

    /// Puts the request into the queue.
    fn ask(&mut self, question: Box<Question>, io: &mut Io<'_, HttpService>) {
        io.service.counters.jobs.add(1);
        let (client, now) = (io.token(), io.now());
        let asked = io.service.app.as_mut().map(|app| app.ask(client, question, now));
        let Some(Ok(id)) = asked else {
            io.service.counters.jobs_refused.add(1);
            return self.refuse_forward(Status::ServiceUnavailable, io);
        };
        self.since = now;
        match &mut self.kept {
            Kept::Forward(forward) => forward.exchange = Some(id),
            kept => *kept = Kept::Asked(id),
        }
        io.pause();
        self.wait_for_app(Waiting::App, io);
    }

    /// Waits for the process, and looks for the client now and then.
    fn wait_for_app(&mut self, waiting: Waiting, io: &mut Io<'_, HttpService>) {
        self.waiting = waiting;
        let look = io.now().after(CLIENT_LOOK);
        let late = self.since.after(io.service.config.queue_age_max);
        io.set_deadline(Some(if waiting == Waiting::App && late > io.now() { look.min(late) } else { look }));
    }

    /// The exchange that the present request has with a process.
    pub(super) fn exchange(&self) -> Option<ExchangeId> {
        match &self.kept {
            Kept::Asked(id) => Some(*id),
            Kept::Forward(forward) => forward.exchange,
            _ => None,
        }
    }

    /// Looks whether the client is still there, and whether no process has taken the request for as long as it may
    /// wait; when one has, it keeps the time itself.
    pub(super) fn look_at_forward(&mut self, io: &mut Io<'_, HttpService>) {
        let late = self.since.after(io.service.config.queue_age_max);
        if self.waiting == Waiting::App
            && io.now() >= late
            && let Some((id, app)) = self.exchange().zip(io.service.app.as_mut())
            && app.is_waiting(id)
        {
            app.abandon(id, true);
            io.service.counters.jobs_expired.add(1);
            return self.refuse_forward(Status::ServiceUnavailable, io);
        }
        if let Some((id, app)) = self.exchange().zip(io.service.app.as_mut()) {
            app.look(id);
        }
        io.look_for_peer();
        self.wait_for_app(self.waiting, io);
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

    /// The exchange has said something.
    pub(super) fn forwarded(&mut self, said: Said, io: &mut Io<'_, HttpService>) {
        match said {
            Said::Answer(answer) => self.begin_answer(answer, io),
            Said::Piece(piece) => self.send_piece(piece, io),
            Said::Ask => self.is_asked(io),
            Said::Expired => {
                io.service.counters.jobs_expired.add(1);
                self.refuse_forward(Status::ServiceUnavailable, io);
            }
            Said::Refused(Refusal::Unavailable) => self.refuse_forward(Status::ServiceUnavailable, io),
            Said::Refused(Refusal::Bad) => self.refuse_forward(Status::BadGateway, io),
            Said::Refused(Refusal::Late) => self.refuse_forward(Status::GatewayTimeout, io),
            Said::Broken => io.abort(CloseReason::AnswerBroken),
        }
    }

    /// The process takes more of the body.
    fn is_asked(&mut self, io: &mut Io<'_, HttpService>) {
        let Kept::Forward(forward) = &mut self.kept else { return };
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
        self.reply(Heard::Body(body, is_last), io);
        io.pause();
        self.wait_for_app(Waiting::AppPart, io);
    }

    /// The least rate of the client while the request may have a slot, and otherwise.
    pub(super) fn body_rate_min(&self, timeouts: &Timeouts) -> u64 {
        match &self.kept {
            Kept::Forward(forward) if forward.exchange.is_some() => timeouts.body_rate_min.max(SLOT_RATE_MIN),
            _ => timeouts.body_rate_min.max(1),
        }
    }

    /// Sends the answer, or its first part.
    fn begin_answer(&mut self, answer: Answer, io: &mut Io<'_, HttpService>) {
        let Answer { status, has_date, framing, head_len, piece } = answer;
        // The caller keeps room for a head; a short body goes with it.
        let fits = piece.bytes.len() + FRAMING_SIZE_MAX <= io.spare_room();
        let mut held = None;
        if !(fits && piece.is_last) {
            let behind = if piece.is_last { 0 } else { PIECE_SIZE_MAX };
            let (cost, max) = (piece.bytes.len() + behind, io.service.config.answers_held_max);
            held = Held::of_answer(&io.service.counters, cost, max);
            if held.is_none() {
                io.service.counters.answers_shed.add(1);
                self.let_go(io.service);
                return self.refuse_forward(Status::ServiceUnavailable, io);
            }
        }
        io.service.counters.count_app_answer(status);
        let is_cut_short = self.decoder.in_body();
        let persistent = self.terms.persistent
            && framing != BodyFraming::Close
            && !is_cut_short
            && !io.service.is_draining();
        self.terms.persistent = persistent;
        let date = io.service.date(io.now());
        let keep_alive_10 = self.terms.keep_alive_10;
        let body = &piece.bytes[piece.start..];
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
        let start = if fits { piece.bytes.len() } else { piece.start };
        self.keep_forward().held = held;
        self.queue_piece(Piece { start, ..piece }, io);
    }

    fn keep_forward(&mut self) -> &mut Forward {
        if !matches!(self.kept, Kept::Forward(_)) {
            self.kept = Kept::Forward(Forward::of(None, self.exchange()));
        }
        match &mut self.kept {
            Kept::Forward(forward) => forward,
            _ => unreachable!("it has just been put there"),
        }
    }

    /// The next piece of the answer has come.
    fn send_piece(&mut self, piece: Piece, io: &mut Io<'_, HttpService>) {
        if let Some(held) = &mut self.keep_forward().held {
            held.add(piece.bytes.len());
            if piece.is_last {
                held.release(PIECE_SIZE_MAX);
            }
        }
        self.queue_piece(piece, io);
    }

    fn queue_piece(&mut self, piece: Piece, io: &mut Io<'_, HttpService>) {
        let forward = self.keep_forward();
        forward.owes_more = !piece.is_last;
        if piece.is_last {
            // The process has answered, and its slot is free.
            forward.exchange = None;
        }
        forward.pieces.push_back(piece);
        if forward.pieces.len() == 1 {
            self.forward_on(io);
        } else {
            self.ask_on(io);
        }
    }

    /// Asks for the next piece of the answer, if the client has taken those before or more may be held.
    fn ask_on(&mut self, io: &mut Io<'_, HttpService>) {
        let max = io.service.config.answers_held_max / HELD_SHARE;
        let Kept::Forward(forward) = &mut self.kept else { return };
        let may_grow =
            |held: &Held| held.bytes() < ANSWER_HELD_MAX as u64 && held.has_room(PIECE_SIZE_MAX, max);
        let has_room = forward.pieces.is_empty() || forward.held.as_ref().is_some_and(may_grow);
        if has_room && std::mem::take(&mut forward.owes_more) {
            self.reply(Heard::More, io);
        }
    }

    /// Says something to the process.
    fn reply(&self, heard: Heard, io: &mut Io<'_, HttpService>) {
        if let Some((id, app)) = self.exchange().zip(io.service.app.as_mut()) {
            app.tell_process(id, heard);
        }
    }

    /// So much of the piece that was offered has gone.
    pub(super) fn forward_taken(&mut self, count: usize, io: &mut Io<'_, HttpService>) {
        if let Kept::Forward(forward) = &mut self.kept
            && let Some(piece) = forward.pieces.front_mut()
        {
            piece.start += count;
            forward.taken += count as u64;
            forward.taking += io.now().since(forward.offered);
            // As for bodies: a client that takes the answer bit by bit holds its slot no longer than the least rate allows.
            let (taken, taking) = (forward.taken, forward.taking);
            let timeouts = &io.service.config.timeouts;
            let earned = Duration::from_secs(taken / self.body_rate_min(timeouts));
            if taking > timeouts.body_grace + earned {
                return io.abort(CloseReason::WriteTimeout);
            }
            self.forward_on(io);
        }
    }

    /// Sends what there is room for; the rest when the client takes it.
    pub(super) fn forward_on(&mut self, io: &mut Io<'_, HttpService>) {
        loop {
            let Kept::Forward(forward) = &mut self.kept else { return };
            let Some(piece) = forward.pieces.front_mut() else { break };
            let rest = &piece.bytes[piece.start..];
            if rest.len() > io.spare_room() {
                // It stays here until the client takes it: the shard's store is not for long answers.
                io.offer(rest);
                forward.offered = io.now();
                self.waiting = Waiting::Room;
                // Time is kept by the engine: what the client does not take is subject to the write timeout.
                io.set_deadline(None);
                return self.ask_on(io);
            }
            if !rest.is_empty() {
                // There is room for as much.
                let _ = io.send(rest);
            }
            let Some(piece) = forward.pieces.pop_front() else { return };
            if let Some(held) = &mut forward.held {
                held.release(piece.bytes.len());
            }
            io.service.give_buffer(piece.bytes);
            if piece.is_last {
                let is_cut_short = self.decoder.in_body();
                return self.end_forward(self.terms.persistent, is_cut_short, io);
            }
            self.ask_on(io);
        }
        io.pause();
        self.wait_for_app(Waiting::AppPart, io);
    }
}

/// Bytes that date, connection and framing may add to a process's own head.
const FRAMING_SIZE_MAX: usize = 256;
