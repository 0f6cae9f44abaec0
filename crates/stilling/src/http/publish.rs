//! `POST /publish/<subject>`: the body goes to the hub as one message, or as one per line, and the answer waits for what
//! became of all of them.
//!
//! ```text
//!   head ─▶ admit ─┬─▶ refused                                             before the body is kept
//!                  └─▶ body ─▶ room? ─┬─▶ messages ═▶ hub ═▶ verdicts ─▶ answer
//!                                     └─▶ waits, 503 when it takes too long
//! ```
//!
//! All messages of a body go in at once, so that no other connection of the shard comes between them.

use std::time::Duration;

use stilling_engine::{CloseReason, Io};
use stilling_hub::{Delivery, Door, Payload, Publication, Request, Traits, Verdict};
use stilling_wire::http1::{BodyLength, RequestHead, Status};

use super::admission::{self, Objection, Order};
use super::published::Published;
use super::response::Response;
use super::session::{HttpSession, Kept, Waiting};
use super::shard::HttpContext;
use crate::hub::limits::HUB_WAIT_MAX;
use crate::hub::{HubHandle, HubMail};

/// How long a publication waits for room on its way to the hub. Then it is answered 503, and nothing of it is published.
pub(crate) const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Messages in one body. More: 413, and nothing of it is published.
pub(crate) const LINES_MAX: usize = 10_000;

/// Bytes that the messages of one body may have, each with the subject and the headers that all of them get. More: 413, and
/// nothing of it is published.
pub(crate) const LINES_SIZE_MAX: usize = 16 * 1024 * 1024;

/// A body whose stream is full waits alone, with all of its messages.
const _: () = {
    use stilling_hub::limits::{PARKED_PER_CLIENT_SIZE_MAX, PARKED_REQUEST_SIZE};
    assert!(LINES_SIZE_MAX + LINES_MAX * PARKED_REQUEST_SIZE <= PARKED_PER_CLIENT_SIZE_MAX);
};

impl HttpSession {
    /// Whether the request of this head may publish. False: the client has been told.
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
            self.respond(handed_over().into(), io, cx);
            return false;
        };
        hub.published = now;
        let Err(objection) = admission::admit(head, hub, self.endpoint.publishes) else { return true };
        if objection.status == Status::Unauthorized {
            hub.counters.shut_out.add(1);
        }
        if head.body != BodyLength::None {
            // What is left of the body is discarded: it may be long, and nobody wants it.
            self.terms.persistent = false;
            io.finish_lingering(CloseReason::Done);
        }
        self.respond(objection.into(), io, cx);
        false
    }

    /// The request is complete: hands it to the hub as soon as there is room.
    pub(super) fn publish(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let began = cx.http.hub_has_begun();
        let HttpContext { hub: Some(hub), http, .. } = &mut *cx else {
            self.terms.persistent = false;
            self.kept = Kept::Nothing;
            return self.conclude(handed_over().into(), io, cx);
        };
        hub.published = io.now();
        if !std::mem::replace(&mut self.is_publishing, true) {
            hub.publications += 1;
        }
        if !hub.port.has_room_for(io.token()) {
            return self.wait_for_room(began, hub, io);
        }
        let Kept::Request(request) = std::mem::replace(&mut self.kept, Kept::Nothing) else {
            unreachable!("a publication is kept from its head on")
        };
        let view = request.view(&http.config.limits, &http.config.routes);
        let ticket = self.publication.wrapping_add(1);
        match ask_hub(view.head(), view.body(), ticket, hub, io) {
            Ok(expected) => {
                self.publication = ticket;
                self.kept = Kept::Published(Box::new(Published::new(expected)));
                self.waiting = Waiting::Verdict;
                self.since = io.now();
                let deadline = self.since.after(cx.http.config.timeouts.work);
                io.set_deadline(Some(deadline));
                io.pause();
            }
            Err(objection) => self.conclude(objection.into(), io, cx),
        }
    }

    /// Has the port call this connection when there is room; `began`: the hub runs.
    fn wait_for_room(&mut self, began: bool, hub: &mut HubHandle, io: &mut Io<'_>) {
        if !std::mem::replace(&mut self.asks_for_room, true) {
            hub.port.wait(io.token());
        }
        if self.waiting != Waiting::HubRoom {
            self.waiting = Waiting::HubRoom;
            self.since = io.now();
            let wait = if began { ROOM_WAIT_MAX } else { HUB_WAIT_MAX };
            io.set_deadline(Some(self.since.after(wait)));
            io.pause();
        }
    }

    fn conclude(&mut self, response: Response, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.end_publication(cx);
        io.resume();
        self.respond(response, io, cx);
    }

    /// The publication is answered, or its connection is gone.
    pub(super) fn end_publication(&mut self, cx: &mut HttpContext<'_>) {
        if std::mem::take(&mut self.is_publishing)
            && let Some(hub) = cx.hub.as_deref_mut()
        {
            hub.publications = hub.publications.saturating_sub(1);
        }
    }

    /// The server ends before its hub has begun: what waits for it was not published.
    pub(super) fn abandon_publication(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        self.publication = self.publication.wrapping_add(1);
        self.kept = Kept::Nothing;
        self.terms.persistent = false;
        let why = "this server does not take over: nothing of this was published, and it can be sent again";
        self.conclude(Objection::new(Status::ServiceUnavailable, why).into(), io, cx);
    }

    /// The hub has something to say to this connection.
    pub(crate) fn hub_mail(&mut self, mail: HubMail, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        match mail {
            HubMail::Room => {
                self.asks_for_room = false;
                if self.waiting == Waiting::HubRoom {
                    self.publish(io, cx);
                }
            }
            HubMail::Delivery => {
                let Some(hub) = cx.hub.as_deref_mut() else { return };
                let Some(deliveries) = hub.port.take_current() else { return };
                let delivery = deliveries.current();
                let verdict = match delivery {
                    Some(Delivery::Verdict { ticket, verdict }) if ticket == self.publication => {
                        Some(verdict)
                    }
                    _ => None,
                };
                hub.port.put_back(deliveries);
                if let Some(verdict) = verdict {
                    self.take_verdict(verdict, io, cx);
                }
            }
        }
    }

    fn take_verdict(&mut self, verdict: Verdict, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        let Kept::Published(published) = &mut self.kept else { return };
        published.note(verdict);
        if published.is_complete() {
            let response = published.response(&cx.http.overview);
            self.conclude(response, io, cx);
        }
    }

    /// There was no room for too long.
    pub(super) fn room_is_late(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Some(hub) = cx.hub.as_deref() {
            hub.counters.publications_shed.add(1);
        }
        self.kept = Kept::Nothing;
        let why = "the hub is busy: nothing of this was published";
        self.conclude(Objection::new(Status::ServiceUnavailable, why).into(), io, cx);
    }

    /// The verdicts were not there in time, and those that come are late from now on.
    pub(super) fn verdict_is_late(&mut self, io: &mut Io<'_>, cx: &mut HttpContext<'_>) {
        if let Some(hub) = cx.hub.as_deref() {
            hub.counters.publications_unanswered.add(1);
        }
        self.end_publication(cx);
        self.publication = self.publication.wrapping_add(1);
        self.kept = Kept::Nothing;
        self.terms.persistent = false;
        io.finish_lingering(CloseReason::WorkTimeout);
        let why = "no word from the disk in time: this may have been stored, or may be still";
        self.respond(Objection::new(Status::ServiceUnavailable, why).into(), io, cx);
    }
}

