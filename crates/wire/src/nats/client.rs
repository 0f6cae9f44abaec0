//! Client operations: the server's hot path. A fully received publication is one step.

use super::decoder::{Decoder, Grammar, ParsedLine};
use super::error::{NatsDecodeError, NatsFault};
use super::limits::{NatsLimits, SID_SIZE_MAX};
use super::line::{self, LineArguments, Operations};
use super::subject::{BadSubject, Filter, Subject, SubjectFault};

/// An operation sent by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent<'a> {
    /// More input is needed.
    NeedMore,
    /// The client's options as JSON; see [`super::Connect::parse`].
    Connect(&'a [u8]),
    /// A whole message.
    Publish(Publish<'a>),
    /// A partially received message too long to wait for: pieces and `PublishEnd` follow.
    PublishStart(PublishHead<'a>),
    /// A piece of headers and payload, at least one byte.
    Piece(&'a [u8]),
    /// The end of a message returned in pieces. A message cut off by an error or the end of the connection has none.
    PublishEnd,
    /// Starts a subscription.
    Subscribe(Subscribe<'a>),
    /// Ends a subscription, at once or after a number of messages.
    Unsubscribe {
        /// The subscription id.
        sid: &'a [u8],
        /// Total number of messages after which it ends; `None`: now.
        after: Option<u32>,
    },
    /// Requests a `PONG` once all earlier operations are processed.
    Ping,
    /// The response to a `PING`.
    Pong,
    /// A rejected operation, its payload skipped; answer with [`NatsDecodeError::text`] and continue.
    Rejected(NatsDecodeError),
}

/// A message published by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The destination.
    pub subject: Subject<'a>,
    /// The reply subject.
    pub reply: Option<Subject<'a>>,
    /// The header block, for [`super::Headers`]; empty without one.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// The line of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishHead<'a> {
    /// The destination.
    pub subject: Subject<'a>,
    /// The reply subject.
    pub reply: Option<Subject<'a>>,
    /// Bytes of the header block, which precedes the payload.
    pub headers_size: u32,
    /// Bytes of header block and payload together.
    pub size: u32,
}

/// A subscription request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// The filter.
    pub filter: Filter<'a>,
    /// The queue group: each message goes to one of its subscriptions.
    pub queue: Option<&'a [u8]>,
    /// The subscription id, chosen by the client.
    pub sid: &'a [u8],
}

/// Decodes the bytes sent by a client into [`ClientEvent`]s.
///
/// ```
/// use stilling_wire::nats::{ClientDecoder, ClientEvent, NatsLimits};
///
/// let (limits, mut decoder) = (NatsLimits::default(), ClientDecoder::default());
/// let step = decoder.decode(&limits, b"PUB events.a inbox.1 5\r\nhello\r\nPING\r\n")?;
/// let ClientEvent::Publish(message) = step.event else { panic!("the message is there") };
/// assert_eq!(message.subject.as_str(), "events.a");
/// assert_eq!(message.payload, b"hello");
/// assert_eq!(step.consumed, 31);
/// # Ok::<(), stilling_wire::nats::NatsDecodeError>(())
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

/// The grammar of client operations.
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
        let line = line::strip_line_end(whole);
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
        // `LineArguments::sizes` has checked that the headers are a part of the body.
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

/// Parses a publication in the usual form, with single blanks, in the same pass that finds its line end.
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

/// Parses `[<header size> ]<size> CR LF`: the two sizes and the offset of the line's end.
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
        Err(error) => ParsedLine::Rejected(ClientEvent::Rejected(error), size),
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
        Err(error) => ClientEvent::Rejected(error),
    };
    Ok(ParsedLine::Command(event))
}

/// `UNSUB <sid> [max]`; like nats-server, treats a count of 0 as absent.
fn unsubscribe(line: &[u8], name_end: usize) -> Result<ParsedLine<'_, ClientGrammar>, NatsDecodeError> {
    let arguments = LineArguments::<2>::split(line, name_end, 1, 2)?;
    let sid = arguments.word(0, SID_SIZE_MAX, NatsFault::Sid)?;
    let count = if arguments.count() == 2 { arguments.number(1, NatsFault::CountDigits)? } else { 0 };
    Ok(ParsedLine::Command(ClientEvent::Unsubscribe { sid, after: (count > 0).then_some(count) }))
}

#[cold]
fn subject_error(bad: BadSubject, fault: NatsFault, start: usize, line: &[u8]) -> NatsDecodeError {
    let at = start + bad.offset;
    let is_byte = matches!(
        bad.fault,
        SubjectFault::InvalidByte | SubjectFault::Wildcard | SubjectFault::FullWildcardNotLast
    );
    NatsDecodeError::line(fault, at, line.get(at).copied().filter(|_| is_byte))
}
