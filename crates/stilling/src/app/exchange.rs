//! The job: one request said to a process, its answer taken. It runs on the thread of a slot.
//!
//! Whatever goes wrong becomes an answer. A request is sent a second time only when the first went over a kept
//! connection that turned out to be dead before anything came back, and only if that is safe: nothing of it had been
//! taken, or its method is idempotent.
//!
//! What goes wrong is held against the process only as far as it is the process's fault, since a process that is
//! killed takes all its other requests with it. A client that has gone, or an answer that stops in the middle, costs
//! the connection to the process and nothing else.

use std::io::{ErrorKind, IoSlice};
use std::time::{Duration, Instant};

use stilling_wire::http1::{BodyLength, Limits, ReplyEvent, ReplyTo, ResponseDecoder};
use stilling_workers::processes::Pass;
use stilling_workers::{Conversation, JobContext, Speaker};

use super::answer::{Draft, Heard, Refusal, Said};
use super::limits::{
    APP_HEAD_SIZE_MAX, APP_HEADERS_MAX, DEATH_PATIENCE, FLUSH_AFTER, INTERIM_MAX, PIECE_SIZE_MAX,
    REFUSING_MAX, REFUSING_PAUSE,
};
use super::link::{Link, Trouble};
use super::question::Question;
use super::slot::AppSlot;
use crate::http::JobOutcome;

/// What is taken of an answer. Its body is as long as it is.
const LIMITS: Limits =
    Limits { head_size_max: APP_HEAD_SIZE_MAX, headers_max: APP_HEADERS_MAX, body_size_max: u64::MAX };

/// Asks the process of the thread's slot.
pub(crate) fn exchange(
    mut question: Box<Question>,
    context: &mut JobContext,
    speaker: Speaker<JobOutcome>,
) -> Said {
    let Some(slot) = context.seat::<AppSlot>() else { return Said::Refused(Refusal::Unavailable) };
    question.close_head();
    let mut asking =
        Asking { question, listener: Listener::Silent(Some(speaker)), draft: None, upload: Upload::Whole };
    let until = Instant::now() + slot.timeout;
    // Which life refuses connections, and since when.
    let mut refusing: Option<(u64, Instant)> = None;
    let mut may_repeat = true;
    loop {
        let Some(pass) = slot.enter(until) else { return Said::Refused(Refusal::Unavailable) };
        let link = match slot.link(&pass, asking.question.is_idempotent) {
            Ok(link) => link,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                pass.say("accepts no connections");
                pass.condemn();
                return Said::Refused(Refusal::Late);
            }
            Err(error) => {
                // It has died and nobody has noticed yet, or it lives and refuses. Nothing is lost so far.
                let (_, since) = *refusing.insert(match refusing {
                    Some(known) if known.0 == pass.life() => known,
                    _ => (pass.life(), Instant::now()),
                });
                if since.elapsed() >= REFUSING_MAX {
                    pass.say(&format!("no connection: {error}"));
                    // Want of descriptors and the like are this side's fault.
                    if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) {
                        pass.condemn();
                    }
                    return Said::Refused(Refusal::Bad);
                }
                drop(pass);
                std::thread::park_timeout(REFUSING_PAUSE);
                continue;
            }
        };
        match asking.over(link, slot, &pass) {
            Ok(said) => return said,
            Err(Trouble::Stale { nothing_sent })
                if may_repeat && (nothing_sent || asking.question.is_idempotent) && asking.may_repeat() =>
            {
                may_repeat = false;
                // A request that ends a process is not given to the next.
                if !nothing_sent && pass.has_died(DEATH_PATIENCE) {
                    return Said::Refused(Refusal::Bad);
                }
            }
            Err(Trouble::Late) if asking.draft.is_none() => {
                pass.say("a request was not answered in time");
                // Whether the request is slow or the process hangs is judged there.
                let _ = pass.leave_late();
                return asking.refuse(Refusal::Late);
            }
            Err(Trouble::Late) => {
                pass.say("an answer stopped in the middle for too long; its connection is closed");
                return asking.refuse(Refusal::Late);
            }
            Err(trouble @ (Trouble::Stale { .. } | Trouble::Lost(_) | Trouble::Garbage(_))) => {
                pass.say(&trouble.to_string());
                // The next request must not go to a process that is half gone; its cause does not matter to this one.
                let _ = pass.has_died(DEATH_PATIENCE);
                return asking.refuse(Refusal::Bad);
            }
        }
    }
}

