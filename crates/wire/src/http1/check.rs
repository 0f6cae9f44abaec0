//! Checks shared by the property tests and the fuzz targets: one input, every way to split it, and httparse as the
//! oracle. Each function panics when a check fails.

use super::{
    AnsweredMethod, BodyLength, HttpDecodeError, HttpFault, HttpLimits, HttpVersion, InputEnd,
    RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent,
};

/// One decoder result, with the pieces of a body joined so that two splits of one input compare equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpObservation {
    /// A head: its properties as text, and its fields.
    Head(String, Vec<(Vec<u8>, Vec<u8>)>),
    /// A whole body, or the received part of it.
    Body(Vec<u8>),
    /// The end of a body.
    End,
    /// An error.
    Error(HttpDecodeError),
    /// The input ended here with this many bytes unconsumed.
    Waiting(usize),
    /// Result of `finish` (responses).
    Finished(InputEnd),
}

fn push_body(seen: &mut Vec<HttpObservation>, piece: &[u8]) {
    assert!(!piece.is_empty(), "a piece of a body has at least one byte");
    match seen.last_mut() {
        Some(HttpObservation::Body(body)) => body.extend_from_slice(piece),
        _ => seen.push(HttpObservation::Body(piece.to_vec())),
    }
}

fn fields_of(fields: super::Fields<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// Sorted, distinct offsets inside `length`, with the end added: how much input is available at each step.
fn arrivals(length: usize, cuts: &[usize]) -> Vec<usize> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (length + 1)).chain([length]).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Returns all results of a request decoder for `bytes` arriving in pieces that end at `cuts`, and the number of
/// scanned bytes.
pub fn requests(limits: &HttpLimits, bytes: &[u8], cuts: &[usize]) -> (Vec<HttpObservation>, u64) {
    let (mut decoder, mut start, mut seen, mut work) = (RequestDecoder::default(), 0, Vec::new(), 0);
    for end in arrivals(bytes.len(), cuts) {
        loop {
            match decoder.decode_counting(limits, &bytes[start..end], &mut work) {
                Err(error) => {
                    assert_eq!(decoder.decode(limits, b"GET"), Err(error), "an error lasts");
                    seen.push(HttpObservation::Error(error));
                    return (seen, work);
                }
                Ok(step) => {
                    start += step.consumed;
                    assert!(start <= end, "more consumed than given");
                    match step.event {
                        RequestEvent::NeedMore => break,
                        RequestEvent::Head(head) => {
                            assert_eq!(decoder.in_body(), head.body != BodyLength::None);
                            seen.push(HttpObservation::Head(format!("{head:?}"), fields_of(head.headers())));
                        }
                        RequestEvent::Body(piece) => push_body(&mut seen, piece),
                        RequestEvent::End => seen.push(HttpObservation::End),
                    }
                }
            }
        }
    }
    seen.push(HttpObservation::Waiting(bytes.len() - start));
    (seen, work)
}

/// Returns all results of a response decoder for `bytes` arriving in pieces that end at `cuts`, then ending.
pub fn responses(
    limits: &HttpLimits,
    answered: AnsweredMethod,
    bytes: &[u8],
    cuts: &[usize],
) -> Vec<HttpObservation> {
    let (mut decoder, mut start, mut seen) = (ResponseDecoder::default(), 0, Vec::new());
    for end in arrivals(bytes.len(), cuts) {
        loop {
            match decoder.decode(limits, answered, &bytes[start..end]) {
                Err(error) => {
                    assert_eq!(decoder.decode(limits, answered, b"HTTP"), Err(error), "an error lasts");
                    assert_eq!(decoder.finish(), Err(error), "an error lasts");
                    seen.push(HttpObservation::Error(error));
                    return seen;
                }
                Ok(step) => {
                    start += step.consumed;
                    assert!(start <= end, "more consumed than given");
                    match step.event {
                        ResponseEvent::NeedMore => break,
                        ResponseEvent::Interim(head) | ResponseEvent::Head(head) => {
                            seen.push(HttpObservation::Head(format!("{head:?}"), fields_of(head.headers())));
                        }
                        ResponseEvent::Body(piece) => push_body(&mut seen, piece),
                        ResponseEvent::End => seen.push(HttpObservation::End),
                    }
                }
            }
        }
    }
    seen.push(HttpObservation::Waiting(bytes.len() - start));
    seen.push(match decoder.finish() {
        Ok(finish) => HttpObservation::Finished(finish),
        Err(error) => HttpObservation::Error(error),
    });
    seen
}