/// A publication that came to a server whose successor has the streams.
fn handed_over() -> Objection {
    let why =
        "another server has taken over: nothing of this was published; send it again over a new connection";
    Objection::new(Status::ServiceUnavailable, why)
}

/// Hands the messages of a body to the hub, all or none. Returns how many.
fn ask_hub(
    head: &RequestHead<'_>,
    body: &[u8],
    ticket: u32,
    hub: &mut HubHandle,
    io: &mut Io<'_>,
) -> Result<u32, Objection> {
    let order = Order::of(head, hub)?;
    check(&order, body, hub)?;
    let token = io.token();
    let mut count = 0;
    for payload in messages(&order, body) {
        // Lines are copied with their subjects: those of one body could take all blocks of the shard.
        let shared = if order.is_lines { None } else { io.share(payload) };
        let publication = Publication {
            door: Door::Http,
            subject: &order.subject,
            reply: b"",
            headers: &order.headers,
            payload: shared.map_or(payload.into(), |(block, range)| Payload::shared(block, range)),
            ticket: Some(ticket),
        };
        // The room that there is for the first is enough for all: an intake's size is no hard limit.
        hub.port.ask_more(token, Traits::default(), &Request::Publish(publication));
        count += 1;
    }
    Ok(count)
}

/// The messages of a body.
fn messages<'a>(order: &Order<'_>, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let (whole, lines) = if order.is_lines { (None, body) } else { (Some(body), &b""[..]) };
    whole.into_iter().chain(numbered(lines).map(|(_, line)| line))
}

/// The lines that are not blank, with their numbers.
fn numbered(body: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = body.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    (1..).zip(lines).filter(|(_, line)| !line.trim_ascii().is_empty())
}

/// Whether all messages of the body can be handed to the hub.
fn check(order: &Order<'_>, body: &[u8], hub: &HubHandle) -> Result<(), Objection> {
    if !order.is_lines {
        return admission::fits(body.len() as u64, hub, None);
    }
    let mut count = 0;
    for (number, line) in numbered(body) {
        admission::fits(line.len() as u64, hub, Some(number))?;
        count += 1;
    }
    match count {
        0 => Err(Objection::new(Status::BadRequest, "no line of this body holds a message")),
        1..=LINES_MAX => {
            let size = count * (order.subject.len() + order.headers.len()) + body.len();
            if size <= LINES_SIZE_MAX {
                return Ok(());
            }
            let why = format!(
                "{count} messages with the same subject and headers each come to {size} bytes, more than {LINES_SIZE_MAX}. \
                 Nothing was published"
            );
            Err(Objection::new(Status::ContentTooLarge, why))
        }
        _ => {
            let why =
                format!("{count} messages in one body are more than {LINES_MAX}. Nothing was published");
            Err(Objection::new(Status::ContentTooLarge, why))
        }
    }
}