/// Who hears the parts of a long request or answer.
enum Listener {
    /// Nothing has been said yet.
    Silent(Option<Speaker<JobOutcome>>),
    Hears(Box<Conversation<JobOutcome, Heard>>),
}

impl Listener {
    /// Whether somebody is known to have gone.
    fn has_gone(&self) -> bool {
        matches!(self, Listener::Hears(conversation) if !conversation.is_heard())
    }

    /// Says a part and waits for the reply; `None`: nobody listens any more.
    fn say(
        &mut self,
        part: impl FnOnce(Option<Box<stilling_workers::Reply<Heard>>>) -> Said,
    ) -> Option<Heard> {
        match self {
            Listener::Silent(speaker) => {
                let (conversation, reply) = speaker.take()?.begin();
                let mut conversation = Box::new(conversation);
                let heard = conversation.say(JobOutcome::app(part(Some(Box::new(reply)))));
                *self = Listener::Hears(conversation);
                heard
            }
            Listener::Hears(conversation) => conversation.say(JobOutcome::app(part(None))),
        }
    }
}

/// How much of the request's body the process has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upload {
    /// All that there is.
    Whole,
    /// It answered before it had all.
    CutShort,
}

/// One request on its way.
struct Asking {
    question: Box<Question>,
    listener: Listener,
    draft: Option<Draft>,
    upload: Upload,
}

/// Nobody listens any more: there is nothing left to do, and the connection is of no further use.
struct Unheard;

impl Asking {
    /// Whether everything that was to be sent is still there.
    fn may_repeat(&self) -> bool {
        self.draft.is_none() && matches!(self.listener, Listener::Silent(_))
    }

    /// What to say when the exchange has failed.
    fn refuse(&self, refusal: Refusal) -> Said {
        let has_begun = self.draft.as_ref().is_some_and(Draft::has_begun);
        if has_begun { Said::Broken } else { Said::Refused(refusal) }
    }

    /// The exchange over this connection, which is kept afterwards if it is any good.
    fn over(&mut self, mut link: Link, slot: &mut AppSlot, pass: &Pass) -> Result<Said, Trouble> {
        link.begin(slot.timeout);
        if link.used > 0 {
            link.arm()?;
        }
        match self.send(&mut link, slot.timeout) {
            Ok(Ok(())) => {}
            Ok(Err(Unheard)) => return Ok(Said::Broken),
            // A process that closes early may have answered early.
            Err(Trouble::Lost(_) | Trouble::Stale { nothing_sent: false }) => self.upload = Upload::CutShort,
            Err(other) => return Err(other),
        }
        link.give(slot.timeout);
        let (said, is_good) = self.receive(&mut link, slot, pass)?;
        if is_good && self.upload == Upload::Whole {
            link.used += 1;
            slot.keep(link, pass);
        }
        Ok(said)
    }

    fn send(&mut self, link: &mut Link, timeout: Duration) -> Result<Result<(), Unheard>, Trouble> {
        let in_chunks = self.question.goes_on && self.question.length == BodyLength::Chunked;
        let Question { head, body, .. } = &*self.question;
        send_piece(link, head, body, in_chunks)?;
        let mut goes_on = self.question.goes_on;
        while goes_on {
            if link.is_readable(Duration::ZERO) {
                self.upload = Upload::CutShort;
                return Ok(Ok(()));
            }
            let Some(Heard::Body(body, is_last)) = self.listener.say(Said::Ask) else {
                return Ok(Err(Unheard));
            };
            goes_on = !is_last;
            link.give(timeout);
            link.arm()?;
            send_piece(link, b"", &body, in_chunks)?;
        }
        if in_chunks {
            link.send(&mut [IoSlice::new(b"0\r\n\r\n")])?;
        }
        Ok(Ok(()))
    }

