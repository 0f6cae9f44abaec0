//! CoAP requests as HTTP/1.1 requests for worker processes, and their responses as CoAP answers (RFC 7252 §10.1, RFC
//! 8075).

use std::io::Write;

use percent_encoding::percent_decode;
use stilling_engine::DatagramPath;
use stilling_wire::coap::{Code, ContentFormat, OptionNumber};
use stilling_workers::sessions::SessionName;

use super::answer::Answer;
use super::body_cache::ETag;
use super::limits::{LOCATION_SIZE_MAX, PATH_SIZE_MAX, RETRY_AFTER_SECONDS};
use super::request::CoapRequest;

/// Content formats and their media types (RFC 7252 §12.3 and its registry). The first of a format is the one that
/// requests have.
const FORMATS: &[(ContentFormat, &str)] = &[
    (ContentFormat::TEXT, "text/plain"),
    (ContentFormat::LINK_FORMAT, "application/link-format"),
    (ContentFormat::XML, "application/xml"),
    (ContentFormat::XML, "text/xml"),
    (ContentFormat::OCTET_STREAM, "application/octet-stream"),
    (ContentFormat(47), "application/exi"),
    (ContentFormat::JSON, "application/json"),
    (ContentFormat(51), "application/json-patch+json"),
    (ContentFormat(52), "application/merge-patch+json"),
    (ContentFormat::CBOR, "application/cbor"),
    (ContentFormat(21), "image/gif"),
    (ContentFormat(22), "image/jpeg"),
    (ContentFormat(23), "image/png"),
    (ContentFormat(110), "application/senml+json"),
    (ContentFormat(112), "application/senml+cbor"),
    (ContentFormat(20_000), "text/css"),
    (ContentFormat(30_000), "image/svg+xml"),
];

/// Codes for the statuses of errors (RFC 8075 §7, RFC 8132 §2.3.2, RFC 8516). Others: 4.00 or 5.00.
const ERRORS: &[(u16, Code)] = &[
    (400, Code::BAD_REQUEST),
    (401, Code::UNAUTHORIZED),
    (403, Code::FORBIDDEN),
    (404, Code::NOT_FOUND),
    (405, Code::METHOD_NOT_ALLOWED),
    (406, Code::NOT_ACCEPTABLE),
    (409, Code::CONFLICT),
    (410, Code::NOT_FOUND),
    (412, Code::PRECONDITION_FAILED),
    (413, Code::REQUEST_ENTITY_TOO_LARGE),
    (415, Code::UNSUPPORTED_CONTENT_FORMAT),
    (422, Code::UNPROCESSABLE_ENTITY),
    (429, Code::TOO_MANY_REQUESTS),
    (500, Code::INTERNAL_SERVER_ERROR),
    (501, Code::NOT_IMPLEMENTED),
    (502, Code::BAD_GATEWAY),
    (503, Code::SERVICE_UNAVAILABLE),
    (504, Code::GATEWAY_TIMEOUT),
];

/// Bytes of an encoded path: each byte may become three.
const TARGET_SIZE_MAX: usize = 3 * PATH_SIZE_MAX + 1;

/// The path of a request as HTTP has it, in memory that is reused.
#[derive(Debug)]
pub(super) struct TargetPath {
    bytes: [u8; TARGET_SIZE_MAX],
    size: usize,
}

impl TargetPath {
    pub(super) const fn new() -> TargetPath {
        TargetPath { bytes: [0; TARGET_SIZE_MAX], size: 0 }
    }

