//! A handler's answer on its way to the client: at once where there is room, else bit by bit, as the client takes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_wire::http1::Status;
use stilling_workers::{Outcome, Position};

use super::answer;
use super::delegated::Delegate;
use super::job_input::{JobInput, Shared};
use super::response::{Body, Response};
use super::sending::{Next, Sending};
use super::session::{Begun, HttpSession, Kept, Waiting};
use super::shard::{HttpContext, JobOutcome, Work};
use super::stream::Stream;
use crate::upstream::limits::CLIENT_LOOK;

/// How soon an answer that found the workers' queue full asks for its next piece again.
const QUEUE_ROOM_AGAIN: Duration = Duration::from_millis(5);

impl HttpSession {
    /// Sends the answer of a handler that ran in the shard; `None`: it panicked.
    pub(super) fn respond_inline(
        &mut self,
        response: Option<Response>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        let response = response.unwrap_or_else(|| {
            cx.http.counters.handler_panics.add(1);
            Response::status_line(Status::InternalServerError)
        });
        self.respond(response, io, cx);
    }

    /// Sends a handler's answer, as far as it goes now.
    pub(super) fn respond(&mut self, response: Response, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Response { body: Body::Delegate(delegate), .. } = response {
            return self.leave(delegate, io, cx);
        }
        if let Some(persistent) = answer::send_short(&self.terms, &response, io, cx) {
            self.terms.persistent = persistent;
            return self.answered(persistent, io, cx);
        }
        let cost = answer::cost(&self.terms, &response, io.spare_room());
        let mut held = None;
        if cost > 0 {
            let http = &*cx.http;
            held = http.counters.reserve_for_answer(cost, http.config.answers_held_max);
            if held.is_none() {
                cx.http.counters.answers_shed.add(1);
                let persistent = answer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
                return self.answered(persistent, io, cx);
            }
        }
        let (persistent, body) = answer::send_head(&self.terms, response, &mut held, io, cx);
        self.terms.persistent = persistent;
        match body {
            Body::Stream(stream) if !stream.has_piece() => self.read_on(stream, io, cx),
            // Most answers are short: nothing of them has to be kept.
            Body::Static(bytes) if bytes.len() <= io.spare_room() => {
                let _ = io.send(bytes);
                self.answered(persistent, io, cx);
            }
            Body::Bytes(bytes) if bytes.len() <= io.spare_room() => {
                let _ = io.send(&bytes);
                self.answered(persistent, io, cx);
            }
            body => {
                self.kept = Kept::Answer(Sending::counted(body, held));
                self.go_on(io, cx);
            }
        }
    }

    /// The connection goes to a worker.
    fn leave(&mut self, delegate: Delegate, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if !cx.http.can_delegate() {
            cx.http.counters.jobs_refused.add(1);
            let persistent = answer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
            return self.answered(persistent, io, cx);
        }
        self.kept = Kept::Delegate(delegate);
        io.detach();
    }

    /// What is to be done with the socket of a connection that has left.
    pub(super) fn into_delegate(self) -> Option<Delegate> {
        match self.kept {
            Kept::Delegate(delegate) => Some(delegate),
            Kept::Nothing
            | Kept::Request(_)
            | Kept::Answer(_)
            | Kept::Submitted(_)
            | Kept::Forwarded(_)
            | Kept::Job(_)
            | Kept::Published(_) => None,
        }
    }

    /// Sends what there is room for; the rest when that has gone.
    pub(super) fn go_on(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let Kept::Answer(sending) = &mut self.kept else { return self.forward_on(io, cx) };
        let rest = sending.rest();
        if rest.len() > io.spare_room() {
            // It stays here until the client takes it: the shard's store is not for long answers.
            io.offer(rest);
            self.waiting = Waiting::Room;
            // Time is kept by the engine: what the client does not take is subject to the write timeout.
            return io.set_deadline(None);
        }
        if !rest.is_empty() {
            // There is room for as much.
            let _ = io.send(rest);
            let count = rest.len();
            sending.advance(count);
        }
        let Kept::Answer(sending) = std::mem::replace(&mut self.kept, Kept::Nothing) else { return };
        match sending.next() {
            Next::Done => self.answered(self.terms.persistent, io, cx),
            Next::Piece(stream) => self.read_on(stream, io, cx),
            Next::Broken => io.abort(CloseReason::AnswerBroken),
        }
    }

    /// Has the next piece of the answer read.
    fn read_on(&mut self, mut stream: Box<Stream>, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if !cx.http.config.has_workers {
            // The source is the handler's: its panic costs this answer only.
            let read = catch_unwind(AssertUnwindSafe(move || {
                stream.next_piece();
                stream
            }));
            let Ok(stream) = read else {
                cx.http.counters.handler_panics.add(1);
                return io.abort(CloseReason::AnswerBroken);
            };
            self.kept = Kept::Answer(Sending::new(Body::Stream(stream)));
            self.waiting = Waiting::Room;
            io.set_deadline(None);
            return io.again();
        }
        if cx.http.lane.is_full() {
            // The answer has begun, so it is not refused: it goes on a little later.
            self.kept = Kept::Answer(Sending::unread(stream));
            self.waiting = Waiting::QueueRoom;
            let deadline = io.now().after(QUEUE_ROOM_AGAIN);
            io.set_deadline(Some(deadline));
            return io.pause();
        }
        let stream = Shared::new(stream);
        self.kept = Kept::Job(JobInput::Stream(stream.clone()));
        let submitted = self.give(Begun::Yes, io, cx, move |_| {
            let mut stream = stream.take().expect("the stream of a withdrawn job is not read");
            stream.next_piece();
            JobOutcome(Work::Piece(stream))
        });
        match submitted {
            Some(position) => {
                self.waiting = Waiting::Piece { position };
                self.wait_for_piece(position, io, cx);
            }
            None => io.abort(CloseReason::AnswerBroken),
        }
    }

    /// Sets the deadline for the next piece: while its job waits for a worker, the client is looked for now and then.
    pub(super) fn wait_for_piece(&self, position: Position, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let done_by = self.since.after(cx.http.config.timeouts.work);
        let look = io.now().after(CLIENT_LOOK);
        let waits = cx.http.lane.is_waiting(position);
        io.set_deadline(Some(if waits { look.min(done_by) } else { done_by }));
    }

    /// The result of the job that an answer waits for to go on.
    pub(super) fn piece_is_read(
        &mut self,
        outcome: Outcome<JobOutcome>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        match outcome {
            Outcome::Done(JobOutcome(Work::Piece(stream))) => {
                self.kept = Kept::Answer(Sending::new(Body::Stream(stream)));
                io.resume();
                self.go_on(io, cx);
            }
            // The source is gone with the job: what is missing cannot be sent any more.
            _ => io.abort(CloseReason::AnswerBroken),
        }
    }

    /// So much of what was offered has gone.
    pub(crate) fn taken(&mut self, count: usize, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let Kept::Answer(sending) = &mut self.kept else { return self.forward_taken(count, io, cx) };
        sending.advance(count);
        self.go_on(io, cx);
    }
}
