//! Server operations, for `stilling-client` and load generators.

use super::decoder::{Decoder, Grammar, ParsedLine};
use super::error::{NatsDecodeError, NatsFault};
use super::limits::{NatsLimits, SID_SIZE_MAX};
use super::line::{self, LineArguments, Operations};

/// An operation sent by a server. Subjects are not validated: the server has checked them by its own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent<'a> {
    /// More input is needed.
    NeedMore,
    /// The server's description as JSON; see [`super::Info::parse`].
    Info(&'a [u8]),
    /// A whole message.
    Message(NatsDelivery<'a>),
    /// A partially received message too long to wait for: pieces and `MessageEnd` follow.
    MessageStart(NatsDeliveryHead<'a>),
    /// A piece of headers and payload, at least one byte.
    Piece(&'a [u8]),
    /// The end of a message returned in pieces. A message cut off by an error or the end of the connection has none.
    MessageEnd,
    /// Accepts an operation (verbose connections only).
    Ok,
    /// Rejects an operation: the text, without its quotes.
    Err(&'a [u8]),
    /// Requests a `PONG`.
    Ping,
    /// All operations sent before the `PING` have been processed.
    Pong,
}

/// A message delivered by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatsDelivery<'a> {
    /// The subject it was published to.
    pub subject: &'a [u8],
    /// The matching subscription.
    pub sid: &'a [u8],
    /// The reply subject.
    pub reply: Option<&'a [u8]>,
    /// The header block, for [`super::Headers`]; empty without one.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// The line of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatsDeliveryHead<'a> {
    /// The subject it was published to.
    pub subject: &'a [u8],
    /// The matching subscription.
    pub sid: &'a [u8],
    /// The reply subject.
    pub reply: Option<&'a [u8]>,
    /// Bytes of the header block, which precedes the payload.
    pub headers_size: u32,
    /// Bytes of header block and payload together.
    pub size: u32,
}

/// Decodes the bytes sent by a server into [`ServerEvent`]s.
///
/// ```
/// use stilling_wire::nats::{NatsLimits, ServerDecoder, ServerEvent};
///
/// let (limits, mut decoder) = (NatsLimits::for_client(), ServerDecoder::default());
/// let step = decoder.decode(&limits, b"MSG events.a 7 5\r\nhello\r\n")?;
/// let ServerEvent::Message(message) = step.event else { panic!("the message is there") };
/// assert_eq!((message.sid, message.payload), (&b"7"[..], &b"hello"[..]));
/// # Ok::<(), stilling_wire::nats::NatsDecodeError>(())
/// ```
pub type ServerDecoder = Decoder<ServerGrammar>;

#[derive(Clone, Copy)]
enum ServerOperation {
    Info,
    Msg,
    Hmsg,
    Ok,
    Err,
    Ping,
    Pong,
}

const OPERATIONS: &Operations<ServerOperation> = &[
    (b"MSG", ServerOperation::Msg),
    (b"HMSG", ServerOperation::Hmsg),
    (b"PING", ServerOperation::Ping),
    (b"PONG", ServerOperation::Pong),
    (b"+OK", ServerOperation::Ok),
    (b"-ERR", ServerOperation::Err),
    (b"INFO", ServerOperation::Info),
];

/// The grammar of server operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerGrammar {}

impl<'a> Grammar<'a> for ServerGrammar {
    type Event = ServerEvent<'a>;
    type Head = NatsDeliveryHead<'a>;

    #[inline(always)]
    fn need_more() -> ServerEvent<'a> {
        ServerEvent::NeedMore
    }

    fn end() -> ServerEvent<'a> {
        ServerEvent::MessageEnd
    }

    fn parse_fast_path(_: &NatsLimits, _: &'a [u8]) -> Option<(NatsDeliveryHead<'a>, usize)> {
        None
    }

    fn check_prefix(line: &[u8]) -> Result<(), NatsDecodeError> {
        line::operation(OPERATIONS, line).map(|_| ())
    }

    #[inline(always)]
    fn line(limits: &NatsLimits, whole: &'a [u8]) -> Result<ParsedLine<'a, Self>, NatsDecodeError> {
        let line = line::strip_line_end(whole);
        match line {
            [b'M', b'S', b'G', b' ', ..] => message::<false>(limits, line, 3),
            [b'H', b'M', b'S', b'G', b' ', ..] => message::<true>(limits, line, 4),
            _ => parse_other(limits, whole),
        }
    }

    #[inline(always)]
    fn size(head: &NatsDeliveryHead<'a>) -> u32 {
        head.size
    }

    #[inline(always)]
    fn whole(head: NatsDeliveryHead<'a>, body: &'a [u8]) -> ServerEvent<'a> {
        // `LineArguments::sizes` has checked that the headers are a part of the body.
        let (headers, payload) = body.split_at(head.headers_size as usize);
        let NatsDeliveryHead { subject, sid, reply, .. } = head;
        ServerEvent::Message(NatsDelivery { subject, sid, reply, headers, payload })
    }

    fn start(head: NatsDeliveryHead<'a>) -> ServerEvent<'a> {
        ServerEvent::MessageStart(head)
    }

    fn piece(piece: &'a [u8]) -> ServerEvent<'a> {
        ServerEvent::Piece(piece)
    }
}

#[inline(never)]
fn parse_other<'a>(
    limits: &NatsLimits,
    whole: &'a [u8],
) -> Result<ParsedLine<'a, ServerGrammar>, NatsDecodeError> {
    let (operation, name_end) = line::complete_operation(OPERATIONS, whole)?;
    let line = line::strip_line_end(whole);
    Ok(ParsedLine::Command(match operation {
        ServerOperation::Msg => return message::<false>(limits, line, name_end),
        ServerOperation::Hmsg => return message::<true>(limits, line, name_end),
        ServerOperation::Info => ServerEvent::Info(line::rest(line, name_end)),
        ServerOperation::Err => ServerEvent::Err(unquoted(line::rest(line, name_end))),
        ServerOperation::Ok => line::no_arguments(line, name_end).map(|()| ServerEvent::Ok)?,
        ServerOperation::Ping => line::no_arguments(line, name_end).map(|()| ServerEvent::Ping)?,
        ServerOperation::Pong => line::no_arguments(line, name_end).map(|()| ServerEvent::Pong)?,
    }))
}

/// `MSG <subject> <sid> [reply] <size>`, `HMSG <subject> <sid> [reply] <header size> <total size>`.
#[inline(always)]
fn message<'a, const HEADERS: bool>(
    limits: &NatsLimits,
    line: &'a [u8],
    name_end: usize,
) -> Result<ParsedLine<'a, ServerGrammar>, NatsDecodeError> {
    let at_least = if HEADERS { 4 } else { 3 };
    let arguments = LineArguments::<5>::split(line, name_end, at_least, at_least + 1)?;
    let (headers_size, size) = arguments.sizes::<HEADERS>(limits)?;
    let sid = arguments.word(1, SID_SIZE_MAX, NatsFault::Sid)?;
    let reply = (arguments.count() > at_least).then(|| arguments.get(2));
    let subject = arguments.get(0);
    Ok(ParsedLine::Message(NatsDeliveryHead { subject, sid, reply, headers_size, size }))
}

fn unquoted(text: &[u8]) -> &[u8] {
    match text {
        [b'\'', inner @ .., b'\''] => inner,
        _ => text,
    }
}
