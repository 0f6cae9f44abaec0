//! Checks shared by the property tests and the fuzz targets: one input, every way to split it, and a naive decoder as
//! the oracle. Each function panics when a check fails.

use super::client::ClientGrammar;
use super::decoder::Grammar;
use super::server::ServerGrammar;
use super::{
    ClientEvent, Decoder, Filter, NatsDecodeError, NatsDelivery, NatsFault, NatsLimits, Publish, ServerEvent,
    Subject, SubjectLimits,
};

/// One decoder result, with the pieces of a message joined so that two splits of one input compare equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatsObservation {
    /// An operation without a body, as text.
    Command(String),
    /// A message: its line as text, then headers and payload.
    Message(String, Vec<u8>),
    /// A message without its end.
    Incomplete(String, Vec<u8>),
    /// A rejected operation.
    Rejected(NatsDecodeError),
    /// An error.
    Error(NatsDecodeError),
    /// The input ended here with this many bytes unconsumed.
    Waiting(usize),
}

#[derive(Default)]
struct ObservationLog {
    seen: Vec<NatsObservation>,
    open_message: Option<(String, Vec<u8>)>,
}

impl ObservationLog {
    fn command(&mut self, text: String) {
        assert!(self.open_message.is_none(), "a message ends before anything else comes");
        self.seen.push(NatsObservation::Command(text));
    }

    fn message(&mut self, line: String, parts: &[&[u8]]) {
        assert!(self.open_message.is_none(), "a message ends before the next one begins");
        self.seen.push(NatsObservation::Message(line, parts.concat()));
    }

    fn start(&mut self, line: String) {
        assert!(
            self.open_message.replace((line, Vec::new())).is_none(),
            "a message ends before the next one begins"
        );
    }

    fn piece(&mut self, piece: &[u8]) {
        assert!(!piece.is_empty(), "a piece of a message has at least one byte");
        self.open_message.as_mut().expect("pieces follow a start").1.extend_from_slice(piece);
    }

    fn end(&mut self) {
        let (line, body) = self.open_message.take().expect("an end follows a start");
        self.seen.push(NatsObservation::Message(line, body));
    }

    /// An error discards the unfinished message: whether its start was returned depends on the split.
    fn error(mut self, error: NatsDecodeError) -> Vec<NatsObservation> {
        self.seen.push(NatsObservation::Error(error));
        self.seen
    }

    fn wait(mut self, unconsumed: usize) -> Vec<NatsObservation> {
        self.seen.extend(self.open_message.map(|(line, body)| NatsObservation::Incomplete(line, body)));
        self.seen.push(NatsObservation::Waiting(unconsumed));
        self.seen
    }
}

/// Sorted, distinct offsets inside `length`, with the end added: how much input is available at each step.
fn arrivals(length: usize, cuts: &[usize]) -> Vec<usize> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (length + 1)).chain([length]).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

fn line_text(subject: &[u8], sid: &[u8], reply: Option<&[u8]>, headers_size: usize, size: usize) -> String {
    let reply = reply.map(|reply| reply.escape_ascii().to_string());
    format!("{} {} {reply:?} {headers_size} {size}", subject.escape_ascii(), sid.escape_ascii())
}

/// Returns all results of a decoder for `bytes` arriving in pieces that end at `cuts`, and the number of scanned bytes.
/// `record_event` adds an event to the log and returns false for "need more".
fn observe<'a, G: Grammar<'a>>(
    limits: &NatsLimits,
    bytes: &'a [u8],
    cuts: &[usize],
    record_event: impl Fn(G::Event, &mut ObservationLog) -> bool,
) -> (Vec<NatsObservation>, u64) {
    let (mut decoder, mut start, mut log, mut work) =
        (Decoder::<G>::default(), 0, ObservationLog::default(), 0);
    for end in arrivals(bytes.len(), cuts) {
        loop {
            let step = match decoder.decode_counting(limits, &bytes[start..end], &mut work) {
                Ok(step) => step,
                Err(error) => {
                    assert_eq!(decoder.decode(limits, b"PING\r\n").err(), Some(error), "an error lasts");
                    assert!(error.closes(), "{error} does not end its connection");
                    return (log.error(error), work);
                }
            };
            start += step.consumed;
            assert!(start <= end, "more consumed than given");
            if !record_event(step.event, &mut log) {
                break;
            }
            assert_eq!(decoder.in_body(), log.open_message.is_some(), "in_body matches the open message");
        }
    }
    (log.wait(bytes.len() - start), work)
}

