//! The client's side: a stream of bytes becomes responses. Built like the server's side, with two differences: what
//! follows a head also depends on the request it answers, and a body may last until the input ends.

use super::body::Body;
use super::chunked::{Chunked, Piece};
use super::error::{DecodeError, Fault, Place};
use super::fields::{self, FieldPhase, FieldSink, Fields};
use super::head::Facts;
use super::limits::Limits;
use super::status_line::{self, StatusLine, StatusPhase};
use super::version::Version;

/// Which request the next response answers (RFC 9112 §6.3): a reply to `HEAD` never has a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyTo {
    /// A `HEAD` request.
    Head,
    /// Any other request but `CONNECT`, whose tunnels are not spoken here.
    #[default]
    Other,
}

/// How much body follows a response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyLength {
    /// None, whatever the fields say.
    None,
    /// So many bytes, at least one.
    Sized(u64),
    /// Unknown until the last chunk.
    Chunked,
    /// Everything until the connection closes; see [`ResponseDecoder::finish`].
    UntilClose,
}

/// A complete, checked response head. Everything borrows from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    /// The version, never `Absent`.
    pub version: Version,
    /// The status code, 100 to 599.
    pub status: u16,
    /// The reason phrase, possibly empty.
    pub reason: &'a [u8],
    /// What follows the head.
    pub body: ReplyLength,
    /// Whether the connection may carry another exchange.
    pub persistent: bool,
    section: &'a [u8],
}

impl<'a> ResponseHead<'a> {
    /// All fields, in the order sent.
    #[must_use]
    pub fn headers(&self) -> Fields<'a> {
        Fields::new(self.section)
    }

    /// The first value of the field `name`, compared without case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers().value_of(name)
    }
}

/// What a step consumed and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyStep<'a> {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// What was found.
    pub event: ReplyEvent<'a>,
}

/// What a step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "an event lives for one step on the stack and is never stored")]
pub enum ReplyEvent<'a> {
    /// Nothing more without further input.
    NeedMore,
    /// An interim response (1xx but 101); the final one is still to come.
    Interim(ResponseHead<'a>),
    /// The final response. After 101 the remaining input belongs to the new protocol.
    Head(ResponseHead<'a>),
    /// A piece of the body, at least one byte.
    Body(&'a [u8]),
    /// The end of a body.
    End,
}

/// What the end of the input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// No response was under way.
    Idle,
    /// It ended the body.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Status(StatusPhase),
    Fields(FieldPhase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scan {
    scanned: u32,
    lines: u16,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Between,
    Head(Scan),
    Body(Body),
    Failed(DecodeError),
}

/// Turns the bytes of one connection into responses; see the [module](super) for the contract. 40 bytes of plain state
/// at most.
///
/// ```
/// use stilling_wire::http1::{Limits, OK_CLOSE, ReplyEvent, ReplyLength, ReplyTo, ResponseDecoder};
///
/// let mut decoder = ResponseDecoder::default();
/// let step = decoder.decode(&Limits::default(), ReplyTo::Other, OK_CLOSE)?;
/// let ReplyEvent::Head(head) = step.event else { panic!("the response is complete") };
/// assert_eq!((head.status, head.body, head.persistent), (200, ReplyLength::None, false));
/// # Ok::<(), stilling_wire::http1::DecodeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseDecoder {
    state: State,
}

const _: () = assert!(size_of::<ResponseDecoder>() <= 40);

impl Default for ResponseDecoder {
    fn default() -> Self {
        Self { state: State::Between }
    }
}

impl ResponseDecoder {
    /// Takes one step over `input`, which starts at the first byte not yet consumed. `answered` is the request that
    /// the response under way answers.
    ///
    /// # Errors
    /// The peer broke the protocol or a limit; the connection is of no further use. Every later call returns the same.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &Limits,
        answered: ReplyTo,
        input: &'a [u8],
    ) -> Result<ReplyStep<'a>, DecodeError> {
        let step = self.step(limits, answered, input);
        if let Err(error) = &step {
            self.state = State::Failed(*error);
        }
        step
    }

    /// Judges the end of the input.
    ///
    /// # Errors
    /// [`Fault::Truncated`] when it came inside a message (RFC 9112 §8), or the error the decoder already had.
    pub fn finish(&mut self) -> Result<Finish, DecodeError> {
        let finish = match self.state {
            State::Between => Ok(Finish::Idle),
            State::Body(Body::UntilClose | Body::Ended) => Ok(Finish::End),
            State::Head(_) | State::Body(_) => Err(DecodeError::new(Fault::Truncated, Place::Input, 0, None)),
            State::Failed(error) => Err(error),
        };
        self.state = match finish {
            Ok(_) => State::Between,
            Err(error) => State::Failed(error),
        };
        finish
    }

    /// Between responses, with nothing scanned of the next one.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Between)
    }

    /// A head has begun and is not complete.
    #[must_use]
    pub fn in_head(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    /// A head with a body has been told, the body's end has not.
    #[must_use]
    pub fn in_body(&self) -> bool {
        matches!(self.state, State::Body(_))
    }

    #[inline(always)]
    fn step<'a>(
        &mut self,
        limits: &Limits,
        answered: ReplyTo,
        input: &'a [u8],
    ) -> Result<ReplyStep<'a>, DecodeError> {
        let window = limits.head_window(input);
        match &mut self.state {
            State::Between if input.is_empty() => {}
            State::Between => {
                let mut scan = Scan::START;
                match scan_head(&mut scan, limits, answered, window)? {
                    Some((head, end)) => return Ok(self.told(head, end)),
                    None => self.state = State::Head(scan),
                }
            }
            State::Head(scan) => {
                let mut again = Scan::START;
                if resume(scan, limits, window)?
                    && let Some((head, end)) = scan_head(&mut again, limits, answered, window)?
                {
                    return Ok(self.told(head, end));
                }
            }
            State::Body(body) => {
                let (consumed, piece) = body.step(limits.body_size_max, input)?;
                let event = match piece {
                    Piece::More => ReplyEvent::NeedMore,
                    Piece::Data(data) => ReplyEvent::Body(data),
                    Piece::End => {
                        self.state = State::Between;
                        ReplyEvent::End
                    }
                };
                return Ok(ReplyStep { consumed, event });
            }
            State::Failed(error) => return Err(*error),
        }
        Ok(ReplyStep { consumed: 0, event: ReplyEvent::NeedMore })
    }

    #[inline(always)]
    fn told<'a>(&mut self, head: ResponseHead<'a>, consumed: usize) -> ReplyStep<'a> {
        self.state = match head.body {
            ReplyLength::None => State::Between,
            ReplyLength::Sized(length) => State::Body(Body::Sized(length)),
            ReplyLength::Chunked => State::Body(Body::Chunked(Chunked::START)),
            ReplyLength::UntilClose => State::Body(Body::UntilClose),
        };
        // RFC 9110 §15.2: any number of interim responses may come first; 101 is final (§15.2.2).
        let interim = head.status < 200 && head.status != 101;
        let event = if interim { ReplyEvent::Interim(head) } else { ReplyEvent::Head(head) };
        ReplyStep { consumed, event }
    }
}

