//! Sends a handler's response: at once if there is room, else piece by piece as the client takes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_wire::http1::Status;
use stilling_workers::{JobPosition, JobResult};

use super::active_request::ActiveRequest;
use super::delegated_connection::Delegate;
use super::job_input::{CancellableInput, JobInput};
use super::response::{Response, ResponseBody};
use super::response_writer;
use super::session::{HttpSession, HttpWait, ResponseStarted};
use super::shard::{HttpContext, JobOutcome, JobOutput};
use super::stream::BodyStream;
use super::unsent_body::{BodyProgress, UnsentBody};
use crate::upstream::limits::CLIENT_CHECK_INTERVAL;

/// Delay before a response requests its next piece again, after the workers' queue was full.
const QUEUE_RETRY_DELAY: Duration = Duration::from_millis(5);

impl HttpSession {
    /// Sends the response of a handler that ran in the shard; `None`: the handler panicked.
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

    /// Sends a handler's response; what exceeds the output room is sent later.
    pub(super) fn respond(&mut self, response: Response, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Response { body: ResponseBody::Delegate(delegate), .. } = response {
            return self.detach_for_delegate(delegate, io, cx);
        }
        if let Some(persistent) = response_writer::send_with_cached_head(&self.terms, &response, io, cx) {
            self.terms.persistent = persistent;
            return self.finish_response(persistent, io, cx);
        }
        let cost = response_writer::cost(&self.terms, &response, io.spare_room());
        let mut reservation = None;
        if cost > 0 {
            let http = &*cx.http;
            reservation = http.counters.reserve_for_response(cost, http.config.responses_held_max);
            if reservation.is_none() {
                cx.http.counters.responses_shed.add(1);
                let persistent =
                    response_writer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
                return self.finish_response(persistent, io, cx);
            }
        }
        let (persistent, body) = response_writer::send_head(&self.terms, response, &mut reservation, io, cx);
        self.terms.persistent = persistent;
        match body {
            ResponseBody::Stream(stream) if !stream.has_piece() => self.read_next_piece(stream, io, cx),
            // Most responses are short and need no state.
            ResponseBody::Static(bytes) if bytes.len() <= io.spare_room() => {
                let _ = io.send(bytes);
                self.finish_response(persistent, io, cx);
            }
            ResponseBody::Bytes(bytes) if bytes.len() <= io.spare_room() => {
                let _ = io.send(&bytes);
                self.finish_response(persistent, io, cx);
            }
            body => {
                self.active_request =
                    ActiveRequest::Response(UnsentBody::with_reservation(body, reservation));
                self.resume_response(io, cx);
            }
        }
    }

    fn detach_for_delegate(&mut self, delegate: Delegate, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if !cx.http.can_delegate() {
            cx.http.counters.jobs_refused.add(1);
            let persistent = response_writer::send_status(&self.terms, Status::ServiceUnavailable, io, cx);
            return self.finish_response(persistent, io, cx);
        }
        self.active_request = ActiveRequest::Delegate(delegate);
        io.detach();
    }

    pub(super) fn into_delegate(self) -> Option<Delegate> {
        match self.active_request {
            ActiveRequest::Delegate(delegate) => Some(delegate),
            ActiveRequest::Idle
            | ActiveRequest::Request(_)
            | ActiveRequest::Response(_)
            | ActiveRequest::Submitted(_)
            | ActiveRequest::Forwarded(_)
            | ActiveRequest::Job(_)
            | ActiveRequest::PendingPublication(_)
            | ActiveRequest::Switch(_) => None,
        }
    }

    /// Continues a response: sends the rest, or offers it to the engine, and requests the next piece.
    pub(super) fn resume_response(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Response(unsent_body) = &mut self.active_request else {
            return self.resume_forwarded_response(io, cx);
        };
        let rest = unsent_body.rest();
        if rest.len() > io.spare_room() {
            // The bytes stay here until the client takes them: the shard's output store is not for long responses.
            io.offer(rest);
            self.waiting_for = HttpWait::SendRoom;
            // The engine applies the write timeout to offered bytes.
            return io.set_deadline(None);
        }
        if !rest.is_empty() {
            let _ = io.send(rest);
            let count = rest.len();
            unsent_body.advance(count);
        }
        let ActiveRequest::Response(unsent_body) =
            std::mem::replace(&mut self.active_request, ActiveRequest::Idle)
        else {
            return;
        };
        match unsent_body.into_progress() {
            BodyProgress::Done => self.finish_response(self.terms.persistent, io, cx),
            BodyProgress::Piece(stream) => self.read_next_piece(stream, io, cx),
            BodyProgress::Failed => io.abort(CloseReason::ResponseAborted),
        }
    }

    /// Reads the next piece of the body: in a worker, or in the shard without workers.
    fn read_next_piece(&mut self, mut stream: Box<BodyStream>, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if !cx.http.config.has_workers {
            let read = catch_unwind(AssertUnwindSafe(move || {
                stream.next_piece();
                stream
            }));
            let Ok(stream) = read else {
                cx.http.counters.handler_panics.add(1);
                return io.abort(CloseReason::ResponseAborted);
            };
            self.active_request = ActiveRequest::Response(UnsentBody::new(ResponseBody::Stream(stream)));
            self.waiting_for = HttpWait::SendRoom;
            io.set_deadline(None);
            return io.call_again();
        }
        if cx.http.submitter.is_full() {
            // The response has begun, so it cannot be refused: it is retried shortly after.
            self.active_request = ActiveRequest::Response(UnsentBody::awaiting_piece(stream));
            self.waiting_for = HttpWait::QueueRoom;
            let deadline = io.now().after(QUEUE_RETRY_DELAY);
            io.set_deadline(Some(deadline));
            return io.pause();
        }
        let stream = CancellableInput::new(stream);
        self.active_request = ActiveRequest::Job(JobInput::Stream(stream.clone()));
        let submitted = self.submit_job(ResponseStarted::Yes, io, cx, move |_| {
            let mut stream = stream.take().expect("the stream of a withdrawn job is not read");
            stream.next_piece();
            JobOutcome(JobOutput::Piece(stream))
        });
        match submitted {
            Some(position) => {
                self.waiting_for = HttpWait::Piece { position };
                self.wait_for_piece(position, io, cx);
            }
            None => io.abort(CloseReason::ResponseAborted),
        }
    }

    /// Sets the deadline for the next piece. While its job is queued, the client's connection is checked at
    /// intervals.
    pub(super) fn wait_for_piece(&self, position: JobPosition, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let done_by = self.since.after(cx.http.config.timeouts.work);
        let look = io.now().after(CLIENT_CHECK_INTERVAL);
        let waits = cx.http.submitter.is_waiting(position);
        io.set_deadline(Some(if waits { look.min(done_by) } else { done_by }));
    }

    pub(super) fn handle_piece(
        &mut self,
        outcome: JobResult<JobOutcome>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) {
        match outcome {
            JobResult::Done(JobOutcome(JobOutput::Piece(stream))) => {
                self.active_request = ActiveRequest::Response(UnsentBody::new(ResponseBody::Stream(stream)));
                io.resume();
                self.resume_response(io, cx);
            }
            // The source is lost with the job, so the rest of the response is too.
            _ => io.abort(CloseReason::ResponseAborted),
        }
    }

    /// Handles that `count` offered bytes were sent.
    pub(crate) fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::Response(unsent_body) = &mut self.active_request else {
            return self.forward_bytes_sent(count, io, cx);
        };
        unsent_body.advance(count);
        self.resume_response(io, cx);
    }
}
