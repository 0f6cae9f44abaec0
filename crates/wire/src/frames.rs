//! Frames of worker processes: an HTTP/1.1 message with its length and a number.
//!
//! ```text
//!   length: 4 bytes ┃ number: 4 bytes ┃ start line, field lines, empty line ┃ body: the rest of the length
//! ```
//!
//! Length and number are big-endian. The length counts the bytes after the number. A response has the number of its
//! request: a superfluous one never answers the next request. An empty frame with the number 0 reports that the process
//! is ready.

use std::fmt;

use crate::http1::{
    AnsweredMethod, HttpDecodeError, HttpLimits, ResponseBodyLength, ResponseDecoder, ResponseEvent,
    ResponseStep,
};

/// Bytes of a frame's length and number.
pub const PREFIX_SIZE: usize = 8;

/// The frame by which a process reports that it is ready.
pub const READY: [u8; PREFIX_SIZE] = [0; PREFIX_SIZE];

/// Maximum bytes of a response after its number. More: [`FrameError::TooLong`]. The first byte of a valid length is
/// less than any printable character, so text in place of a frame is detected at its first byte.
pub const RESPONSE_SIZE_MAX: u32 = 64 * 1024 * 1024;

/// Returns the bytes that precede a message of `size` bytes; `None` if no frame can be as long.
#[must_use]
pub fn prefix(size: usize, number: u32) -> Option<[u8; PREFIX_SIZE]> {
    let size = u64::from(u32::try_from(size).ok()?);
    Some((size << 32 | u64::from(number)).to_be_bytes())
}

/// Why a process's bytes are no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The length exceeds [`RESPONSE_SIZE_MAX`]; the first bytes of the length, the rest zero.
    TooLong([u8; 4]),
    /// The frame has another number than the request.
    Number(u32),
    /// The frame is empty.
    Empty,
    /// The frame ends within the head.
    NoHead,
    /// `Content-Length` differs from the frame's, or the status forbids the body.
    Length,
    /// `Transfer-Encoding`: the frame's length is the only framing.
    TransferEncoding,
    /// An interim response (1xx).
    Interim,
    /// The head is not HTTP/1.1, or exceeds the limits.
    Head(HttpDecodeError),
    /// The input ends within a frame.
    Truncated,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong(length) => {
                write!(f, "the length \"{}\" exceeds {RESPONSE_SIZE_MAX} bytes", length.escape_ascii())
            }
            FrameError::Number(number) => write!(f, "no request has the number {number}"),
            FrameError::Empty => f.write_str("the frame is empty"),
            FrameError::NoHead => f.write_str("the frame ends within the head"),
            FrameError::Length => f.write_str("the length of the body differs from what the head announces"),
            FrameError::TransferEncoding => f.write_str("Transfer-Encoding within a frame"),
            FrameError::Interim => f.write_str("an interim response"),
            FrameError::Head(error) => write!(f, "the head is not HTTP: {error}"),
            FrameError::Truncated => f.write_str("the output ends within a frame"),
        }
    }
}

impl std::error::Error for FrameError {}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FrameState {
    Prefix,
    /// Bytes of the frame that are not consumed; none of them were.
    Head(u32, ResponseDecoder),
    /// Bytes of the body that are not consumed.
    Body(u32),
    Failed(FrameError),
}

/// Decodes the response to one request; as [`ResponseDecoder`], except that a body's end is no event: the response is
/// complete when [`in_body`](Self::in_body) is false after its head or a piece of its body. A response to
/// `HEAD` may have a body, which the receiver drops.
///
/// ```
/// use stilling_wire::frames::FrameDecoder;
/// use stilling_wire::http1::{AnsweredMethod, HttpLimits, ResponseEvent};
///
/// let received = b"\0\0\0\x15\0\0\0\x07HTTP/1.1 200 OK\r\n\r\nhi";
/// let mut decoder = FrameDecoder::new(7);
/// let step = decoder.decode(&HttpLimits::default(), AnsweredMethod::Other, received)?;
/// assert!(matches!(step.event, ResponseEvent::Head(head) if head.status == 200));
/// let step = decoder.decode(&HttpLimits::default(), AnsweredMethod::Other, &received[step.consumed..])?;
/// assert_eq!(step.event, ResponseEvent::Body(b"hi"));
/// assert!(!decoder.in_body());
/// # Ok::<(), stilling_wire::frames::FrameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameDecoder {
    state: FrameState,
    number: u32,
}

impl FrameDecoder {
    /// A decoder for the response to the request with this number.
    #[must_use]
    pub fn new(number: u32) -> FrameDecoder {
        FrameDecoder { state: FrameState::Prefix, number }
    }

