//! The JSON exchanged once per connection: the server's `INFO`, the client's `CONNECT`. Allocates, unlike the rest of
//! the codec.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use super::error::{NatsDecodeError, NatsFault};

/// A client's options. Missing and `null` fields have nats-server's defaults: verbose, pedantic, with echo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connect<'a> {
    /// Every operation is answered with `+OK`.
    #[serde(deserialize_with = "or_true")]
    pub verbose: bool,
    /// A publication to an invalid subject is answered with `-ERR`; otherwise it is dropped silently.
    #[serde(deserialize_with = "or_true")]
    pub pedantic: bool,
    /// The connection's own messages are delivered to its own subscriptions.
    #[serde(deserialize_with = "or_true")]
    pub echo: bool,
    /// The client supports headers.
    #[serde(deserialize_with = "or_false")]
    pub headers: bool,
    /// A request without responders is answered with status 503. Needs `headers`.
    #[serde(deserialize_with = "or_false")]
    pub no_responders: bool,
    /// The user name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Cow<'a, str>>,
    /// The password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass: Option<Cow<'a, str>>,
    /// A token instead of user and password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_token: Option<Cow<'a, str>>,
    /// The client library's language.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lang: Option<Cow<'a, str>>,
    /// The client library's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Cow<'a, str>>,
    /// The connection's name, set by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Cow<'a, str>>,
    /// 1: the client accepts an `INFO` later in the connection.
    #[serde(deserialize_with = "or_zero")]
    pub protocol: i64,
}

impl Default for Connect<'_> {
    fn default() -> Self {
        Self {
            verbose: true,
            pedantic: true,
            echo: true,
            headers: false,
            no_responders: false,
            user: None,
            pass: None,
            auth_token: None,
            lang: None,
            version: None,
            name: None,
            protocol: 0,
        }
    }
}

impl Connect<'_> {
    /// Parses the JSON of [`super::ClientEvent::Connect`].
    ///
    /// # Errors
    /// It is not a JSON object, or a field has the wrong type; answer with [`NatsDecodeError::text`] and close.
    pub fn parse(json: &[u8]) -> Result<Self, NatsDecodeError> {
        parse(json)
    }

    /// Appends `CONNECT` with these options.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode(out, b"CONNECT ", self);
    }
}

/// A server's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Info<'a> {
    /// A unique id of the server.
    #[serde(deserialize_with = "or_default")]
    pub server_id: Cow<'a, str>,
    /// The server's name, set by the operator.
    #[serde(deserialize_with = "or_default")]
    pub server_name: Cow<'a, str>,
    /// The nats-server version with the same features; clients compare it.
    #[serde(deserialize_with = "or_default")]
    pub version: Cow<'a, str>,
    /// 1: the server may send an `INFO` later in the connection.
    #[serde(deserialize_with = "or_zero")]
    pub proto: i64,
    /// The Go version of the server's build, or the name of another language.
    #[serde(deserialize_with = "or_default")]
    pub go: Cow<'a, str>,
    /// The listening address.
    #[serde(deserialize_with = "or_default")]
    pub host: Cow<'a, str>,
    /// The listening port.
    #[serde(deserialize_with = "or_default")]
    pub port: u16,
    /// The server supports headers.
    #[serde(deserialize_with = "or_false")]
    pub headers: bool,
    /// Most bytes of a message, headers included.
    #[serde(deserialize_with = "or_zero")]
    pub max_payload: i64,
    /// The server supports JetStream.
    #[serde(deserialize_with = "or_false", skip_serializing_if = "is_false")]
    pub jetstream: bool,
    /// `CONNECT` must carry credentials.
    #[serde(deserialize_with = "or_false", skip_serializing_if = "is_false")]
    pub auth_required: bool,
    /// The server requires TLS.
    #[serde(deserialize_with = "or_false", skip_serializing_if = "is_false")]
    pub tls_required: bool,
    /// The server's number for the connection.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Option::is_none")]
    pub client_id: Option<u64>,
    /// The client's address as seen by the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<Cow<'a, str>>,
    /// Lame duck mode: the server is about to stop, clients should connect elsewhere.
    #[serde(deserialize_with = "or_false", skip_serializing_if = "is_false")]
    pub ldm: bool,
    /// Further addresses for clients.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub connect_urls: Vec<String>,
}

impl Info<'_> {
    /// Parses the JSON of [`super::ServerEvent::Info`].
    ///
    /// # Errors
    /// It is not a JSON object, or a field has the wrong type.
    pub fn parse(json: &[u8]) -> Result<Self, NatsDecodeError> {
        parse(json)
    }

    /// Appends `INFO` with this description.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode(out, b"INFO ", self);
    }
}

fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, NatsDecodeError> {
    // serde also builds a structure from an array of its fields, which is not an object.
    if json.first() != Some(&b'{') {
        return Err(NatsDecodeError::line(NatsFault::Json, 0, json.first().copied()));
    }
    serde_json::from_slice(json).map_err(|error| {
        // Columns count from 1, and there is one line.
        let at = error.column().saturating_sub(1);
        NatsDecodeError::line(NatsFault::Json, at, None)
    })
}

fn encode<T: Serialize>(out: &mut Vec<u8>, operation: &[u8], value: &T) {
    let start = out.len();
    out.extend_from_slice(operation);
    // Writing to a vector cannot fail and the structures hold only text, numbers and booleans; should that change, an
    // empty object is still valid.
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start + operation.len());
        out.extend_from_slice(b"{}");
    }
    out.extend_from_slice(b"\r\n");
}

fn or_true<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(true))
}

fn or_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(false))
}

fn or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(0))
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
