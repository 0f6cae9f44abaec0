//! The response decoder (client side). Built like the request decoder, with two differences: a response's body also
//! depends on the request it answers, and a body may last until the input ends.

use super::body::BodyState;
use super::chunked::{BodyPiece, ChunkedDecoder};
use super::error::{HttpDecodeError, HttpElement, HttpFault};
use super::fields::{self, FieldPhase, FieldSink, Fields};
use super::head::FramingFields;
use super::limits::HttpLimits;
use super::status_line::{self, StatusLine, StatusPhase};
use super::version::HttpVersion;

/// The request that the next response answers (RFC 9112 §6.3): a response to `HEAD` never has a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnsweredMethod {
    /// A `HEAD` request.
    Head,
    /// Any other request except `CONNECT`; tunnels are not supported.
    #[default]
    Other,
}

/// Body framing of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBodyLength {
    /// None, independent of the fields.
    None,
    /// Length in bytes, at least one.
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
    pub version: HttpVersion,
    /// The status code, 100 to 599.
    pub status: u16,
    /// The reason phrase, possibly empty.
    pub reason: &'a [u8],
    /// The body's framing.
    pub body: ResponseBodyLength,
    /// Whether the connection may carry another exchange.
    pub persistent: bool,
    section: &'a [u8],
}

impl<'a> ResponseHead<'a> {
    /// Returns all fields in wire order.
    #[must_use]
    pub fn headers(&self) -> Fields<'a> {
        Fields::new(self.section)
    }

    /// Returns the first value of the field `name`, compared without case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers().value_of(name)
    }
}

/// Result of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseStep<'a> {
    /// Bytes of the input to drop.
    pub consumed: usize,
    /// The decoded event.
    pub event: ResponseEvent<'a>,
}