/// Checks that every split of the bytes yields the same requests, for linear work. Returns the results.
pub fn request_splits(limits: &HttpLimits, bytes: &[u8], cuts: &[usize]) -> Vec<HttpObservation> {
    let (whole, _) = requests(limits, bytes, &[]);
    let (pieces, work) = requests(limits, bytes, cuts);
    assert_eq!(pieces, whole, "cut at {cuts:?}: {:?}", bytes.escape_ascii().to_string());
    // Each byte is scanned once on arrival and once more when its head is complete; a first CR may wait for its LF.
    let turns = arrivals(bytes.len(), cuts).len() + whole.len();
    let bound = 2 * (bytes.len() + turns) as u64;
    assert!(work <= bound, "{work} bytes scanned, {bound} allowed: {:?}", bytes.escape_ascii().to_string());
    whole
}

/// Checks that every split of the bytes yields the same responses. Returns the results.
pub fn response_splits(
    limits: &HttpLimits,
    answered: AnsweredMethod,
    bytes: &[u8],
    cuts: &[usize],
) -> Vec<HttpObservation> {
    let whole = responses(limits, answered, bytes, &[]);
    let pieces = responses(limits, answered, bytes, cuts);
    assert_eq!(pieces, whole, "cut at {cuts:?}: {:?}", bytes.escape_ascii().to_string());
    whole
}

const ORACLE_HEADERS: usize = 200;