    /// Takes the answer. Returns what is to be said last, and whether the connection may be used again.
    fn receive(&mut self, link: &mut Link, slot: &mut AppSlot, pass: &Pass) -> Result<(Said, bool), Trouble> {
        let answered = if self.question.is_head { ReplyTo::Head } else { ReplyTo::Other };
        let timeout = slot.timeout;
        let mut decoder = ResponseDecoder::default();
        let mut input = Input { buffer: &mut slot.buffer, start: 0, end: 0 };
        let mut interims = 0;
        let is_persistent = loop {
            let step = decoder.decode(&LIMITS, answered, input.bytes())?;
            let consumed = step.consumed;
            match step.event {
                ReplyEvent::Head(head) => {
                    if head.status == 101 {
                        // Nobody asked for another protocol.
                        return Err(Trouble::Lost(ErrorKind::InvalidData.into()));
                    }
                    let out = std::mem::take(&mut self.question.head);
                    self.draft =
                        Some(Draft::new(&head, self.question.is_head, self.question.takes_chunks, out));
                    let is_persistent = head.persistent;
                    input.start += consumed;
                    break is_persistent;
                }
                ReplyEvent::Interim(_) => {
                    interims += 1;
                    if interims > INTERIM_MAX {
                        return Err(Trouble::Lost(ErrorKind::InvalidData.into()));
                    }
                }
                ReplyEvent::NeedMore => {
                    let is_first = input.end == 0 && interims == 0;
                    if !is_first {
                        link.arm()?;
                    }
                    let received = match input.receive(link) {
                        Err(Trouble::Stale { .. }) if !is_first => {
                            Err(Trouble::Lost(ErrorKind::ConnectionReset.into()))
                        }
                        other => other,
                    }?;
                    if received == 0 {
                        if is_first && link.used > 0 {
                            return Err(Trouble::Stale { nothing_sent: false });
                        }
                        return Err(Trouble::Lost(ErrorKind::UnexpectedEof.into()));
                    }
                }
                ReplyEvent::Body(_) | ReplyEvent::End => {
                    return Err(Trouble::Lost(ErrorKind::InvalidData.into()));
                }
            }
            input.start += consumed;
        };
        pass.heard();
        let Some(draft) = &mut self.draft else { return Err(Trouble::Lost(ErrorKind::InvalidData.into())) };
        while decoder.in_body() {
            let step = decoder.decode(&LIMITS, answered, input.bytes())?;
            let consumed = step.consumed;
            match step.event {
                ReplyEvent::Body(mut piece) => loop {
                    let room = PIECE_SIZE_MAX - draft.body_len();
                    let (now, later) = piece.split_at(piece.len().min(room));
                    draft.bytes.extend_from_slice(now);
                    if later.is_empty() {
                        break;
                    }
                    let Some(Heard::More) = self.listener.say(|reply| draft.pass_on(false, reply)) else {
                        return Ok((Said::Broken, false));
                    };
                    link.give(timeout);
                    piece = later;
                },
                ReplyEvent::NeedMore => {
                    let may_wait = draft.told().is_some();
                    if !may_wait
                        && (draft.body_len() > 0 || !draft.has_begun())
                        && !link.is_readable(FLUSH_AFTER)
                    {
                        let Some(Heard::More) = self.listener.say(|reply| draft.pass_on(false, reply)) else {
                            return Ok((Said::Broken, false));
                        };
                        link.give(timeout);
                    }
                    if draft.has_begun() && !link.wait(|| !self.listener.has_gone()) {
                        return Ok((Said::Broken, false));
                    }
                    link.arm()?;
                    let received = input.receive(link)?;
                    pass.heard();
                    if received == 0 {
                        decoder.finish()?;
                        return Ok((draft.pass_on(true, None), false));
                    }
                }
                ReplyEvent::End => {}
                ReplyEvent::Head(_) | ReplyEvent::Interim(_) => {
                    return Err(Trouble::Lost(ErrorKind::InvalidData.into()));
                }
            }
            input.start += consumed;
        }
        // Whatever follows an answer belongs to none.
        let is_good = is_persistent && input.bytes().is_empty();
        Ok((draft.pass_on(true, None), is_good))
    }
}

/// Sends what goes before a piece, and the piece, as a chunk if it is one.
fn send_piece(link: &mut Link, before: &[u8], piece: &[u8], in_chunks: bool) -> Result<(), Trouble> {
    if !in_chunks || piece.is_empty() {
        return link.send(&mut [IoSlice::new(before), IoSlice::new(piece)]);
    }
    let size = format!("{:x}\r\n", piece.len());
    link.send(&mut [
        IoSlice::new(before),
        IoSlice::new(size.as_bytes()),
        IoSlice::new(piece),
        IoSlice::new(b"\r\n"),
    ])
}

/// What was received and not used yet.
struct Input<'a> {
    buffer: &'a mut [u8],
    start: usize,
    end: usize,
}

impl Input<'_> {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn receive(&mut self, link: &mut Link) -> Result<usize, Trouble> {
        if self.start == self.end {
            // Zero both only where nothing is left; `end` above zero tells that something has come.
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let received = link.receive(&mut self.buffer[self.end..])?;
        self.end += received;
        Ok(received)
    }
}