/// Decodes client operations arriving in pieces that end at `cuts`; returns all results and the number of scanned
/// bytes.
pub fn client(limits: &NatsLimits, bytes: &[u8], cuts: &[usize]) -> (Vec<NatsObservation>, u64) {
    observe::<ClientGrammar>(limits, bytes, cuts, |event, log| {
        match event {
            ClientEvent::NeedMore => return false,
            ClientEvent::Publish(Publish { subject, reply, headers, payload }) => {
                let reply = reply.map(|reply| reply.as_bytes());
                let size = headers.len() + payload.len();
                let line = line_text(subject.as_bytes(), b"", reply, headers.len(), size);
                log.message(line, &[headers, payload]);
            }
            ClientEvent::PublishStart(head) => {
                let reply = head.reply.map(|reply| reply.as_bytes());
                let (headers_size, size) = (head.headers_size as usize, head.size as usize);
                log.start(line_text(head.subject.as_bytes(), b"", reply, headers_size, size));
            }
            ClientEvent::Piece(piece) => log.piece(piece),
            ClientEvent::PublishEnd => log.end(),
            ClientEvent::Rejected(error) => {
                assert!(!error.closes(), "{error} ends its connection");
                log.seen.push(NatsObservation::Rejected(error));
            }
            ClientEvent::Connect(json) => log.command(format!("CONNECT {}", json.escape_ascii())),
            ClientEvent::Subscribe(wanted) => log.command(format!(
                "SUB {} {:?} {}",
                wanted.filter.as_bytes().escape_ascii(),
                wanted.queue.map(|queue| queue.escape_ascii().to_string()),
                wanted.sid.escape_ascii()
            )),
            ClientEvent::Unsubscribe { sid, after } => {
                log.command(format!("UNSUB {} {after:?}", sid.escape_ascii()));
            }
            ClientEvent::Ping => log.command("PING".to_owned()),
            ClientEvent::Pong => log.command("PONG".to_owned()),
        }
        true
    })
}

/// Decodes server operations arriving in pieces that end at `cuts`; returns all results and the number of scanned
/// bytes.
pub fn server(limits: &NatsLimits, bytes: &[u8], cuts: &[usize]) -> (Vec<NatsObservation>, u64) {
    observe::<ServerGrammar>(limits, bytes, cuts, |event, log| {
        match event {
            ServerEvent::NeedMore => return false,
            ServerEvent::Message(NatsDelivery { subject, sid, reply, headers, payload }) => {
                let size = headers.len() + payload.len();
                log.message(line_text(subject, sid, reply, headers.len(), size), &[headers, payload]);
            }
            ServerEvent::MessageStart(head) => {
                let (headers_size, size) = (head.headers_size as usize, head.size as usize);
                log.start(line_text(head.subject, head.sid, head.reply, headers_size, size));
            }
            ServerEvent::Piece(piece) => log.piece(piece),
            ServerEvent::MessageEnd => log.end(),
            ServerEvent::Info(json) => log.command(format!("INFO {}", json.escape_ascii())),
            ServerEvent::Ok => log.command("+OK".to_owned()),
            ServerEvent::Err(text) => log.command(format!("-ERR {}", text.escape_ascii())),
            ServerEvent::Ping => log.command("PING".to_owned()),
            ServerEvent::Pong => log.command("PONG".to_owned()),
        }
        true
    })
}