    /// The number of the request.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Decodes the next event from `input`, which starts at the first unconsumed byte. `answered` is the request that
    /// the frame answers. The body's length in a head is that of the frame.
    ///
    /// # Errors
    /// The process violated the protocol or a limit. Every later call returns the same error.
    pub fn decode<'a>(
        &mut self,
        limits: &HttpLimits,
        answered: AnsweredMethod,
        input: &'a [u8],
    ) -> Result<ResponseStep<'a>, FrameError> {
        let step = self.step(limits, answered, input);
        if let Err(error) = &step {
            self.state = FrameState::Failed(*error);
        }
        step
    }

    /// Handles the end of the input.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] within a frame, or the decoder's earlier error.
    pub fn finish(&self) -> Result<(), FrameError> {
        match self.state {
            FrameState::Prefix => Ok(()),
            FrameState::Head(..) | FrameState::Body(_) => Err(FrameError::Truncated),
            FrameState::Failed(error) => Err(error),
        }
    }

    /// Whether a head has been returned and its body is incomplete.
    #[must_use]
    pub fn in_body(&self) -> bool {
        matches!(self.state, FrameState::Body(_))
    }

    fn step<'a>(
        &mut self,
        limits: &HttpLimits,
        answered: AnsweredMethod,
        input: &'a [u8],
    ) -> Result<ResponseStep<'a>, FrameError> {
        let mut consumed = 0;
        if self.state == FrameState::Prefix {
            let Some(size) = read_prefix(input, self.number)? else {
                return Ok(ResponseStep { consumed, event: ResponseEvent::NeedMore });
            };
            consumed = PREFIX_SIZE;
            self.state = FrameState::Head(size, ResponseDecoder::default());
        }
        let input = &input[consumed..];
        let mut step = match &mut self.state {
            FrameState::Head(rest, decoder) => {
                let (step, body) = decode_head(decoder, *rest, limits, answered, input)?;
                if let Some(body) = body {
                    self.state = if body == 0 { FrameState::Prefix } else { FrameState::Body(body) };
                }
                step
            }
            FrameState::Body(_) if input.is_empty() => {
                ResponseStep { consumed: 0, event: ResponseEvent::NeedMore }
            }
            FrameState::Body(rest) => {
                let piece = &input[..input.len().min(*rest as usize)];
                *rest -= piece.len() as u32;
                if *rest == 0 {
                    self.state = FrameState::Prefix;
                }
                ResponseStep { consumed: piece.len(), event: ResponseEvent::Body(piece) }
            }
            FrameState::Prefix => unreachable!("it was just read"),
            FrameState::Failed(error) => return Err(*error),
        };
        step.consumed += consumed;
        Ok(step)
    }
}

/// Reads a frame's length and number; an excessive length is detected before all of its bytes are there.
fn read_prefix(input: &[u8], number: u32) -> Result<Option<u32>, FrameError> {
    let mut bytes = [0; PREFIX_SIZE];
    let known = input.len().min(PREFIX_SIZE);
    bytes[..known].copy_from_slice(&input[..known]);
    let [a, b, c, d, rest @ ..] = bytes;
    let (length, received) = ([a, b, c, d], u32::from_be_bytes(rest));
    match u32::from_be_bytes(length) {
        size if size > RESPONSE_SIZE_MAX => Err(FrameError::TooLong(length)),
        _ if known < PREFIX_SIZE => Ok(None),
        0 => Err(FrameError::Empty),
        _ if received != number => Err(FrameError::Number(received)),
        size => Ok(Some(size)),
    }
}

