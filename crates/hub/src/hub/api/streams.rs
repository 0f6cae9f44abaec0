//! Information about streams, and answers to requests that create or change them: the server's configuration defines
//! streams.

use serde_json::{Map, Value, json};

use super::api_requests::{ApiError, PageRequest, fields, is_unset, object, unknown_field};
use super::{NO_TIME, no_stream, unsupported};
use crate::hub::{Hub, ShardSenders, UnixNanos};
use crate::limits::{STREAM_NAMES_PER_PAGE, STREAMS_PER_PAGE};
use crate::registrations::{checked, overlap};
use crate::storage::Storage;
use crate::stream::Durability;
use crate::time::rfc3339;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    pub(super) fn account(&self) -> Value {
        let used = |is_on_disk: bool| -> u64 {
            let all = self.streams.iter();
            let of = all.filter(|stream| (stream.config.durability == Durability::Disk) == is_on_disk);
            of.map(|stream| stream.size_and_times().0).sum()
        };
        json!({
            "memory": used(false), "storage": used(true), "reserved_memory": 0, "reserved_storage": 0,
            "streams": self.streams.len(), "consumers": self.consumers.table.len(),
            "limits": {
                "max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1,
                "max_ack_pending": -1, "memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1,
                "max_bytes_required": false,
            },
            "api": { "total": 0, "errors": 0 },
        })
    }

    fn streams_of(&self, page: &PageRequest) -> Vec<usize> {
        let takes = |subjects: &[String]| {
            let Some(wanted) = page.subject.as_ref().filter(|wanted| !wanted.is_empty()) else { return true };
            checked(wanted.as_bytes()).is_some()
                && subjects.iter().any(|one| overlap(one.as_bytes(), wanted.as_bytes()))
        };
        (0..self.streams.len()).filter(|&number| takes(&self.streams[number].config.subjects)).collect()
    }

    pub(super) fn stream_names(&self, payload: &[u8]) -> Result<Value, ApiError> {
        let page = page(payload)?;
        let all = self.streams_of(&page);
        let listed = all.iter().skip(page.offset).take(STREAM_NAMES_PER_PAGE);
        let names: Vec<&str> = listed.map(|&number| self.streams[number].config.name.as_str()).collect();
        let (total, limit) = (all.len(), STREAM_NAMES_PER_PAGE);
        Ok(json!({ "total": total, "offset": page.offset, "limit": limit, "streams": names }))
    }

    pub(super) fn stream_list(&self, payload: &[u8], now_ns: UnixNanos) -> Result<Value, ApiError> {
        let page = page(payload)?;
        let is_open = |number: &usize| self.streams[*number].closed.is_none();
        let (open, closed): (Vec<usize>, Vec<usize>) = self.streams_of(&page).into_iter().partition(is_open);
        // Clients request further pages until they have this many streams, so closed ones do not count.
        let total = open.len();
        let listed = open.into_iter().skip(page.offset).take(STREAMS_PER_PAGE);
        let streams: Vec<Value> = listed.map(|number| self.describe_stream(number, now_ns)).collect();
        let limit = STREAMS_PER_PAGE;
        let mut list = json!({ "total": total, "offset": page.offset, "limit": limit, "streams": streams });
        if !closed.is_empty() {
            // nats-server lists streams with unknown state under this name.
            let names = closed.into_iter().map(|number| self.streams[number].config.name.as_str());
            list["missing"] = names.collect();
        }
        Ok(list)
    }

    pub(super) fn stream_info(
        &self,
        name: &str,
        payload: &[u8],
        now_ns: UnixNanos,
    ) -> Result<Value, ApiError> {
        let number = self.open_stream(name)?;
        if !is_empty(payload) {
            // Streams delete no records in the middle, so the requested details are always empty.
            if let Some(setting) = unknown_field(&object(payload)?, &["deleted_details", "offset"]) {
                return Err(unsupported(setting));
            }
        }
        Ok(self.describe_stream(number, now_ns))
    }

    /// Succeeds if the stream exists with the requested configuration.
    pub(super) fn stream_create(
        &self,
        name: &str,
        payload: &[u8],
        now_ns: UnixNanos,
    ) -> Result<Value, ApiError> {
        let Some(number) = self.streams.named(name) else { return Err(configured()) };
        self.stream_as_configured(number, payload, now_ns)
    }

    /// As [`stream_create`](Self::stream_create), for a stream that must exist.
    pub(super) fn stream_update(
        &self,
        name: &str,
        payload: &[u8],
        now_ns: UnixNanos,
    ) -> Result<Value, ApiError> {
        let number = self.streams.named(name).ok_or_else(no_stream)?;
        self.stream_as_configured(number, payload, now_ns)
    }

    /// Returns the error for deleting or purging a stream.
    pub(super) fn unchangeable(&self, name: &str) -> ApiError {
        if self.streams.named(name).is_none() { no_stream() } else { configured() }
    }

    fn stream_as_configured(
        &self,
        number: usize,
        payload: &[u8],
        now_ns: UnixNanos,
    ) -> Result<Value, ApiError> {
        let wanted = object(payload)?;
        let config = self.stream_config(number);
        if let Some(setting) = differing(&wanted, &config) {
            let name = &self.streams[number].config.name;
            let description = format!("the stream {name} is not configured with {setting}: {CONFIGURED}");
            return Err(ApiError(400, 10052, description));
        }
        self.stream_info(&self.streams[number].config.name, b"", now_ns)
    }

    fn describe_stream(&self, number: usize, now_ns: UnixNanos) -> Value {
        let stream = &self.streams[number];
        let first = if stream.config.durability == Durability::None { stream.next } else { stream.first };
        let messages = (stream.visible + 1).saturating_sub(first);
        let (bytes, first_ns, last_ns) = stream.size_and_times();
        let known = |time_ns: Option<UnixNanos>| time_ns.map_or_else(|| NO_TIME.to_owned(), rfc3339);
        // Clients use this to detect a new stream of the same name. A memory stream is created with the server's start.
        let created = rfc3339(stream.created_ns);
        json!({
            "config": self.stream_config(number),
            "created": created,
            "ts": rfc3339(now_ns),
            "state": {
                "messages": messages, "bytes": bytes,
                "first_seq": first, "first_ts": known(first_ns),
                "last_seq": stream.visible, "last_ts": known(last_ns),
                "consumer_count": self.consumers.table.count_of_stream(number),
            },
        })
    }

    fn stream_config(&self, number: usize) -> Value {
        let config = &self.streams[number].config;
        let retention = config.retention.for_journal();
        let bound = |bound: Option<u64>| bound.and_then(|bound| i64::try_from(bound).ok()).unwrap_or(-1);
        let storage = if config.durability == Durability::Disk { "file" } else { "memory" };
        json!({
            "name": config.name, "subjects": config.subjects,
            "retention": "limits", "max_consumers": -1, "max_msgs": bound(retention.records),
            "max_bytes": bound(retention.bytes_max), "max_age": retention.age_ns.unwrap_or(0),
            "max_msgs_per_subject": -1, "max_msg_size": i32::try_from(config.message_size_max).unwrap_or(-1),
            "duplicate_window": config.dedup_time_ns(), "discard": "old", "storage": storage,
            "num_replicas": 1, "allow_direct": true, "sealed": false, "compression": "none",
            "deny_delete": true, "deny_purge": true, "allow_rollup_hdrs": false,
        })
    }
}

