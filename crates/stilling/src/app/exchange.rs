//! One request said to a process, its answer taken: what is known of it while it is under way, whoever has it.
//!
//! Whatever goes wrong becomes an answer; what is made of it stands in `desk.rs`. Nothing here waits: the connection's
//! session (`session.rs`) calls when something has come or gone.

use std::fmt;
use std::io::ErrorKind;

use stilling_engine::{Io, Token};
use stilling_ring::Time;
use stilling_wire::http1::{BodyLength, DecodeError, Fault, Limits, ReplyEvent, ReplyTo, ResponseDecoder};
use stilling_workers::processes::{Pass, Ticket};

use super::answer::{Draft, Refusal, Said};
use super::desk::ExchangeId;
use super::hop::nominates_too_many;
use super::limits::{
    APP_HEAD_SIZE_MAX, APP_HEADERS_MAX, FLUSH_AFTER, INTERIM_MAX, OVERDUE_MAX, PIECE_SIZE_MAX,
};
use super::question::Question;
use crate::http::HttpService;

/// What is taken of an answer. Its body is as long as it is.
const LIMITS: Limits =
    Limits { head_size_max: APP_HEAD_SIZE_MAX, headers_max: APP_HEADERS_MAX, body_size_max: u64::MAX };

/// Why an exchange did not come to its end.
#[derive(Debug)]
pub(super) enum Trouble {
    /// There is no connection.
    Refused(ErrorKind),
    /// A kept connection was dead before anything was seen of an answer.
    Stale {
        /// Nothing of the request had been taken either.
        nothing_sent: bool,
    },
    /// The deadline has passed.
    Late,
    /// The process closed the connection, or the system did.
    Lost(ErrorKind),
    /// What the process said is not HTTP, or more than is taken.
    Garbage(DecodeError),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Refused(kind) => write!(f, "no connection: {kind}"),
            Trouble::Stale { .. } => f.write_str("a kept connection was closed instead of an answer"),
            Trouble::Late => f.write_str("no answer in time"),
            Trouble::Lost(kind) => write!(f, "no answer: {kind}"),
            Trouble::Garbage(error) => write!(f, "an answer that is not HTTP: {error}"),
        }
    }
}

impl From<DecodeError> for Trouble {
    fn from(error: DecodeError) -> Trouble {
        match error.fault() {
            Fault::Truncated => Trouble::Lost(ErrorKind::UnexpectedEof),
            _ => Trouble::Garbage(error),
        }
    }
}

/// What the process has of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    /// So many bytes of the head and the body's beginning.
    First(usize),
    /// That, and so many bytes of the piece behind it.
    Piece(usize),
    /// All that has come, and the client has been asked for more.
    Asked,
    /// All that there is.
    Whole,
    /// It answered before it had all, or listens no more.
    CutShort,
}

/// One request on its way.
pub(super) struct Exchange {
    pub(super) id: ExchangeId,
    pub(super) client: Token,
    pub(super) question: Box<Question>,
    /// Its place in the queue, should it go back.
    pub(super) ticket: Ticket,
    pub(super) pass: Pass,
    /// Until when the process must have said something next.
    pub(super) until: Time,
    /// Since when that life of the process refuses connections.
    pub(super) refusing: Option<(u64, Time)>,
    /// It has not been sent a second time yet.
    pub(super) may_repeat: bool,
    /// A process may have taken it, or a part of it, before it died.
    pub(super) was_taken: bool,
    upload: Upload,
    /// A send of it has gone: what a later one finds of the connection says nothing of the whole.
    has_sent: bool,
    /// The piece of the body that is being sent, framed.
    piece: Vec<u8>,
    piece_is_last: bool,
    decoder: ResponseDecoder,
    /// Something has come back.
    has_heard: bool,
    interims: u32,
    draft: Option<Draft>,
    is_persistent: bool,
    /// A part of the answer is with the client, who has not asked for the next.
    client_is_busy: bool,
    /// When what has come of an answer of unknown length is passed on, if nothing else comes.
    flush_at: Option<Time>,
    /// The client has been told something: the request cannot be sent again.
    has_spoken: bool,
}