impl Scan {
    const START: Self = Self { scanned: 0, lines: 0, phase: Phase::Status(StatusPhase::Version(0)) };

    #[cold]
    fn unfinished(&mut self, phase: Phase, limits: &Limits, scanned: usize) -> Result<(), DecodeError> {
        if limits.head_is_full(scanned) {
            return Err(DecodeError::head(Fault::HeadSize, scanned, None));
        }
        // Below head_size_max, which is a u32.
        self.scanned = scanned as u32;
        self.phase = phase;
        Ok(())
    }
}

/// Only what frames a response matters; `Host` or `Expect` in one mean nothing.
struct Framing<'a>(Facts<'a>);

impl<'a> FieldSink<'a> for Framing<'a> {
    const WANTED: bool = true;

    #[inline(always)]
    fn field(&mut self, name: &'a [u8], value: &'a [u8], offset: usize) {
        if matches!(name.len(), 10 | 14 | 17) {
            self.0.field(name, value, offset);
        }
    }
}

/// Scans a head from its first byte, gathering its facts on the way.
#[inline(always)]
fn scan_head<'a>(
    scan: &mut Scan,
    limits: &Limits,
    answered: ReplyTo,
    window: &'a [u8],
) -> Result<Option<(ResponseHead<'a>, usize)>, DecodeError> {
    let mut phase = StatusPhase::Version(0);
    let Some(line) = status_line::scan(&mut phase, window, 0)? else {
        return scan.unfinished(Phase::Status(phase), limits, window.len()).map(|()| None);
    };
    let mut framing = Framing(Facts::new(line.version));
    let mut phase = FieldPhase::Start;
    let lines = &mut scan.lines;
    match fields::scan(&mut phase, lines, limits.headers_max, window, line.end, &mut framing)? {
        Some(end) => conclude(line, &framing.0, answered, window, end, limits).map(|head| Some((head, end))),
        None => scan.unfinished(Phase::Fields(phase), limits, window.len()).map(|()| None),
    }
}

/// Scans on from where scanning stopped, for the syntax alone; `true` when the head is complete.
fn resume(scan: &mut Scan, limits: &Limits, window: &[u8]) -> Result<bool, DecodeError> {
    let mut start = (scan.scanned as usize).min(window.len());
    let mut phase = match scan.phase {
        Phase::Fields(phase) => phase,
        Phase::Status(mut phase) => match status_line::scan(&mut phase, window, start)? {
            Some(line) => {
                start = line.end;
                FieldPhase::Start
            }
            None => return scan.unfinished(Phase::Status(phase), limits, window.len()).map(|()| false),
        },
    };
    match fields::scan(&mut phase, &mut scan.lines, limits.headers_max, window, start, &mut ())? {
        Some(_) => Ok(true),
        None => scan.unfinished(Phase::Fields(phase), limits, window.len()).map(|()| false),
    }
}

// RFC 9112 §6.3.
fn conclude<'a>(
    line: StatusLine,
    facts: &Facts<'_>,
    answered: ReplyTo,
    window: &'a [u8],
    end: usize,
    limits: &Limits,
) -> Result<ResponseHead<'a>, DecodeError> {
    if let Some(objection) = facts.objection() {
        return Err(objection);
    }
    let bodiless = answered == ReplyTo::Head || line.status < 200 || matches!(line.status, 204 | 304);
    let body = match facts.length() {
        _ if bodiless => ReplyLength::None,
        _ if facts.is_chunked() => ReplyLength::Chunked,
        Some(0) => ReplyLength::None,
        Some(length) if length > limits.body_size_max => {
            return Err(DecodeError::head(Fault::BodySize, end, None));
        }
        Some(length) => ReplyLength::Sized(length),
        None => ReplyLength::UntilClose,
    };
    Ok(ResponseHead {
        version: line.version,
        status: line.status,
        reason: &window[line.reason_start..line.end - 2],
        body,
        persistent: facts.is_persistent() && body != ReplyLength::UntilClose,
        section: &window[line.end..end],
    })
}
