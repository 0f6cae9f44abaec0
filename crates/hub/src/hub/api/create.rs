//! Creation of consumers: supported settings, and refusal of all others by name.

use serde_json::value::to_raw_value;
use serde_json::{Map, Value};
use stilling_journal::StartAt;

use super::api_requests::{ApiError, ConsumerConfig, bad_request, field, fields, object, unknown_field};
use super::{consumer_info, durable, is_subject, unsupported};
use crate::consumers::{AddConsumerError, Consumer, ConsumerSpec};
use crate::hub::{Hub, Now, ShardSenders};
use crate::limits::{
    CONSUMER_CONFIG_SIZE_MAX, DISCONNECTED_CONSUMER_STEPS_PER_TURN, FILTERS_PER_CONSUMER_MAX,
    INACTIVE_NS_MAX, PULLS_PER_CONSUMER_MAX,
};
use crate::publication_batch::ClientId;
use crate::registrations::checked;
use crate::storage::Storage;
use crate::stream_writer::StreamWriter;

/// Bytes of a consumer's name; longer ones are refused.
const NAME_SIZE_MAX: usize = 64;

/// Nanoseconds that a consumer without subscribers is kept, unless configured.
const INACTIVE_NS: u64 = 5_000_000_000;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    pub(super) fn consumer_create(
        &mut self,
        client: ClientId,
        (stream, rest): (&str, &[&str]),
        payload: &[u8],
        now: Now,
    ) -> Result<Value, ApiError> {
        let number = self.open_stream(stream)?;
        let CreateRequest { mut raw, mut config, is_update } = CreateRequest::parse(stream, payload)?;
        let from = start_at(&config, &self.streams[number])?;
        let filters = filters(&mut config, rest)?;
        let name = self.consumer_name(stream, rest.first().copied(), config.name.take(), now)?;
        let deliver = config.deliver_subject.filter(|to| !to.is_empty());
        if deliver.as_deref().is_some_and(|deliver| !is_subject(deliver)) {
            return Err(bad_request("deliver_subject is not a valid subject"));
        }
        self.api.read_serial += 1;
        raw.insert("name".to_owned(), name.clone().into());
        let inactive = Some(config.inactive_threshold).filter(|span| *span > 0);
        let inactive_ns = inactive.unwrap_or(INACTIVE_NS).min(INACTIVE_NS_MAX);
        if inactive.is_some() {
            raw.insert("inactive_threshold".to_owned(), inactive_ns.into());
        }
        let spec = ConsumerSpec {
            name,
            stream: number,
            deliver: deliver.map(String::into_bytes),
            filters: filters.into_iter().map(|filter| filter.into_bytes().into()).collect(),
            from,
            heartbeat_ns: Some(config.idle_heartbeat).filter(|every| *every > 0),
            has_flow_control: config.flow_control,
            headers_only: config.headers_only,
            pulls_max: usize::try_from(config.max_waiting)
                .ok()
                .filter(|most| *most > 0)
                .map_or(PULLS_PER_CONSUMER_MAX, |most| most.min(PULLS_PER_CONSUMER_MAX)),
            inactive_ns,
            config: to_raw_value(&raw).map_err(|error| bad_request(&error.to_string()))?,
        };
        match self.consumers.table.find(number, &spec.name) {
            Some(existing) => self.existing_consumer(existing, &spec),
            None if is_update => Err(ApiError(400, 10149, "consumer does not exist".to_owned())),
            None => self.add_consumer(client, spec, now),
        }
    }

    /// Returns the name from the subject, from the configuration, or a generated one.
    fn consumer_name(
        &self,
        stream: &str,
        in_subject: Option<&str>,
        in_config: Option<String>,
        now: Now,
    ) -> Result<String, ApiError> {
        let own_name = || {
            let unique = format!("{stream} {} {}", now.unix_ns.as_nanos(), self.api.read_serial);
            format!("{:016x}", self.api.key.hash_128(unique.as_bytes()) as u64)
        };
        let name = in_subject.map(ToOwned::to_owned).or(in_config).unwrap_or_else(own_name);
        // The name becomes part of protocol lines sent to other clients.
        if name.len() > NAME_SIZE_MAX || name.contains('.') || !is_subject(&name) {
            return Err(bad_request("the name is not a token of at most 64 bytes"));
        }
        Ok(name)
    }

    fn existing_consumer(&self, existing: u32, spec: &ConsumerSpec) -> Result<Value, ApiError> {
        let is_same = |consumer: &Consumer| consumer.spec.config.get() == spec.config.get();
        if self.consumers.table.get(existing).is_some_and(is_same) {
            return Ok(self.consumer_info(spec.stream, existing));
        }
        Err(ApiError(400, 10148, "consumer already exists".to_owned()))
    }

    fn add_consumer(&mut self, client: ClientId, spec: ConsumerSpec, now: Now) -> Result<Value, ApiError> {
        let stream = spec.stream;
        self.api.size += consumer_info::LIST_SLOT_COST * self.make_room_for(&spec);
        let added = self.consumers.table.add(client, spec, now).map_err(|error| match error {
            AddConsumerError::TooMany => ApiError(400, 10026, "maximum consumers limit reached".to_owned()),
            AddConsumerError::NoMemory => ApiError(503, 10023, "insufficient resources".to_owned()),
        })?;
        let info = self.consumer_info(stream, added);
        self.delivery().advance(added, now.steady_ns);
        Ok(info)
    }

    /// Makes room for a consumer in full tables by removing orphans without subscribers, the oldest first. Returns how
    /// many were checked.
    fn make_room_for(&mut self, spec: &ConsumerSpec) -> usize {
        for checked_count in 0..DISCONNECTED_CONSUMER_STEPS_PER_TURN {
            if !self.consumers.table.is_full_for(spec) {
                return checked_count;
            }
            let Some(number) = self.consumers.table.first_orphan() else {
                // Consumers of a client that has just disconnected may not be marked as orphans yet.
                if self.clients.step_cleanup(&mut self.consumers.table, &mut self.router).is_none() {
                    return checked_count;
                }
                continue;
            };
            let Some(consumer) = self.consumers.table.get(number) else { return checked_count };
            let (is_idle, deliver) = (consumer.is_idle(), consumer.spec.deliver.clone());
            if is_idle && !deliver.is_some_and(|deliver| self.router.has_subscriber(&deliver)) {
                self.consumers.table.remove(number);
            } else {
                // Moves it to the end of the order of orphans.
                self.consumers.table.mark_orphan(number);
            }
        }
        DISCONNECTED_CONSUMER_STEPS_PER_TURN
    }
}