/// A request that the process may work on still though nobody waits for its answer: it has its slot until the process
/// says or closes something, since one that does one thing after the other would let the next request wait inside.
pub(super) struct Leftover {
    pub(super) pass: Pass,
    /// The answer had begun: the process lives, whatever else it does.
    has_begun: bool,
    /// Until when it has its slot, or until when the process has its time for it.
    until: Time,
    /// Tells an interim answer from one that shows that the process is through.
    decoder: ResponseDecoder,
    interims: u32,
}

impl Leftover {
    /// When to look at it again.
    pub(super) fn until(&self) -> Time {
        self.until
    }

    /// Takes what has come. `None`: the process is through with it, or has broken the protocol.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while !self.has_begun {
            // What would follow a head is of no interest any more.
            let step = self.decoder.decode(&LIMITS, ReplyTo::Other, &bytes[at..]).ok()?;
            at += step.consumed;
            match step.event {
                ReplyEvent::Interim(_) if self.interims < INTERIM_MAX => self.interims += 1,
                ReplyEvent::NeedMore => return Some(at),
                _ => return None,
            }
        }
        None
    }

    /// Its time has come. `None`: its slot is free, or the process is condemned.
    pub(super) fn time_is_up(self, now: Time) -> Option<Leftover> {
        let Leftover { mut pass, has_begun, .. } = self;
        let is_over = has_begun || pass.is_overdue() || pass.be_late(now);
        (!is_over).then(|| Leftover { pass, until: now.after(OVERDUE_MAX), ..self })
    }
}

/// What has become of an exchange after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    GoesOn,
    /// All has been said; whether the connection is good for another exchange.
    Done(bool),
}

impl Exchange {
    pub(super) fn new(
        (id, client): (ExchangeId, Token),
        question: Box<Question>,
        (ticket, pass): (Ticket, Pass),
        until: Time,
    ) -> Box<Exchange> {
        Box::new(Exchange {
            id,
            client,
            question,
            ticket,
            pass,
            until,
            refusing: None,
            may_repeat: true,
            was_taken: false,
            upload: Upload::First(0),
            has_sent: false,
            piece: Vec::new(),
            piece_is_last: false,
            decoder: ResponseDecoder::default(),
            has_heard: false,
            interims: 0,
            draft: None,
            is_persistent: false,
            client_is_busy: false,
            flush_at: None,
            has_spoken: false,
        })
    }

    /// It begins over a connection that is open, perhaps not for the first time.
    pub(super) fn begin(&mut self, io: &mut Io<'_, HttpService>) {
        self.upload = Upload::First(0);
        self.decoder = ResponseDecoder::default();
        (self.has_sent, self.has_heard, self.interims) = (false, false, 0);
        self.give_time(io);
        self.send_on(io);
    }

    /// Whether all that is to be sent is still there, and the client knows of nothing.
    pub(super) fn is_repeatable(&self) -> bool {
        self.draft.is_none() && !self.has_spoken
    }

    /// Whether the head of an answer has come.
    pub(super) fn is_answered(&self) -> bool {
        self.draft.is_some()
    }

    /// What the end of a connection means that had been used before, or had not.
    pub(super) fn lost(&self, kind: ErrorKind, was_used: bool, nothing_sent: bool) -> Trouble {
        if was_used && !self.has_heard { Trouble::Stale { nothing_sent } } else { Trouble::Lost(kind) }
    }

    /// What is left of it when nobody waits for its answer any more.
    pub(super) fn give_up(self, io: &Io<'_, HttpService>) -> Leftover {
        // The client's time is over, so the process has its own.
        let until =
            if self.waits_for_client(io) { io.now().after(io.service.app_timeout()) } else { self.until };
        self.leave(until)
    }

    /// The same when it was not answered in time.
    pub(super) fn be_overdue(self, now: Time) -> Leftover {
        self.leave(now.after(OVERDUE_MAX))
    }

    fn leave(self, until: Time) -> Leftover {
        let has_begun = self.is_answered();
        Leftover { has_begun, pass: self.pass, until, decoder: self.decoder, interims: self.interims }
    }

    /// What to say when the exchange has failed.
    pub(super) fn refuse(&self, refusal: Refusal) -> Said {
        let has_begun = self.draft.as_ref().is_some_and(Draft::has_begun);
        if has_begun { Said::Broken } else { Said::Refused(refusal) }
    }

