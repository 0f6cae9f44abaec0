//! The opening handshake (RFC 6455 §4), as fields of HTTP requests and responses. Extensions are declined: the response
//! names none.

use core::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1_smol::Sha1;

use crate::http1::{BadField, Date, Method, RequestHead, ResponseEncoder, ResponseHead, Status};
use crate::http1::{BodyLength, Fields, HttpVersion};

/// Bytes of the base64 text of a client's 16-byte nonce.
const KEY_SIZE: usize = 24;
const NONCE_SIZE: usize = 16;
/// Bytes of the base64 text of a SHA-1 digest.
const ACCEPT_SIZE: usize = 28;
/// RFC 6455 §1.3.
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const VERSION: &str = "13";

/// The value of `Sec-WebSocket-Accept` for a key (RFC 6455 §4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptValue([u8; ACCEPT_SIZE]);

impl AcceptValue {
    fn of_key(key: &[u8]) -> Self {
        let mut hash = Sha1::new();
        hash.update(key);
        hash.update(ACCEPT_GUID);
        let mut text = [0; ACCEPT_SIZE];
        let written = STANDARD.encode_slice(hash.digest().bytes(), &mut text);
        debug_assert_eq!(written, Ok(ACCEPT_SIZE), "20 bytes are 28 characters");
        Self(text)
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Base64 is ASCII.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $status:ident, $expected:literal;)*) => {
        /// The rule that a client's handshake breaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HandshakeFault { $($(#[$doc])* $name,)* }

        impl HandshakeFault {
            /// The status of the response.
            #[must_use]
            pub const fn status(self) -> Status {
                match self { $(Self::$name => Status::$status,)* }
            }

            /// The expected input, to follow the word "expected".
            #[must_use]
            pub const fn expected(self) -> &'static str {
                match self { $(Self::$name => $expected,)* }
            }
        }
    };
}

faults! {
    /// The method is not GET.
    Method: MethodNotAllowed, "the method GET";
    /// The version is below HTTP/1.1.
    HttpVersion: BadRequest, "HTTP/1.1";
    /// The request has a body.
    Body: BadRequest, "a request without a body";
    /// `Upgrade` does not name `websocket`, or `Connection` does not name `Upgrade`.
    Upgrade: UpgradeRequired, "the fields `Upgrade: websocket` and `Connection: Upgrade`";
    /// `Sec-WebSocket-Version` is absent or not 13.
    Version: UpgradeRequired, "the field `Sec-WebSocket-Version: 13`";
    /// `Sec-WebSocket-Key` is absent, repeated, or not the base64 text of 16 bytes.
    Key: BadRequest, "one field `Sec-WebSocket-Key` with 16 bytes in base64";
}

impl HandshakeFault {
    /// Further fields of the response: those that the status requires (RFC 6455 §4.2.2, RFC 9110 §15.5.22, §15.5.6).
    #[must_use]
    pub const fn fields(self) -> &'static [(&'static str, &'static str)] {
        match self.status() {
            Status::UpgradeRequired => {
                &[("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", VERSION)]
            }
            Status::MethodNotAllowed => &[("Allow", "GET")],
            _ => &[],
        }
    }
}

/// `426 Upgrade Required: expected the field …`
impl fmt::Display for HandshakeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status();
        write!(f, "{} {}: expected {}", status.code(), status.reason(), self.expected())
    }
}

impl core::error::Error for HandshakeFault {}

/// A valid handshake of a client.
///
/// ```
/// use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};
/// use stilling_wire::websocket::UpgradeRequest;
///
/// let request = b"GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
///     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
/// let step = RequestDecoder::default().decode(&HttpLimits::default(), request)?;
/// let RequestEvent::Head(head) = step.event else { panic!("the request is complete") };
/// assert!(UpgradeRequest::is_requested(&head));
/// let upgrade = UpgradeRequest::check(&head)?;
/// assert_eq!(upgrade.accept_value().as_str(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
/// let mut response = Vec::new();
/// upgrade.encode_response(&mut response, None, None)?;
/// assert!(response.starts_with(b"HTTP/1.1 101 "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UpgradeRequest<'a> {
    head: RequestHead<'a>,
    key: &'a [u8],
}

