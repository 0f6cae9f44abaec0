//! What a client sends: the server's hot path. A publication that is there as a whole is one step.

use super::decoder::{Decoder, Grammar, ParsedLine};
use super::error::{NatsDecodeError, NatsFault};
use super::limits::{NatsLimits, SID_SIZE_MAX};
use super::line::{self, LineArguments, Operations};
use super::subject::{BadSubject, Filter, Subject, SubjectFault};

/// What a client said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent<'a> {
    /// Nothing more without further input.
    NeedMore,
    /// Its options, as the JSON it sent; see [`super::Connect::parse`].
    Connect(&'a [u8]),
    /// A message, whole.
    Publish(Publish<'a>),
    /// A message that is not there as a whole and too long to wait for: pieces and `PublishEnd` follow.
    PublishStart(PublishHead<'a>),
    /// A piece of headers and payload, at least one byte.
    Piece(&'a [u8]),
    /// The end of a message that was told in pieces. One that is cut off by an error or the connection's end is none.
    PublishEnd,
    /// It wants messages.
    Subscribe(Subscribe<'a>),
    /// It wants no more of a subscription, or only so many in all.
    Unsubscribe {
        /// The subscription.
        sid: &'a [u8],
        /// After so many messages in all; `None`: now.
        after: Option<u32>,
    },
    /// It wants a `PONG` when all that it sent before has been processed.
    Ping,
    /// It answers a `PING`.
    Pong,
    /// An operation that was refused, its payload skipped; answer with [`NatsDecodeError::text`] and go on.
    Refused(NatsDecodeError),
}

/// A message that a client publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Where to.
    pub subject: Subject<'a>,
    /// Where an answer is expected.
    pub reply: Option<Subject<'a>>,
    /// The header block, for [`super::Headers`]; empty without one.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// What the line of a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishHead<'a> {
    /// Where to.
    pub subject: Subject<'a>,
    /// Where an answer is expected.
    pub reply: Option<Subject<'a>>,
    /// Bytes of the header block, with which the pieces begin.
    pub headers_size: u32,
    /// Bytes of header block and payload together.
    pub size: u32,
}

/// A subscription that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// To what.
    pub filter: Filter<'a>,
    /// Each message goes to one subscription of the queue.
    pub queue: Option<&'a [u8]>,
    /// How the client calls it.
    pub sid: &'a [u8],
}

/// Turns the bytes that a client sent into [`ClientEvent`]s.
///
/// ```
/// use stilling_wire::nats::{ClientDecoder, ClientEvent, Limits};
///
/// let (limits, mut decoder) = (Limits::default(), ClientDecoder::default());
/// let step = decoder.decode(&limits, b"PUB events.a inbox.1 5\r\nhello\r\nPING\r\n")?;
/// let ClientEvent::Publish(message) = step.event else { panic!("the message is there") };
/// assert_eq!(message.subject.as_str(), "events.a");
/// assert_eq!(message.payload, b"hello");
/// assert_eq!(step.consumed, 31);
/// # Ok::<(), stilling_wire::nats::DecodeError>(())
/// ```
pub type ClientDecoder = Decoder<ClientGrammar>;

#[derive(Clone, Copy)]
enum ClientOperation {
    Connect,
    Pub,
    Hpub,
    Sub,
    Unsub,
    Ping,
    Pong,
}

const OPERATIONS: &Operations<ClientOperation> = &[
    (b"PUB", ClientOperation::Pub),
    (b"HPUB", ClientOperation::Hpub),
    (b"SUB", ClientOperation::Sub),
    (b"UNSUB", ClientOperation::Unsub),
    (b"PING", ClientOperation::Ping),
    (b"PONG", ClientOperation::Pong),
    (b"CONNECT", ClientOperation::Connect),
];

/// What clients send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientGrammar {}

impl<'a> Grammar<'a> for ClientGrammar {
    type Event = ClientEvent<'a>;
    type Head = PublishHead<'a>;

    #[inline(always)]
    fn need_more() -> ClientEvent<'a> {
        ClientEvent::NeedMore
    }

    fn end() -> ClientEvent<'a> {
        ClientEvent::PublishEnd
    }

    #[inline(always)]
    fn parse_fast_path(limits: &NatsLimits, input: &'a [u8]) -> Option<(PublishHead<'a>, usize)> {
        match input {
            [b'P', b'U', b'B', b' ', ..] => parse_fast_path::<false>(limits, input, 4),
            [b'H', b'P', b'U', b'B', b' ', ..] => parse_fast_path::<true>(limits, input, 5),
            _ => None,
        }
    }

    fn check_prefix(line: &[u8]) -> Result<(), NatsDecodeError> {
        line::operation(OPERATIONS, line).map(|_| ())
    }

    fn line(limits: &NatsLimits, whole: &'a [u8]) -> Result<ParsedLine<'a, Self>, NatsDecodeError> {
        let (operation, name_end) = line::complete_operation(OPERATIONS, whole)?;
        let line = line::without_end(whole);
        match operation {
            ClientOperation::Pub => publish::<false>(limits, line, name_end),
            ClientOperation::Hpub => publish::<true>(limits, line, name_end),
            ClientOperation::Sub => subscribe(limits, line, name_end),
            ClientOperation::Unsub => unsubscribe(line, name_end),
            ClientOperation::Connect => {
                Ok(ParsedLine::Command(ClientEvent::Connect(line::rest(line, name_end))))
            }
            ClientOperation::Ping => {
                line::no_arguments(line, name_end).map(|()| ParsedLine::Command(ClientEvent::Ping))
            }
            ClientOperation::Pong => {
                line::no_arguments(line, name_end).map(|()| ParsedLine::Command(ClientEvent::Pong))
            }
        }
    }

    #[inline(always)]
    fn size(head: &PublishHead<'a>) -> u32 {
        head.size
    }

    #[inline(always)]
    fn whole(head: PublishHead<'a>, body: &'a [u8]) -> ClientEvent<'a> {
        // The line's judge has made sure that the headers are a part of the body.
        let (headers, payload) = body.split_at(head.headers_size as usize);
        ClientEvent::Publish(Publish { subject: head.subject, reply: head.reply, headers, payload })
    }

    fn start(head: PublishHead<'a>) -> ClientEvent<'a> {
        ClientEvent::PublishStart(head)
    }

    fn piece(piece: &'a [u8]) -> ClientEvent<'a> {
        ClientEvent::Piece(piece)
    }
}

/// A publication as clients write it, single blanks and all, judged while its line is searched for its end.
#[inline(always)]
fn parse_fast_path<'a, const HEADERS: bool>(
    limits: &NatsLimits,
    input: &'a [u8],
    from: usize,
) -> Option<(PublishHead<'a>, usize)> {
    let (subject, end) = Subject::parse_fast_path(input, from, &limits.subject)?;
    let (reply, (headers_size, size, end)) = match sizes::<HEADERS>(input, end + 1) {
        Some(sizes) => (None, sizes),
        None => {
            let (reply, end) = Subject::parse_fast_path(input, end + 1, &limits.subject)?;
            (Some(reply), sizes::<HEADERS>(input, end + 1)?)
        }
    };
    let is_good = headers_size <= size
        && size <= limits.payload_size_max
        && end <= limits.control_line_size_max as usize;
    is_good.then_some((PublishHead { subject, reply, headers_size, size }, end))
}

/// `[<header size> ]<size> CR LF`: the two sizes and where the line ends.
#[inline(always)]
fn sizes<const HEADERS: bool>(input: &[u8], from: usize) -> Option<(u32, u32, usize)> {
    let (mut headers_size, mut from) = (0, from);
    if HEADERS {
        let (size, end) = line::parse_number_at(input, from)?;
        if input[end] != b' ' {
            return None;
        }
        (headers_size, from) = (size, end + 1);
    }
    let (size, end) = line::parse_number_at(input, from)?;
    (input.get(end..end + 2)? == b"\r\n").then_some((headers_size, size, end + 2))
}

/// `PUB <subject> [reply] <size>`, `HPUB <subject> [reply] <header size> <total size>`.
#[inline(always)]
fn publish<'a, const HEADERS: bool>(
    limits: &NatsLimits,
    line: &'a [u8],
    name_end: usize,
) -> Result<ParsedLine<'a, ClientGrammar>, NatsDecodeError> {
    let at_least = if HEADERS { 3 } else { 2 };
    let arguments = LineArguments::<4>::split(line, name_end, at_least, at_least + 1)?;
    let (headers_size, size) = arguments.sizes::<HEADERS>(limits)?;
    let check_subject = |parsed: Result<Subject<'a>, BadSubject>, index, fault| {
        parsed.map_err(|bad| subject_error(bad, fault, arguments.start(index), line))
    };
    let subject = Subject::parse_published(arguments.get(0), &limits.subject);
    let subjects = check_subject(subject, 0, NatsFault::PublishSubject).and_then(|subject| {
        let has_reply = arguments.count() > at_least;
        let reply = has_reply.then(|| Subject::parse(arguments.get(1), &limits.subject));
        let reply = reply.map(|reply| check_subject(reply, 1, NatsFault::ReplySubject)).transpose()?;
        Ok((subject, reply))
    });
    Ok(match subjects {
        Ok((subject, reply)) => ParsedLine::Message(PublishHead { subject, reply, headers_size, size }),
        Err(error) => ParsedLine::Rejected(ClientEvent::Refused(error), size),
    })
}

