//! Decides from the head alone whether `POST /publish/<subject>` is allowed, before a byte of the body is buffered.
//!
//! Every rejection states its reason: a page of another origin (403), a client without credentials (401) or without
//! permission (403), an invalid subject or condition (400).

use std::borrow::Cow;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use stilling_wire::http1::{BodyLength, RequestHead, Status};
use stilling_wire::nats::{EXPECTED_LAST_SEQUENCE, MESSAGE_ID, Subject, encode_headers};

use super::response::Response;
use super::route::{HttpEndpoint, HttpScope};
use crate::hub::{HubHandle, RESERVED_SUBJECTS};
use crate::users::{UserAccess, Users};

pub(super) const PUBLISH_PATH_PREFIX: &[u8] = b"/publish/";

const NDJSON_TYPE: &[u8] = b"application/x-ndjson";

const NATS_HEADER_PREFIX: &str = "nats-";

/// The header that names the stream expected to store the message.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";

/// The properties of a publication that its head determines.
#[derive(Debug)]
pub(super) struct PublishRequest<'a> {
    /// A valid subject.
    pub(super) subject: Cow<'a, [u8]>,
    /// Every line of the body is a message.
    pub(super) is_lines: bool,
    /// The header block of each message; empty without conditions.
    pub(super) headers: Vec<u8>,
}

/// Why a publication is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PublishRejection {
    pub(crate) status: Status,
    /// The body of the response, without the line end.
    pub(crate) reason: Cow<'static, str>,
}

impl PublishRejection {
    pub(super) fn new(status: Status, reason: impl Into<Cow<'static, str>>) -> Self {
        PublishRejection { status, reason: reason.into() }
    }

    fn bad_request(reason: impl Into<Cow<'static, str>>) -> Self {
        PublishRejection::new(Status::BadRequest, reason)
    }
}

impl From<PublishRejection> for Response {
    fn from(PublishRejection { status, reason }: PublishRejection) -> Self {
        let response = Response::text(format!("{reason}\n")).with_status(status).into_refusal();
        match status {
            // RFC 9110 §11.6.1, RFC 7617 §2.1, RFC 6750 §3.
            Status::Unauthorized => response
                .with_header("WWW-Authenticate", "Basic realm=\"stilling\", charset=\"UTF-8\"")
                .with_header("WWW-Authenticate", "Bearer realm=\"stilling\""),
            _ => response,
        }
    }
}

/// Whether this request may publish; its body may still be on the way. `is_open`: its listener accepts publications.
pub(super) fn admit(head: &RequestHead<'_>, hub: &HubHandle, is_open: bool) -> Result<(), PublishRejection> {
    if !is_open {
        let reason = "publishing at a non-loopback address requires users ([[user]]) or --open-publish; loopback \
                   addresses need neither";
        return Err(PublishRejection::new(Status::Forbidden, reason));
    }
    check_origin(head)?;
    if head.header("Origin").is_some() {
        check_host(head, hub, "a page at a host name may publish")?;
    }
    let access = authenticate(head.header("Authorization"), &hub.users);
    if access == UserAccess::Unauthenticated {
        let reason = "publishing needs a known name and password (Basic) or token (Bearer)";
        return Err(PublishRejection::new(Status::Unauthorized, reason));
    }
    let publish_request = PublishRequest::of(head, hub)?;
    if !hub.users.may_publish(access, &publish_request.subject) {
        return Err(PublishRejection::new(Status::Forbidden, "this user may not publish to this subject"));
    }
    match head.body {
        BodyLength::Sized(size) if !publish_request.is_lines => check_size(size, hub, None),
        _ => Ok(()),
    }
}

/// The permissions of a request to subscribe. `is_open`: its listener serves subscriptions. Reading needs no `Origin`, so
/// the host of every request is checked: any site can let its name resolve to this address.
pub(super) fn admit_reader(
    head: &RequestHead<'_>,
    hub: &HubHandle,
    is_open: bool,
) -> Result<UserAccess, PublishRejection> {
    let forbid = |reason: &'static str| Err(PublishRejection::new(Status::Forbidden, reason));
    if !is_open {
        return forbid(
            "subscribing at a non-loopback address requires users ([[user]]); loopback addresses need none",
        );
    }
    check_origin(head)?;
    check_host(head, hub, "a host name may be used for subscriptions")?;
    match authenticate(head.header("Authorization"), &hub.users) {
        UserAccess::Unauthenticated => {
            let reason = "subscribing needs a known name and password (Basic) or token (Bearer)";
            Err(PublishRejection::new(Status::Unauthorized, reason))
        }
        access => Ok(access),
    }
}