impl<'a> UpgradeRequest<'a> {
    /// Whether a request asks for a WebSocket: its `Upgrade` names `websocket` and its `Connection` names `Upgrade`.
    #[must_use]
    pub fn is_requested(head: &RequestHead<'_>) -> bool {
        // The head has an upgrade only if `Connection` names it.
        head.upgrade.is_some() && list_items(head.headers(), "Upgrade").any(is_websocket)
    }

    /// Validates the handshake (RFC 6455 §4.2.1). `Origin` and the target are the caller's.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check(head: &RequestHead<'a>) -> Result<Self, HandshakeFault> {
        if head.method != Method::Get {
            return Err(HandshakeFault::Method);
        }
        if head.version != HttpVersion::Http11 {
            return Err(HandshakeFault::HttpVersion);
        }
        if head.body != BodyLength::None {
            return Err(HandshakeFault::Body);
        }
        if !Self::is_requested(head) {
            return Err(HandshakeFault::Upgrade);
        }
        if only_value(head.headers(), "Sec-WebSocket-Version") != Some(VERSION.as_bytes()) {
            return Err(HandshakeFault::Version);
        }
        let key = only_value(head.headers(), "Sec-WebSocket-Key").filter(|key| is_key(key));
        key.map(|key| Self { head: *head, key }).ok_or(HandshakeFault::Key)
    }

    /// Returns the value of `Sec-WebSocket-Accept`.
    #[must_use]
    pub fn accept_value(&self) -> AcceptValue {
        AcceptValue::of_key(self.key)
    }

    /// Returns the subprotocols that the client offers, in its order of preference.
    pub fn protocols(&self) -> impl Iterator<Item = &'a [u8]> {
        list_items(self.head.headers(), "Sec-WebSocket-Protocol").filter(|item| !item.is_empty())
    }

    /// Returns the client's first subprotocol that is supported; names are case-sensitive.
    #[must_use]
    pub fn choose_protocol<'s>(&self, supported: &[&'s str]) -> Option<&'s str> {
        let find = |offered: &[u8]| supported.iter().find(|name| name.as_bytes() == offered).copied();
        self.protocols().find_map(find)
    }

    /// Appends the response that accepts the connection, with the chosen subprotocol.
    ///
    /// # Errors
    /// [`BadField`] if `protocol` would break the framing; `out` is then unchanged.
    pub fn encode_response(
        &self,
        out: &mut Vec<u8>,
        protocol: Option<&str>,
        date: Option<&Date>,
    ) -> Result<(), BadField> {
        let accept = self.accept_value();
        let fields = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", accept.as_str()),
            ("Sec-WebSocket-Protocol", protocol.unwrap_or_default()),
        ];
        let extra = if protocol.is_some() { &fields[..] } else { &fields[..3] };
        let date = date.map(Date::as_bytes);
        ResponseEncoder { date, extra, ..ResponseEncoder::new(Status::SwitchingProtocols) }.encode(out)
    }
}

/// A client's handshake (RFC 6455 §4.1). Its parts are written unchanged: they come from the caller's own code.
#[derive(Clone, Copy, Debug)]
pub struct ClientHandshake<'a> {
    /// The value of `Host`.
    pub host: &'a str,
    /// The path and query.
    pub target: &'a str,
    /// Random bytes, new for each connection.
    pub nonce: [u8; NONCE_SIZE],
    /// The offered subprotocols, in order of preference.
    pub protocols: &'a [&'a str],
    /// Further fields, such as `Authorization`.
    pub extra: &'a [(&'a str, &'a str)],
}