fn splits(
    decode: impl Fn(&[usize]) -> (Vec<NatsObservation>, u64),
    bytes: &[u8],
    cuts: &[usize],
) -> Vec<NatsObservation> {
    let (whole, _) = decode(&[]);
    let (pieces, work) = decode(cuts);
    assert_eq!(pieces, whole, "cut at {cuts:?}: {:?}", bytes.escape_ascii().to_string());
    // A line is searched once on arrival, and once more when its message is complete.
    let bound = 2 * bytes.len() as u64;
    assert!(work <= bound, "{work} bytes scanned, {bound} allowed: {:?}", bytes.escape_ascii().to_string());
    whole
}

/// Checks that every split of client input yields the same results, for linear work. Returns the results.
pub fn client_splits(limits: &NatsLimits, bytes: &[u8], cuts: &[usize]) -> Vec<NatsObservation> {
    splits(|cuts| client(limits, bytes, cuts), bytes, cuts)
}

/// Checks that every split of server input yields the same results, for linear work. Returns the results.
pub fn server_splits(limits: &NatsLimits, bytes: &[u8], cuts: &[usize]) -> Vec<NatsObservation> {
    splits(|cuts| server(limits, bytes, cuts), bytes, cuts)
}

/// Whether a subject or filter is valid, by splitting and comparing.
pub fn naive_is_valid(bytes: &[u8], limits: &SubjectLimits, is_filter: bool) -> bool {
    let tokens: Vec<&[u8]> = bytes.split(|&byte| byte == b'.').collect();
    let last = tokens.len() - 1;
    let is_good = |(at, token): (usize, &&[u8])| match *token {
        b"" => false,
        b"*" => is_filter,
        b">" => is_filter && at == last,
        token => token.iter().all(|byte| !byte.is_ascii_control() && *byte != b' '),
    };
    bytes.len() <= limits.size_max.into()
        && tokens.len() <= limits.tokens_max.into()
        && tokens.iter().enumerate().all(is_good)
        && str::from_utf8(bytes).is_ok()
}

/// Whether a filter matches a subject, by recursion over the tokens.
pub fn naive_matches(filter: &[&[u8]], subject: &[&[u8]]) -> bool {
    match (filter, subject) {
        ([], []) => true,
        ([b">"], [_, ..]) => true,
        ([b"*", filter @ ..], [_, subject @ ..]) => naive_matches(filter, subject),
        ([wanted, filter @ ..], [token, subject @ ..]) => wanted == token && naive_matches(filter, subject),
        _ => false,
    }
}

/// Compares subject validation and matching with the naive versions.
pub fn subject_oracle(limits: &SubjectLimits, filter: &[u8], subject: &[u8]) {
    let escaped = (filter.escape_ascii().to_string(), subject.escape_ascii().to_string());
    let parsed = (Filter::parse(filter, limits), Subject::parse(subject, limits));
    assert_eq!(parsed.0.is_ok(), naive_is_valid(filter, limits, true), "{escaped:?}: {parsed:?}");
    assert_eq!(parsed.1.is_ok(), naive_is_valid(subject, limits, false), "{escaped:?}: {parsed:?}");
    if let (Ok(filter), Ok(subject)) = parsed {
        let (wanted, tokens): (Vec<_>, Vec<_>) = (filter.tokens().collect(), subject.tokens().collect());
        assert_eq!(filter.matches(subject), naive_matches(&wanted, &tokens), "{escaped:?}");
        assert_eq!(wanted.join(&b'.'), filter.as_bytes());
        assert_eq!(filter.as_str().as_bytes(), filter.as_bytes());
        assert!(filter.literal().is_none_or(|literal| filter.matches(literal)));
    }
}

