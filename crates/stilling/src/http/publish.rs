//! `POST /publish/<subject>`: the body goes to the hub as one message, or as one message per line. The response is
//! sent when the outcome of every message is known.
//!
//! ```text
//!   head ─▶ admit ─┬─▶ refused                                             before the body is buffered
//!                  └─▶ body ─▶ room? ─┬─▶ messages ═▶ hub ═▶ outcomes ─▶ response
//!                                     └─▶ waits, 503 after a timeout
//! ```
//!
//! All messages of a body are pushed together: no message of another connection of the shard lies between them.

use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_hub::{ClientOptions, DeliveryItem, HubRequest, Ingress, Payload, Publication};
use stilling_wire::http1::{BodyLength, RequestHead, Status};

use super::active_request::ActiveRequest;
use super::pending_publication::PendingPublication;
use super::publish_admission::{self, PublishRejection, PublishRequest};
use super::response::Response;
use super::session::{HttpSession, HttpWait};
use super::shard::HttpContext;
use crate::hub::limits::HUB_WAIT_MAX;
use crate::hub::{HubHandle, HubMail};

/// How long a publication waits for room in the queue to the hub. Then it is answered 503, and none of its messages is
/// published.
pub(crate) const HUB_ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Messages in one body. More: 413, and none is published.
pub(crate) const LINES_MAX: usize = 10_000;

/// Bytes of all messages of one body, each with its copy of the subject and headers. More: 413, and none is published.
pub(crate) const LINES_SIZE_MAX: usize = 16 * 1024 * 1024;

// The largest body fits into the bytes that one client may have parked while a stream is full.
const _: () = {
    use stilling_hub::limits::{PARKED_PER_CLIENT_SIZE_MAX, PARKED_REQUEST_SIZE};
    assert!(LINES_SIZE_MAX + LINES_MAX * PARKED_REQUEST_SIZE <= PARKED_PER_CLIENT_SIZE_MAX);
};

impl HttpSession {
    /// Whether the request with this head may publish. If not, the rejection has been sent.
    pub(super) fn admit(
        &mut self,
        head: &RequestHead<'_>,
        io: &mut Io<'_>,
        cx: &mut HttpContext<'_>,
    ) -> bool {
        let now = io.now();
        let Some(hub) = cx.hub.as_deref_mut() else {
            self.terms.persistent = false;
            io.finish_lingering(CloseReason::Done);
            self.respond(handed_over_rejection().into(), io, cx);
            return false;
        };
        hub.last_publish_input = now;
        let Err(rejection) = publish_admission::admit(head, hub, self.endpoint.publishes) else {
            return true;
        };
        if rejection.status == Status::Unauthorized {
            hub.counters.unauthorized.add(1);
        }
        if head.body != BodyLength::None {
            // The rest of the body is discarded: it may be long.
            self.terms.persistent = false;
            io.finish_lingering(CloseReason::Done);
        }
        self.respond(rejection.into(), io, cx);
        false
    }

    /// Publishes the complete request, or waits for room in the queue to the hub.
    pub(super) fn publish(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let hub_has_started = cx.http.hub_has_started();
        let HttpContext { hub: Some(hub), http, .. } = &mut *cx else {
            self.terms.persistent = false;
            self.active_request = ActiveRequest::Idle;
            return self.finish_publication(handed_over_rejection().into(), io, cx);
        };
        hub.last_publish_input = io.now();
        if !std::mem::replace(&mut self.is_publishing, true) {
            hub.pending_publications += 1;
        }
        if !hub.port.has_room_for(io.token()) {
            return self.wait_for_room(hub_has_started, hub, io);
        }
        let ActiveRequest::Request(request) =
            std::mem::replace(&mut self.active_request, ActiveRequest::Idle)
        else {
            unreachable!("a publication is kept from its head on")
        };
        let view = request.view(&http.config.limits, &http.config.routes);
        let ticket = self.publication_ticket.wrapping_add(1);
        match publish_to_hub(view.head(), view.body(), ticket, hub, io) {
            Ok(expected) => {
                self.publication_ticket = ticket;
                self.active_request =
                    ActiveRequest::PendingPublication(Box::new(PendingPublication::new(expected)));
                self.waiting_for = HttpWait::PublishOutcome;
                self.since = io.now();
                let deadline = self.since.after(cx.http.config.timeouts.work);
                io.set_deadline(Some(deadline));
                io.pause();
            }
            Err(rejection) => self.finish_publication(rejection.into(), io, cx),
        }
    }

