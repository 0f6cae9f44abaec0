//! API requests in JSON: accepted forms and errors.
//!
//! A request and its nested structures must be JSON objects. serde also reads a struct from an array, so requests are
//! parsed as objects first.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Error of an API request: status code, nats-server's error code, description.
pub(super) struct ApiError(pub(super) u16, pub(super) u32, pub(super) String);

impl ApiError {
    pub(super) fn json(&self) -> Value {
        json!({ "code": self.0, "err_code": self.1, "description": self.2 })
    }
}

pub(super) fn bad_request(what: &str) -> ApiError {
    ApiError(400, 10003, what.to_owned())
}

pub(super) fn object(payload: &[u8]) -> Result<Map<String, Value>, ApiError> {
    serde_json::from_slice(payload).map_err(|error| bad_request(&format!("expected a JSON object: {error}")))
}

pub(super) fn field<'a>(
    object: &'a Map<String, Value>,
    name: &str,
) -> Result<&'a Map<String, Value>, ApiError> {
    let found = object.get(name).and_then(Value::as_object);
    found.ok_or_else(|| bad_request(&format!("expected an object as {name}")))
}

pub(super) fn fields<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(object)).map_err(|error| bad_request(&error.to_string()))
}

/// Returns whether a value requests nothing: clients send unused settings as such values.
pub(super) fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        // -1 means "unbounded".
        Value::Number(number) => number.as_f64().is_some_and(|number| number == 0.0 || number == -1.0),
        Value::String(text) => text.is_empty() || text == NO_POINT_IN_TIME,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.values().all(is_unset),
    }
}

/// Zero time of Go clients: not set.
const NO_POINT_IN_TIME: &str = "0001-01-01T00:00:00Z";

/// Returns the first field of an object that is set and not in `known`.
pub(super) fn unknown_field<'a>(object: &'a Map<String, Value>, known: &[&str]) -> Option<&'a str> {
    let unknown = object.iter().find(|(name, value)| !known.contains(&name.as_str()) && !is_unset(value));
    unknown.map(|(name, _)| name.as_str())
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct MessageGet {
    pub(super) seq: u64,
    pub(super) last_by_subj: Option<String>,
    pub(super) next_by_subj: Option<String>,
}

impl MessageGet {
    /// Fields that are supported, or refused with a specific error.
    pub(super) const KNOWN: [&str; 3] = ["seq", "last_by_subj", "next_by_subj"];
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PageRequest {
    pub(super) offset: usize,
    /// Restricts the list to streams with a subject that overlaps this filter.
    pub(super) subject: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct NextRequest {
    pub(super) batch: Option<u32>,
    pub(super) expires: u64,
    pub(super) no_wait: bool,
    pub(super) max_bytes: usize,
    pub(super) idle_heartbeat: u64,
}

impl NextRequest {
    pub(super) const KNOWN: [&str; 5] = ["batch", "expires", "no_wait", "max_bytes", "idle_heartbeat"];
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ConsumerConfig {
    pub(super) name: Option<String>,
    pub(super) durable_name: Option<String>,
    pub(super) deliver_subject: Option<String>,
    pub(super) deliver_policy: Option<String>,
    pub(super) opt_start_seq: u64,
    pub(super) opt_start_time: Option<Timestamp>,
    pub(super) ack_policy: Option<String>,
    pub(super) replay_policy: Option<String>,
    pub(super) filter_subject: Option<String>,
    pub(super) filter_subjects: Option<Vec<String>>,
    pub(super) idle_heartbeat: u64,
    pub(super) flow_control: bool,
    pub(super) headers_only: bool,
    pub(super) inactive_threshold: u64,
    pub(super) max_waiting: i64,
    pub(super) num_replicas: u64,
    pub(super) priority_policy: Option<String>,
}

impl ConsumerConfig {
    /// Fields that are supported, refused with a specific error, or without meaning for a memory consumer without
    /// acknowledgements.
    pub(super) const KNOWN: [&str; 24] = [
        "name",
        "durable_name",
        "description",
        "metadata",
        "deliver_subject",
        "deliver_policy",
        "opt_start_seq",
        "opt_start_time",
        "ack_policy",
        "ack_wait",
        "max_ack_pending",
        "max_deliver",
        "replay_policy",
        "filter_subject",
        "filter_subjects",
        "idle_heartbeat",
        "flow_control",
        "headers_only",
        "inactive_threshold",
        "max_waiting",
        "num_replicas",
        "mem_storage",
        "priority_policy",
        "direct",
    ];
}