    /// From now on the process has its whole time until the next sign of life.
    fn give_time(&mut self, io: &Io<'_, HttpService>) {
        self.until = io.now().after(io.service.app_timeout());
    }

    /// Whether it is the client who takes the time now, and not the process.
    fn waits_for_client(&self, io: &Io<'_, HttpService>) -> bool {
        self.upload == Upload::Asked && !self.is_answered() || io.is_paused()
    }

    /// Whether the process has had its time. Deadlines are not told while it does not take what is sent.
    pub(super) fn is_late(&self, io: &Io<'_, HttpService>) -> bool {
        !self.waits_for_client(io) && io.now() >= self.until
    }

    /// Sets the deadline for whatever comes next.
    pub(super) fn keep_time(&self, io: &mut Io<'_, HttpService>) {
        let until = (!self.waits_for_client(io)).then_some(self.until);
        io.set_deadline(self.flush_at.into_iter().chain(until).min());
    }

    /// Sends what there is to send and room for; asks for more when that has gone.
    pub(super) fn send_on(&mut self, io: &mut Io<'_, HttpService>) {
        let (parts, sent) = match &mut self.upload {
            Upload::First(sent) => ([&self.question.head[..], &self.question.body], sent),
            Upload::Piece(sent) => ([&self.piece[..], &[]], sent),
            Upload::Asked | Upload::Whole | Upload::CutShort => return,
        };
        // There is room for more only when what was sent before has gone.
        self.has_sent |= *sent > 0 && io.room() > 0;
        let [first, second] = parts;
        let rest = [&first[(*sent).min(first.len())..], &second[sent.saturating_sub(first.len())..]];
        for part in rest {
            let part = &part[..part.len().min(io.room())];
            if !part.is_empty() {
                // There is room for as much.
                let _ = io.send(part);
                *sent += part.len();
            }
        }
        let is_sent = *sent == first.len() + second.len();
        let is_whole = match self.upload {
            Upload::First(_) => !self.question.goes_on,
            _ => self.piece_is_last,
        };
        if !is_sent || !is_whole && io.room() < PIECE_SIZE_MAX {
            return io.again();
        }
        self.piece.clear();
        // The process has its time from when it has everything.
        self.give_time(io);
        self.upload = if is_whole { Upload::Whole } else { Upload::Asked };
        if !is_whole {
            self.has_spoken = true;
            self.say(Said::Ask, io);
        }
    }

    /// The client has sent more of the body.
    pub(super) fn send_more(&mut self, body: Vec<u8>, is_last: bool, io: &mut Io<'_, HttpService>) {
        if self.upload != Upload::Asked {
            return;
        }
        self.piece_is_last = is_last;
        self.piece = match self.question.length {
            BodyLength::Chunked => in_chunks(&body, is_last),
            _ => body,
        };
        self.upload = Upload::Piece(0);
        self.give_time(io);
        self.send_on(io);
        self.keep_time(io);
    }

    /// A send has failed. Returns whether there may still be an answer: a process that closes early may have answered
    /// early. If not, nothing of the request was taken. `nothing_sent` speaks of that send alone.
    pub(super) fn is_cut_short(&mut self, nothing_sent: bool) -> bool {
        let may_answer = !nothing_sent || self.has_sent || self.has_spoken;
        self.upload = Upload::CutShort;
        may_answer
    }