    /// Registers this connection to be notified of room. Before the hub has started, the wait is longer.
    fn wait_for_room(&mut self, hub_has_started: bool, hub: &mut HubHandle, io: &mut Io<'_>) {
        if !std::mem::replace(&mut self.awaits_hub_room, true) {
            hub.port.wait(io.token());
        }
        if self.waiting_for != HttpWait::HubRoom {
            self.waiting_for = HttpWait::HubRoom;
            self.since = io.now();
            let wait = if hub_has_started { HUB_ROOM_TIMEOUT } else { HUB_WAIT_MAX };
            io.set_deadline(Some(self.since.after(wait)));
            io.pause();
        }
    }

    fn finish_publication(&mut self, response: Response, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.uncount_publication(cx);
        io.resume();
        self.respond(response, io, cx);
    }

    /// Stops counting the publication: it is answered, or its connection is closed.
    pub(super) fn uncount_publication(&mut self, cx: &mut HttpContext<'_>) {
        if std::mem::take(&mut self.is_publishing)
            && let Some(hub) = cx.hub.as_deref_mut()
        {
            hub.pending_publications = hub.pending_publications.saturating_sub(1);
        }
    }

    /// Answers 503: the server ends before its hub has begun. Nothing was published.
    pub(super) fn abandon_publication(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.publication_ticket = self.publication_ticket.wrapping_add(1);
        self.active_request = ActiveRequest::Idle;
        self.terms.persistent = false;
        let reason = "this server does not take over: nothing was published; send it again";
        self.finish_publication(PublishRejection::new(Status::ServiceUnavailable, reason).into(), io, cx);
    }

    pub(crate) fn hub_mail(&mut self, mail: HubMail, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        match mail {
            HubMail::Room => {
                self.awaits_hub_room = false;
                if self.waiting_for == HttpWait::HubRoom {
                    self.publish(io, cx);
                }
            }
            HubMail::Delivery => {
                let Some(hub) = cx.hub.as_deref_mut() else { return };
                let Some(deliveries) = hub.port.take_current() else { return };
                let is_complete = self.record_outcome(deliveries.current());
                hub.port.put_back(deliveries);
                if is_complete {
                    self.answer_publication(io, cx);
                }
            }
        }
    }

    /// Records the outcome of a message of the pending publication. Returns whether it was the last one.
    fn record_outcome(&mut self, delivery: Option<DeliveryItem<'_>>) -> bool {
        let ActiveRequest::PendingPublication(published) = &mut self.active_request else { return false };
        match delivery {
            Some(DeliveryItem::PublishOutcome { ticket, outcome }) if ticket == self.publication_ticket => {
                published.record_outcome(outcome);
            }
            Some(DeliveryItem::Rejection { ticket, stream, reason }) if ticket == self.publication_ticket => {
                published.record_rejection(stream, reason);
            }
            _ => return false,
        }
        published.is_complete()
    }

    fn answer_publication(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let ActiveRequest::PendingPublication(published) = &self.active_request else { return };
        let response = published.response(&cx.http.overview);
        self.finish_publication(response, io, cx);
    }

    /// Answers 503: there was no room for too long.
    pub(super) fn hub_room_timed_out(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Some(hub) = cx.hub.as_deref() {
            hub.counters.publications_shed.add(1);
        }
        self.active_request = ActiveRequest::Idle;
        let reason = "the hub is busy: nothing was published";
        self.finish_publication(PublishRejection::new(Status::ServiceUnavailable, reason).into(), io, cx);
    }