    /// Sets it to the path of a request (RFC 7252 §6.5).
    ///
    /// # Errors
    /// 4.02 for a segment `.` or `..`, which RFC 7252 §5.10.1 forbids and programs might resolve.
    pub(super) fn set(&mut self, request: &CoapRequest<'_>) -> Result<(), Code> {
        self.size = 0;
        for segment in request.values(OptionNumber::URI_PATH) {
            if matches!(segment, b"." | b"..") {
                return Err(Code::BAD_OPTION);
            }
            self.append(b"/")?;
            for &byte in segment {
                let (encoded, size) = percent_encoded(byte, b"&");
                self.append(&encoded[..size])?;
            }
        }
        if self.size == 0 { self.append(b"/") } else { Ok(()) }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Code> {
        let room = self.bytes.get_mut(self.size..self.size + bytes.len()).ok_or(Code::NOT_FOUND)?;
        room.copy_from_slice(bytes);
        self.size += bytes.len();
        Ok(())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

/// A byte of a target: itself, or percent-encoded unless it is unreserved or may be in every segment (RFC 3986 §3.3), or
/// is one of `others`.
fn percent_encoded(byte: u8, others: &[u8]) -> ([u8; 3], usize) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if byte.is_ascii_alphanumeric() || b"-._~!$'()*+,;=:@".contains(&byte) || others.contains(&byte) {
        return ([byte, 0, 0], 1);
    }
    ([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]], 3)
}

/// The method in HTTP. `FETCH` is `QUERY`, the safe method with content; `iPATCH` is `PATCH`, which need not be
/// idempotent.
fn method_name(method: Code) -> Option<&'static [u8]> {
    Some(match method {
        Code::GET => b"GET",
        Code::POST => b"POST",
        Code::PUT => b"PUT",
        Code::DELETE => b"DELETE",
        Code::FETCH => b"QUERY",
        Code::PATCH | Code::IPATCH => b"PATCH",
        _ => return None,
    })
}

/// Whether a request with this method may be sent to a process twice.
pub(super) fn is_idempotent(method: Code) -> bool {
    matches!(method, Code::GET | Code::PUT | Code::DELETE | Code::FETCH)
}

/// The name of the session, in the first argument `session=` of the query.
///
/// # Errors
/// 4.00 for one that is empty or too long.
pub(super) fn session_name(request: &CoapRequest<'_>) -> Result<Option<SessionName>, Code> {
    let mut arguments = request.values(OptionNumber::URI_QUERY);
    let Some(name) = arguments.find_map(|argument| argument.strip_prefix(b"session=")) else {
        return Ok(None);
    };
    SessionName::new(name).map(Some).ok_or(Code::BAD_REQUEST)
}

/// Writes request line and fields, without framing and without the empty line.
///
/// # Errors
/// The code of the answer, if the request has no counterpart in HTTP.
pub(super) fn write_request_head(
    request: &CoapRequest<'_>,
    target: &TargetPath,
    path: &DatagramPath,
    out: &mut Vec<u8>,
) -> Result<(), Code> {
    out.extend_from_slice(method_name(request.code).ok_or(Code::METHOD_NOT_ALLOWED)?);
    out.push(b' ');
    out.extend_from_slice(target.bytes());
    for (at, argument) in request.values(OptionNumber::URI_QUERY).enumerate() {
        out.push(if at == 0 { b'?' } else { b'&' });
        for &byte in argument {
            let (encoded, size) = percent_encoded(byte, b"/?");
            out.extend_from_slice(&encoded[..size]);
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_host(request, path, out)?;
    write_representation_fields(request, out)?;
    write_conditions(request, out)?;
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "X-Forwarded-For: {}\r\nX-Forwarded-Proto: coap\r\nVia: CoAP/1.0 stilling\r\n",
        path.peer.ip().to_canonical()
    );
    Ok(())
}

/// Writes Host, and X-Forwarded-Host if the client names a host (RFC 7252 §6.4: otherwise its literal address).
fn write_host(request: &CoapRequest<'_>, path: &DatagramPath, out: &mut Vec<u8>) -> Result<(), Code> {
    if let Some(host) = request.values(OptionNumber::URI_HOST).next() {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~[]:%".contains(byte);
        if host.is_empty() || !host.iter().all(is_name) {
            return Err(Code::BAD_REQUEST);
        }
        for name in [&b"Host: "[..], b"X-Forwarded-Host: "] {
            out.extend_from_slice(name);
            out.extend_from_slice(host);
            out.extend_from_slice(b"\r\n");
        }
        return Ok(());
    }
    // Writing to memory does not fail.
    let _ = match path.local.map(|local| local.to_canonical()) {
        Some(std::net::IpAddr::V6(local)) => write!(out, "Host: [{local}]\r\n"),
        Some(local) => write!(out, "Host: {local}\r\n"),
        None => write!(out, "Host: localhost\r\n"),
    };
    Ok(())
}

/// Writes Content-Type and Accept.
fn write_representation_fields(request: &CoapRequest<'_>, out: &mut Vec<u8>) -> Result<(), Code> {
    let write = |out: &mut Vec<u8>, name: &str, media_type: &str| {
        let parameter = if media_type == "text/plain" { ";charset=utf-8" } else { "" };
        // Writing to memory does not fail.
        let _ = write!(out, "{name}: {media_type}{parameter}\r\n");
    };
    if let Some(format) = request.format {
        write(out, "Content-Type", media_type(format).unwrap_or("application/octet-stream"));
    }
    if let Some(format) = request.accept {
        // RFC 7252 §5.10.4: a format that cannot be returned is 4.06.
        write(out, "Accept", media_type(format).ok_or(Code::NOT_ACCEPTABLE)?);
    }
    Ok(())
}

/// Writes If-None-Match and If-Match. A validator that has no form in HTTP is none of a worker: it matches nothing.
fn write_conditions(request: &CoapRequest<'_>, out: &mut Vec<u8>) -> Result<(), Code> {
    let write = |out: &mut Vec<u8>, name: &[u8], option: OptionNumber| {
        let mut count = 0;
        for value in request.values(option).filter(|value| !value.is_empty() && is_opaque_tag(value)) {
            out.extend_from_slice(if count == 0 { name } else { b", " });
            out.push(b'"');
            out.extend_from_slice(value);
            out.push(b'"');
            count += 1;
        }
        if count > 0 {
            out.extend_from_slice(b"\r\n");
        }
        count > 0
    };
    if request.is_safe() {
        write(out, b"If-None-Match: ", OptionNumber::ETAG);
        return Ok(());
    }
    if request.values(OptionNumber::IF_NONE_MATCH).next().is_some() {
        out.extend_from_slice(b"If-None-Match: *\r\n");
    }
    let mut conditions = request.values(OptionNumber::IF_MATCH).peekable();
    if conditions.peek().is_none() {
        return Ok(());
    }
    if conditions.any(<[u8]>::is_empty) {
        out.extend_from_slice(b"If-Match: *\r\n");
    } else if !write(out, b"If-Match: ", OptionNumber::IF_MATCH) {
        return Err(Code::PRECONDITION_FAILED);
    }
    Ok(())
}

/// Whether the bytes may be between the quotes of an entity tag (RFC 9110 §8.8.3).
fn is_opaque_tag(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"')
}

fn media_type(format: ContentFormat) -> Option<&'static str> {
    FORMATS.iter().find(|(of, _)| *of == format).map(|(_, name)| *name)
}

