//! Messages of a client: `{"publish":{"subject":…,"data"|"text"|"base64":…,"id":…,"ref":…}}`.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::limits::REFERENCE_SIZE_MAX;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientMessage<'a> {
    #[serde(borrow)]
    publish: PublishFields<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishFields<'a> {
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    base64: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "ref")]
    reference: Option<&'a RawValue>,
}

/// Reads a member that is there, `null` included.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&'de RawValue>::deserialize(deserializer).map(Some)
}

/// A message to publish.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientPublication<'a> {
    pub(super) subject: Cow<'a, str>,
    pub(super) payload: Cow<'a, [u8]>,
    /// Message id for de-duplication.
    pub(super) id: Option<Cow<'a, str>>,
    /// A JSON string or number that the answer repeats; empty if there is none.
    pub(super) reference: &'a str,
}

/// Why a message is refused, and the reference of its publication as far as known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadClientMessage<'a> {
    pub(super) reference: &'a str,
    pub(super) reason: Cow<'static, str>,
}

impl<'a> ClientPublication<'a> {
    pub(super) fn parse(text: &'a [u8]) -> Result<ClientPublication<'a>, BadClientMessage<'a>> {
        let refuse = |reference, reason: Cow<'static, str>| Err(BadClientMessage { reference, reason });
        let fields = match serde_json::from_slice::<ClientMessage<'a>>(text) {
            Ok(message) => message.publish,
            Err(error) => {
                return refuse("", format!("expected {{\"publish\":{{…}}}}: {error}").into());
            }
        };
        let reference = fields.reference.map_or("", RawValue::get);
        let is_scalar = !matches!(reference.as_bytes().first(), Some(b'{' | b'['));
        if reference.len() > REFERENCE_SIZE_MAX || !is_scalar {
            return refuse("", "ref is not a short string or number".into());
        }
        let payload: Cow<'a, [u8]> = match (fields.data, fields.text, fields.base64) {
            (Some(data), None, None) => data.get().as_bytes().into(),
            (None, Some(Cow::Borrowed(text)), None) => text.as_bytes().into(),
            (None, Some(Cow::Owned(text)), None) => text.into_bytes().into(),
            (None, None, Some(text)) => match STANDARD.decode(text.as_bytes()) {
                Ok(bytes) => bytes.into(),
                Err(error) => return refuse(reference, format!("invalid base64: {error}").into()),
            },
            _ => return refuse(reference, "expected one of data, text and base64".into()),
        };
        Ok(ClientPublication { subject: fields.subject, payload, id: fields.id, reference })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subject, payload, id and reference.
    type Parsed = (String, Vec<u8>, Option<String>, String);

    fn parsed(text: &str) -> Result<Parsed, (String, String)> {
        match ClientPublication::parse(text.as_bytes()) {
            Ok(ClientPublication { subject, payload, id, reference }) => Ok((
                subject.into_owned(),
                payload.into_owned(),
                id.map(Cow::into_owned),
                reference.to_owned(),
            )),
            Err(BadClientMessage { reference, reason }) => Err((reference.to_owned(), reason.into_owned())),
        }
    }

    #[test]
    fn a_payload_is_json_text_or_base64() {
        for (fields, payload) in [
            (r#""data":{"price": 11}"#, r#"{"price": 11}"#),
            (r#""data":null"#, "null"),
            (r#""text":"a\nb""#, "a\nb"),
            (r#""text":"plain""#, "plain"),
            (r#""base64":"aGVsbG8=""#, "hello"),
        ] {
            let message = format!(r#"{{"publish":{{"subject":"a.b",{fields},"id":"x","ref":7}}}}"#);
            let expected =
                ("a.b".to_owned(), payload.as_bytes().to_vec(), Some("x".to_owned()), "7".to_owned());
            assert_eq!(parsed(&message), Ok(expected), "{fields}");
        }
    }

    #[test]
    fn what_is_no_publication_is_refused_with_its_reference() {
        let long = format!(r#"{{"publish":{{"subject":"a","text":"","ref":"{}"}}}}"#, "x".repeat(200));
        for (message, reference, reason) in [
            ("", "", "expected {\"publish\""),
            ("[]", "", "expected {\"publish\""),
            (r#"{"publish":{}}"#, "", "missing field `subject`"),
            (r#"{"publish":{"subject":"a","ref":"r"}}"#, "\"r\"", "expected one of data"),
            (r#"{"publish":{"subject":"a","ref":"r","text":"","data":1}}"#, "\"r\"", "expected one of data"),
            (r#"{"publish":{"subject":"a","ref":"r","base64":"*"}}"#, "\"r\"", "invalid base64"),
            (r#"{"publish":{"subject":"a","ref":[1],"text":""}}"#, "", "ref is not"),
            (r#"{"publish":{"subject":"a","text":"","retain":true}}"#, "", "unknown field `retain`"),
            (r#"{"subscribe":{"filter":"a"}}"#, "", "unknown field `subscribe`"),
            (long.as_str(), "", "ref is not"),
        ] {
            let (given, text) = parsed(message).expect_err(message);
            assert!(given == reference && text.contains(reason), "{message}: {given} {text}");
        }
    }
}