/// Whether the request may continue in the NATS client protocol, whose CONNECT authenticates. A listener of its own
/// serves no pages: those of any port of its host have its origin.
pub(super) fn admit_nats(
    head: &RequestHead<'_>,
    hub: &HubHandle,
    endpoint: HttpEndpoint,
) -> Result<(), PublishRejection> {
    let forbid = |reason: &'static str| Err(PublishRejection::new(Status::Forbidden, reason));
    if !(endpoint.publishes && endpoint.subscribes) {
        return forbid(
            "NATS over WebSocket at a non-loopback address requires users ([[user]]); loopback addresses need none",
        );
    }
    if endpoint.scope == HttpScope::NatsWebSocket {
        if !is_same_site(head) {
            return forbid("cross-origin request refused: the host of Origin differs from Host");
        }
    } else {
        check_origin(head)?;
    }
    check_host(head, hub, "a host name may be used for NATS over WebSocket")
}

/// Checks a message of `size` bytes; `line` is its line number if the body has several messages.
pub(super) fn check_size(size: u64, hub: &HubHandle, line: Option<usize>) -> Result<(), PublishRejection> {
    let most = hub.limits.payload_size_max;
    if size <= u64::from(most) {
        return Ok(());
    }
    let what = line.map_or_else(|| "the message".to_owned(), |line| format!("the message on line {line}"));
    let reason = format!("{what} has {size} bytes; the maximum is {most}. Nothing was published");
    Err(PublishRejection::new(Status::ContentTooLarge, reason))
}

impl<'a> PublishRequest<'a> {
    pub(super) fn of(head: &RequestHead<'a>, hub: &HubHandle) -> Result<Self, PublishRejection> {
        let raw = head.target.path.strip_prefix(PUBLISH_PATH_PREFIX).unwrap_or_default();
        let subject: Cow<'a, [u8]> = percent_encoding::percent_decode(raw).into();
        if let Err(error) = Subject::parse(&subject, &hub.limits.subject) {
            return Err(PublishRejection::bad_request(format!("invalid subject: {error}")));
        }
        if subject.starts_with(RESERVED_SUBJECTS) {
            return Err(PublishRejection::bad_request(
                "reserved subject: $JS. is reserved for the hub's JetStream API",
            ));
        }
        let is_lines = head.header("Content-Type").is_some_and(|value| {
            let media_type = value.split(|&byte| byte == b';').next().unwrap_or_default();
            media_type.trim_ascii().eq_ignore_ascii_case(NDJSON_TYPE)
        });
        Ok(PublishRequest { subject, is_lines, headers: conditions(head, is_lines)? })
    }
}

/// The header block for the hub, in NATS format.
fn conditions(head: &RequestHead<'_>, is_lines: bool) -> Result<Vec<u8>, PublishRejection> {
    let is_condition = |name: &[u8]| {
        let prefix = name.get(..NATS_HEADER_PREFIX.len());
        prefix.is_some_and(|start| start.eq_ignore_ascii_case(NATS_HEADER_PREFIX.as_bytes()))
    };
    encode_conditions(head.headers().filter(|(name, _)| is_condition(name)), is_lines)
}

/// The header block of conditions, each with its name and value.
///
/// # Errors
/// One of them is unknown or invalid.
pub(crate) fn encode_conditions<'a>(
    conditions: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    is_lines: bool,
) -> Result<Vec<u8>, PublishRejection> {
    let mut fields: Vec<(&str, &str)> = Vec::new();
    for (name, value) in conditions {
        let known = [MESSAGE_ID, EXPECTED_LAST_SEQUENCE, EXPECTED_STREAM];
        let Some(name) = known.into_iter().find(|known| name.eq_ignore_ascii_case(known.as_bytes())) else {
            // Rejected, because a client relies on its conditions: they must not be ignored.
            let name = name.escape_ascii();
            return Err(PublishRejection::bad_request(format!(
                "unknown header {name}; known are {}",
                known.join(", ")
            )));
        };
        let value = std::str::from_utf8(value)
            .map_err(|_| PublishRejection::bad_request(format!("the value of {name} is not UTF-8")))?;
        if fields.iter().any(|(other, _)| *other == name) {
            return Err(PublishRejection::bad_request(format!("{name} is given twice")));
        }
        if is_lines && name != EXPECTED_STREAM {
            return Err(PublishRejection::bad_request(format!(
                "{name} is about one message, but this body has one message per line"
            )));
        }
        if name == EXPECTED_LAST_SEQUENCE && value.parse::<u64>().is_err() {
            return Err(PublishRejection::bad_request(format!("{name} is not a number")));
        }
        fields.push((name, value));
    }
    let mut block = Vec::new();
    if !fields.is_empty() {
        encode_headers(&mut block, None, &fields).map_err(|error| {
            PublishRejection::bad_request(format!("cannot encode the conditions: {error}"))
        })?;
    }
    Ok(block)
}