impl<'a> ClientHandshake<'a> {
    /// Appends the request to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut push = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
        push(&[b"GET ", self.target.as_bytes(), b" HTTP/1.1\r\nHost: ", self.host.as_bytes()]);
        push(&[b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: ", &self.key()]);
        push(&[b"\r\nSec-WebSocket-Version: ", VERSION.as_bytes(), b"\r\n"]);
        for (number, protocol) in self.protocols.iter().enumerate() {
            let before: &[u8] = if number == 0 { b"Sec-WebSocket-Protocol: " } else { b", " };
            push(&[before, protocol.as_bytes()]);
        }
        if !self.protocols.is_empty() {
            push(&[b"\r\n"]);
        }
        for (name, value) in self.extra {
            push(&[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        push(&[b"\r\n"]);
    }

    /// Validates the response and returns the chosen subprotocol.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check_response(&self, head: &ResponseHead<'_>) -> Result<Option<&'a str>, HandshakeResponseFault> {
        if head.status != Status::SwitchingProtocols.code() {
            return Err(HandshakeResponseFault::Status(head.status));
        }
        let is_upgrade = |item: &[u8]| item.eq_ignore_ascii_case(b"upgrade");
        if !list_items(head.headers(), "Upgrade").any(is_websocket)
            || !list_items(head.headers(), "Connection").any(is_upgrade)
        {
            return Err(HandshakeResponseFault::Upgrade);
        }
        let accept = AcceptValue::of_key(&self.key());
        if only_value(head.headers(), "Sec-WebSocket-Accept") != Some(accept.as_str().as_bytes()) {
            return Err(HandshakeResponseFault::Accept);
        }
        if head.header("Sec-WebSocket-Extensions").is_some() {
            return Err(HandshakeResponseFault::Extension);
        }
        let Some(chosen) = head.header("Sec-WebSocket-Protocol") else { return Ok(None) };
        let offered = self.protocols.iter().find(|offered| offered.as_bytes() == chosen).copied();
        offered.map(Some).ok_or(HandshakeResponseFault::Protocol)
    }

    fn key(&self) -> [u8; KEY_SIZE] {
        let mut key = [0; KEY_SIZE];
        let written = STANDARD.encode_slice(self.nonce, &mut key);
        debug_assert_eq!(written, Ok(KEY_SIZE), "16 bytes are 24 characters");
        key
    }
}

/// The rule that a server's response to a handshake breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeResponseFault {
    /// The status is not 101.
    Status(u16),
    /// `Upgrade` does not name `websocket`, or `Connection` does not name `Upgrade`.
    Upgrade,
    /// `Sec-WebSocket-Accept` does not belong to the key.
    Accept,
    /// The server chose an extension, and none was offered.
    Extension,
    /// The server chose a subprotocol that was not offered.
    Protocol,
}

impl fmt::Display for HandshakeResponseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "expected status 101 of a WebSocket handshake, found {status}"),
            Self::Upgrade => {
                f.write_str("expected the fields `Upgrade: websocket` and `Connection: Upgrade`")
            }
            Self::Accept => f.write_str("expected the `Sec-WebSocket-Accept` of the request's key"),
            Self::Extension => f.write_str("expected no extension: none was offered"),
            Self::Protocol => f.write_str("expected a subprotocol that was offered"),
        }
    }
}

impl core::error::Error for HandshakeResponseFault {}

/// The items of all fields `name`: lists separated by commas (RFC 9110 §5.6.1).
fn list_items<'a>(fields: Fields<'a>, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let values = fields.filter(move |(other, _)| other.eq_ignore_ascii_case(name.as_bytes()));
    values.flat_map(|(_, value)| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii)
}

fn only_value<'a>(fields: Fields<'a>, name: &str) -> Option<&'a [u8]> {
    let mut values = fields.filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()));
    values.next().map(|(_, value)| value).filter(|_| values.next().is_none())
}

fn is_websocket(item: &[u8]) -> bool {
    item.eq_ignore_ascii_case(b"websocket")
}

fn is_key(text: &[u8]) -> bool {
    // The decoder requires room for whole groups of three bytes.
    let mut nonce = [0; KEY_SIZE / 4 * 3];
    text.len() == KEY_SIZE && STANDARD.decode_slice(text, &mut nonce) == Ok(NONCE_SIZE)
}
