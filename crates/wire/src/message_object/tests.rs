//! Objects compared with their meaning in another JSON parser.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{GapObject, JSON_DEPTH_MAX, MessageObject, is_json};

fn encoded(subject: &str, payload: &[u8]) -> String {
    let mut out = Vec::new();
    MessageObject { sequence: 17, subject, time_ns: 5, payload }.encode(&mut out);
    String::from_utf8(out).expect("an object is UTF-8")
}

const HEAD: &str = r#"{"seq":17,"subject":"a","time":"1970-01-01T00:00:00.000000005Z","#;

/// Row 2.4: the same bytes for all subscribers, whose payload is not changed where the format allows it.
#[test]
fn a_payload_is_data_if_it_is_json_else_text_else_base64() {
    let table: [(&[u8], &str); 13] = [
        (b"{\"a\":[1,2.50]}", r#""data":{"a":[1,2.50]}}"#),
        (b"5", r#""data":5}"#),
        (b"1e999", r#""data":1e999}"#),
        (b" \"x\\ny\" ", r#""data": "x\ny" }"#),
        (b"[1,\r\n2]\n", r#""data":[1,  2] }"#),
        (b"null", r#""data":null}"#),
        (b"", r#""text":""}"#),
        (b"hello", r#""text":"hello"}"#),
        (b"a\"b\\c\n\r\t\x00\x1f\x7f", "\"text\":\"a\\\"b\\\\c\\n\\r\\t\\u0000\\u001f\x7f\"}"),
        ("\u{fc}\u{2028}𐀀".as_bytes(), "\"text\":\"\u{fc}\u{2028}𐀀\"}"),
        (b"[1,]", r#""text":"[1,]"}"#),
        (b"\xff", r#""base64":"/w=="}"#),
        (b"\"\xfe\xd6\"", r#""base64":"Iv7WIg=="}"#),
    ];
    for (payload, expected) in table {
        assert_eq!(encoded("a", payload), format!("{HEAD}{expected}"), "{}", payload.escape_ascii());
    }
}

#[test]
fn the_other_forms_of_a_message_and_a_gap() {
    let message = MessageObject { sequence: 0x0102_0304_0506_0708, subject: "a", time_ns: 0, payload: b"x" };
    let mut out = Vec::new();
    message.encode_binary(&mut out);
    assert_eq!(out, b"\x01\x02\x03\x04\x05\x06\x07\x08x");
    out.clear();
    MessageObject { sequence: 0, ..message }.encode(&mut out);
    assert_eq!(out, br#"{"subject":"a","text":"x"}"#, "a plain message has neither sequence nor time");
    out.clear();
    GapObject { first: 5, last: 9, cause: "skipped" }.encode(&mut out);
    assert_eq!(out, br#"{"gap":{"first":5,"last":9,"cause":"skipped"}}"#);
}

#[test]
fn nesting_is_json_up_to_the_maximum() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let depth = JSON_DEPTH_MAX as usize;
    assert!(is_json(&nested(depth)));
    assert!(!is_json(&nested(depth + 1)));
    assert!(!is_json(&"[".repeat(1_000_000)));
    let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert!(is_json(&objects(depth)));
    assert!(!is_json(&objects(depth + 1)));
}

/// Pieces that bring the scanner into every state.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"a\"",
    "\"a\":",
    "\\",
    "\\n",
    "\\u00e",
    "\\u00e9",
    "\\ud800",
    "\\x",
    "a",
    "\u{e9}",
    "0",
    "1",
    "-",
    "+",
    ".",
    "e",
    "E5",
    "1.5",
    "-0",
    "00",
    "1e+5",
    "true",
    "false",
    "null",
    "tru",
    " ",
    "\n",
    "\t",
    "\r",
    "\0",
    "\u{1f}",
    "\u{7f}",
    "[1,2]",
    "{\"a\":1}",
    "{}",
    "[]",
    "\u{feff}",
    "abcdefgh\"",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn json_is_what_another_parser_calls_json(
        pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..10),
    ) {
        let text = pieces.concat();
        prop_assert_eq!(is_json(&text), serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{}", text);
    }

    #[test]
    fn an_object_is_one_line_and_means_the_message(
        subject in "\\PC{0,12}",
        sequence: u64,
        time_ns: u64,
        payload in prop_oneof![
            proptest::collection::vec(proptest::sample::select(PIECES), 0..8).prop_map(|all| all.concat().into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..40),
        ],
    ) {
        let mut out = Vec::new();
        MessageObject { sequence, subject: &subject, time_ns, payload: &payload }.encode(&mut out);
        prop_assert!(!out.iter().any(|byte| matches!(byte, b'\r' | b'\n')));
        // A number may be too large for the other parser's tree.
        let Ok(object) = serde_json::from_slice::<Value>(&out) else {
            prop_assert!(serde_json::from_slice::<IgnoredAny>(&out).is_ok());
            return Ok(());
        };
        prop_assert_eq!(object["seq"].as_u64().unwrap_or(0), sequence);
        prop_assert_eq!(object["subject"].as_str(), Some(&*subject));
        if let Some(text) = object["text"].as_str() {
            prop_assert_eq!(text.as_bytes(), &payload[..]);
            prop_assert!(serde_json::from_slice::<Value>(&payload).is_err());
        } else if let Some(base64) = object["base64"].as_str() {
            prop_assert_eq!(STANDARD.decode(base64), Ok(payload));
        } else {
            prop_assert_eq!(Some(object["data"].clone()), serde_json::from_slice(&payload).ok());
        }
    }
}
