//! What a client sends: the server's hot path. A publication that is there as a whole is one step.

use super::decoder::{Decoder, Grammar, Line};
use super::error::{DecodeError, Fault};
use super::limits::{Limits, SID_SIZE_MAX};
use super::line::{self, Arguments, Operations};
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
    /// An operation that was refused, its payload skipped; answer with [`DecodeError::text`] and go on.
    Refused(DecodeError),
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
pub type ClientDecoder = Decoder<Client>;

#[derive(Clone, Copy)]
enum Operation {
    Connect,
    Pub,
    Hpub,
    Sub,
    Unsub,
    Ping,
    Pong,
}

const OPERATIONS: &Operations<Operation> = &[
    (b"PUB", Operation::Pub),
    (b"HPUB", Operation::Hpub),
    (b"SUB", Operation::Sub),
    (b"UNSUB", Operation::Unsub),
    (b"PING", Operation::Ping),
    (b"PONG", Operation::Pong),
    (b"CONNECT", Operation::Connect),
];

/// What clients send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {}

impl<'a> Grammar<'a> for Client {
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
    fn regular(limits: &Limits, input: &'a [u8]) -> Option<(PublishHead<'a>, usize)> {
        match input {
            [b'P', b'U', b'B', b' ', ..] => regular::<false>(limits, input, 4),
            [b'H', b'P', b'U', b'B', b' ', ..] => regular::<true>(limits, input, 5),
            _ => None,
        }
    }

    fn begins(line: &[u8]) -> Result<(), DecodeError> {
        line::operation(OPERATIONS, line).map(|_| ())
    }

    fn line(limits: &Limits, whole: &'a [u8]) -> Result<Line<'a, Self>, DecodeError> {
        let (operation, name_end) = line::complete_operation(OPERATIONS, whole)?;
        let line = line::without_end(whole);
        match operation {
            Operation::Pub => publish::<false>(limits, line, name_end),
            Operation::Hpub => publish::<true>(limits, line, name_end),
            Operation::Sub => subscribe(limits, line, name_end),
            Operation::Unsub => unsubscribe(line, name_end),
            Operation::Connect => Ok(Line::Command(ClientEvent::Connect(line::rest(line, name_end)))),
            Operation::Ping => line::no_arguments(line, name_end).map(|()| Line::Command(ClientEvent::Ping)),
            Operation::Pong => line::no_arguments(line, name_end).map(|()| Line::Command(ClientEvent::Pong)),
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
fn regular<'a, const HEADERS: bool>(
    limits: &Limits,
    input: &'a [u8],
    from: usize,
) -> Option<(PublishHead<'a>, usize)> {
    let (subject, end) = Subject::regular(input, from, &limits.subject)?;
    let (reply, (headers_size, size, end)) = match sizes::<HEADERS>(input, end + 1) {
        Some(sizes) => (None, sizes),
        None => {
            let (reply, end) = Subject::regular(input, end + 1, &limits.subject)?;
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
        let (size, end) = line::number_at(input, from)?;
        if input[end] != b' ' {
            return None;
        }
        (headers_size, from) = (size, end + 1);
    }
    let (size, end) = line::number_at(input, from)?;
    (input.get(end..end + 2)? == b"\r\n").then_some((headers_size, size, end + 2))
}

/// `PUB <subject> [reply] <size>`, `HPUB <subject> [reply] <header size> <total size>`.
#[inline(always)]
fn publish<'a, const HEADERS: bool>(
    limits: &Limits,
    line: &'a [u8],
    name_end: usize,
) -> Result<Line<'a, Client>, DecodeError> {
    let at_least = if HEADERS { 3 } else { 2 };
    let arguments = Arguments::<4>::split(line, name_end, at_least, at_least + 1)?;
    let (headers_size, size) = arguments.sizes::<HEADERS>(limits)?;
    let judge = |parsed: Result<Subject<'a>, BadSubject>, index, fault| {
        parsed.map_err(|bad| refusal(bad, fault, arguments.start(index), line))
    };
    let subject = Subject::parse_published(arguments.get(0), &limits.subject);
    let subjects = judge(subject, 0, Fault::PublishSubject).and_then(|subject| {
        let has_reply = arguments.count() > at_least;
        let reply = has_reply.then(|| Subject::parse(arguments.get(1), &limits.subject));
        let reply = reply.map(|reply| judge(reply, 1, Fault::ReplySubject)).transpose()?;
        Ok((subject, reply))
    });
    Ok(match subjects {
        Ok((subject, reply)) => Line::Message(PublishHead { subject, reply, headers_size, size }),
        Err(error) => Line::Unwanted(ClientEvent::Refused(error), size),
    })
}

/// `SUB <filter> [queue] <sid>`.
fn subscribe<'a>(limits: &Limits, line: &'a [u8], name_end: usize) -> Result<Line<'a, Client>, DecodeError> {
    let arguments = Arguments::<3>::split(line, name_end, 2, 3)?;
    let last = arguments.count() - 1;
    let sid = arguments.word(last, SID_SIZE_MAX, Fault::Sid)?;
    let filter = Filter::parse(arguments.get(0), &limits.subject)
        .map_err(|bad| refusal(bad, Fault::Filter, arguments.start(0), line));
    let queue = || {
        let is_there = arguments.count() == 3;
        is_there.then(|| arguments.word(1, limits.subject.size_max.into(), Fault::Queue)).transpose()
    };
    let event = match filter.and_then(|filter| Ok((filter, queue()?))) {
        Ok((filter, queue)) => ClientEvent::Subscribe(Subscribe { filter, queue, sid }),
        Err(error) => ClientEvent::Refused(error),
    };
    Ok(Line::Command(event))
}

/// `UNSUB <sid> [max]`; nats-server takes a count of 0 for none.
fn unsubscribe(line: &[u8], name_end: usize) -> Result<Line<'_, Client>, DecodeError> {
    let arguments = Arguments::<2>::split(line, name_end, 1, 2)?;
    let sid = arguments.word(0, SID_SIZE_MAX, Fault::Sid)?;
    let count = if arguments.count() == 2 { arguments.number(1, Fault::CountDigits)? } else { 0 };
    Ok(Line::Command(ClientEvent::Unsubscribe { sid, after: (count > 0).then_some(count) }))
}

#[cold]
fn refusal(bad: BadSubject, fault: Fault, start: usize, line: &[u8]) -> DecodeError {
    let at = start + bad.offset;
    let is_byte = matches!(bad.fault, SubjectFault::Byte | SubjectFault::Wildcard | SubjectFault::Tail);
    DecodeError::line(fault, at, line.get(at).copied().filter(|_| is_byte))
}
