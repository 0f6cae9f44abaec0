//! The request decoder (server side).
//!
//! ```text
//!   Idle ──► Head ──► Body ──► Idle        any ──► Failed
//!     └── whole head without body: stays in Idle
//! ```

use super::body::BodyState;
use super::chunked::{BodyPiece, ChunkedDecoder};
use super::error::{HttpDecodeError, HttpFault};
use super::fields::{self, FieldPhase, FieldSink};
use super::head::{BodyLength, FramingFields, RequestHead};
use super::limits::{EMPTY_LINES_MAX, HttpLimits};
use super::line::{self, LinePhase, RequestLine};
use super::version::HttpVersion;
use crate::meter::Meter;

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStep<'a> {
    /// Bytes of the input to drop; the next input starts after them.
    pub consumed: usize,
    /// The decoded event.
    pub event: RequestEvent<'a>,
}

/// Event of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "an event lives for one step on the stack and is never stored")]
pub enum RequestEvent<'a> {
    /// More input is needed.
    NeedMore,
    /// A request. Body and end follow when [`RequestHead::body`] is not `None`.
    Head(RequestHead<'a>),
    /// A piece of the body, at least one byte.
    Body(&'a [u8]),
    /// The end of a body.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPhase {
    Line(LinePhase),
    Fields(FieldPhase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestScan {
    scanned: u32,
    lines: u16,
    phase: RequestPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestDecoderState {
    Idle { empty_lines: u8 },
    Head(RequestScan),
    Body(BodyState),
    Failed(HttpDecodeError),
}

/// Decodes the bytes of one connection into requests; see the [module](super) for the contract. 32 bytes of plain
/// state.
///
/// ```
/// use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};
///
/// let (limits, mut decoder) = (HttpLimits::default(), RequestDecoder::default());
/// let mut input = &b"POST /publish/a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"[..];
/// let mut body = Vec::new();
/// loop {
///     let step = decoder.decode(&limits, input)?;
///     input = &input[step.consumed..];
///     match step.event {
///         RequestEvent::Head(head) => assert_eq!(head.target.path, b"/publish/a"),
///         RequestEvent::Body(piece) => body.extend_from_slice(piece),
///         RequestEvent::End => assert_eq!(body, b"hi"),
///         RequestEvent::NeedMore => break,
///     }
/// }
/// assert!(decoder.is_idle());
/// # Ok::<(), stilling_wire::http1::HttpDecodeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestDecoder {
    state: RequestDecoderState,
}

const _: () = assert!(size_of::<RequestDecoder>() <= 32);

impl Default for RequestDecoder {
    fn default() -> Self {
        Self { state: RequestDecoderState::Idle { empty_lines: 0 } }
    }
}

impl RequestDecoder {
    /// Decodes the next event from `input`, which starts at the first unconsumed byte.
    ///
    /// # Errors
    /// The peer violated the protocol or a limit; answer with [`HttpDecodeError::status`] and close. Every later call
    /// returns the same error.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &HttpLimits,
        input: &'a [u8],
    ) -> Result<RequestStep<'a>, HttpDecodeError> {
        let step = self.step(limits, input, &mut ());
        if let Err(error) = &step {
            self.state = RequestDecoderState::Failed(*error);
        }
        step
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn decode_counting<'a>(
        &mut self,
        limits: &HttpLimits,
        input: &'a [u8],
        work: &mut u64,
    ) -> Result<RequestStep<'a>, HttpDecodeError> {
        let step = self.step(limits, input, work);
        if let Err(error) = &step {
            self.state = RequestDecoderState::Failed(*error);
        }
        step
    }

    /// Whether the decoder is between requests, with nothing scanned of the next (a first CR without its successor
    /// counts as nothing).
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, RequestDecoderState::Idle { .. })
    }

    /// Whether a head has begun and is incomplete.
    #[must_use]
    pub fn in_head(&self) -> bool {
        matches!(self.state, RequestDecoderState::Head(_))
    }

    /// Whether a head with a body has been returned and the body's end has not.
    #[must_use]
    pub fn in_body(&self) -> bool {
        matches!(self.state, RequestDecoderState::Body(_))
    }

    #[inline(always)]
    fn step<'a, M: Meter>(
        &mut self,
        limits: &HttpLimits,
        input: &'a [u8],
        meter: &mut M,
    ) -> Result<RequestStep<'a>, HttpDecodeError> {
        match &mut self.state {
            RequestDecoderState::Idle { empty_lines } => {
                let mut skipped = 0;
                if input.first() == Some(&b'\r') {
                    skipped = skip_empty_lines(empty_lines, input)?;
                    meter.add(skipped + 1);
                }
                let rest = &input[skipped..];
                if rest.is_empty() || rest == b"\r" {
                    return Ok(RequestStep { consumed: skipped, event: RequestEvent::NeedMore });
                }
                let window = limits.head_window(rest);
                let mut scan = RequestScan::START;
                match scan_head(&mut scan, limits, window, meter)? {
                    Some((head, end)) => Ok(self.begin_body(head, skipped + end)),
                    None => {
                        self.state = RequestDecoderState::Head(scan);
                        Ok(RequestStep { consumed: skipped, event: RequestEvent::NeedMore })
                    }
                }
            }
            RequestDecoderState::Head(scan) => {
                let window = limits.head_window(input);
                if !resume(scan, limits, window, meter)? {
                    return Ok(RequestStep { consumed: 0, event: RequestEvent::NeedMore });
                }
                let mut again = RequestScan::START;
                match scan_head(&mut again, limits, window, meter)? {
                    Some((head, end)) => Ok(self.begin_body(head, end)),
                    None => Ok(RequestStep { consumed: 0, event: RequestEvent::NeedMore }),
                }
            }
            RequestDecoderState::Body(body) => {
                let (consumed, piece) = body.step(limits.body_size_max, input)?;
                meter.add(consumed);
                let event = match piece {
                    BodyPiece::More => RequestEvent::NeedMore,
                    BodyPiece::Data(data) => RequestEvent::Body(data),
                    BodyPiece::End => {
                        self.state = RequestDecoderState::Idle { empty_lines: 0 };
                        RequestEvent::End
                    }
                };
                Ok(RequestStep { consumed, event })
            }
            RequestDecoderState::Failed(error) => Err(*error),
        }
    }

    #[inline(always)]
    fn begin_body<'a>(&mut self, head: RequestHead<'a>, consumed: usize) -> RequestStep<'a> {
        self.state = match head.body {
            BodyLength::None => RequestDecoderState::Idle { empty_lines: 0 },
            BodyLength::Sized(length) => RequestDecoderState::Body(BodyState::Sized(length)),
            BodyLength::Chunked => RequestDecoderState::Body(BodyState::Chunked(ChunkedDecoder::START)),
        };
        RequestStep { consumed, event: RequestEvent::Head(head) }
    }
}