/// The format of a Content-Type; `application/octet-stream` for a type without a number, or text that is not UTF-8.
fn content_format(value: &[u8]) -> ContentFormat {
    let mut parts = value.split(|&byte| byte == b';');
    let essence = parts.next().unwrap_or_default().trim_ascii();
    let is_other_charset = parts.any(|parameter| {
        let parameter = parameter.trim_ascii().to_ascii_lowercase();
        parameter
            .strip_prefix(b"charset=")
            .is_some_and(|charset| !matches!(charset.trim_ascii(), b"utf-8" | b"\"utf-8\"" | b"us-ascii"))
    });
    FORMATS
        .iter()
        .find(|(_, name)| name.as_bytes().eq_ignore_ascii_case(essence))
        .map(|(format, _)| *format)
        .filter(|format| *format != ContentFormat::TEXT || !is_other_charset)
        .unwrap_or(ContentFormat::OCTET_STREAM)
}

/// The code for a status (RFC 7252 §10.1, RFC 8075 §7). A redirection has no counterpart: 5.02.
pub(super) fn answer_code(method: Code, status: u16) -> Code {
    match (status, method) {
        (201, Code::POST | Code::PUT | Code::PATCH | Code::IPATCH) => Code::CREATED,
        (200..=299, Code::GET | Code::FETCH) => Code::CONTENT,
        (200..=299, Code::DELETE) => Code::DELETED,
        (200..=299, _) => Code::CHANGED,
        (304, Code::GET | Code::FETCH) => Code::VALID,
        (400..=499, _) => error_code(status).unwrap_or(Code::BAD_REQUEST),
        (500..=599, _) => error_code(status).unwrap_or(Code::INTERNAL_SERVER_ERROR),
        _ => Code::BAD_GATEWAY,
    }
}

fn error_code(status: u16) -> Option<Code> {
    ERRORS.iter().find(|(of, _)| *of == status).map(|(_, code)| *code)
}

