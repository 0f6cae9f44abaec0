//! Stream following: requests consumers, checks the positions of messages and heartbeats, and decides where to continue
//! after a gap. A state machine without I/O.
//!
//! The server pushes without acknowledgements, so each message's position is checked: its consumer sequence must be one
//! more than the previous one. After a gap, missing heartbeats or a new connection, a new consumer is requested from
//! the sequence after the last message. So each message arrives once and in order, or is reported as missed.
//!
//! Before each consumer request the stream's state is requested: removed sequences are reported as missed, and a stream
//! with a different creation time, or one that ends before a received sequence, is another stream of the same name and
//! is followed from its first message.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use stilling_wire::nats::{AckSubject, GAP_CAUSE, GAP_FIRST, GAP_LAST, Headers};

use super::MissedCause;
use crate::connection_error::quote;
use crate::limits::{HEARTBEAT, INACTIVE_TIMEOUT};
use crate::message::ReceivedMessage;

/// Heartbeat header: number of messages that the consumer has delivered.
const LAST_CONSUMER: &str = "Nats-Last-Consumer";
/// Heartbeat header: subject to reply to, because the consumer waits for flow control.
const STALLED: &str = "Nats-Consumer-Stalled";

/// API error: the maximum number of consumers is reached.
const CONSUMERS_MAX_REACHED: u32 = 10026;

/// The position from which a stream is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FollowStart {
    /// All stored messages.
    #[default]
    All,
    /// Messages published from now on.
    New,
    /// This sequence, or the next one that is stored.
    Sequence(u64),
    /// The first message at or after this time.
    Time(SystemTime),
}