/// A parsed creation request, checked as far as possible without the stream.
struct CreateRequest {
    raw: Map<String, Value>,
    config: ConsumerConfig,
    is_update: bool,
}

impl CreateRequest {
    fn parse(stream: &str, payload: &[u8]) -> Result<CreateRequest, ApiError> {
        if payload.len() > CONSUMER_CONFIG_SIZE_MAX {
            let size = payload.len();
            return Err(bad_request(&format!(
                "{size} bytes exceed the maximum of {CONSUMER_CONFIG_SIZE_MAX}"
            )));
        }
        let api_request = object(payload)?;
        let raw = field(&api_request, "config")?.clone();
        let config: ConsumerConfig = fields(raw.clone())?;
        let names_stream = |name: &Value| name.as_str().is_some_and(|name| name.is_empty() || name == stream);
        if !api_request.get("stream_name").is_none_or(names_stream) {
            return Err(bad_request("the stream's name differs from that in the subject"));
        }
        check_supported(&raw, &config)?;
        let is_update = api_request.get("action").and_then(Value::as_str) == Some("update");
        Ok(CreateRequest { raw, config, is_update })
    }
}

fn start_at(config: &ConsumerConfig, stream: &StreamWriter) -> Result<StartAt, ApiError> {
    let StreamWriter { visible, first, .. } = *stream;
    Ok(match config.deliver_policy.as_deref().unwrap_or("") {
        "" | "all" => StartAt::Sequence(first),
        "new" => StartAt::Sequence(visible + 1),
        "last" => StartAt::Sequence(visible.max(first)),
        "by_start_sequence" => StartAt::Sequence(config.opt_start_seq.max(first)),
        "by_start_time" => {
            let start = config.opt_start_time.ok_or_else(|| bad_request("opt_start_time is missing"))?;
            StartAt::Time(u64::try_from(start.as_nanosecond()).unwrap_or(0))
        }
        other => return Err(unsupported(&format!("deliver_policy {other}"))),
    })
}

/// Takes the filters out of the configuration. `rest` is the subject after the stream: a name and the filter.
fn filters(config: &mut ConsumerConfig, rest: &[&str]) -> Result<Vec<String>, ApiError> {
    let filters: Vec<String> = (config.filter_subject.take().into_iter())
        .chain(config.filter_subjects.take().unwrap_or_default())
        .filter(|f| !f.is_empty())
        .collect();
    // Permissions apply to the subject of the request, so the filter must equal the one in the subject.
    if let [_, tokens @ ..] = rest
        && !tokens.is_empty()
        && !matches!(filters.as_slice(), [filter] if *filter == tokens.join("."))
    {
        return Err(ApiError(400, 10131, "the filter differs from that in the subject".to_owned()));
    }
    if let Some(wrong) = filters.iter().find(|filter| checked(filter.as_bytes()).is_none()) {
        return Err(bad_request(&format!("`{wrong}` is not a valid filter")));
    }
    if filters.len() > FILTERS_PER_CONSUMER_MAX {
        let count = filters.len();
        return Err(bad_request(&format!(
            "{count} filters exceed the maximum of {FILTERS_PER_CONSUMER_MAX}"
        )));
    }
    if config.deliver_policy.as_deref() == Some("last") && !filters.is_empty() {
        // The stream's last message may have another subject.
        return Err(unsupported("deliver_policy last with a filter"));
    }
    Ok(filters)
}

fn check_supported(raw: &Map<String, Value>, config: &ConsumerConfig) -> Result<(), ApiError> {
    if config.durable_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return Err(durable());
    }
    if let Some(policy) = config.ack_policy.as_deref().filter(|policy| !matches!(*policy, "" | "none")) {
        let description = format!(
            "ack_policy {policy} is not supported by this server, only none: use an ordered consumer"
        );
        return Err(ApiError(400, 10012, description));
    }
    for (setting, value, only) in [
        ("replay_policy", &config.replay_policy, "instant"),
        ("priority_policy", &config.priority_policy, "none"),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty() && *value != only) {
            return Err(unsupported(&format!("{setting} {value}")));
        }
    }
    if config.num_replicas > 1 {
        return Err(unsupported("num_replicas above 1"));
    }
    if raw.get("direct").is_some_and(|direct| *direct == Value::Bool(true)) {
        return Err(unsupported("direct"));
    }
    unknown_field(raw, &ConsumerConfig::KNOWN).map_or(Ok(()), |setting| Err(unsupported(setting)))
}