/// Event of one decoding step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "an event lives for one step on the stack and is never stored")]
pub enum ResponseEvent<'a> {
    /// More input is needed.
    NeedMore,
    /// An interim response (1xx except 101); the final response follows.
    Interim(ResponseHead<'a>),
    /// The final response. After 101 the remaining input belongs to the new protocol.
    Head(ResponseHead<'a>),
    /// A piece of the body, at least one byte.
    Body(&'a [u8]),
    /// The end of a body.
    End,
}

/// Meaning of the end of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// No response was in progress.
    Idle,
    /// The body ended.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponsePhase {
    Status(StatusPhase),
    Fields(FieldPhase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResponseScan {
    scanned: u32,
    lines: u16,
    phase: ResponsePhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseDecoderState {
    Idle,
    Head(ResponseScan),
    Body(BodyState),
    Failed(HttpDecodeError),
}

/// Decodes the bytes of one connection into responses; see the [module](super) for the contract. At most 40 bytes of
/// plain state.
///
/// ```
/// use stilling_wire::http1::{AnsweredMethod, HttpLimits, OK_CLOSE};
/// use stilling_wire::http1::{ResponseBodyLength, ResponseDecoder, ResponseEvent};
///
/// let mut decoder = ResponseDecoder::default();
/// let step = decoder.decode(&HttpLimits::default(), AnsweredMethod::Other, OK_CLOSE)?;
/// let ResponseEvent::Head(head) = step.event else { panic!("the response is complete") };
/// assert_eq!((head.status, head.body, head.persistent), (200, ResponseBodyLength::None, false));
/// # Ok::<(), stilling_wire::http1::HttpDecodeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseDecoder {
    state: ResponseDecoderState,
}

const _: () = assert!(size_of::<ResponseDecoder>() <= 40);

impl Default for ResponseDecoder {
    fn default() -> Self {
        Self { state: ResponseDecoderState::Idle }
    }
}

impl ResponseDecoder {
    /// Decodes the next event from `input`, which starts at the first unconsumed byte. `answered` is the request that
    /// the current response answers.
    ///
    /// # Errors
    /// The peer violated the protocol or a limit; the connection is unusable. Every later call returns the same error.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &HttpLimits,
        answered: AnsweredMethod,
        input: &'a [u8],
    ) -> Result<ResponseStep<'a>, HttpDecodeError> {
        let step = self.step(limits, answered, input);
        if let Err(error) = &step {
            self.state = ResponseDecoderState::Failed(*error);
        }
        step
    }

    /// Handles the end of the input.
    ///
    /// # Errors
    /// [`HttpFault::Truncated`] inside a message (RFC 9112 §8), or the decoder's earlier error.
    pub fn finish(&mut self) -> Result<InputEnd, HttpDecodeError> {
        let finish = match self.state {
            ResponseDecoderState::Idle => Ok(InputEnd::Idle),
            ResponseDecoderState::Body(BodyState::UntilClose | BodyState::Ended) => Ok(InputEnd::End),
            ResponseDecoderState::Head(_) | ResponseDecoderState::Body(_) => {
                Err(HttpDecodeError::new(HttpFault::Truncated, HttpElement::Input, 0, None))
            }
            ResponseDecoderState::Failed(error) => Err(error),
        };
        self.state = match finish {
            Ok(_) => ResponseDecoderState::Idle,
            Err(error) => ResponseDecoderState::Failed(error),
        };
        finish
    }

    /// Whether the decoder is between responses, with nothing scanned of the next.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ResponseDecoderState::Idle)
    }

    /// Whether a head has begun and is incomplete.
    #[must_use]
    pub fn in_head(&self) -> bool {
        matches!(self.state, ResponseDecoderState::Head(_))
    }

    /// Whether a head with a body has been returned and the body's end has not.
    #[must_use]
    pub fn in_body(&self) -> bool {
        matches!(self.state, ResponseDecoderState::Body(_))
    }

    #[inline(always)]
    fn step<'a>(
        &mut self,
        limits: &HttpLimits,
        answered: AnsweredMethod,
        input: &'a [u8],
    ) -> Result<ResponseStep<'a>, HttpDecodeError> {
        let window = limits.head_window(input);
        match &mut self.state {
            ResponseDecoderState::Idle if input.is_empty() => {}
            ResponseDecoderState::Idle => {
                let mut scan = ResponseScan::START;
                match scan_head(&mut scan, limits, answered, window)? {
                    Some((head, end)) => return Ok(self.begin_body(head, end)),
                    None => self.state = ResponseDecoderState::Head(scan),
                }
            }
            ResponseDecoderState::Head(scan) => {
                let mut again = ResponseScan::START;
                if resume(scan, limits, window)?
                    && let Some((head, end)) = scan_head(&mut again, limits, answered, window)?
                {
                    return Ok(self.begin_body(head, end));
                }
            }
            ResponseDecoderState::Body(body) => {
                let (consumed, piece) = body.step(limits.body_size_max, input)?;
                let event = match piece {
                    BodyPiece::More => ResponseEvent::NeedMore,
                    BodyPiece::Data(data) => ResponseEvent::Body(data),
                    BodyPiece::End => {
                        self.state = ResponseDecoderState::Idle;
                        ResponseEvent::End
                    }
                };
                return Ok(ResponseStep { consumed, event });
            }
            ResponseDecoderState::Failed(error) => return Err(*error),
        }
        Ok(ResponseStep { consumed: 0, event: ResponseEvent::NeedMore })
    }

    #[inline(always)]
    fn begin_body<'a>(&mut self, head: ResponseHead<'a>, consumed: usize) -> ResponseStep<'a> {
        self.state = match head.body {
            ResponseBodyLength::None => ResponseDecoderState::Idle,
            ResponseBodyLength::Sized(length) => ResponseDecoderState::Body(BodyState::Sized(length)),
            ResponseBodyLength::Chunked => {
                ResponseDecoderState::Body(BodyState::Chunked(ChunkedDecoder::START))
            }
            ResponseBodyLength::UntilClose => ResponseDecoderState::Body(BodyState::UntilClose),
        };
        // RFC 9110 §15.2: any number of interim responses may precede the final one; 101 is final (§15.2.2).
        let interim = head.status < 200 && head.status != 101;
        let event = if interim { ResponseEvent::Interim(head) } else { ResponseEvent::Head(head) };
        ResponseStep { consumed, event }
    }
}

impl ResponseScan {
    const START: Self =
        Self { scanned: 0, lines: 0, phase: ResponsePhase::Status(StatusPhase::HttpVersion(0)) };