    /// Answers 503: not all outcomes arrived in time. Later ones are ignored.
    pub(super) fn publish_outcome_timed_out(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Some(hub) = cx.hub.as_deref() {
            hub.counters.publications_unanswered.add(1);
        }
        self.uncount_publication(cx);
        self.publication_ticket = self.publication_ticket.wrapping_add(1);
        self.active_request = ActiveRequest::Idle;
        self.terms.persistent = false;
        io.finish_lingering(CloseReason::WorkTimeout);
        let reason = "the disk did not confirm in time: this may have been stored";
        self.respond(PublishRejection::new(Status::ServiceUnavailable, reason).into(), io, cx);
    }
}

/// The rejection of a publication after a successor has taken over the streams.
fn handed_over_rejection() -> PublishRejection {
    let reason = "another server has taken over: nothing was published; send it again over a new connection";
    PublishRejection::new(Status::ServiceUnavailable, reason)
}

/// Pushes the messages of a body to the hub, all or none. Returns their number.
fn publish_to_hub(
    head: &RequestHead<'_>,
    body: &[u8],
    ticket: u32,
    hub: &mut HubHandle,
    io: &mut Io<'_>,
) -> Result<u32, PublishRejection> {
    let publish_request = PublishRequest::of(head, hub)?;
    check_messages(&publish_request, body, hub)?;
    let token = io.token();
    let mut count = 0;
    for payload in messages(&publish_request, body) {
        // Lines are copied, since those of one body could occupy all shared blocks of the shard.
        let shared = if publish_request.is_lines { None } else { io.share(payload) };
        let publication = Publication {
            ingress: Ingress::Http,
            subject: &publish_request.subject,
            reply: b"",
            headers: &publish_request.headers,
            payload: shared.map_or(payload.into(), |(block, range)| Payload::shared(block, range)),
            ticket: Some(ticket),
        };
        // The caller checked for room once: the size of a publication batch is a soft limit.
        hub.port.push_request_over_limit(token, ClientOptions::default(), &HubRequest::Publish(publication));
        count += 1;
    }
    Ok(count)
}

fn messages<'a>(publish_request: &PublishRequest<'_>, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let (whole, lines) = if publish_request.is_lines { (None, body) } else { (Some(body), &b""[..]) };
    whole.into_iter().chain(numbered_lines(lines).map(|(_, line)| line))
}

fn numbered_lines(body: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = body.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    (1..).zip(lines).filter(|(_, line)| !line.trim_ascii().is_empty())
}

fn check_messages(
    publish_request: &PublishRequest<'_>,
    body: &[u8],
    hub: &HubHandle,
) -> Result<(), PublishRejection> {
    if !publish_request.is_lines {
        return publish_admission::check_size(body.len() as u64, hub, None);
    }
    let mut count = 0;
    for (number, line) in numbered_lines(body) {
        publish_admission::check_size(line.len() as u64, hub, Some(number))?;
        count += 1;
    }
    match count {
        0 => Err(PublishRejection::new(Status::BadRequest, "the body contains no message")),
        1..=LINES_MAX => {
            let size = count * (publish_request.subject.len() + publish_request.headers.len()) + body.len();
            if size <= LINES_SIZE_MAX {
                return Ok(());
            }
            let reason = format!(
                "{count} messages, each with a copy of subject and headers, have {size} bytes; the maximum is {LINES_SIZE_MAX}. \
                 Nothing was published"
            );
            Err(PublishRejection::new(Status::ContentTooLarge, reason))
        }
        _ => {
            let reason =
                format!("the body has {count} messages; the maximum is {LINES_MAX}. Nothing was published");
            Err(PublishRejection::new(Status::ContentTooLarge, reason))
        }
    }
}