    /// Takes what has come of the answer, and passes it on. Returns how much of it is done with.
    pub(super) fn hear(
        &mut self,
        bytes: &[u8],
        io: &mut Io<'_, HttpService>,
    ) -> Result<(usize, Progress), Trouble> {
        let answered = if self.question.is_head { ReplyTo::Head } else { ReplyTo::Other };
        let mut at = 0;
        self.has_heard |= !bytes.is_empty();
        loop {
            let room = self.draft.as_ref().map_or(usize::MAX, |draft| PIECE_SIZE_MAX - draft.body_len());
            if room == 0 && !self.pass_on(false, io) {
                // The client comes first.
                io.pause();
                self.keep_time(io);
                return Ok((at, Progress::GoesOn));
            }
            let input = &bytes[at..];
            let input = &input[..input.len().min(if room == 0 { PIECE_SIZE_MAX } else { room })];
            let step = self.decoder.decode(&LIMITS, answered, input)?;
            at += step.consumed;
            match step.event {
                ReplyEvent::Head(head) => {
                    if head.status == 101 || nominates_too_many(head.headers()) {
                        // No client asked for another protocol.
                        return Err(Trouble::Lost(ErrorKind::InvalidData));
                    }
                    self.pass.heard();
                    self.is_persistent = head.persistent;
                    if self.upload != Upload::Whole {
                        self.upload = Upload::CutShort;
                    }
                    let out = std::mem::take(&mut self.question.head);
                    self.draft =
                        Some(Draft::new(&head, self.question.is_head, self.question.takes_chunks, out));
                    self.give_time(io);
                }
                ReplyEvent::Interim(_) => {
                    self.interims += 1;
                    if self.interims > INTERIM_MAX {
                        return Err(Trouble::Lost(ErrorKind::InvalidData));
                    }
                    continue;
                }
                ReplyEvent::Body(piece) => match &mut self.draft {
                    Some(draft) => draft.bytes.extend_from_slice(piece),
                    None => return Err(Trouble::Lost(ErrorKind::InvalidData)),
                },
                ReplyEvent::End => {}
                ReplyEvent::NeedMore => break,
            }
            if !self.decoder.in_body() {
                self.pass_on(true, io);
                // Whatever follows an answer belongs to none.
                let is_good = self.is_persistent && at == bytes.len() && self.upload == Upload::Whole;
                return Ok((at, Progress::Done(is_good)));
            }
        }
        if self.is_answered() && !bytes.is_empty() {
            self.pass.heard();
            self.give_time(io);
        }
        self.plan_flush(io.now());
        self.keep_time(io);
        Ok((at, Progress::GoesOn))
    }

    /// The process has closed the connection.
    pub(super) fn hear_the_end(
        &mut self,
        was_used: bool,
        io: &mut Io<'_, HttpService>,
    ) -> Result<(), Trouble> {
        if !self.is_answered() {
            return Err(self.lost(ErrorKind::UnexpectedEof, was_used, false));
        }
        self.decoder.finish()?;
        self.pass_on(true, io);
        Ok(())
    }

    /// The client has taken the last part of the answer: it may have the next.
    pub(super) fn go_on(&mut self, io: &mut Io<'_, HttpService>) {
        self.client_is_busy = false;
        self.give_time(io);
        if self.draft.as_ref().is_some_and(|draft| draft.body_len() >= PIECE_SIZE_MAX) {
            self.pass_on(false, io);
        }
        self.plan_flush(io.now());
        io.resume();
        self.keep_time(io);
    }

    /// Time has come: either to pass on what there is, or the process is late.
    pub(super) fn time_is_up(&mut self, io: &mut Io<'_, HttpService>) -> Result<(), Trouble> {
        if self.flush_at.is_some_and(|at| io.now() >= at) {
            self.pass_on(false, io);
        } else if self.is_late(io) {
            return Err(Trouble::Late);
        }
        self.keep_time(io);
        Ok(())
    }

    /// An answer of unknown length is not held back for long, lest its client waits for what may never come.
    fn plan_flush(&mut self, now: Time) {
        let Some(draft) = &self.draft else { return };
        let has_news = draft.told().is_none() && (draft.body_len() > 0 || !draft.has_begun());
        self.flush_at = match self.flush_at {
            _ if !has_news || self.client_is_busy => None,
            Some(at) => Some(at),
            None => Some(now.after(FLUSH_AFTER)),
        };
    }

    /// Passes on what has come of the answer. False: the client is busy with what came before.
    fn pass_on(&mut self, is_last: bool, io: &mut Io<'_, HttpService>) -> bool {
        let Some(draft) = &mut self.draft else { return false };
        if self.client_is_busy && !is_last {
            return false;
        }
        let said = draft.pass_on(is_last);
        (self.client_is_busy, self.flush_at) = (true, None);
        self.has_spoken = true;
        self.say(said, io);
        true
    }

    fn say(&self, said: Said, io: &mut Io<'_, HttpService>) {
        io.service.tell_client(self.client, self.id, said);
    }
}

/// A piece of a body as a chunk (RFC 9112 §7.1), and the last one behind it.
fn in_chunks(body: &[u8], is_last: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 32);
    if !body.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(b"\r\n");
    }
    if is_last {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    out
}