/// Refuses requests of pages of another origin.
pub(super) fn check_origin(head: &RequestHead<'_>) -> Result<(), PublishRejection> {
    if is_same_origin(head) {
        return Ok(());
    }
    let reason = "cross-origin request refused: Origin differs from Host";
    Err(PublishRejection::new(Status::Forbidden, reason))
}

/// Whether the request has no `Origin`, or the origin of this host (RFC 6454 §7). Otherwise any page that a browser
/// shows could publish at the loopback address of its machine.
fn is_same_origin(head: &RequestHead<'_>) -> bool {
    let Some(origin) = head.header("Origin") else { return true };
    match (host_of_origin(origin), head.host) {
        (Some(origin), Some(host)) => !host.is_empty() && origin.eq_ignore_ascii_case(host),
        _ => false,
    }
}

/// Whether the request has no `Origin`, or that of a page of this host, at any port.
fn is_same_site(head: &RequestHead<'_>) -> bool {
    let Some(origin) = head.header("Origin") else { return true };
    match (host_of_origin(origin), head.host) {
        (Some(origin), Some(host)) => {
            let name = without_port(host);
            !name.is_empty() && without_port(origin).eq_ignore_ascii_case(name)
        }
        _ => false,
    }
}

/// The host and port of an origin (RFC 6454 §6.2).
fn host_of_origin(origin: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let start = origin.get(..scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then(|| &origin[scheme.len()..])
    })
}

fn without_port(host: &[u8]) -> &[u8] {
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    match host.iter().rposition(|&byte| byte == b':') {
        Some(at) if is_port(&host[at + 1..]) => &host[..at],
        _ => host,
    }
}

/// Refuses requests to a host name unless users are configured: a page of `evil.example` has the same origin as this
/// server as soon as that name resolves to the server's address ("DNS rebinding"). `permission` begins the reason.
fn check_host(head: &RequestHead<'_>, hub: &HubHandle, permission: &str) -> Result<(), PublishRejection> {
    if !has_host_name(head) || hub.users.initial_access() == UserAccess::Unauthenticated {
        return Ok(());
    }
    let reason = format!(
        "{permission} only if users are configured ([[user]]), because any site can let its name resolve to this \
         address (DNS rebinding); localhost and IP addresses are exempt"
    );
    Err(PublishRejection::new(Status::Forbidden, reason))
}

/// Whether the request names its host by a name that may be under foreign control. Addresses and `localhost` (RFC 6761
/// §6.3) cannot be rebound.
fn has_host_name(head: &RequestHead<'_>) -> bool {
    let Some(host) = head.host else { return false };
    let name = without_port(host);
    let address = name.strip_prefix(b"[").and_then(|name| name.strip_suffix(b"]")).unwrap_or(name);
    let is_address = std::str::from_utf8(address).is_ok_and(|address| address.parse::<IpAddr>().is_ok());
    !is_address && !name.eq_ignore_ascii_case(b"localhost")
}

/// The user that the field `Authorization` identifies.
fn authenticate(field: Option<&[u8]>, users: &Users) -> UserAccess {
    let Some((scheme, rest)) = field.and_then(|field| {
        let blank = field.iter().position(|&byte| byte == b' ')?;
        Some((&field[..blank], field[blank..].trim_ascii()))
    }) else {
        return users.initial_access();
    };
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return std::str::from_utf8(rest)
            .map_or(UserAccess::Unauthenticated, |token| users.find(None, token));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return users.initial_access();
    }
    // RFC 7617 §2: the first colon ends the name.
    let pair = STANDARD.decode(rest).ok().and_then(|pair| String::from_utf8(pair).ok());
    match pair.as_deref().and_then(|pair| pair.split_once(':')) {
        Some((name, password)) => users.find(Some(name), password),
        None => users.initial_access(),
    }
}

