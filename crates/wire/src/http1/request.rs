//! The server's side: a stream of bytes becomes requests.
//!
//! ```text
//!   Between ──► Head ──► Body ──► Between        any ──► Failed
//!      └── whole head without body: stays ──┘
//! ```

use super::body::Body;
use super::chunked::{Chunked, Piece};
use super::error::{DecodeError, Fault};
use super::fields::{self, FieldPhase, FieldSink};
use super::head::{BodyLength, Facts, RequestHead};
use super::limits::{EMPTY_LINES_MAX, Limits};
use super::line::{self, Line, LinePhase};
use super::version::Version;
use crate::meter::Meter;

/// What a step consumed and found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Bytes of the input that are done with; the next input starts behind them.
    pub consumed: usize,
    /// What was found.
    pub event: Event<'a>,
}

/// What a step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "an event lives for one step on the stack and is never stored")]
pub enum Event<'a> {
    /// Nothing more without further input.
    NeedMore,
    /// A request. Body and end follow when [`RequestHead::body`] is not `None`.
    Head(RequestHead<'a>),
    /// A piece of the body, at least one byte.
    Body(&'a [u8]),
    /// The end of a body.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Line(LinePhase),
    Fields(FieldPhase),
}

/// How far an unfinished head has been scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scan {
    scanned: u32,
    lines: u16,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Between { empty_lines: u8 },
    Head(Scan),
    Body(Body),
    Failed(DecodeError),
}

/// Turns the bytes of one connection into requests; see the [module](super) for the contract. 32 bytes of plain state.
///
/// ```
/// use stilling_wire::http1::{Event, Limits, RequestDecoder};
///
/// let (limits, mut decoder) = (Limits::default(), RequestDecoder::default());
/// let mut input = &b"POST /publish/a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"[..];
/// let mut body = Vec::new();
/// loop {
///     let step = decoder.decode(&limits, input)?;
///     input = &input[step.consumed..];
///     match step.event {
///         Event::Head(head) => assert_eq!(head.target.path, b"/publish/a"),
///         Event::Body(piece) => body.extend_from_slice(piece),
///         Event::End => assert_eq!(body, b"hi"),
///         Event::NeedMore => break,
///     }
/// }
/// assert!(decoder.is_idle());
/// # Ok::<(), stilling_wire::http1::DecodeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestDecoder {
    state: State,
}

const _: () = assert!(size_of::<RequestDecoder>() <= 32);

impl Default for RequestDecoder {
    fn default() -> Self {
        Self { state: State::Between { empty_lines: 0 } }
    }
}

impl RequestDecoder {
    /// Takes one step over `input`, which starts at the first byte not yet consumed.
    ///
    /// # Errors
    /// The peer broke the protocol or a limit; answer with [`DecodeError::status`] and close. Every later call returns
    /// the same error.
    #[inline]
    pub fn decode<'a>(&mut self, limits: &Limits, input: &'a [u8]) -> Result<Step<'a>, DecodeError> {
        let step = self.step(limits, input, &mut ());
        if let Err(error) = &step {
            self.state = State::Failed(*error);
        }
        step
    }

    /// [`RequestDecoder::decode`], adding the bytes looked at to `work`.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn decode_counting<'a>(
        &mut self,
        limits: &Limits,
        input: &'a [u8],
        work: &mut u64,
    ) -> Result<Step<'a>, DecodeError> {
        let step = self.step(limits, input, work);
        if let Err(error) = &step {
            self.state = State::Failed(*error);
        }
        step
    }

    /// Between requests, with nothing scanned of the next one (a first CR, still to be judged, counts as nothing).
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Between { .. })
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
    fn step<'a, M: Meter>(
        &mut self,
        limits: &Limits,
        input: &'a [u8],
        meter: &mut M,
    ) -> Result<Step<'a>, DecodeError> {
        match &mut self.state {
            State::Between { empty_lines } => {
                let mut skipped = 0;
                if input.first() == Some(&b'\r') {
                    skipped = skip_empty_lines(empty_lines, input)?;
                    meter.add(skipped + 1);
                }
                let rest = &input[skipped..];
                if rest.is_empty() || rest == b"\r" {
                    return Ok(Step { consumed: skipped, event: Event::NeedMore });
                }
                let window = limits.head_window(rest);
                let mut scan = Scan::START;
                match scan_head(&mut scan, limits, window, meter)? {
                    Some((head, end)) => Ok(self.told(head, skipped + end)),
                    None => {
                        self.state = State::Head(scan);
                        Ok(Step { consumed: skipped, event: Event::NeedMore })
                    }
                }
            }
            State::Head(scan) => {
                let window = limits.head_window(input);
                if !resume(scan, limits, window, meter)? {
                    return Ok(Step { consumed: 0, event: Event::NeedMore });
                }
                let mut again = Scan::START;
                match scan_head(&mut again, limits, window, meter)? {
                    Some((head, end)) => Ok(self.told(head, end)),
                    None => Ok(Step { consumed: 0, event: Event::NeedMore }),
                }
            }
            State::Body(body) => {
                let (consumed, piece) = body.step(limits.body_size_max, input)?;
                meter.add(consumed);
                let event = match piece {
                    Piece::More => Event::NeedMore,
                    Piece::Data(data) => Event::Body(data),
                    Piece::End => {
                        self.state = State::Between { empty_lines: 0 };
                        Event::End
                    }
                };
                Ok(Step { consumed, event })
            }
            State::Failed(error) => Err(*error),
        }
    }

    #[inline(always)]
    fn told<'a>(&mut self, head: RequestHead<'a>, consumed: usize) -> Step<'a> {
        self.state = match head.body {
            BodyLength::None => State::Between { empty_lines: 0 },
            BodyLength::Sized(length) => State::Body(Body::Sized(length)),
            BodyLength::Chunked => State::Body(Body::Chunked(Chunked::START)),
        };
        Step { consumed, event: Event::Head(head) }
    }
}

