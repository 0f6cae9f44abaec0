//! What JetStream clients rely on: statuses of pull requests, a consumer's figures, and that no accepted setting is
//! ignored.

use std::collections::BTreeSet;

use stilling_hub::limits::{STREAM_NAMES_PER_PAGE, STREAMS_PER_PAGE};
use stilling_hub::{Durability, HubRequest};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::consumers::{READER, api_request, create, fill, fixture, take};
use crate::fixture::{HubFixture, publish_with, stream};
use crate::fixture_requests::publish_for;

fn pull(fixture: &mut HubFixture, request: &str) -> String {
    let subject = "$JS.API.CONSUMER.MSG.NEXT.disk.p";
    fixture.ask_all(READER, &[publish_for(subject, request, "pulled.1")]);
    fixture.run_until_settled();
    fixture.received(READER)
}

/// The status contains the undelivered messages and bytes; without it clients wait for messages that never arrive.
fn status(words: &str, messages: u32, bytes: usize) -> String {
    format!("NATS/1.0 {words}\r\nNats-Pending-Messages: {messages}\r\nNats-Pending-Bytes: {bytes}\r\n\r\n")
}

fn pulled(config: &str) -> HubFixture {
    let mut fixture = fixture();
    fixture.subscribe(READER, "pulled.*", "2");
    create(&mut fixture, "disk", &format!(r#""name":"p"{config}"#));
    fixture
}

#[test]
fn an_ending_request_reports_what_is_open() {
    let mut fixture = pulled("");
    assert!(pull(&mut fixture, r#"{"batch":3,"no_wait":true}"#).contains(&status("404 No Messages", 3, 0)));
    fill(&mut fixture, "disk", 1..3);
    let received = pull(&mut fixture, r#"{"batch":5,"max_bytes":1000,"expires":1000000000}"#);
    assert_eq!(received.matches("MSG disk.n").count(), 2, "{received}");
    fixture.ask_all(READER, &[HubRequest::MarkReached { mark: 0 }]);
    take(&mut fixture);
    fixture.advance_time(2_000_000_000);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    assert!(received.contains("NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n"), "{received}");
    assert!(!received.contains("Nats-Pending-Bytes: 1000\r\n"), "{received}");
}

/// Ordered pull consumers of async-nats have a threshold of 30 seconds and requests of 30 seconds.
#[test]
fn a_consumer_stays_for_its_inactive_threshold_after_a_request_has_expired() {
    const SECOND: u64 = 1_000_000_000;
    let mut fixture = pulled(r#","inactive_threshold":30000000000"#);
    let expires = r#"{"batch":3,"expires":30000000000}"#;
    let wait = |fixture: &mut HubFixture, seconds: u64| {
        fixture.advance_time(seconds * SECOND);
        fixture.run_until_settled();
        fixture.received(READER)
    };
    assert_eq!(pull(&mut fixture, expires), "");
    for request in 0..3 {
        assert!(wait(&mut fixture, 31).contains("NATS/1.0 408 Request Timeout\r\n"), "request {request}");
        assert_eq!(wait(&mut fixture, 29), "");
        assert_eq!(pull(&mut fixture, expires), "", "request {request}");
    }
    wait(&mut fixture, 31);
    wait(&mut fixture, 31);
    let answer = api_request(&mut fixture, "CONSUMER.INFO.disk.p", "");
    assert!(answer.contains("consumer not found"), "{answer}");
}

#[test]
fn a_request_without_room_reports_what_was_requested() {
    let mut fixture = pulled(r#","max_waiting":1"#);
    assert_eq!(pull(&mut fixture, r#"{"batch":3,"expires":9000000000}"#), "");
    let received = pull(&mut fixture, r#"{"batch":4,"max_bytes":77,"expires":9000000000}"#);
    assert!(received.contains(&status("409 Exceeded MaxWaiting", 4, 77)), "{received}");
}

#[test]
fn a_draining_server_ends_the_requests_of_its_clients() {
    let mut fixture = pulled("");
    assert_eq!(pull(&mut fixture, r#"{"batch":3,"expires":9000000000}"#), "");
    fixture.ask_all(READER, &[HubRequest::CancelPulls]);
    let received = fixture.received(READER);
    assert!(received.contains(&status("409 Server Shutdown", 3, 0)), "{received}");
}

#[test]
fn a_message_with_more_bytes_than_requested_is_not_delivered() {
    let mut fixture = pulled("");
    fill(&mut fixture, "disk", 1..2);
    let received = pull(&mut fixture, r#"{"batch":3,"max_bytes":20,"expires":9000000000}"#);
    assert!(received.contains(&status("409 Message Size Exceeds MaxBytes", 3, 20)), "{received}");
    assert!(!received.contains("MSG disk.n"), "{received}");
    // The message comes with the next request.
    assert!(
        pull(&mut fixture, r#"{"batch":1,"max_bytes":2000,"expires":9000000000}"#).contains("MSG disk.n")
    );
}

#[test]
fn headers_only_deliveries_carry_the_payload_size() {
    let mut fixture = fixture();
    let headers = "NATS/1.0\r\nA: 1\r\n\r\n";
    fixture
        .ask_all(READER, &[publish_with("disk.n", "12345", "", headers), publish_for("disk.n", "123", "")]);
    fixture.run_until_settled();
    fixture.subscribe(READER, "push", "3");
    let config = r#"{"config":{"deliver_subject":"push","headers_only":true}}"#;
    fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.CREATE.disk", config, "answers.1")]);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    for expected in
        ["NATS/1.0\r\nA: 1\r\nNats-Msg-Size: 5\r\n\r\n\r\n", "NATS/1.0\r\nNats-Msg-Size: 3\r\n\r\n\r\n"]
    {
        assert!(received.contains(expected), "{received}");
    }
}

/// The count is exact with a filter, also when most records do not match.
#[test]
fn the_number_of_pending_messages_respects_the_filter() {
    let mut fixture = fixture();
    fixture.subscribe(READER, "push", "3");
    for number in 0..30 {
        let subject = if number % 10 == 0 { "disk.wanted" } else { "disk.n" };
        fixture.ask_all(READER, &[publish_for(subject, "x", "")]);
    }
    fixture.run_until_settled();
    let config = r#"{"config":{"name":"p","deliver_subject":"push","filter_subject":"disk.wanted"}}"#;
    fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.CREATE.disk", config, "answers.1")]);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    let acks = received.split(' ').filter(|word| word.starts_with("$JS.ACK."));
    let pending: Vec<_> = acks.filter_map(|ack| ack.rsplit('.').next()).collect();
    assert_eq!(pending, ["2", "1", "0"], "{received}");
    fixture.ask_all(READER, &[HubRequest::MarkReached { mark: 0 }]);
    take(&mut fixture);
    assert!(api_request(&mut fixture, "CONSUMER.INFO.disk.p", "").contains(r#""num_pending":0"#));
}

/// Unsupported settings are refused by name, not ignored.
#[test]
fn settings_of_consumers_that_are_not_there_are_refused_by_name() {
    let mut fixture = fixture();
    for (setting, name) in [
        (r#""ack_policy":"explicit""#, "ack_policy"),
        (r#""replay_policy":"original""#, "replay_policy"),
        (r#""pause_until":"2099-01-01T00:00:00Z""#, "pause_until"),
        (r#""priority_groups":["a"]"#, "priority_groups"),
        (r#""priority_policy":"overflow""#, "priority_policy"),
        (r#""deliver_group":"g""#, "deliver_group"),
        (r#""deliver_policy":"last_per_subject""#, "last_per_subject"),
        (r#""deliver_policy":"last","filter_subject":"disk.a""#, "deliver_policy last"),
        (r#""rate_limit_bps":1"#, "rate_limit_bps"),
        (r#""sample_freq":"50""#, "sample_freq"),
        (r#""max_batch":1"#, "max_batch"),
        (r#""max_expires":1"#, "max_expires"),
        (r#""max_bytes":1"#, "max_bytes"),
        (r#""backoff":[1]"#, "backoff"),
        (r#""num_replicas":3"#, "num_replicas"),
        (r#""unheard_of":{"a":1}"#, "unheard_of"),
    ] {
        let payload = format!(r#"{{"stream_name":"disk","config":{{{setting}}}}}"#);
        let answer = api_request(&mut fixture, "CONSUMER.CREATE.disk", &payload);
        assert!(answer.contains(r#""error":"#) && answer.contains(name), "{setting}: {answer}");
    }
    assert_eq!(fixture.hub.counters().consumers.get(), 0);
    // Empty values are not settings; without an ack_policy there are no acknowledgements.
    let unset =
        r#"{"config":{"name":"c","pause_until":null,"backoff":[],"max_batch":0,"replay_policy":"instant"}}"#;
    assert!(!api_request(&mut fixture, "CONSUMER.CREATE.disk", unset).contains("error"));
    // The same consumer exists already; a different one under its name is refused.
    assert!(!api_request(&mut fixture, "CONSUMER.CREATE.disk", unset).contains("error"));
    let other = r#"{"config":{"name":"c","filter_subject":"disk.a"}}"#;
    assert!(api_request(&mut fixture, "CONSUMER.CREATE.disk", other).contains(r#""err_code":10148"#));
    let update = r#"{"config":{"name":"new"},"action":"update"}"#;
    assert!(api_request(&mut fixture, "CONSUMER.CREATE.disk", update).contains(r#""err_code":10149"#));
}

/// Streams are configured in the server: a request for an existing configuration succeeds, everything else is refused
/// by name.
#[test]
fn a_stream_is_made_or_changed_only_as_it_is() {
    let mut fixture = fixture();
    let info: serde_json::Value =
        serde_json::from_str(&api_request(&mut fixture, "STREAM.INFO.disk", "")).expect("JSON");
    let same = info["config"].to_string();
    for (api_subject, kind) in [("STREAM.CREATE.disk", "create"), ("STREAM.UPDATE.disk", "update")] {
        let answer = api_request(&mut fixture, api_subject, &same);
        assert!(answer.contains(r#""config":"#), "{answer}");
        assert!(answer.contains(&format!("api.v1.stream_{kind}_response")), "{answer}");
        for (name, value) in [
            ("max_msgs", "5"),
            ("max_bytes", "5"),
            ("max_age", "5"),
            ("max_msgs_per_subject", "1"),
            ("storage", r#""memory""#),
            ("retention", r#""workqueue""#),
            ("discard", r#""new""#),
            ("num_replicas", "3"),
            ("subjects", r#"["disk.>","x"]"#),
            ("allow_rollup_hdrs", "true"),
            ("mirror", r#"{"name":"x"}"#),
            ("compression", r#""s2""#),
            ("allow_msg_ttl", "true"),
        ] {
            let answer =
                api_request(&mut fixture, api_subject, &format!(r#"{{"name":"disk","{name}":{value}}}"#));
            assert!(answer.contains(r#""error":"#) && answer.contains(name), "{name}: {answer}");
        }
    }
    for (api_subject, kind, code) in [
        ("STREAM.DELETE.disk", "stream_delete", 403),
        ("STREAM.PURGE.disk", "stream_purge", 403),
        ("STREAM.MSG.DELETE.disk", "stream_msg_delete", 403),
        ("STREAM.DELETE.missing", "stream_delete", 404),
        ("STREAM.PURGE.missing", "stream_purge", 404),
        ("STREAM.UPDATE.missing", "stream_update", 404),
        ("STREAM.MSG.DELETE.missing", "stream_msg_delete", 404),
    ] {
        let answer = api_request(&mut fixture, api_subject, "{}");
        assert!(answer.contains(&format!(r#""code":{code}"#)), "{answer}");
        assert!(answer.contains(&format!("api.v1.{kind}_response")), "{answer}");
    }
}

#[test]
fn lists_of_streams_respect_offset_and_subject() {
    let mut fixture = fixture();
    for (payload, names, total) in [
        (r#"{"offset":1}"#, r#"["memory","none"]"#, 3),
        (r#"{"offset":9}"#, "[]", 3),
        (r#"{"subject":"memory.>"}"#, r#"["memory"]"#, 1),
    ] {
        let answer = api_request(&mut fixture, "STREAM.NAMES", payload);
        assert!(answer.contains(names) && answer.contains(&format!(r#""total":{total}"#)), "{answer}");
        let list = api_request(&mut fixture, "STREAM.LIST", payload);
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        let listed: Vec<_> =
            list["streams"].as_array().expect("a list").iter().map(|one| &one["config"]["name"]).collect();
        assert_eq!(serde_json::json!(listed).to_string(), names);
        assert_eq!(list["total"], total);
    }
    let refused = api_request(&mut fixture, "STREAM.INFO.disk", r#"{"subjects_filter":">"}"#);
    assert!(refused.contains("subjects_filter") && refused.contains(r#""code":400"#), "{refused}");
    // async-nats sends `null`.
    assert!(api_request(&mut fixture, "STREAM.INFO.disk", "null").contains(r#""config":"#));
    fill(&mut fixture, "memory", 0..3);
    let account = api_request(&mut fixture, "INFO", "");
    let used: serde_json::Value = serde_json::from_str(&account).expect("JSON");
    assert!(used["memory"].as_u64() > Some(0), "{account}");
    assert!(account.contains("reserved_memory") && account.contains("reserved_storage"), "{account}");
}

/// Each page has at most as many streams as its `limit`; the following offset continues the list.
#[test]
fn lists_of_streams_are_sent_in_pages() {
    const COUNT: usize = 1100;
    let (mut fixture, _) = HubFixture::changed(&SimulatedDisk::new(), (8, 1 << 20), |streams| {
        for number in streams.len()..COUNT {
            streams.push(stream(&format!("s{number}"), &[&format!("s{number}.>")], Durability::None));
        }
    });
    fixture.subscribe(READER, "answers.*", "1");
    for (request, name, limit) in
        [("STREAM.NAMES", "", STREAM_NAMES_PER_PAGE), ("STREAM.LIST", "/config/name", STREAMS_PER_PAGE)]
    {
        let mut all = BTreeSet::new();
        while all.len() < COUNT {
            let offset = all.len();
            let answer = api_request(&mut fixture, request, &format!(r#"{{"offset":{offset}}}"#));
            let page: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
            let streams = page["streams"].as_array().expect("a list");
            assert_eq!(streams.len(), limit.min(COUNT - offset), "{request} from {offset}");
            assert_eq!((&page["limit"], &page["total"]), (&limit.into(), &COUNT.into()), "{request}");
            all.extend(streams.iter().map(|stream| stream.pointer(name).expect("a name").to_string()));
        }
        assert_eq!(all.len(), COUNT, "{request}");
    }
}

/// A request to an unknown domain and an acknowledgement with a reply subject are answered.
#[test]
fn what_nothing_answers_below_js_is_answered_as_without_responders() {
    let mut fixture = fixture();
    for subject in ["$JS.hub.API.INFO", "$JS.ACK.disk.c.1.1.1.1.0", "$JS.odd"] {
        fixture.ask_all(READER, &[publish_for(subject, "", "answers.1")]);
        let received = fixture.received(READER);
        assert!(received.contains("NATS/1.0 503"), "{subject}: {received}");
    }
}

#[test]
fn conditions_and_questions_that_are_not_known_are_refused() {
    let mut fixture = fixture();
    for header in
        ["Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Schedule", "Nats-Schedule-Target", "Nats-TTL"]
    {
        let headers = format!("NATS/1.0\r\n{header}: 1\r\n\r\n");
        fixture.ask_all(READER, &[publish_with("disk.n", "x", "answers.1", &headers)]);
        fixture.run_until_settled();
        let received = fixture.received(READER);
        assert!(received.contains(r#""err_code":10052"#), "{header}: {received}");
    }
    for (request, name) in [
        (r#"{"multi_last":["disk.>"]}"#, "multi_last"),
        (r#"{"seq":1,"batch":5}"#, "batch"),
        (r#"{"seq":1,"start_time":"2024-01-01T00:00:00Z"}"#, "start_time"),
    ] {
        fixture.ask_all(READER, &[publish_for("$JS.API.DIRECT.GET.disk", request, "answers.1")]);
        let received = fixture.received(READER);
        assert!(received.contains("NATS/1.0 400") && received.contains(name), "{received}");
        assert!(api_request(&mut fixture, "STREAM.MSG.GET.disk", request).contains(name));
    }
}

/// A name sent by a client adds no line to the header block of the answer.
#[test]
fn the_name_of_an_unknown_field_stays_on_its_line() {
    let mut fixture = pulled("");
    for received in [
        pull(&mut fixture, r#"{"x\r\nForged: 1\r\n\r\n":1}"#),
        pull(&mut fixture, &format!(r#"{{"{}":1}}"#, "y".repeat(10_000))),
    ] {
        assert!(received.contains("NATS/1.0 400 "), "{received}");
        assert!(!received.contains("\r\nForged") && received.len() < 300, "{received}");
    }
}