#[cfg(test)]
mod tests {
    use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};

    use super::*;
    use crate::settings::{Credential, Secret, UserConfig};

    fn with_head<T>(fields: &str, inspect: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        with_host("here:9000", fields, inspect)
    }

    fn with_host<T>(host: &str, fields: &str, inspect: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        let text = format!("POST /publish/a HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        let mut decoder = RequestDecoder::default();
        let step = decoder.decode(&HttpLimits::default(), text.as_bytes()).expect("a head");
        match step.event {
            RequestEvent::Head(head) => inspect(&head),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_publish_rejection_counts_as_a_refusal() {
        assert!(Response::from(PublishRejection::new(Status::ServiceUnavailable, "no room")).is_refusal);
    }

    #[test]
    fn only_pages_of_the_same_host_and_port_may_publish() {
        for (fields, expected) in [
            ("", true),
            ("Origin: http://here:9000\r\n", true),
            ("Origin: https://HERE:9000\r\n", true),
            ("Origin: http://here\r\n", false),
            ("Origin: http://here:9001\r\n", false),
            ("Origin: http://evil.example\r\n", false),
            ("Origin: http://evil.example/here:9000\r\n", false),
            ("Origin: here:9000\r\n", false),
            ("Origin: null\r\n", false),
            ("Origin: \r\n", false),
        ] {
            assert_eq!(with_head(fields, is_same_origin), expected, "{fields}");
        }
    }

    #[test]
    fn a_host_name_is_distinguished_from_an_address() {
        for (host, expected) in [
            ("localhost", false),
            ("LocalHost:9000", false),
            ("127.0.0.1:9000", false),
            ("10.0.0.7", false),
            ("[::1]:9000", false),
            ("[::1]", false),
            ("evil.example", true),
            ("evil.example:9000", true),
            ("127.0.0.1.evil.example:80", true),
            ("localhost.evil.example", true),
        ] {
            assert_eq!(with_host(host, "", has_host_name), expected, "{host}");
        }
    }

    #[test]
    fn a_name_and_password_or_a_token_is_authenticated() {
        let secret = |text| Secret::new(text);
        let users = Users::new(vec![
            UserConfig::new("ann", Credential::Password(secret("a:b"))),
            UserConfig::new("gauge", Credential::Token(secret("t"))),
        ]);
        for (field, expected) in [
            (Some("Basic YW5uOmE6Yg=="), UserAccess::Everything),
            (Some("basic  YW5uOmE6Yg=="), UserAccess::Everything),
            (Some("Bearer t"), UserAccess::Everything),
            (Some("Basic YW5uOmE="), UserAccess::Unauthenticated),
            (Some("Basic ****"), UserAccess::Unauthenticated),
            (Some("Bearer a:b"), UserAccess::Unauthenticated),
            (Some("Digest t"), UserAccess::Unauthenticated),
            (Some("Bearer"), UserAccess::Unauthenticated),
            (Some(""), UserAccess::Unauthenticated),
            (None, UserAccess::Unauthenticated),
        ] {
            assert_eq!(authenticate(field.map(str::as_bytes), &users), expected, "{field:?}");
        }
        assert_eq!(authenticate(Some(b"Digest t"), &Users::default()), UserAccess::Everything);
    }

    #[test]
    fn conditions_are_forwarded_and_unknown_ones_are_rejected() {
        let check = |fields: &str, is_lines| with_head(fields, |head| conditions(head, is_lines));
        assert_eq!(check("X-Nats-Msg-Id: 1\r\n", false), Ok(Vec::new()));
        assert_eq!(
            check("nats-msg-id: a\r\nNats-Expected-Stream: s\r\n", false),
            Ok(b"NATS/1.0\r\nNats-Msg-Id: a\r\nNats-Expected-Stream: s\r\n\r\n".to_vec())
        );
        assert!(check("Nats-Expected-Stream: s\r\n", true).is_ok());
        for (fields, is_lines, expected) in [
            ("Nats-Msg-Id: a\r\n", true, "is about one message"),
            ("Nats-Expected-Last-Sequence: 1\r\n", true, "is about one message"),
            ("Nats-Expected-Last-Sequence: x\r\n", false, "is not a number"),
            ("Nats-Msg-Id: a\r\nNats-Msg-Id: b\r\n", false, "Nats-Msg-Id is given twice"),
            ("Nats-Rollup: all\r\n", false, "unknown header Nats-Rollup"),
        ] {
            let rejection = check(fields, is_lines).expect_err(fields);
            assert_eq!(rejection.status, Status::BadRequest);
            assert!(rejection.reason.contains(expected), "{rejection:?}");
        }
    }
}