#[derive(Clone, Debug)]
pub(super) struct StreamFollower {
    stream: String,
    filter: String,
    from: FollowStart,
    /// Sequence of the last message, or the one before the first requested message.
    last: Option<u64>,
    /// Creation time of the stream as the server formats it; differs after the stream was created again.
    created_at: Option<String>,
    received: u64,
    consumer: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PositionCheck {
    /// The next message; the stream no longer has the sequences `missed` before it.
    Next { missed: Option<(u64, u64)> },
    /// Not the next message: a new consumer is needed.
    Gap,
    /// Not a delivery of the stream.
    Foreign,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ControlAction {
    /// No reaction.
    Ignore,
    /// An empty message to this subject: the server waits for it.
    Reply(String),
    /// A new consumer: messages were missed, or the consumer is gone.
    Restart,
    /// The stream no longer has these sequences, and the consumer continues after them.
    Gap { first: u64, last: u64, cause: MissedCause },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamContinuity {
    /// The stream continues at the follower's position.
    Unchanged,
    /// The stream has removed these sequences.
    Missed { first: u64, last: u64 },
    /// The stream was created again after this sequence was received.
    Recreated { last: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ConsumerReply {
    /// The consumer exists.
    Accepted,
    /// A temporary failure, with the detail.
    RetryLater(String),
    /// A permanent refusal.
    Refused { code: u16, error_code: u32, description: String },
}

#[derive(Serialize)]
struct ConsumerRequestJson<'a> {
    stream_name: &'a str,
    config: ConsumerConfigJson<'a>,
}

#[derive(Serialize)]
struct ConsumerConfigJson<'a> {
    deliver_subject: &'a str,
    deliver_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    opt_start_seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opt_start_time: Option<String>,
    ack_policy: &'static str,
    max_deliver: i64,
    replay_policy: &'static str,
    filter_subject: &'a str,
    flow_control: bool,
    idle_heartbeat: u64,
    inactive_threshold: u64,
    num_replicas: u64,
    mem_storage: bool,
}

#[derive(Deserialize)]
struct ApiResponseJson {
    error: Option<ApiErrorJson>,
    state: Option<StreamStateJson>,
    created: Option<String>,
    /// The consumer's name, in replies to consumer requests.
    name: Option<String>,
}

#[derive(Deserialize)]
struct ApiErrorJson {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct StreamStateJson {
    first_seq: u64,
    last_seq: u64,
}

impl StreamFollower {
    pub(super) fn new(stream: &str, filter: &str, from: FollowStart) -> StreamFollower {
        StreamFollower {
            stream: stream.to_owned(),
            filter: filter.to_owned(),
            from,
            last: None,
            created_at: None,
            received: 0,
            consumer: None,
        }
    }

    pub(super) fn info_subject(&self) -> String {
        format!("$JS.API.STREAM.INFO.{}", self.stream)
    }

    /// Applies the stream's state.
    ///
    /// # Errors
    /// The reason why the reply carries no state.
    pub(super) fn handle_stream_info(
        &mut self,
        status: Option<u16>,
        payload: &[u8],
    ) -> Result<StreamContinuity, ConsumerReply> {
        let ApiResponseJson { state, created, .. } = response(status, payload)?;
        let Some(StreamStateJson { first_seq, last_seq }) = state else {
            return Err(ConsumerReply::RetryLater(format!("invalid reply: {}", quote(payload))));
        };
        // A creation time is compared only if both replies have one.
        let is_other =
            self.created_at.as_ref().zip(created.as_ref()).is_some_and(|(before, now)| before != now);
        let is_dated = created.is_some();
        if is_dated {
            self.created_at = created;
        }
        let before_first = first_seq.saturating_sub(1);
        let Some(last) = self.last else {
            // `New` is resolved once, so that later consumers continue from the same position.
            self.last = (self.from == FollowStart::New).then_some(last_seq);
            return Ok(StreamContinuity::Unchanged);
        };
        // Whether a stream that was and is empty was replaced does not matter.
        let was_empty = last == 0 && last_seq == 0;
        if !was_empty && (is_other || last_seq < last) {
            if !is_dated {
                // The stored time is that of the previous stream.
                self.created_at = None;
            }
            self.last = Some(before_first);
            return Ok(StreamContinuity::Recreated { last });
        }
        if before_first > last {
            self.last = Some(before_first);
            return Ok(StreamContinuity::Missed { first: last + 1, last: before_first });
        }
        Ok(StreamContinuity::Unchanged)
    }

    pub(super) fn create_subject(&self) -> String {
        format!("$JS.API.CONSUMER.CREATE.{}", self.stream)
    }

    /// The request for a consumer from the current position; resets the consumer sequence.
    pub(super) fn create_request(&mut self, deliver_subject: &str) -> Vec<u8> {
        self.received = 0;
        let time = |time: SystemTime| humantime::format_rfc3339_nanos(time).to_string();
        let (deliver_policy, opt_start_seq, opt_start_time) = match (self.last, self.from) {
            (Some(last), _) => ("by_start_sequence", Some(last + 1), None),
            (None, FollowStart::All) => ("all", None, None),
            (None, FollowStart::New) => ("new", None, None),
            (None, FollowStart::Sequence(sequence)) => ("by_start_sequence", Some(sequence.max(1)), None),
            (None, FollowStart::Time(from)) => ("by_start_time", None, Some(time(from))),
        };
        let nanos = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let request = ConsumerRequestJson {
            stream_name: &self.stream,
            config: ConsumerConfigJson {
                deliver_subject,
                deliver_policy,
                opt_start_seq,
                opt_start_time,
                ack_policy: "none",
                max_deliver: 1,
                replay_policy: "instant",
                filter_subject: &self.filter,
                flow_control: true,
                idle_heartbeat: nanos(HEARTBEAT),
                inactive_threshold: nanos(INACTIVE_TIMEOUT),
                num_replicas: 1,
                mem_storage: true,
            },
        };
        // Serialization of strings and numbers does not fail.
        serde_json::to_vec(&request).unwrap_or_default()
    }

    pub(super) fn handle_created(&mut self, status: Option<u16>, payload: &[u8]) -> ConsumerReply {
        match response(status, payload) {
            Ok(ApiResponseJson { name, .. }) => {
                self.consumer = name;
                ConsumerReply::Accepted
            }
            Err(refused) => refused,
        }
    }

    /// Abandons the current consumer. Returns the subject that deletes it, if its name is known.
    pub(super) fn drop_consumer(&mut self) -> Option<String> {
        self.consumer.take().map(|name| self.removal(&name))
    }

    /// The subject that deletes a consumer that was abandoned before the reply to its request arrived.
    pub(super) fn late_removal(&self, status: Option<u16>, payload: &[u8]) -> Option<String> {
        response(status, payload).ok()?.name.map(|name| self.removal(&name))
    }

    fn removal(&self, consumer: &str) -> String {
        format!("$JS.API.CONSUMER.DELETE.{}.{consumer}", self.stream)
    }

    pub(super) fn check_position(&mut self, reply: Option<&str>) -> PositionCheck {
        let ack = reply.and_then(|reply| AckSubject::parse(reply.as_bytes()));
        let Some(ack) = ack.filter(|ack| ack.stream == self.stream) else { return PositionCheck::Foreign };
        let is_new = self.last.is_none_or(|last| ack.stream_sequence > last);
        if ack.consumer_sequence != self.received + 1 || !is_new {
            return PositionCheck::Gap;
        }
        // With a narrower filter, skipped sequences may belong to other subjects.
        let missed = self
            .last
            .map(|last| (last + 1, ack.stream_sequence - 1))
            .filter(|(first, last)| first <= last && self.filter == ">");
        self.received = ack.consumer_sequence;
        self.last = Some(ack.stream_sequence);
        PositionCheck::Next { missed }
    }

    /// Whether a message is a control message. Stream messages carry their position in the reply subject, whatever
    /// their headers contain.
    pub(super) fn is_control(message: &ReceivedMessage, deliver: &str) -> bool {
        message.status().is_some()
            && message.subject == deliver
            && message.reply.as_deref().is_none_or(|reply| AckSubject::parse(reply.as_bytes()).is_none())
    }

    pub(super) fn handle_control(&mut self, headers: &[u8], reply: Option<&str>) -> ControlAction {
        let Ok(headers) = Headers::parse(headers) else { return ControlAction::Ignore };
        match headers.status().map(|status| status.code) {
            Some(100) => {}
            Some(_) => return ControlAction::Restart,
            None => return ControlAction::Ignore,
        }
        let number = |name| headers.find(name).and_then(crate::identity::number);
        if number(LAST_CONSUMER).is_some_and(|last| last > self.received) {
            return ControlAction::Restart;
        }
        if let (Some(first), Some(last)) = (number(GAP_FIRST), number(GAP_LAST))
            && let Some(first) = self.skip_gap(first, last)
        {
            let cause = headers.find(GAP_CAUSE).map_or(MissedCause::Removed, MissedCause::of);
            return ControlAction::Gap { first, last, cause };
        }
        let stalled = headers.find(STALLED).map(|subject| String::from_utf8_lossy(subject).into_owned());
        match reply.map(str::to_owned).or(stalled) {
            Some(subject) => ControlAction::Reply(subject),
            None => ControlAction::Ignore,
        }
    }
}

impl StreamFollower {
    /// Advances past sequences that the server reports as missing. Returns the first one that was not reported before.
    fn skip_gap(&mut self, first: u64, last: u64) -> Option<u64> {
        let before = self.last.unwrap_or(0);
        if last < first || last <= before {
            return None;
        }
        self.last = Some(last);
        Some(first.max(before + 1))
    }
}

fn response(status: Option<u16>, payload: &[u8]) -> Result<ApiResponseJson, ConsumerReply> {
    if let Some(status) = status {
        return Err(ConsumerReply::RetryLater(format!("status {status}: the server does not serve streams")));
    }
    let response: ApiResponseJson = serde_json::from_slice(payload)
        .map_err(|_| ConsumerReply::RetryLater(format!("invalid reply: {}", quote(payload))))?;
    match response.error {
        Some(ApiErrorJson { code, err_code, description })
            if code >= 500 || code == 429 || err_code == CONSUMERS_MAX_REACHED =>
        {
            Err(ConsumerReply::RetryLater(format!("{description} ({code}, error {err_code})")))
        }
        Some(ApiErrorJson { code, err_code: error_code, description }) => {
            Err(ConsumerReply::Refused { code, error_code, description })
        }
        None => Ok(response),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    const NEXT: PositionCheck = PositionCheck::Next { missed: None };

    fn follow(from: FollowStart) -> StreamFollower {
        StreamFollower::new("events", "events.>", from)
    }

    fn reply(consumer_sequence: u64, stream_sequence: u64) -> String {
        format!("$JS.ACK.events.c.1.{stream_sequence}.{consumer_sequence}.7.0")
    }

    fn asked(follow: &mut StreamFollower) -> serde_json::Value {
        serde_json::from_slice(&follow.create_request("d")).expect("it is JSON")
    }

    #[test]
    fn a_follower_requests_its_start_position() {
        let check = |from, policy: &str, sequence: Option<u64>, time: Option<&str>| {
            let config = asked(&mut follow(from))["config"].take();
            assert_eq!(config["deliver_policy"], policy);
            assert_eq!(config["opt_start_seq"].as_u64(), sequence, "{policy}");
            assert_eq!(config["opt_start_time"].as_str(), time, "{policy}");
            assert_eq!(config["ack_policy"], "none");
            assert_eq!(config["idle_heartbeat"], 5_000_000_000_u64);
            assert_eq!(config["flow_control"], true);
        };
        check(FollowStart::All, "all", None, None);
        check(FollowStart::New, "new", None, None);
        check(FollowStart::Sequence(0), "by_start_sequence", Some(1), None);
        check(FollowStart::Sequence(9), "by_start_sequence", Some(9), None);
        let time = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001);
        check(FollowStart::Time(time), "by_start_time", None, Some("2023-11-14T22:13:20.000000001Z"));
        assert_eq!(follow(FollowStart::All).create_subject(), "$JS.API.CONSUMER.CREATE.events");
    }

    #[test]
    fn after_a_gap_it_continues_after_the_last_message() {
        let mut follow = follow(FollowStart::All);
        asked(&mut follow);
        assert_eq!(follow.check_position(Some(&reply(1, 4))), NEXT);
        assert_eq!(follow.check_position(Some(&reply(2, 9))), NEXT, "a filter leaves sequences out");
        assert_eq!(follow.check_position(Some(&reply(4, 11))), PositionCheck::Gap);
        assert_eq!(asked(&mut follow)["config"]["opt_start_seq"], 10);
        assert_eq!(follow.check_position(Some(&reply(1, 9))), PositionCheck::Gap, "a message twice");
        assert_eq!(follow.check_position(Some(&reply(1, 10))), NEXT);
        assert_eq!(follow.check_position(Some("inbox.1")), PositionCheck::Foreign);
        assert_eq!(follow.check_position(None), PositionCheck::Foreign);
    }

    fn state(first: u64, last: u64) -> Vec<u8> {
        format!(r#"{{"config":{{}},"state":{{"first_seq":{first},"last_seq":{last}}}}}"#).into_bytes()
    }

    #[test]
    fn what_is_new_stays_new_when_nothing_has_come() {
        let mut follow = follow(FollowStart::New);
        assert_eq!(follow.info_subject(), "$JS.API.STREAM.INFO.events");
        assert_eq!(follow.handle_stream_info(None, &state(1, 41)), Ok(StreamContinuity::Unchanged));
        assert_eq!(asked(&mut follow)["config"]["opt_start_seq"], 42);
        assert_eq!(
            follow.handle_created(None, br#"{"delivered":{"stream_seq":0}}"#),
            ConsumerReply::Accepted
        );
        assert_eq!(follow.handle_stream_info(None, &state(1, 43)), Ok(StreamContinuity::Unchanged));
        assert_eq!(asked(&mut follow)["config"]["opt_start_seq"], 42);
    }

    #[test]
    fn removed_and_lost_records_are_reported_with_their_range() {
        let check = |first, last, standing: StreamContinuity, next: u64| {
            let mut follow = follow(FollowStart::All);
            assert_eq!(follow.handle_stream_info(None, &state(1, 10)), Ok(StreamContinuity::Unchanged));
            asked(&mut follow);
            assert_eq!(follow.check_position(Some(&reply(1, 10))), NEXT);
            assert_eq!(follow.handle_stream_info(None, &state(first, last)), Ok(standing));
            assert_eq!(asked(&mut follow)["config"]["opt_start_seq"], next);
        };
        check(1, 10, StreamContinuity::Unchanged, 11);
        check(11, 10, StreamContinuity::Unchanged, 11);
        check(13, 20, StreamContinuity::Missed { first: 11, last: 12 }, 13);
        check(21, 20, StreamContinuity::Missed { first: 11, last: 20 }, 21);
        check(1, 9, StreamContinuity::Recreated { last: 10 }, 1);
        check(0, 0, StreamContinuity::Recreated { last: 10 }, 1);
        check(4, 7, StreamContinuity::Recreated { last: 10 }, 4);
    }

    #[test]
    fn a_stream_with_another_beginning_is_another_stream_however_far_it_goes() {
        let born = |when: &str, first: u64, last: u64| {
            let state = format!(r#"{{"first_seq":{first},"last_seq":{last}}}"#);
            format!(r#"{{"created":"{when}","state":{state}}}"#).into_bytes()
        };
        let check = |from, before: &[u8], now: &[u8], standing: StreamContinuity, next: u64| {
            let mut follow = follow(from);
            assert_eq!(follow.handle_stream_info(None, before), Ok(StreamContinuity::Unchanged));
            asked(&mut follow);
            assert_eq!(follow.check_position(Some(&reply(1, 10))), NEXT);
            assert_eq!(follow.handle_stream_info(None, now), Ok(standing));
            assert_eq!(asked(&mut follow)["config"]["opt_start_seq"], next);
        };
        let (monday, anew) = (born("2026-01-05T00:00:00Z", 1, 9), StreamContinuity::Recreated { last: 10 });
        for from in
            [FollowStart::All, FollowStart::New, FollowStart::Sequence(10), FollowStart::Time(UNIX_EPOCH)]
        {
            check(from, &monday, &born("2026-01-06T00:00:00Z", 1, 500), anew, 1);
            check(from, &monday, &born("2026-01-06T00:00:00Z", 300, 500), anew, 300);
            check(from, &monday, &born("2026-01-05T00:00:00Z", 1, 500), StreamContinuity::Unchanged, 11);
            check(from, &monday, &state(1, 500), StreamContinuity::Unchanged, 11);
            check(from, &state(1, 9), &monday, anew, 1);
            check(from, &state(1, 9), &born("2026-01-06T00:00:00Z", 1, 500), StreamContinuity::Unchanged, 11);
        }
        let mut follow = follow(FollowStart::Sequence(7));
        assert_eq!(follow.handle_stream_info(None, &monday), Ok(StreamContinuity::Unchanged));
        assert_eq!(
            follow.handle_stream_info(None, &born("2026-01-06T00:00:00Z", 1, 2)),
            Ok(StreamContinuity::Unchanged),
            "none has come"
        );
        assert_eq!(asked(&mut follow)["config"]["opt_start_seq"], 7);
    }

    #[test]
    fn a_reply_without_a_creation_time_keeps_the_stored_one() {
        let dated = |created: &str| {
            let state = r#"{"first_seq":1,"last_seq":500}"#;
            format!(r#"{{"created":"{created}","state":{state}}}"#).into_bytes()
        };
        let (monday, tuesday) = (dated("2026-01-05T00:00:00Z"), dated("2026-01-06T00:00:00Z"));
        let follow_from_10 = || {
            let mut follow = follow(FollowStart::All);
            assert_eq!(follow.handle_stream_info(None, &monday), Ok(StreamContinuity::Unchanged));
            asked(&mut follow);
            assert_eq!(follow.check_position(Some(&reply(1, 10))), NEXT);
            follow
        };
        let recreated = |last| Ok(StreamContinuity::Recreated { last });
        let mut follow = follow_from_10();
        assert_eq!(follow.handle_stream_info(None, &state(1, 500)), Ok(StreamContinuity::Unchanged));
        assert_eq!(follow.handle_stream_info(None, &tuesday), recreated(10));
        // The stored time is that of the previous stream: the new one is not reported again for its own.
        let mut follow = follow_from_10();
        assert_eq!(follow.handle_stream_info(None, &state(4, 7)), recreated(10));
        assert_eq!(follow.handle_stream_info(None, &tuesday), Ok(StreamContinuity::Unchanged));
    }

    #[test]
    fn a_follower_of_all_subjects_receives_the_range_removed_while_it_reads() {
        let mut follow = StreamFollower::new("events", ">", FollowStart::All);
        asked(&mut follow);
        assert_eq!(follow.check_position(Some(&reply(1, 4))), NEXT, "the first one that is kept");
        assert_eq!(follow.check_position(Some(&reply(2, 9))), PositionCheck::Next { missed: Some((5, 8)) });
        assert_eq!(follow.check_position(Some(&reply(3, 10))), NEXT);
    }

    #[test]
    fn control_messages_are_answered_or_cause_a_new_consumer() {
        let mut follow = follow(FollowStart::All);
        asked(&mut follow);
        assert_eq!(follow.check_position(Some(&reply(1, 1))), NEXT);
        let mut check = |headers: &str, reply: Option<&str>, handle_control: ControlAction| {
            assert_eq!(follow.handle_control(headers.as_bytes(), reply), handle_control, "{headers}");
        };
        check("NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n", None, ControlAction::Ignore);
        check("NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\n\r\n", None, ControlAction::Restart);
        check("NATS/1.0 100 FlowControl Request\r\n\r\n", Some("fc"), ControlAction::Reply("fc".to_owned()));
        let stalled = "NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: fc2\r\n\r\n";
        check(stalled, None, ControlAction::Reply("fc2".to_owned()));
        check("NATS/1.0 409 Consumer Deleted\r\n\r\n", None, ControlAction::Restart);
        check("", None, ControlAction::Ignore);
        let gap = "NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nStilling-Gap-First: 5\r\nStilling-Gap-Last: 9\r\nStilling-Gap-Cause: damaged\r\n\r\n";
        check(gap, None, ControlAction::Gap { first: 5, last: 9, cause: MissedCause::Damaged });
        // A repeated report counts once; the message after the gap is the next one.
        check(gap, None, ControlAction::Ignore);
        assert_eq!(follow.check_position(Some(&reply(2, 10))), NEXT);
        assert_eq!(asked(&mut follow)["config"]["opt_start_seq"], 11);
    }

    #[test]
    fn a_refusal_states_whether_to_retry() {
        let mut follow = follow(FollowStart::All);
        let mut check = |status, payload: &[u8], is_later: bool| {
            let created = follow.handle_created(status, payload);
            assert_eq!(matches!(created, ConsumerReply::RetryLater(_)), is_later, "{created:?}");
        };
        check(Some(503), b"", true);
        check(None, b"nonsense", true);
        check(None, br#"{"error":{"code":503,"err_code":10008,"description":"not now"}}"#, true);
        let full =
            br#"{"error":{"code":400,"err_code":10026,"description":"maximum consumers limit reached"}}"#;
        check(None, full, true);
        check(None, br#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#, false);
    }
}
