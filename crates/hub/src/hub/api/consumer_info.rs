//! Information about consumers: a single one, or those of a stream page by page.
//!
//! A consumer's configuration is stored and returned as text, so a short request costs no more than the length of its
//! answer.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::api_requests::{ApiError, PageRequest, bad_request, fields, object};
use super::{Hub, ShardSenders};
use crate::limits::{CONSUMERS_PAGE_SIZE, CONSUMERS_PER_PAGE};
use crate::storage::Storage;
use crate::time::rfc3339;

/// Cost of visiting an entry in a list of consumers, in bytes of an answer.
pub(super) const LIST_SLOT_COST: usize = 16;

#[derive(Serialize)]
struct ConsumerInfo<'a> {
    stream_name: &'a str,
    name: &'a str,
    created: String,
    config: &'a RawValue,
    delivered: SequencePair,
    ack_floor: SequencePair,
    num_ack_pending: u64,
    num_redelivered: u64,
    num_waiting: usize,
    num_pending: u64,
}

#[derive(Serialize, Default)]
struct SequencePair {
    consumer_seq: u64,
    stream_seq: u64,
}

#[derive(Serialize)]
struct ConsumerPage<T> {
    #[serde(rename = "type")]
    kind: &'static str,
    total: usize,
    offset: usize,
    limit: usize,
    consumers: Vec<T>,
}

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    fn info(&self, stream: usize, number: u32) -> Option<ConsumerInfo<'_>> {
        let consumer = self.consumers.table.get(number)?;
        let stream = &self.streams[stream];
        let next = self.consumers.table.next_of(number).unwrap_or(stream.first).max(stream.first);
        Some(ConsumerInfo {
            stream_name: &stream.config.name,
            name: &consumer.spec.name,
            created: rfc3339(consumer.created_ns),
            config: &consumer.spec.config,
            delivered: SequencePair { consumer_seq: consumer.delivered, stream_seq: consumer.last },
            ack_floor: SequencePair::default(),
            num_ack_pending: 0,
            num_redelivered: 0,
            num_waiting: consumer.pulls().len(),
            num_pending: (stream.visible + 1).saturating_sub(next),
        })
    }

    pub(super) fn consumer_info(&self, stream: usize, number: u32) -> Value {
        let info = self.info(stream, number);
        info.and_then(|info| serde_json::to_value(info).ok()).unwrap_or_else(|| json!({}))
    }

    /// Returns a page of a stream's consumers, with details or with only their names.
    pub(super) fn consumer_list(
        &mut self,
        stream: &str,
        payload: &[u8],
        is_list: bool,
    ) -> Result<String, ApiError> {
        let stream = self.open_stream(stream)?;
        let page =
            if payload.is_empty() { PageRequest::default() } else { object(payload).and_then(fields)? };
        let numbers = self.consumers.table.of_stream(stream);
        self.api.size += LIST_SLOT_COST * numbers.len();
        let mut size = 0;
        let of_page = |number: &&u32| {
            let is_within = !is_list || size < CONSUMERS_PAGE_SIZE;
            let consumer = self.consumers.table.get(**number);
            size += consumer.map_or(0, |consumer| consumer.spec.config.get().len());
            is_within
        };
        let infos = numbers.iter().skip(page.offset).take(CONSUMERS_PER_PAGE).take_while(of_page);
        let infos = infos.filter_map(|&number| self.info(stream, number));
        let (total, offset) = (numbers.len(), page.offset);
        let limit = CONSUMERS_PER_PAGE;
        let text = if is_list {
            let kind = "io.nats.jetstream.api.v1.consumer_list_response";
            serde_json::to_string(&ConsumerPage { kind, total, offset, limit, consumers: infos.collect() })
        } else {
            let kind = "io.nats.jetstream.api.v1.consumer_names_response";
            let consumers: Vec<&str> = infos.map(|info| info.name).collect();
            serde_json::to_string(&ConsumerPage { kind, total, offset, limit, consumers })
        };
        text.map_err(|error| bad_request(&error.to_string()))
    }
}