/// `SUB <filter> [queue] <sid>`.
fn subscribe<'a>(
    limits: &NatsLimits,
    line: &'a [u8],
    name_end: usize,
) -> Result<ParsedLine<'a, ClientGrammar>, NatsDecodeError> {
    let arguments = LineArguments::<3>::split(line, name_end, 2, 3)?;
    let last = arguments.count() - 1;
    let sid = arguments.word(last, SID_SIZE_MAX, NatsFault::Sid)?;
    let filter = Filter::parse(arguments.get(0), &limits.subject)
        .map_err(|bad| subject_error(bad, NatsFault::Filter, arguments.start(0), line));
    let queue = || {
        let is_there = arguments.count() == 3;
        is_there.then(|| arguments.word(1, limits.subject.size_max.into(), NatsFault::Queue)).transpose()
    };
    let event = match filter.and_then(|filter| Ok((filter, queue()?))) {
        Ok((filter, queue)) => ClientEvent::Subscribe(Subscribe { filter, queue, sid }),
        Err(error) => ClientEvent::Refused(error),
    };
    Ok(ParsedLine::Command(event))
}

/// `UNSUB <sid> [max]`; nats-server takes a count of 0 for none.
fn unsubscribe(line: &[u8], name_end: usize) -> Result<ParsedLine<'_, ClientGrammar>, NatsDecodeError> {
    let arguments = LineArguments::<2>::split(line, name_end, 1, 2)?;
    let sid = arguments.word(0, SID_SIZE_MAX, NatsFault::Sid)?;
    let count = if arguments.count() == 2 { arguments.number(1, NatsFault::CountDigits)? } else { 0 };
    Ok(ParsedLine::Command(ClientEvent::Unsubscribe { sid, after: (count > 0).then_some(count) }))
}

#[cold]
fn subject_error(bad: BadSubject, fault: NatsFault, start: usize, line: &[u8]) -> NatsDecodeError {
    let at = start + bad.offset;
    let is_byte = matches!(bad.fault, SubjectFault::Byte | SubjectFault::Wildcard | SubjectFault::Tail);
    NatsDecodeError::line(fault, at, line.get(at).copied().filter(|_| is_byte))
}