/// Decodes the head of a frame with `rest` bytes. Also returns the size of the body after a complete head.
fn decode_head<'a>(
    decoder: &mut ResponseDecoder,
    rest: u32,
    limits: &HttpLimits,
    answered: AnsweredMethod,
    input: &'a [u8],
) -> Result<(ResponseStep<'a>, Option<u32>), FrameError> {
    let frame = &input[..input.len().min(rest as usize)];
    let step = decoder.decode(limits, answered, frame).map_err(FrameError::Head)?;
    let mut head = match step.event {
        ResponseEvent::Head(head) => head,
        ResponseEvent::Interim(_) => return Err(FrameError::Interim),
        _ if frame.len() == rest as usize => return Err(FrameError::NoHead),
        _ => return Ok((step, None)),
    };
    let body = rest - step.consumed as u32;
    match head.body {
        ResponseBodyLength::UntilClose => {}
        ResponseBodyLength::Chunked => return Err(FrameError::TransferEncoding),
        ResponseBodyLength::None if body == 0 || answered == AnsweredMethod::Head => {}
        ResponseBodyLength::Sized(size) if size == u64::from(body) => {}
        ResponseBodyLength::None | ResponseBodyLength::Sized(_) => return Err(FrameError::Length),
    }
    head.body = match body {
        size if size > 0 && answered == AnsweredMethod::Other => ResponseBodyLength::Sized(u64::from(size)),
        _ => ResponseBodyLength::None,
    };
    head.persistent = true;
    Ok((ResponseStep { consumed: step.consumed, event: ResponseEvent::Head(head) }, Some(body)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: HttpLimits = HttpLimits { head_size_max: 256, headers_max: 4, body_size_max: u64::MAX };

    /// A response as its receiver collects it.
    type Collected = (u16, Option<u64>, Vec<u8>);

    const NUMBER: u32 = 0x0102_0304;

    fn frame(message: &[u8]) -> Vec<u8> {
        let mut frame = prefix(message.len(), NUMBER).expect("it is short").to_vec();
        frame.extend_from_slice(message);
        frame
    }

    /// Decodes input that arrives in pieces of `size` bytes, and keeps what is not consumed, as a connection does.
    fn decode(input: &[u8], size: usize, answered: AnsweredMethod) -> Result<Vec<Collected>, FrameError> {
        let mut decoder = FrameDecoder::new(NUMBER);
        let (mut stash, mut responses): (Vec<u8>, Vec<Collected>) = (Vec::new(), Vec::new());
        for piece in input.chunks(size) {
            stash.extend_from_slice(piece);
            loop {
                let step = decoder.decode(&LIMITS, answered, &stash)?;
                match step.event {
                    ResponseEvent::Head(head) => {
                        let announced = match head.body {
                            ResponseBodyLength::Sized(size) => Some(size),
                            _ => None,
                        };
                        responses.push((head.status, announced, Vec::new()));
                    }
                    ResponseEvent::Body(piece) => {
                        responses.last_mut().expect("a head precedes it").2.extend_from_slice(piece);
                    }
                    ResponseEvent::NeedMore => {
                        stash.drain(..step.consumed);
                        break;
                    }
                    event => panic!("{event:?} is no event of frames"),
                }
                stash.drain(..step.consumed);
            }
        }
        decoder.finish().map(|()| responses)
    }

    #[test]
    fn garbage_is_detected_as_early_as_possible() {
        let failure = |input: &[u8]| decode(input, 1, AnsweredMethod::Other).expect_err("it is no frame");
        assert_eq!(failure(b"Traceback (most recent"), FrameError::TooLong(*b"T\0\0\0"));
        assert_eq!(failure(b"\n"), FrameError::TooLong(*b"\n\0\0\0"));
        assert_eq!(failure(b"\x04\0\0\x01"), FrameError::TooLong([4, 0, 0, 1]));
        assert_eq!(failure(&READY), FrameError::Empty);
        assert_eq!(failure(b"\0\0\0\x05\x01\x02\x03\x03hello"), FrameError::Number(0x0102_0303));
        assert!(matches!(failure(&frame(b"hello")[..10]), FrameError::Head(_)));
        assert_eq!(failure(&frame(b"HTTP/1.1 200 OK\r\n")), FrameError::NoHead);
        assert_eq!(failure(&frame(b"HTTP/1.1 100 Continue\r\n\r\n")), FrameError::Interim);
        assert_eq!(failure(&frame(b"HTTP/1.1 204 No Content\r\n\r\nx")), FrameError::Length);
        assert_eq!(failure(&frame(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy")), FrameError::Length);
        let chunked = frame(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
        assert_eq!(failure(&chunked), FrameError::TransferEncoding);
        let long = format!("HTTP/1.1 200 OK\r\nName: {}\r\n\r\n", "x".repeat(300));
        assert!(matches!(failure(&frame(long.as_bytes())), FrameError::Head(_)));
        let whole = frame(b"HTTP/1.1 200 OK\r\n\r\nbody");
        assert!((1..whole.len()).all(|size| match decode(&whole[..size], 3, AnsweredMethod::Other) {
            Ok(responses) => size < PREFIX_SIZE && responses.is_empty(),
            Err(error) => error == FrameError::Truncated,
        }));
    }

    #[test]
    fn a_response_to_head_may_announce_or_have_a_body() {
        let announced = frame(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        assert_eq!(decode(&announced, 7, AnsweredMethod::Head), Ok(vec![(200, None, Vec::new())]));
        let with_body = frame(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        let expected = vec![(200, None, b"hello".to_vec())];
        assert_eq!(decode(&with_body, 7, AnsweredMethod::Head), Ok(expected));
    }

    proptest! {
        #[test]
        fn responses_are_the_same_in_pieces_of_any_size(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 1..5),
            announces in any::<bool>(),
            size in 1_usize..200,
        ) {
            let mut input = Vec::new();
            for body in &bodies {
                let field = if announces { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
                let mut message = format!("HTTP/1.1 200 OK\r\n{field}\r\n").into_bytes();
                message.extend_from_slice(body);
                input.extend(frame(&message));
            }
            let expected: Vec<Collected> = bodies
                .into_iter()
                .map(|body| (200, (!body.is_empty()).then_some(body.len() as u64), body))
                .collect();
            prop_assert_eq!(decode(&input, size, AnsweredMethod::Other), Ok(expected));
        }

        #[test]
        fn random_bytes_never_panic_and_the_size_of_pieces_does_not_matter(
            input in proptest::collection::vec(any::<u8>(), 0..300),
            length in 0_u8..80,
            size in 1_usize..64,
        ) {
            // A short length, so that heads are decoded, too.
            let input = [&[0, 0, 0, length, 1, 2, 3, 4], &b"HTTP/1.1 200 "[..], &input].concat();
            let whole = decode(&input, input.len(), AnsweredMethod::Other);
            let pieces = decode(&input, size, AnsweredMethod::Other);
            prop_assert_eq!(whole.is_ok(), pieces.is_ok());
            if whole.is_ok() {
                prop_assert_eq!(whole, pieces);
            }
        }
    }
}