/// A request's part in its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredRequest {
    pub(super) method: Code,
    pub(super) accept: Option<ContentFormat>,
}

/// Writes the answer for a response. `head`: status line and fields.
pub(super) fn write_answer(
    request: AnsweredRequest,
    status: u16,
    head: &[u8],
    body: &[u8],
    answer: &mut Answer,
) {
    let code = answer_code(request.method, status);
    answer.start(code);
    let mut retry_after = None;
    let mut is_encoded = false;
    for line in head.split(|&byte| byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is = |of: &str| name.eq_ignore_ascii_case(of.as_bytes());
        if is("content-type") {
            answer.format = Some(content_format(value));
        } else if is("content-encoding") {
            is_encoded |= !value.eq_ignore_ascii_case(b"identity");
        } else if is("etag") {
            answer.etag = entity_tag(value);
        } else if is("cache-control") {
            answer.max_age = max_age(value).or(answer.max_age);
        } else if is("retry-after") {
            retry_after = number(value);
        } else if is("location") && code == Code::CREATED {
            write_location(value, &mut answer.location);
        }
    }
    if is_encoded {
        answer.format = Some(ContentFormat::OCTET_STREAM);
    }
    if matches!(code, Code::TOO_MANY_REQUESTS | Code::SERVICE_UNAVAILABLE) {
        answer.max_age = Some(retry_after.unwrap_or(RETRY_AFTER_SECONDS));
    }
    let is_accepted = request.accept.is_none_or(|accept| answer.format.is_none_or(|format| format == accept));
    if code == Code::CONTENT && !body.is_empty() && !is_accepted {
        answer.error(Code::NOT_ACCEPTABLE, "the worker does not have this format");
    } else if code == Code::VALID || body.is_empty() {
        answer.format = None;
    } else {
        answer.body.extend_from_slice(body);
    }
}

fn number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn entity_tag(value: &[u8]) -> Option<ETag> {
    let value = value.strip_prefix(b"W/").unwrap_or(value);
    ETag::of_value(value.strip_prefix(b"\"")?.strip_suffix(b"\"")?)
}

/// Max-Age of a Cache-Control (RFC 8075 §8.1).
fn max_age(value: &[u8]) -> Option<u32> {
    let mut age = None;
    for directive in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
        let directive = directive.to_ascii_lowercase();
        if matches!(&directive[..], b"no-store" | b"no-cache") {
            return Some(0);
        }
        if let Some(seconds) = directive.strip_prefix(b"max-age=") {
            age = number(seconds);
        }
    }
    age
}

/// Writes the options for a location: an absolute path, or a URI of which the path counts (RFC 7252 §5.10.7). Another
/// one has no options.
fn write_location(value: &[u8], options: &mut Vec<(OptionNumber, Vec<u8>)>) {
    options.clear();
    if value.len() > LOCATION_SIZE_MAX {
        return;
    }
    let after_scheme = value.strip_prefix(b"http://").or_else(|| value.strip_prefix(b"https://"));
    let target = match after_scheme {
        Some(rest) => rest.iter().position(|&byte| byte == b'/').map_or(&b"/"[..], |at| &rest[at..]),
        None => value,
    };
    let target = target.split(|&byte| byte == b'#').next().unwrap_or_default();
    let (path, query) = match target.iter().position(|&byte| byte == b'?') {
        Some(at) => (&target[..at], Some(&target[at + 1..])),
        None => (target, None),
    };
    let Some(segments) = path.strip_prefix(b"/") else { return };
    if !segments.is_empty() {
        for segment in segments.split(|&byte| byte == b'/') {
            options.push((OptionNumber::LOCATION_PATH, percent_decode(segment).collect()));
        }
    }
    for argument in query.into_iter().flat_map(|query| query.split(|&byte| byte == b'&')) {
        options.push((OptionNumber::LOCATION_QUERY, percent_decode(argument).collect()));
    }
    if options.iter().any(|(_, value)| value.len() > 255 || matches!(&value[..], b"." | b"..")) {
        options.clear();
    }
}

#[cfg(test)]
mod tests {
    use stilling_wire::coap::{CoapMessage, MessageType, MessageWriter, Token};

    use super::super::request::PathBuffer;
    use super::*;