/// A second client decoder that takes all input at once and is written for clarity.
fn naive_client(limits: &NatsLimits, bytes: &[u8]) -> Vec<Result<NatsObservation, NatsFault>> {
    let (mut seen, mut rest) = (Vec::new(), bytes);
    while let Some(lf) =
        rest.iter().take(limits.control_line_size_max as usize).position(|&byte| byte == b'\n')
    {
        let line = rest[..lf].strip_suffix(b"\r").unwrap_or(&rest[..lf]);
        rest = &rest[lf + 1..];
        match naive_line(limits, line, rest) {
            Ok((one, body)) => {
                let (has_body, size) = (body.is_some(), body.unwrap_or(0));
                let end: Vec<u8> = rest.iter().skip(size).take(2).copied().collect();
                if end.len() == 2 && end != b"\r\n" && has_body {
                    seen.extend(one.err().map(Err));
                    seen.push(Err(NatsFault::PayloadEnd));
                    return seen;
                }
                let size = if has_body { size + 2 } else { 0 };
                if rest.len() < size {
                    return seen;
                }
                seen.push(one);
                rest = &rest[size..];
            }
            Err(fault) => {
                seen.push(Err(fault));
                return seen;
            }
        }
    }
    seen
}

/// The meaning or fault of a line, and the payload bytes it announces.
type NaiveLine = (Result<NatsObservation, NatsFault>, Option<usize>);

fn naive_line(limits: &NatsLimits, line: &[u8], rest: &[u8]) -> Result<NaiveLine, NatsFault> {
    let name_end = line.iter().position(|byte| b" \t\r{".contains(byte)).unwrap_or(line.len());
    let name = line[..name_end].to_ascii_uppercase();
    let is_glued = line.get(name_end) == Some(&b'{');
    let arguments: Vec<&[u8]> = line[name_end..]
        .split(|byte| b" \t".contains(byte))
        .filter(|argument| !argument.is_empty())
        .collect();
    let command = |text: String| Ok((Ok(NatsObservation::Command(text)), None));
    match (&name[..], &arguments[..]) {
        (b"CONNECT", _) => {
            let is_blank = |byte: &u8| b" \t".contains(byte);
            let from = line.iter().skip(7).position(|byte| !is_blank(byte)).map_or(line.len(), |at| at + 7);
            let to = line.iter().rposition(|byte| !is_blank(byte)).map_or(0, |at| at + 1);
            command(format!("CONNECT {}", escaped(&line[from..to.max(from)])))
        }
        _ if is_glued => Err(NatsFault::Operation),
        (b"PING", []) => command("PING".to_owned()),
        (b"PONG", []) => command("PONG".to_owned()),
        (b"PUB", [subject, reply @ .., size]) if reply.len() <= 1 => {
            naive_publication(limits, (subject, reply), None, size, rest)
        }
        (b"HPUB", [subject, reply @ .., headers_size, size]) if reply.len() <= 1 => {
            naive_publication(limits, (subject, reply), Some(headers_size), size, rest)
        }
        (b"SUB", [filter, queue @ .., sid]) if queue.len() <= 1 => {
            if sid.len() > 64 || has_control(sid) {
                return Err(NatsFault::Sid);
            }
            if !naive_is_valid(filter, &limits.subject, true) {
                return Ok((Err(NatsFault::Filter), None));
            }
            if queue.iter().any(|queue| queue.len() > limits.subject.size_max.into() || has_control(queue)) {
                return Ok((Err(NatsFault::Queue), None));
            }
            let queue = queue.first().map(|queue| escaped(queue));
            command(format!("SUB {} {queue:?} {}", escaped(filter), escaped(sid)))
        }
        (b"UNSUB", [sid, count @ ..]) if count.len() <= 1 => {
            if sid.len() > 64 || has_control(sid) {
                return Err(NatsFault::Sid);
            }
            let count = count.first().map(|count| digits(count, NatsFault::CountDigits)).transpose()?;
            let after = count.filter(|&count| count > 0);
            command(format!("UNSUB {} {after:?}", escaped(sid)))
        }
        (b"PING" | b"PONG" | b"PUB" | b"HPUB" | b"SUB" | b"UNSUB", _) => Err(NatsFault::Arguments),
        _ => Err(NatsFault::Operation),
    }
}

