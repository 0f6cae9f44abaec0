//! Requests to the JetStream API: each is answered, and their costs are bounded.

use std::collections::BTreeSet;

use stilling_hub::limits::{
    CONSUMER_CONFIG_SIZE_MAX, CONSUMERS_MAX, CONSUMERS_PER_CLIENT_MAX, INACTIVE_NS_MAX,
    INACTIVE_ORPHAN_NS_MAX, PULLS_PER_CONSUMER_MAX,
};
use stilling_hub::{ClientId, HubRequest};

use crate::consumers::{READER, WRITER, api_request, create, fill, fixture, take};
use crate::fixture::HubFixture;
use crate::fixture_requests::{publish, publish_for};

#[test]
fn single_records_are_read_by_their_sequence() {
    let mut fixture = fixture();
    fill(&mut fixture, "disk", 1..6);
    let message = api_request(&mut fixture, "STREAM.MSG.GET.disk", r#"{"seq":3}"#);
    // "3" in base64.
    assert!(message.contains(r#""data":"Mw==""#) && message.contains(r#""seq":3"#), "{message}");
    assert!(api_request(&mut fixture, "STREAM.MSG.GET.disk", r#"{"seq":99}"#).contains(r#""code":404"#));
    fixture.ask_all(READER, &[publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":4}"#, "answers.1")]);
    fixture.run_until_settled();
    let received = fixture.received(READER);
    assert!(received.contains("Nats-Sequence: 4\r\n") && received.ends_with("\r\n\r\n4\r\n"), "{received}");
}

/// The next record of a subject is found however far on it is, and however many others are skipped.
#[test]
fn the_next_record_of_a_subject_is_found_behind_many_others() {
    for stream in ["disk", "memory"] {
        let mut fixture = fixture();
        let (other, payload) = (format!("{stream}.other"), "x".repeat(4000));
        let pass_over = |fixture: &mut HubFixture| {
            for _ in 0..300 {
                fixture.ask_all(WRITER, &[publish(&other, &payload)]);
                fixture.run_until_settled();
            }
        };
        pass_over(&mut fixture);
        fixture.ask_all(WRITER, &[publish(&format!("{stream}.this"), "found")]);
        pass_over(&mut fixture);
        let ask = |fixture: &mut HubFixture, payload: &str| {
            fixture.ask_all(
                READER,
                &[publish_for(&format!("$JS.API.DIRECT.GET.{stream}"), payload, "answers.1")],
            );
            let mut turns = 0;
            while {
                fixture.run_until_settled();
                !fixture.hub.is_quiet()
            } {
                turns += 1;
                assert!(turns < 1000, "it does not end");
            }
            fixture.received(READER)
        };
        let this = format!("{stream}.this");
        let received = ask(&mut fixture, &format!(r#"{{"seq":1,"next_by_subj":"{this}"}}"#));
        assert!(
            received.contains("Nats-Sequence: 301\r\n") && received.contains("found"),
            "{stream}: {received}"
        );
        let received = ask(&mut fixture, &format!(r#"{{"seq":302,"next_by_subj":"{this}"}}"#));
        assert!(received.contains("404 Message Not Found"), "{stream}: {received}");
        // The search ends when the requester has unsubscribed.
        fixture.ask_all(
            WRITER,
            &[publish_for(
                &format!("$JS.API.DIRECT.GET.{stream}"),
                &format!(r#"{{"seq":1,"next_by_subj":"{this}"}}"#),
                "nobody",
            )],
        );
        fixture.run_until_settled();
        assert!(fixture.hub.is_quiet());
        assert_eq!(fixture.received(READER), "");
    }
}

/// Row 0.14: a client's consumers are bounded, and reaching a bound is reported.
#[test]
fn what_consumers_cost_is_bounded_for_each_client() {
    let mut fixture = fixture();
    let many: Vec<_> = (0..65).map(|number| format!("\"disk.{number}\"")).collect();
    let answer = create(&mut fixture, "disk", &format!(r#""filter_subjects":[{}]"#, many.join(",")));
    assert!(answer.contains(r#""err_code":10003"#) && answer.contains("65 filters"), "{answer}");
    let long = "x".repeat(CONSUMER_CONFIG_SIZE_MAX);
    let answer = create(&mut fixture, "disk", &format!(r#""description":"{long}""#));
    assert!(answer.contains(r#""err_code":10003"#), "{answer}");
    let answer = create(&mut fixture, "disk", r#""name":"long","inactive_threshold":18446744073709551615"#);
    assert!(answer.contains(&format!(r#""inactive_threshold":{INACTIVE_NS_MAX}"#)), "{answer}");
    for number in 1..CONSUMERS_PER_CLIENT_MAX {
        let answer = create(&mut fixture, "disk", &format!(r#""name":"c{number}","inactive_threshold":1"#));
        assert!(!answer.contains("err_code"), "{number}: {answer}");
    }
    let answer = create(&mut fixture, "disk", r#""name":"one_more""#);
    assert!(answer.contains(r#""err_code":10026"#), "{answer}");
    // Other clients may still create some; consumers of the first one make room after its disconnect.
    let api_request = r#"{"config":{"ack_policy":"none","name":"other"}}"#;
    fixture.ask_all(WRITER, &[publish_for("$JS.API.CONSUMER.CREATE.disk", api_request, "answers.2")]);
    let received = fixture.received(READER);
    assert!(received.contains(r#""name":"other""#) && !received.contains("err_code"), "{received}");
    for _ in 0..3 {
        fixture.advance_time(100_000_000);
        fixture.run_until_settled();
    }
    assert_eq!(fixture.hub.counters().consumers.get(), 2);
    let answer = create(&mut fixture, "disk", r#""name":"one_more""#);
    assert!(!answer.contains("err_code"), "{answer}");
}

/// Row 0.14: pull requests are bounded as well; requests without a subscriber to the answer are not kept.
#[test]
fn requests_for_messages_are_bounded_and_go_with_their_client() {
    let mut fixture = fixture();
    create(&mut fixture, "disk", r#""name":"p","inactive_threshold":9000000000"#);
    let other = ClientId { shard: 1, token: 7 };
    fixture.subscribe(other, "pulled", "2");
    let pull = publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", r#"{"batch":1}"#, "pulled");
    for _ in 0..PULLS_PER_CONSUMER_MAX {
        fixture.ask_all(other, &[pull]);
    }
    assert_eq!(fixture.received(other), "");
    fixture.ask_all(other, &[pull]);
    assert!(fixture.received(other).contains("NATS/1.0 409 Exceeded MaxWaiting"));
    fixture.ask_all(other, &[HubRequest::Disconnect]);
    let answer = api_request(&mut fixture, "CONSUMER.INFO.disk.p", "");
    assert!(answer.contains(r#""num_waiting":0"#), "{answer}");
    // A request of a client that has unsubscribed takes no message from the next one.
    fixture.subscribe(READER, "pulled", "2");
    fixture.ask_all(WRITER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", "", "nobody")]);
    fixture.ask_all(READER, &[pull]);
    fill(&mut fixture, "disk", 1..2);
    assert_eq!(take(&mut fixture), [(1, "1".to_owned())]);
}

/// A line with an empty subject would be invalid.
#[test]
fn a_request_without_reply_subject_gets_no_answer() {
    let mut fixture = fixture();
    fixture.subscribe(READER, ">", "2");
    create(&mut fixture, "disk", r#""name":"p","deliver_policy":"all""#);
    fill(&mut fixture, "disk", 1..3);
    fixture.received(READER);
    for subject in ["INFO", "NOTHING", "DIRECT.GET.disk", "STREAM.MSG.GET.disk", "CONSUMER.MSG.NEXT.disk.p"] {
        fixture.ask_all(READER, &[publish(&format!("$JS.API.{subject}"), r#"{"seq":1}"#)]);
        fixture.run_until_settled();
        assert_eq!(fixture.received(READER), "", "{subject}");
    }
}

/// "No peer input panics the process": serde accepts an array for a struct, and requests may be nested deeply.
#[test]
fn a_request_that_is_not_an_object_is_refused() {
    let mut fixture = fixture();
    fill(&mut fixture, "disk", 1..3);
    let config = r#"[null,null,null,null,"all",0,null,"none"]"#;
    let deep = "[".repeat(100) + &"]".repeat(100);
    let huge = "1".repeat(400);
    for payload in [
        format!(r#"{{"config":{config}}}"#),
        format!(r#"["disk",{config}]"#),
        r#"["disk",{"ack_policy":"none"}]"#.to_owned(),
        r#"{"stream_name":["disk"],"config":{"ack_policy":"none"}}"#.to_owned(),
        r#"{"config":{"ack_policy":"none","filter_subjects":[["disk.a"]]}}"#.to_owned(),
        format!(r#"{{"config":{{"ack_policy":"none","opt_start_seq":{huge}}}}}"#),
        format!(r#"{{"config":{{"ack_policy":"none","idle_heartbeat":{huge}e400}}}}"#),
        format!(r#"{{"config":{{"ack_policy":"none","name":{deep}}}}}"#),
        format!(r#"{{"config":{deep}}}"#),
        deep.clone(),
        "[".repeat(4000),
        "{}".to_owned(),
        "null".to_owned(),
        "7".to_owned(),
    ] {
        let answer = api_request(&mut fixture, "CONSUMER.CREATE.disk.c", &payload);
        assert!(answer.contains(r#""code":400"#), "{payload}: {answer}");
    }
    assert_eq!(fixture.hub.counters().consumers.get(), 0);
    create(&mut fixture, "disk", r#""name":"p""#);
    fixture.subscribe(READER, "pulled", "2");
    for payload in ["[1]", "[2,0,true,0,0]", &deep, &huge, "null", "-1", r#"{"batch":[1]}"#] {
        for subject in ["STREAM.MSG.GET.disk", "STREAM.CREATE.disk"] {
            let answer = api_request(&mut fixture, subject, payload);
            assert!(
                answer.contains(r#""error":"#) || payload.starts_with('{'),
                "{subject} {payload}: {answer}"
            );
        }
        let names = api_request(&mut fixture, "STREAM.NAMES", payload);
        let is_object = payload.starts_with('{') || payload == "null";
        assert!(
            names.contains(if is_object { r#""total":3"# } else { r#""code":400"# }),
            "{payload}: {names}"
        );
        fixture.ask_all(READER, &[publish_for("$JS.API.DIRECT.GET.disk", payload, "pulled")]);
        fixture.ask_all(READER, &[publish_for("$JS.API.CONSUMER.MSG.NEXT.disk.p", payload, "pulled")]);
        fixture.run_until_settled();
        let statuses = fixture.received(READER).matches("NATS/1.0 400").count();
        // A number without a sign requests as many messages.
        let is_number = payload == huge;
        assert_eq!(statuses, 1 + usize::from(!is_number), "{payload}");
    }
    // The largest possible values are accepted as given.
    let most = u64::MAX;
    let answer = create(
        &mut fixture,
        "disk",
        &format!(
            r#""name":"far","deliver_subject":"push","deliver_policy":"by_start_sequence","opt_start_seq":{most},"idle_heartbeat":{most}"#
        ),
    );
    assert!(answer.contains(r#""num_pending":0"#), "{answer}");
    fixture.subscribe(READER, "push", "3");
    fixture.advance_time(100_000_000);
    fill(&mut fixture, "disk", 3..4);
    assert_eq!(take(&mut fixture), []);
}

/// Every request is answered.
#[test]
fn every_request_is_answered() {
    let mut fixture = fixture();
    for (subject, payload, expected) in [
        ("INFO", "", r#""streams":3"#),
        ("STREAM.NAMES", "", r#"["disk","memory","none"]"#),
        ("STREAM.NAMES", r#"{"subject":"disk.x"}"#, r#"["disk"]"#),
        ("STREAM.LIST", "", r#""name":"memory""#),
        ("STREAM.INFO.disk", "", r#""last_seq":0"#),
        ("STREAM.INFO.nobody", "", r#""err_code":10059"#),
        ("STREAM.CREATE.disk", r#"{"subjects":["disk.>"]}"#, r#""name":"disk""#),
        ("STREAM.CREATE.disk", r#"{"subjects":["x.>"]}"#, r#""err_code":10052"#),
        ("STREAM.CREATE.new", r#"{"subjects":["x.>"]}"#, r#""code":403"#),
        ("STREAM.DELETE.disk", "", r#""code":403"#),
        ("STREAM.PURGE.disk", "", r#""code":403"#),
        ("STREAM.MSG.GET.disk", "x", r#""code":400"#),
        ("CONSUMER.CREATE.disk", "x", r#""code":400"#),
        ("CONSUMER.CREATE.disk", r#"{"config":{"ack_policy":"explicit"}}"#, "ordered consumer"),
        ("CONSUMER.CREATE.disk", r#"{"config":{"ack_policy":"none","durable_name":"d"}}"#, "durable"),
        ("CONSUMER.CREATE.disk", r#"{"config":{"ack_policy":"none","deliver_policy":"odd"}}"#, "odd"),
        (
            "CONSUMER.CREATE.disk",
            r#"{"config":{"ack_policy":"none","filter_subject":"a..b"}}"#,
            "is not a valid filter",
        ),
        (
            "CONSUMER.CREATE.disk",
            r#"{"config":{"ack_policy":"none","deliver_subject":"a\r\nPING"}}"#,
            "deliver_subject is not a valid subject",
        ),
        (
            "CONSUMER.CREATE.disk.n.disk.b",
            r#"{"config":{"ack_policy":"none","filter_subject":"disk.>"}}"#,
            "differs from that in the subject",
        ),
        (
            "CONSUMER.CREATE.disk",
            r#"{"config":{"ack_policy":"none","name":"a.b"}}"#,
            "the name is not a token",
        ),
        (
            "CONSUMER.CREATE.disk",
            r#"{"config":{"ack_policy":"none","name":"a\r\nb"}}"#,
            "the name is not a token",
        ),
        ("CONSUMER.DURABLE.CREATE.disk.d", "{}", "durable"),
        ("CONSUMER.NAMES.disk", "", r#""total":0"#),
        ("CONSUMER.LIST.disk", "", r#""total":0"#),
        ("CONSUMER.DELETE.disk.c", "", r#""err_code":10014"#),
        ("SERVER.REMOVE", "", r#""code":501"#),
    ] {
        let answer = api_request(&mut fixture, subject, payload);
        assert!(answer.contains(expected), "{subject}: {answer}");
        assert!(answer.contains(r#""type":"io.nats.jetstream.api.v1."#), "{subject}: {answer}");
    }
}

/// Row 0.14: a list of many consumers comes page by page and contains each once.
#[test]
fn consumers_are_listed_page_by_page() {
    let mut fixture = fixture();
    let long = "x".repeat(CONSUMER_CONFIG_SIZE_MAX - 1000);
    let mut expected = BTreeSet::new();
    for number in 0..300 {
        let description = if number % 20 == 0 { &long } else { "" };
        let name = format!("c{number}");
        create(&mut fixture, "disk", &format!(r#""name":"{name}","description":"{description}""#));
        expected.insert(name);
    }
    for what in ["LIST", "NAMES"] {
        let (mut names, mut pages) = (BTreeSet::new(), 0);
        while names.len() < expected.len() {
            let offset = format!(r#"{{"offset":{}}}"#, names.len());
            let answer = api_request(&mut fixture, &format!("CONSUMER.{what}.disk"), &offset);
            assert!(answer.len() < 400_000, "{what}: {} bytes", answer.len());
            let page: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
            assert_eq!((&page["total"], &page["limit"]), (&300.into(), &256.into()), "{what}");
            let consumers = page["consumers"].as_array().expect("a list");
            assert!(!consumers.is_empty() && consumers.len() <= 256, "{what}");
            for consumer in consumers {
                let name = if what == "LIST" { &consumer["config"]["name"] } else { consumer };
                assert!(
                    names.insert(name.as_str().expect("a name").to_owned()),
                    "{what}: {name} is listed twice"
                );
            }
            pages += 1;
        }
        assert!(names == expected && pages > 1, "{what}: {pages} pages");
        let behind = api_request(&mut fixture, &format!("CONSUMER.{what}.disk"), r#"{"offset":300}"#);
        assert!(behind.contains(r#""consumers":[]"#), "{behind}");
    }
}

/// Row 0.14: many short requests with long answers leave other clients their turn; requests without a subscriber to the
/// answer cost nothing.
#[test]
fn requests_with_long_answers_wait_for_the_next_turn() {
    let mut fixture = fixture();
    let long = "x".repeat(CONSUMER_CONFIG_SIZE_MAX - 1000);
    for number in 0..20 {
        create(&mut fixture, "disk", &format!(r#""name":"c{number}","description":"{long}""#));
    }
    let many = vec![publish_for("$JS.API.CONSUMER.LIST.disk", "", "answers.1"); 100];
    fixture.turn();
    fixture.ask_all(READER, &many);
    let answers =
        |fixture: &mut HubFixture| fixture.received(READER).matches("consumer_list_response").count();
    let mut done = answers(&mut fixture);
    assert!((1..20).contains(&done), "{done} in one turn");
    assert!(!fixture.hub.is_quiet(), "it continues without another request");
    fixture.ask_all(WRITER, &[HubRequest::Barrier]);
    assert_eq!(fixture.received(WRITER), "PONG\r\n");
    let mut turns = 1;
    while done < many.len() {
        fixture.turn();
        done += answers(&mut fixture);
        turns += 1;
        assert!(turns < 1000, "only {done} in so many turns");
    }
    assert!(turns > 5 && done == many.len(), "{done} in {turns} turns");
    let undelivered = vec![publish_for("$JS.API.CONSUMER.LIST.disk", "", "nobody"); 1000];
    fixture.turn();
    fixture.ask_all(READER, &undelivered);
    assert!(fixture.hub.is_quiet());
}

/// Row 0.14: repeated reconnects gain no more consumers than a lasting connection, and take no room from others.
#[test]
fn orphaned_consumers_expire_early() {
    let mut fixture = fixture();
    let api_request = |name: &str| {
        format!(
            r#"{{"config":{{"ack_policy":"none","name":"{name}","inactive_threshold":{INACTIVE_NS_MAX},
                "deliver_subject":"to.{name}"}}}}"#
        )
    };
    fixture.subscribe(READER, "to.heard", "2");
    for life in 0..11_u64 {
        let by = ClientId { shard: 1, token: 100 + life };
        for number in 0..CONSUMERS_PER_CLIENT_MAX {
            let name =
                if life == 0 && number == 0 { "heard".to_owned() } else { format!("c{life}-{number}") };
            fixture.ask_all(by, &[publish("$JS.API.CONSUMER.CREATE.disk", &api_request(&name))]);
        }
        fixture.ask_all(by, &[HubRequest::Disconnect]);
        fixture.turn();
    }
    assert_eq!(fixture.hub.counters().consumers.get(), CONSUMERS_MAX as u64);
    // The oldest consumers without subscribers were removed to make room.
    let is_there = |fixture: &mut HubFixture, name: &str| {
        !crate::consumers::api_request(fixture, &format!("CONSUMER.INFO.disk.{name}"), "")
            .contains("not found")
    };
    for (name, expected) in [
        ("heard", true),
        ("c0-1", false),
        ("c0-999", false),
        ("c1-0", false),
        ("c1-1", true),
        ("c10-999", true),
    ] {
        assert_eq!(is_there(&mut fixture, name), expected, "{name}");
    }
    for _ in 0..30 {
        fixture.advance_time(1 + INACTIVE_ORPHAN_NS_MAX / 10);
        fixture.run_until_settled();
    }
    assert_eq!(fixture.hub.counters().consumers.get(), 1, "one has a listener still");
    fill(&mut fixture, "disk", 1..3);
    assert_eq!(take(&mut fixture).len(), 2);
}

/// An accepted request is answered, however many disk reads are queued; meanwhile the hub does not spin.
#[test]
fn record_requests_beyond_the_read_limit_wait() {
    let mut fixture = fixture();
    fill(&mut fixture, "disk", 1..40);
    fixture.hub.storage_mut().read_requests_max = 3;
    for sequence in 1..40 {
        let api_request = format!(r#"{{"seq":{sequence}}}"#);
        fixture.ask_all(READER, &[publish_for("$JS.API.DIRECT.GET.disk", &api_request, "answers.1")]);
    }
    let next = publish_for("$JS.API.DIRECT.GET.disk", r#"{"seq":1,"next_by_subj":"disk.n"}"#, "answers.1");
    fixture.ask_all(READER, &[next]);
    fixture.turn();
    assert!(fixture.hub.is_quiet(), "it waits for the disk");
    for _ in 0..20 {
        fixture.run_until_settled();
    }
    let received = fixture.received(READER);
    assert_eq!(received.matches("Nats-Sequence: ").count(), 40, "{received}");
    assert!(!received.contains("503") && fixture.hub.is_quiet(), "{received}");
}

/// A request costs the bytes read for it, whatever its answer.
#[test]
fn requests_with_long_reads_wait_for_the_next_turn() {
    let mut fixture = fixture();
    let filling = "x".repeat(3000);
    for _ in 0..200 {
        fixture.ask_all(WRITER, &[publish("memory.n", &filling)]);
    }
    fixture.run_until_settled();
    let get_request = r#"{"seq":1,"next_by_subj":"memory.nothing"}"#;
    let requests: Vec<_> =
        (0..100).map(|_| publish_for("$JS.API.DIRECT.GET.memory", get_request, "answers.1")).collect();
    fixture.ask_all(READER, &requests);
    let (mut answered, mut turns) = (0, 0);
    while answered < requests.len() {
        let now = fixture.received(READER).matches("NATS/1.0 ").count();
        assert!(now <= 20, "{now} in one turn");
        (answered, turns) = (answered + now, turns + 1);
        assert!(turns < 1000, "only {answered} in so many turns");
        fixture.turn();
    }
    assert!(turns > 10 && fixture.parked() == 0 && fixture.hub.is_quiet());
}