impl RequestScan {
    const START: Self = Self { scanned: 0, lines: 0, phase: RequestPhase::Line(LinePhase::Start) };
}

/// RFC 9112 §2.2: at least one empty line before a request line must be ignored.
#[cold]
fn skip_empty_lines(seen: &mut u8, input: &[u8]) -> Result<usize, HttpDecodeError> {
    let mut at = 0;
    while let [b'\r', second, ..] = input[at..] {
        // Offsets count from the first empty line, independent of how the input was split.
        let offset = usize::from(*seen) * 2;
        if second != b'\n' {
            return Err(HttpDecodeError::head(HttpFault::LineEnd, offset + 1, Some(second)));
        }
        if *seen >= EMPTY_LINES_MAX {
            return Err(HttpDecodeError::head(HttpFault::EmptyLines, offset, Some(b'\r')));
        }
        *seen += 1;
        at += 2;
    }
    Ok(at)
}

/// Scans a head from its first byte and collects its framing fields.
#[inline(always)]
fn scan_head<'a, M: Meter>(
    scan: &mut RequestScan,
    limits: &HttpLimits,
    window: &'a [u8],
    meter: &mut M,
) -> Result<Option<(RequestHead<'a>, usize)>, HttpDecodeError> {
    let mut phase = LinePhase::Start;
    let Some(line) = line::scan(&mut phase, window, 0)? else {
        meter.add(window.len());
        return suspend_scan(scan, RequestPhase::Line(phase), limits, window.len()).map(|()| None);
    };
    let mut framing_fields = FramingFields::new(line.version);
    match scan_fields(scan, FieldPhase::Start, line, limits, window, &mut framing_fields)? {
        Some(end) => {
            meter.add(end);
            framing_fields.build_head(line, window, end, limits).map(|head| Some((head, end)))
        }
        None => {
            meter.add(window.len());
            Ok(None)
        }
    }
}

/// Resumes a scan, for the syntax alone; `true` when the head is complete.
fn resume<M: Meter>(
    scan: &mut RequestScan,
    limits: &HttpLimits,
    window: &[u8],
    meter: &mut M,
) -> Result<bool, HttpDecodeError> {
    let start = (scan.scanned as usize).min(window.len());
    let version = HttpVersion::Http11;
    let (phase, line) = match scan.phase {
        RequestPhase::Line(mut phase) => match line::scan(&mut phase, window, start)? {
            Some(line) => (FieldPhase::Start, line),
            None => {
                meter.add(window.len() - start);
                return suspend_scan(scan, RequestPhase::Line(phase), limits, window.len()).map(|()| false);
            }
        },
        RequestPhase::Fields(phase) => {
            (phase, RequestLine { method_end: 0, target_end: 0, version, end: start })
        }
    };
    let end = scan_fields(scan, phase, line, limits, window, &mut ())?;
    meter.add(end.unwrap_or(window.len()) - start);
    Ok(end.is_some())
}

#[inline(always)]
fn scan_fields<'a, S: FieldSink<'a>>(
    scan: &mut RequestScan,
    mut phase: FieldPhase,
    line: RequestLine,
    limits: &HttpLimits,
    window: &'a [u8],
    sink: &mut S,
) -> Result<Option<usize>, HttpDecodeError> {
    if line.version == HttpVersion::Absent {
        return Ok(Some(line.end));
    }
    let end = fields::scan(&mut phase, &mut scan.lines, limits.headers_max, window, line.end, sink)?;
    if end.is_none() {
        suspend_scan(scan, RequestPhase::Fields(phase), limits, window.len())?;
    }
    Ok(end)
}

#[cold]
fn suspend_scan(
    scan: &mut RequestScan,
    phase: RequestPhase,
    limits: &HttpLimits,
    scanned: usize,
) -> Result<(), HttpDecodeError> {
    if limits.head_is_full(scanned) {
        let fault =
            if matches!(phase, RequestPhase::Line(_)) { HttpFault::LineSize } else { HttpFault::HeadSize };
        return Err(HttpDecodeError::head(fault, scanned, None));
    }
    scan.scanned = scanned as u32;
    scan.phase = phase;
    Ok(())
}