    #[cold]
    fn suspend_scan(
        &mut self,
        phase: ResponsePhase,
        limits: &HttpLimits,
        scanned: usize,
    ) -> Result<(), HttpDecodeError> {
        if limits.head_is_full(scanned) {
            return Err(HttpDecodeError::head(HttpFault::HeadSize, scanned, None));
        }
        self.scanned = scanned as u32;
        self.phase = phase;
        Ok(())
    }
}

/// Collects only the fields that frame a response; `Host` and `Expect` have no meaning in one.
struct FramingSink<'a>(FramingFields<'a>);

impl<'a> FieldSink<'a> for FramingSink<'a> {
    const WANTED: bool = true;

    #[inline(always)]
    fn field(&mut self, name: &'a [u8], value: &'a [u8], offset: usize) {
        if matches!(name.len(), 10 | 14 | 17) {
            self.0.field(name, value, offset);
        }
    }
}

#[inline(always)]
fn scan_head<'a>(
    scan: &mut ResponseScan,
    limits: &HttpLimits,
    answered: AnsweredMethod,
    window: &'a [u8],
) -> Result<Option<(ResponseHead<'a>, usize)>, HttpDecodeError> {
    let mut phase = StatusPhase::HttpVersion(0);
    let Some(line) = status_line::scan(&mut phase, window, 0)? else {
        return scan.suspend_scan(ResponsePhase::Status(phase), limits, window.len()).map(|()| None);
    };
    let mut framing = FramingSink(FramingFields::new(line.version));
    let mut phase = FieldPhase::Start;
    let lines = &mut scan.lines;
    match fields::scan(&mut phase, lines, limits.headers_max, window, line.end, &mut framing)? {
        Some(end) => {
            build_head(line, &framing.0, answered, window, end, limits).map(|head| Some((head, end)))
        }
        None => scan.suspend_scan(ResponsePhase::Fields(phase), limits, window.len()).map(|()| None),
    }
}

fn resume(scan: &mut ResponseScan, limits: &HttpLimits, window: &[u8]) -> Result<bool, HttpDecodeError> {
    let mut start = (scan.scanned as usize).min(window.len());
    let mut phase = match scan.phase {
        ResponsePhase::Fields(phase) => phase,
        ResponsePhase::Status(mut phase) => match status_line::scan(&mut phase, window, start)? {
            Some(line) => {
                start = line.end;
                FieldPhase::Start
            }
            None => {
                return scan.suspend_scan(ResponsePhase::Status(phase), limits, window.len()).map(|()| false);
            }
        },
    };
    match fields::scan(&mut phase, &mut scan.lines, limits.headers_max, window, start, &mut ())? {
        Some(_) => Ok(true),
        None => scan.suspend_scan(ResponsePhase::Fields(phase), limits, window.len()).map(|()| false),
    }
}

// RFC 9112 §6.3.
fn build_head<'a>(
    line: StatusLine,
    framing_fields: &FramingFields<'_>,
    answered: AnsweredMethod,
    window: &'a [u8],
    end: usize,
    limits: &HttpLimits,
) -> Result<ResponseHead<'a>, HttpDecodeError> {
    if let Some(first_error) = framing_fields.first_error() {
        return Err(first_error);
    }
    let bodiless = answered == AnsweredMethod::Head || line.status < 200 || matches!(line.status, 204 | 304);
    let body = match framing_fields.length() {
        _ if bodiless => ResponseBodyLength::None,
        _ if framing_fields.is_chunked() => ResponseBodyLength::Chunked,
        Some(0) => ResponseBodyLength::None,
        Some(length) if length > limits.body_size_max => {
            return Err(HttpDecodeError::head(HttpFault::BodySize, end, None));
        }
        Some(length) => ResponseBodyLength::Sized(length),
        None => ResponseBodyLength::UntilClose,
    };
    Ok(ResponseHead {
        version: line.version,
        status: line.status,
        reason: &window[line.reason_start..line.end - 2],
        body,
        persistent: framing_fields.is_persistent() && body != ResponseBodyLength::UntilClose,
        section: &window[line.end..end],
    })
}