impl Scan {
    const START: Self = Self { scanned: 0, lines: 0, phase: Phase::Line(LinePhase::Start) };
}

/// RFC 9112 §2.2: at least one empty line before a request line is to be ignored.
#[cold]
fn skip_empty_lines(seen: &mut u8, input: &[u8]) -> Result<usize, DecodeError> {
    let mut at = 0;
    while let [b'\r', second, ..] = input[at..] {
        // Offsets count from the first empty line, wherever the input was cut.
        let offset = usize::from(*seen) * 2;
        if second != b'\n' {
            return Err(DecodeError::head(Fault::LineEnd, offset + 1, Some(second)));
        }
        if *seen >= EMPTY_LINES_MAX {
            return Err(DecodeError::head(Fault::EmptyLines, offset, Some(b'\r')));
        }
        *seen += 1;
        at += 2;
    }
    Ok(at)
}

/// Scans a head from its first byte, gathering its facts on the way.
#[inline(always)]
fn scan_head<'a, M: Meter>(
    scan: &mut Scan,
    limits: &Limits,
    window: &'a [u8],
    meter: &mut M,
) -> Result<Option<(RequestHead<'a>, usize)>, DecodeError> {
    let mut phase = LinePhase::Start;
    let Some(line) = line::scan(&mut phase, window, 0)? else {
        meter.add(window.len());
        return unfinished(scan, Phase::Line(phase), limits, window.len()).map(|()| None);
    };
    let mut facts = Facts::new(line.version);
    match scan_fields(scan, FieldPhase::Start, line, limits, window, &mut facts)? {
        Some(end) => {
            meter.add(end);
            facts.conclude(line, window, end, limits).map(|head| Some((head, end)))
        }
        None => {
            meter.add(window.len());
            Ok(None)
        }
    }
}

/// Scans on from where scanning stopped, for the syntax alone; `true` when the head is complete.
fn resume<M: Meter>(
    scan: &mut Scan,
    limits: &Limits,
    window: &[u8],
    meter: &mut M,
) -> Result<bool, DecodeError> {
    let start = (scan.scanned as usize).min(window.len());
    let version = Version::Http11;
    let (phase, line) = match scan.phase {
        Phase::Line(mut phase) => match line::scan(&mut phase, window, start)? {
            Some(line) => (FieldPhase::Start, line),
            None => {
                meter.add(window.len() - start);
                return unfinished(scan, Phase::Line(phase), limits, window.len()).map(|()| false);
            }
        },
        Phase::Fields(phase) => (phase, Line { method_end: 0, target_end: 0, version, end: start }),
    };
    let end = scan_fields(scan, phase, line, limits, window, &mut ())?;
    meter.add(end.unwrap_or(window.len()) - start);
    Ok(end.is_some())
}

#[inline(always)]
fn scan_fields<'a, S: FieldSink<'a>>(
    scan: &mut Scan,
    mut phase: FieldPhase,
    line: Line,
    limits: &Limits,
    window: &'a [u8],
    sink: &mut S,
) -> Result<Option<usize>, DecodeError> {
    if line.version == Version::Absent {
        return Ok(Some(line.end));
    }
    let end = fields::scan(&mut phase, &mut scan.lines, limits.headers_max, window, line.end, sink)?;
    if end.is_none() {
        unfinished(scan, Phase::Fields(phase), limits, window.len())?;
    }
    Ok(end)
}

#[cold]
fn unfinished(scan: &mut Scan, phase: Phase, limits: &Limits, scanned: usize) -> Result<(), DecodeError> {
    if limits.head_is_full(scanned) {
        let fault = if matches!(phase, Phase::Line(_)) { Fault::LineSize } else { Fault::HeadSize };
        return Err(DecodeError::head(fault, scanned, None));
    }
    // Below head_size_max, which is a u32.
    scan.scanned = scanned as u32;
    scan.phase = phase;
    Ok(())
}