/// Whether `error` is a rule on which this parser is stricter than the oracle; a listed `found` byte must match. The
/// oracle does not check semantic rules (framing, host, limits).
fn is_stricter_than_oracle(error: &HttpDecodeError, bytes: &[u8]) -> bool {
    let found = error.found();
    match error.fault() {
        // RFC 9112 §2.2: a bare LF does not end a line; the oracle accepts it.
        HttpFault::FieldName | HttpFault::FieldValue | HttpFault::StatusLine | HttpFault::Method => {
            found == Some(b'\n')
        }
        HttpFault::VersionByte => matches!(found, Some(b'\n' | b' ')),
        // RFC 9112 §3.2: no fragment, ASCII only.
        HttpFault::TargetByte => found.is_some_and(|byte| byte == b'#' || byte >= 0x80 || byte == b'\n'),
        HttpFault::TargetForm
        | HttpFault::HostMissing
        | HttpFault::HostRepeated
        | HttpFault::HostInvalid
        | HttpFault::ContentLength
        | HttpFault::ContentLengthRepeated
        | HttpFault::LengthConflict
        | HttpFault::TransferEncoding
        | HttpFault::TransferUnknown
        | HttpFault::TransferVersion
        | HttpFault::Expectation
        | HttpFault::HeadSize
        | HttpFault::LineSize
        | HttpFault::FieldCount
        | HttpFault::BodySize => true,
        HttpFault::EmptyLines => bytes.starts_with(b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n"),
        _ => false,
    }
}

/// Whether the oracle rejects input that this parser accepts: versions above 1.1, and the form without a version.
fn is_broader_than_oracle(bytes: &[u8]) -> bool {
    let line = bytes.split(|&b| b == b'\n').find(|line| *line != b"\r").unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let last = line.rsplit(|&b| b == b' ').next().unwrap_or_default();
    let higher = last.len() <= 8 && last.starts_with(b"HTTP/1.") && !matches!(last.get(7), Some(b'0' | b'1'));
    // This parser rejects `HTTP/x` above 1 when the version is complete, the oracle at once.
    let major_to_come = last.len() < 8 && last.starts_with(b"HTTP/");
    let old = line.strip_prefix(b"GET ").is_some_and(|target| {
        let target = target.strip_suffix(b" ").unwrap_or(target);
        !target.contains(&b' ')
    });
    higher || major_to_come || old
}

/// Compares the first head in `bytes` with httparse's result.
pub fn request_oracle(limits: &HttpLimits, bytes: &[u8]) {
    let shown = bytes.escape_ascii().to_string();
    let mut headers = [httparse::EMPTY_HEADER; ORACLE_HEADERS];
    let mut theirs = httparse::Request::new(&mut headers);
    let verdict = theirs.parse(bytes);
    let mut decoder = RequestDecoder::default();
    match (decoder.decode(limits, bytes), verdict) {
        (Ok(step), Ok(httparse::Status::Complete(end))) => {
            let RequestEvent::Head(ours) = step.event else { panic!("they have a head, we wait: {shown}") };
            assert_eq!(step.consumed, end, "{shown}");
            assert_eq!(Some(ours.method.as_bytes()), theirs.method.map(str::as_bytes), "{shown}");
            assert_eq!(Some(ours.target.raw), theirs.path.map(str::as_bytes), "{shown}");
            assert_eq!(ours.version == HttpVersion::Http11, theirs.version == Some(1), "{shown}");
            let same = ours.headers().eq(theirs.headers.iter().map(|h| (h.name.as_bytes(), h.value)));
            assert!(same, "fields differ: {shown}");
        }
        (Ok(step), Ok(httparse::Status::Partial)) => {
            assert!(matches!(step.event, RequestEvent::NeedMore), "we have a head, they wait: {shown}");
        }
        (Ok(_), Err(httparse::Error::TooManyHeaders)) => {}
        (Ok(_), Err(error)) => {
            assert!(is_broader_than_oracle(bytes), "accepted, but the oracle rejects it ({error}): {shown}");
        }
        (Err(error), Ok(_)) => {
            assert!(
                is_stricter_than_oracle(&error, bytes),
                "rejected ({error}), but the oracle accepts it: {shown}"
            );
        }
        (Err(_), Err(_)) => {}
    }
}

/// Compares the first head in `bytes` with httparse's result.
pub fn response_oracle(limits: &HttpLimits, bytes: &[u8]) {
    let shown = bytes.escape_ascii().to_string();
    let mut headers = [httparse::EMPTY_HEADER; ORACLE_HEADERS];
    let mut theirs = httparse::Response::new(&mut headers);
    let verdict = theirs.parse(bytes);
    let mut decoder = ResponseDecoder::default();
    match (decoder.decode(limits, AnsweredMethod::Other, bytes), verdict) {
        (Ok(step), Ok(httparse::Status::Complete(end))) => {
            let (ResponseEvent::Head(ours) | ResponseEvent::Interim(ours)) = step.event else {
                panic!("they have a head, we wait: {shown}")
            };
            assert_eq!(step.consumed, end, "{shown}");
            assert_eq!(Some(ours.status), theirs.code, "{shown}");
            // The oracle returns an empty reason when it contains obs-text.
            assert!(theirs.reason.is_some_and(|r| r.is_empty() || r.as_bytes() == ours.reason), "{shown}");
            assert_eq!(ours.version == HttpVersion::Http11, theirs.version == Some(1), "{shown}");
            let same = ours.headers().eq(theirs.headers.iter().map(|h| (h.name.as_bytes(), h.value)));
            assert!(same, "fields differ: {shown}");
        }
        (Ok(step), Ok(httparse::Status::Partial)) => {
            assert!(matches!(step.event, ResponseEvent::NeedMore), "we have a head, they wait: {shown}");
        }
        (Ok(_), Err(httparse::Error::TooManyHeaders)) => {}
        (Ok(_), Err(error)) => {
            let higher = bytes.starts_with(b"HTTP/1.") && !matches!(bytes.get(7), Some(b'0' | b'1'));
            assert!(higher, "accepted, but the oracle rejects it ({error}): {shown}");
        }
        (Err(error), Ok(_)) => {
            // RFC 9110 §15: the oracle accepts any three digits; it also skips empty lines before a status line.
            let code = error.fault() == HttpFault::StatusLine
                && (error.offset() == 9 || (error.offset() == 0 && error.found() == Some(b'\r')));
            assert!(
                code || is_stricter_than_oracle(&error, bytes),
                "rejected ({error}), but the oracle accepts it: {shown}"
            );
        }
        (Err(_), Err(_)) => {}
    }
}