fn naive_publication(
    limits: &NatsLimits,
    (subject, reply): (&[u8], &[&[u8]]),
    headers_size: Option<&[u8]>,
    size: &[u8],
    rest: &[u8],
) -> Result<NaiveLine, NatsFault> {
    let size = digits(size, NatsFault::PayloadDigits)?;
    let headers_size = headers_size.map_or(Ok(0), |text| digits(text, NatsFault::HeaderDigits))?;
    if headers_size > size {
        return Err(NatsFault::HeaderSize);
    }
    if size > limits.payload_size_max as usize {
        return Err(NatsFault::PayloadSize);
    }
    let ends_with_filter = subject.starts_with(b"$JS.API.CONSUMER.CREATE.");
    let one = if !naive_is_valid(subject, &limits.subject, ends_with_filter) {
        Err(NatsFault::PublishSubject)
    } else if !reply.iter().all(|reply| naive_is_valid(reply, &limits.subject, false)) {
        Err(NatsFault::ReplySubject)
    } else {
        let line = line_text(subject, b"", reply.first().copied(), headers_size, size);
        Ok(NatsObservation::Message(line, rest.iter().take(size).copied().collect()))
    };
    Ok((one, Some(size)))
}

fn digits(text: &[u8], fault: NatsFault) -> Result<usize, NatsFault> {
    let is_good = text.len() <= 9 && text.iter().all(u8::is_ascii_digit);
    is_good.then(|| String::from_utf8_lossy(text).parse::<usize>().unwrap_or(0)).ok_or(fault)
}

fn escaped(text: &[u8]) -> String {
    text.escape_ascii().to_string()
}

fn has_control(text: &[u8]) -> bool {
    text.iter().any(u8::is_ascii_control)
}

/// Compares the decoder with the naive one: the same events, rejections and errors, as far as lines and payloads are
/// complete.
pub fn client_oracle(limits: &NatsLimits, bytes: &[u8]) {
    let (ours, _) = client(limits, bytes, &[]);
    let theirs = naive_client(limits, bytes);
    let escaped = bytes.escape_ascii().to_string();
    for (at, one) in theirs.iter().enumerate() {
        match (&ours[at], one) {
            (ours, Ok(theirs)) => assert_eq!(ours, theirs, "{escaped}"),
            (NatsObservation::Rejected(error) | NatsObservation::Error(error), Err(fault)) => {
                assert_eq!((error.fault(), error.closes()), (*fault, fault.closes()), "{escaped}");
            }
            (ours, Err(fault)) => panic!("decoder: {ours:?}, oracle: {fault:?}: {escaped}"),
        }
    }
    let more = &ours[theirs.len()..];
    let is_unfinished = match more {
        // Nothing more was complete, or the decoder rejects before the line or payload is complete.
        [NatsObservation::Waiting(_)]
        | [NatsObservation::Incomplete(..) | NatsObservation::Rejected(_), NatsObservation::Waiting(_)] => {
            true
        }
        [] => theirs.last().is_some_and(|last| last.as_ref().is_err_and(|fault| fault.closes())),
        [NatsObservation::Error(error)] => {
            matches!(error.fault(), NatsFault::Operation | NatsFault::ControlLineSize | NatsFault::PayloadEnd)
        }
        [NatsObservation::Rejected(_), NatsObservation::Error(error)] => {
            error.fault() == NatsFault::PayloadEnd
        }
        _ => false,
    };
    assert!(is_unfinished, "the decoder has more than the oracle: {more:?}: {escaped}");
}
