//! Questions as they come, in JSON: which forms they may have, and what is told of those that have another.
//!
//! A question is an object, and so is what it holds of more than one field. serde reads a struct from an array too, so an
//! object is asked for first: what is made of a question later may rely on being one.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// What is wrong with a question: the code, the number that nats-server gives it, and words.
pub(super) struct Wrong(pub(super) u16, pub(super) u32, pub(super) String);

impl Wrong {
    pub(super) fn json(&self) -> Value {
        json!({ "code": self.0, "err_code": self.1, "description": self.2 })
    }
}

pub(super) fn bad_request(what: &str) -> Wrong {
    Wrong(400, 10003, what.to_owned())
}

/// The object that a question is.
pub(super) fn object(payload: &[u8]) -> Result<Map<String, Value>, Wrong> {
    serde_json::from_slice(payload).map_err(|error| bad_request(&format!("expected a JSON object: {error}")))
}

/// The object below `name`.
pub(super) fn field<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a Map<String, Value>, Wrong> {
    let found = object.get(name).and_then(Value::as_object);
    found.ok_or_else(|| bad_request(&format!("expected an object as {name}")))
}

/// What an object says.
pub(super) fn fields<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, Wrong> {
    serde_json::from_value(Value::Object(object)).map_err(|error| bad_request(&error.to_string()))
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct MessageGet {
    pub(super) seq: u64,
    pub(super) last_by_subj: Option<String>,
    pub(super) next_by_subj: Option<String>,
}

/// Which page of a list is wanted.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Page {
    pub(super) offset: usize,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Next {
    pub(super) batch: Option<u32>,
    pub(super) expires: u64,
    pub(super) no_wait: bool,
    pub(super) max_bytes: usize,
    pub(super) idle_heartbeat: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ConsumerConfig {
    pub(super) name: Option<String>,
    pub(super) durable_name: Option<String>,
    pub(super) deliver_subject: Option<String>,
    pub(super) deliver_group: Option<String>,
    pub(super) deliver_policy: String,
    pub(super) opt_start_seq: u64,
    pub(super) opt_start_time: Option<Timestamp>,
    pub(super) ack_policy: String,
    pub(super) filter_subject: Option<String>,
    pub(super) filter_subjects: Vec<String>,
    pub(super) idle_heartbeat: u64,
    pub(super) flow_control: bool,
    pub(super) headers_only: bool,
    pub(super) inactive_threshold: u64,
}