const CONFIGURED: &str = "streams are defined in the configuration of this server";

fn configured() -> ApiError {
    ApiError(403, 10052, CONFIGURED.to_owned())
}

/// Returns whether a request has no options; some clients send `null`.
fn is_empty(payload: &[u8]) -> bool {
    matches!(payload, b"" | b"null")
}

fn page(payload: &[u8]) -> Result<PageRequest, ApiError> {
    if is_empty(payload) { Ok(PageRequest::default()) } else { object(payload).and_then(fields) }
}

/// Returns the first requested setting that differs from the stream's configuration. Unset settings are ignored; the
/// order of subjects is too.
fn differing(wanted: &Map<String, Value>, config: &Value) -> Option<String> {
    let texts = |value: &Value| {
        let mut texts: Vec<String> =
            value.as_array()?.iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect();
        texts.sort();
        Some(texts)
    };
    let is_same = |name: &str, value: &Value| {
        let is = &config[name];
        match name {
            "subjects" => texts(is) == texts(value),
            // Set by client libraries.
            "metadata" => {
                value.as_object().is_some_and(|notes| notes.keys().all(|name| name.starts_with("_nats.")))
            }
            "first_seq" => value.as_u64() == Some(1),
            _ => is == value,
        }
    };
    let differs = wanted.iter().find(|(name, value)| !is_unset(value) && !is_same(name, value));
    differs.map(|(name, value)| format!("{name} {value}"))
}