    fn head_of(code: Code, options: &[(OptionNumber, &[u8])]) -> Result<String, Code> {
        let mut buffer = [0; 1024];
        let token = Token::new(b"t").expect("a short token");
        let mut writer =
            MessageWriter::new(&mut buffer, MessageType::Confirmable, code, 1, token).expect("there is room");
        for (number, value) in options {
            writer.option(*number, value).expect("they are in order");
        }
        let datagram = writer.payload(b"").expect("there is room").to_vec();
        let message = CoapMessage::parse(&datagram).expect("it is valid");
        let mut path = PathBuffer::new();
        let request = CoapRequest::decode(&message, &mut path).expect("its options are valid");
        let mut target = TargetPath::new();
        target.set(&request)?;
        let peer = ([192, 0, 2, 9], 5683).into();
        let mut out = Vec::new();
        let local = Some([127, 0, 0, 1].into());
        write_request_head(&request, &target, &DatagramPath { socket: 0, peer, local }, &mut out)?;
        Ok(String::from_utf8(out).expect("it is text"))
    }

    /// RFC 7252 §6.5, RFC 8075 §5: methods, percent-encoding, host, formats and conditions.
    #[test]
    fn requests_become_http() {
        let segments = [
            (OptionNumber::URI_PATH, &b"a b"[..]),
            (OptionNumber::URI_PATH, b"c/d"),
            (OptionNumber::URI_PATH, b"\r\nX: y"),
            (OptionNumber::URI_QUERY, b"x=1&2"),
            (OptionNumber::URI_QUERY, b"y"),
        ];
        let forwarded = "X-Forwarded-For: 192.0.2.9\r\nX-Forwarded-Proto: coap\r\nVia: CoAP/1.0 stilling\r\n";
        assert_eq!(
            head_of(Code::GET, &segments),
            Ok(format!("GET /a%20b/c%2Fd/%0D%0AX:%20y?x=1%262&y HTTP/1.1\r\nHost: 127.0.0.1\r\n{forwarded}"))
        );
        let head = head_of(
            Code::PUT,
            &[
                (OptionNumber::IF_MATCH, b"abc"),
                (OptionNumber::IF_MATCH, b"\"\x00"),
                (OptionNumber::URI_HOST, b"shop.example"),
                (OptionNumber::IF_NONE_MATCH, b""),
                (OptionNumber::CONTENT_FORMAT, b""),
                (OptionNumber::ACCEPT, &[50]),
            ],
        );
        let fields = "Host: shop.example\r\nX-Forwarded-Host: shop.example\r\n\
             Content-Type: text/plain;charset=utf-8\r\nAccept: application/json\r\n\
             If-None-Match: *\r\nIf-Match: \"abc\"\r\n";
        assert_eq!(head, Ok(format!("PUT / HTTP/1.1\r\n{fields}{forwarded}")));
        let tags = [(OptionNumber::ETAG, &b"one"[..]), (OptionNumber::ETAG, b"two")];
        assert!(head_of(Code::FETCH, &tags).is_ok_and(
            |head| head.starts_with("QUERY / ") && head.contains("If-None-Match: \"one\", \"two\"\r\n")
        ));
        let unknown = [(OptionNumber::CONTENT_FORMAT, &[0xff, 0x01][..])];
        assert!(head_of(Code::POST, &unknown).is_ok_and(|head| head.contains("application/octet-stream")));
    }

    #[test]
    fn requests_without_a_counterpart_are_refused() {
        for (code, options, expected) in [
            (Code::GET, &[(OptionNumber::URI_PATH, &b".."[..])][..], Code::BAD_OPTION),
            (Code::GET, &[(OptionNumber::URI_HOST, b"a\r\nX: y")], Code::BAD_REQUEST),
            (Code::GET, &[(OptionNumber::ACCEPT, &[0xff, 0x01])], Code::NOT_ACCEPTABLE),
            (Code::PUT, &[(OptionNumber::IF_MATCH, b"\x00")], Code::PRECONDITION_FAILED),
            (Code::new(0, 31), &[], Code::METHOD_NOT_ALLOWED),
        ] {
            assert_eq!(head_of(code, options), Err(expected), "{code} {options:?}");
        }
    }

    fn answer_of(method: Code, accept: Option<u16>, response: &str, body: &[u8]) -> Answer {
        let status = response[9..12].parse().expect("a status");
        let mut answer = Answer::default();
        let request = AnsweredRequest { method, accept: accept.map(ContentFormat) };
        write_answer(request, status, response.as_bytes(), body, &mut answer);
        answer
    }

    /// RFC 7252 §10.1, RFC 8075 §7.
    #[test]
    fn statuses_become_codes() {
        for (method, status, code) in [
            (Code::GET, 200, Code::CONTENT),
            (Code::GET, 304, Code::VALID),
            (Code::GET, 302, Code::BAD_GATEWAY),
            (Code::POST, 200, Code::CHANGED),
            (Code::POST, 201, Code::CREATED),
            (Code::PUT, 204, Code::CHANGED),
            (Code::DELETE, 200, Code::DELETED),
            (Code::FETCH, 200, Code::CONTENT),
            (Code::GET, 418, Code::BAD_REQUEST),
            (Code::GET, 507, Code::INTERNAL_SERVER_ERROR),
            (Code::GET, 429, Code::TOO_MANY_REQUESTS),
            (Code::GET, 999, Code::BAD_GATEWAY),
        ] {
            assert_eq!(answer_code(method, status), code, "{method} {status}");
        }
        for &(status, code) in ERRORS {
            assert_eq!(answer_code(Code::GET, status), code, "{status}");
        }
    }

    #[test]
    fn fields_become_options() {
        let head = "HTTP/1.1 201 Created\r\nContent-Type: Text/Plain; charset=UTF-8\r\nETag: W/\"abc\"\r\n\
             Cache-Control: public, max-age=30\r\nLocation: http://host/a%20b/c?x=1&y\r\n";
        let answer = answer_of(Code::POST, None, head, b"body");
        assert_eq!((answer.code, answer.format), (Code::CREATED, Some(ContentFormat::TEXT)));
        assert_eq!((answer.max_age, answer.etag.as_deref()), (Some(30), Some(&b"abc"[..])));
        let location = [
            (OptionNumber::LOCATION_PATH, b"a b".to_vec()),
            (OptionNumber::LOCATION_PATH, b"c".to_vec()),
            (OptionNumber::LOCATION_QUERY, b"x=1".to_vec()),
            (OptionNumber::LOCATION_QUERY, b"y".to_vec()),
        ];
        assert_eq!((&answer.location[..], &answer.body[..]), (&location[..], &b"body"[..]));
        let long = answer_of(Code::GET, None, "HTTP/1.1 200 OK\r\nETag: \"0123456789\"\r\n", b"x");
        assert_eq!(long.etag.map(|etag| etag.len()), Some(8));
        let busy = answer_of(Code::GET, None, "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n", b"");
        assert_eq!((busy.code, busy.max_age), (Code::SERVICE_UNAVAILABLE, Some(7)));
        let busy = answer_of(Code::GET, None, "HTTP/1.1 429 Busy\r\n", b"");
        assert_eq!((busy.code, busy.max_age), (Code::TOO_MANY_REQUESTS, Some(RETRY_AFTER_SECONDS)));
        let private = answer_of(Code::GET, None, "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\n", b"x");
        assert_eq!(private.max_age, Some(0));
    }

    #[test]
    fn formats_are_those_of_the_registry() {
        for (value, format) in [
            ("application/json", ContentFormat::JSON),
            ("text/xml;charset=utf-8", ContentFormat::XML),
            ("text/html", ContentFormat::OCTET_STREAM),
            ("text/plain; charset=latin1", ContentFormat::OCTET_STREAM),
            ("", ContentFormat::OCTET_STREAM),
        ] {
            assert_eq!(content_format(value.as_bytes()), format, "{value}");
        }
        // RFC 7252 §5.10.4.
        let json = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        assert_eq!(answer_of(Code::GET, Some(50), json, b"{}").code, Code::CONTENT);
        assert_eq!(answer_of(Code::GET, Some(60), json, b"{}").code, Code::NOT_ACCEPTABLE);
    }

    #[test]
    fn a_location_without_options_is_dropped() {
        let mut options = vec![(OptionNumber::LOCATION_PATH, b"old".to_vec())];
        let long = format!("/{}", "a".repeat(LOCATION_SIZE_MAX));
        for location in ["relative", "", "/a/../b", "/a/%2e%2e", "/", &long] {
            write_location(location.as_bytes(), &mut options);
            assert_eq!(options, [], "{location}");
        }
    }
}
