//! Publications and subscriptions over CoAP, with a hub.

use stilling_hub::{Durability, HubCounters, Ingress, JournalStorage, Loss, Now, StreamConfig};

use super::super::super::address_shares::ClientAddress;
use super::super::super::hub_bridge::HubBridge;
use super::super::super::limits::{FILTER_READS_MAX, OBSERVED_STATE_SIZE_MAX, PENDING_READS_MAX};
use super::super::super::observations::ObservableKey;
use super::*;
use crate::hub::testing::hub_with;
use crate::hub::{HubHandle, Runner, StreamDirectory};
use crate::settings::SourceRange;

/// An endpoint with its hub, whose streams are `readings` in memory and `full` on a disk that does not answer.
struct BridgeFixture {
    fixture: Fixture,
    bridge: HubBridge,
    hub: Option<HubHandle>,
    runner: Runner<JournalStorage>,
    hub_counters: Arc<HubCounters>,
    started: Time,
}

impl BridgeFixture {
    fn new(sources: &[&str]) -> BridgeFixture {
        let stream = |name: &str, durability| StreamConfig {
            durability,
            ..StreamConfig::new(name, [format!("{name}.>")])
        };
        let streams = vec![stream("readings", Durability::Memory), stream("full", Durability::Disk)];
        let directory = Arc::new(StreamDirectory::new(&streams));
        let (port, runner, hub_counters) = hub_with(streams);
        let hub = HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0);
        let mut fixture = Fixture::new();
        let named = sources.iter().map(|range| range.parse().expect("a range"));
        let bridge = BridgeAccess::new(SourceRange::loopback().into_iter().chain(named));
        let settings = CoapSettings { bridge, ..CoapSettings::default() };
        let started = fixture.now;
        fixture.shard = fixture.shard.with_settings(settings, started);
        let hub = Some(hub.with_streams(directory));
        BridgeFixture { fixture, bridge: HubBridge::default(), hub, runner, hub_counters, started }
    }

    /// Passes calls and mail between endpoint and hub until both are done; what the endpoint sends.
    fn turn(&mut self) -> Vec<(DatagramPath, Received)> {
        let mut sent = Vec::new();
        for _ in 0..8 {
            let coap = &mut self.fixture.shard;
            while let Some(call) = coap.next_call() {
                let CoapCall::Hub(call) = call else { panic!("{call:?}") };
                self.bridge.call(call, self.hub.as_mut(), coap);
            }
            let elapsed = self.fixture.now.since(self.started).as_nanos() as u64;
            if let Some(hub) = &mut self.hub {
                hub.turn(|| Now::simulated(elapsed));
                self.runner.turn(Now::simulated(elapsed));
                while let Some((token, mail)) = hub.next_mail() {
                    assert!(HubBridge::is_own(token));
                    self.bridge.receive(token, mail, hub, coap);
                }
            }
            sent.extend(self.fixture.transmit());
        }
        sent
    }

    /// Sends a confirmable request and returns its answer.
    fn ask(
        &mut self,
        path: &DatagramPath,
        code: Code,
        uri: &str,
        options: &[(OptionNumber, Vec<u8>)],
        payload: &[u8],
    ) -> Received {
        self.fixture.next_id += 1;
        let datagram = request(CON, code, self.fixture.next_id, uri, options, payload);
        let at_once = self.fixture.send(path, &datagram);
        at_once.unwrap_or_else(|| self.turn().remove(0).1)
    }

    fn resource(&self, filter: &str) -> ResourceId {
        let key = ObservableKey::Filter(filter.as_bytes().into());
        self.fixture.shard.exchange.observations.find_resource(&key).expect("it is read")
    }

    /// Fills a client's share of the bytes of states, until its resources are released.
    fn fill_states(&mut self, path: &DatagramPath) {
        let observations = &mut self.fixture.shard.exchange.observations;
        let long = vec![0; OBSERVED_STATE_SIZE_MAX];
        for number in 0_u32.. {
            let key = ObservableKey::Filter(number.to_string().into_bytes().into());
            let resource = observations.resource(&key, ClientAddress::of(path)).expect("there is room");
            observations.set_complete(resource);
            if !observations.set_state(resource, &long) {
                return;
            }
        }
    }

    fn publish(&mut self, uri: &str, payload: &[u8]) -> Received {
        self.ask(&client(1), Code::POST, uri, &[], payload)
    }

    fn stored(&self) -> u64 {
        self.hub_counters.streams[0].last.get()
    }
}

fn query(argument: &str) -> (OptionNumber, Vec<u8>) {
    (OptionNumber::URI_QUERY, argument.into())
}

fn text(answer: &Received) -> &str {
    std::str::from_utf8(&answer.payload).expect("text")
}

/// Issue row of the bridge: the answer to a publication has the stream's acknowledgement.
#[test]
fn a_publication_is_answered_with_its_acknowledgement() {
    let mut all = BridgeFixture::new(&[]);
    let answer = all.publish("publish/readings.roof", b"21.5");
    assert_eq!((answer.code, text(&answer)), (Code::CHANGED, r#"{"stream":"readings","seq":1}"#));
    assert_eq!(answer.value(OptionNumber::CONTENT_FORMAT), Some(&[50][..]), "JSON");
    let id = [query("Nats-Msg-Id=a")];
    for expected in [r#"{"stream":"readings","seq":2}"#, r#"{"stream":"readings","seq":2,"duplicate":true}"#]
    {
        let answer = all.ask(&client(1), Code::POST, "publish/readings.roof", &id, b"22");
        assert_eq!(text(&answer), expected);
    }
    assert_eq!(all.stored(), 2);
}

/// Errors have the codes of the statuses over HTTP; without a stream nothing is published.
#[test]
fn a_publication_that_is_not_stored_is_refused_with_a_reason() {
    let mut all = BridgeFixture::new(&[]);
    for (uri, options, code, reason) in [
        ("publish/unknown", vec![], Code::NOT_FOUND, "no stream has this subject"),
        ("publish/a..b", vec![], Code::BAD_REQUEST, "invalid subject"),
        ("publish/$JS.API.x", vec![], Code::BAD_REQUEST, "reserved subject"),
        ("publish/readings.a", vec![query("x=1")], Code::BAD_REQUEST, "unknown parameter x"),
        ("publish/readings.a", vec![query("Nats-Rollup=all")], Code::BAD_REQUEST, "unknown header"),
        (
            "publish/readings.a",
            vec![query("Nats-Expected-Last-Sequence=7")],
            Code::PRECONDITION_FAILED,
            "the last sequence",
        ),
    ] {
        let answer = all.ask(&client(1), Code::POST, uri, &options, b"x");
        assert_eq!(answer.code, code, "{uri}");
        assert!(text(&answer).contains(reason), "{uri}: {}", text(&answer));
    }
    assert_eq!(all.ask(&client(1), Code::GET, "publish/readings.a", &[], b"").code, Code::METHOD_NOT_ALLOWED);
    assert_eq!(
        all.ask(&client(1), Code::PUT, "subscribe/readings.a", &[], b"").code,
        Code::METHOD_NOT_ALLOWED
    );
    assert_eq!(all.stored(), 0);
}

/// Publication × hung disk × duplicate: the request waits with an acknowledgement, its repetitions are not published, and
/// the end is 5.03, for a repetition as well.
#[test]
fn a_hung_disk_ends_in_unavailable_and_duplicates_publish_nothing() {
    let mut all = BridgeFixture::new(&[]);
    let me = client(1);
    let post = request(CON, Code::POST, 7, "publish/full.a", &[], b"x");
    assert_eq!(all.fixture.send(&me, &post), None);
    assert!(all.turn().is_empty());
    let (mut acknowledged, mut answer) = (false, None);
    for _ in 0..40 {
        all.fixture.now = all.fixture.now.after(Duration::from_secs(1));
        if answer.is_none() {
            // A client repeats what is not acknowledged; later copies arrive as well.
            let repeated = all.fixture.send(&me, &post);
            assert_eq!(repeated.is_some(), acknowledged, "the acknowledgement is repeated");
        }
        for (_, message) in all.turn() {
            match message.code {
                Code::EMPTY => acknowledged = true,
                _ => answer = Some(message),
            }
        }
    }
    let answer = answer.expect("it ends");
    assert_eq!((answer.kind, answer.code), (CON, Code::SERVICE_UNAVAILABLE));
    assert!(answer.value(OptionNumber::MAX_AGE).is_some() && text(&answer).contains("does not answer"));
    assert_eq!(all.hub_counters.losses(Ingress::Coap, Loss::Hung), 1, "one publication");
    assert_eq!(all.hub.as_ref().expect("it is there").pending_coap_publications, 0);
}

/// A publication that the hub does not answer in time is 5.04, because it may be stored.
#[test]
fn a_publication_without_an_outcome_times_out() {
    let mut all = BridgeFixture::new(&[]);
    let post = request(NON, Code::POST, 7, "publish/full.a", &[], b"x");
    assert_eq!(all.fixture.send(&client(1), &post), None);
    all.turn();
    // The hub's time stands still.
    all.started = all.started.after(Duration::from_secs(61));
    all.fixture.now = all.fixture.now.after(Duration::from_secs(61));
    let (_, answer) = all.turn().remove(0);
    assert_eq!((answer.code, answer.kind), (Code::GATEWAY_TIMEOUT, NON));
    let hub = all.hub.as_ref().expect("it is there");
    assert_eq!((hub.counters.publications_unanswered.get(), hub.pending_coap_publications), (1, 0));
}

/// After a hand-over the clients are told to send again: the successor has the streams.
#[test]
fn without_a_hub_requests_are_to_be_sent_again() {
    let mut all = BridgeFixture::new(&[]);
    let post = request(NON, Code::POST, 7, "publish/full.a", &[], b"x");
    assert_eq!(all.fixture.send(&client(1), &post), None);
    all.turn();
    all.hub = None;
    all.bridge.hub_left(&mut all.fixture.shard);
    assert_eq!(all.turn().remove(0).1.code, Code::GATEWAY_TIMEOUT, "it may be stored");
    for (code, uri) in [(Code::POST, "publish/readings.a"), (Code::GET, "subscribe/readings.a")] {
        let answer = all.ask(&client(1), code, uri, &[], b"");
        assert_eq!(answer.code, Code::SERVICE_UNAVAILABLE);
        assert!(answer.value(OptionNumber::MAX_AGE).is_some());
    }
}

/// GET returns the newest record of the filter, also if others came later.
#[test]
fn the_newest_record_is_read() {
    let mut all = BridgeFixture::new(&[]);
    let read = |all: &mut BridgeFixture, uri| all.ask(&client(2), Code::GET, uri, &[], b"");
    assert_eq!(read(&mut all, "subscribe/readings.roof").code, Code::NOT_FOUND);
    assert_eq!(read(&mut all, "subscribe/no.stream").code, Code::NOT_FOUND);
    assert_eq!(read(&mut all, "subscribe/a..b").code, Code::BAD_REQUEST);
    for number in 0..100 {
        all.publish("publish/readings.roof", format!("roof {number}").as_bytes());
        all.publish("publish/readings.cellar", b"cellar");
    }
    let answer = read(&mut all, "subscribe/readings.roof");
    assert_eq!((answer.code, text(&answer)), (Code::CONTENT, "roof 99"));
    assert_eq!(text(&read(&mut all, "subscribe/readings.>")), "cellar");
    let accept = [(OptionNumber::ACCEPT, vec![50])];
    let json = all.ask(&client(2), Code::GET, "subscribe/readings.roof", &accept, b"");
    assert_eq!(json.code, Code::NOT_ACCEPTABLE);
    // Nothing observes these filters: their subscriptions have ended.
    all.turn();
    all.fixture.shard.publish_metrics(all.fixture.now);
    assert_eq!(all.fixture.counters.observed_resources.get(), 0);
    let counters = &all.hub.as_ref().expect("it is there").counters;
    assert_eq!((counters.coap.open(), all.hub_counters.registrations.get()), (0, 0));
}

/// Issue row of observation: an observer of a filter gets the newest message, not those in between.
#[test]
fn an_observer_of_a_filter_gets_the_newest_message() {
    let mut all = BridgeFixture::new(&[]);
    all.publish("publish/readings.roof", b"20");
    let register = [(OptionNumber::OBSERVE, Vec::new())];
    let first = all.ask(&client(2), Code::GET, "subscribe/readings.*", &register, b"");
    assert_eq!((text(&first), first.observe().is_some()), ("20", true));
    // A second observer uses the same subscription, and is answered at once.
    let second = all.ask(&client(3), Code::GET, "subscribe/readings.*", &register, b"");
    assert_eq!((text(&second), all.hub_counters.registrations.get()), ("20", 1));
    for number in 0..50 {
        all.fixture.next_id += 1;
        let reading = number.to_string();
        let id = all.fixture.next_id;
        let post = request(NON, Code::POST, id, "publish/readings.roof", &[], reading.as_bytes());
        assert_eq!(all.fixture.send(&client(1), &post), None);
    }
    let sent = all.turn();
    let notifications: Vec<_> = sent.iter().filter(|(_, message)| message.observe().is_some()).collect();
    let peers: Vec<_> = notifications.iter().map(|(path, _)| *path).collect();
    assert!(peers.contains(&client(2)) && peers.contains(&client(3)) && peers.len() == 2, "{peers:?}");
    assert!(notifications.iter().all(|(_, message)| message.payload == b"49"));
    // The last observer ends the subscription.
    for (path, message) in &notifications {
        all.fixture.reset(path, message.id);
    }
    all.turn();
    assert_eq!(all.hub_counters.registrations.get(), 0);
}

/// A filter that is observed is not read again for each request, and a client reads only a part of what may be read at
/// the same time.
#[test]
fn reads_of_filters_are_shared_and_bounded() {
    let mut all = BridgeFixture::new(&[]);
    all.publish("publish/readings.roof", b"20");
    let register = [(OptionNumber::OBSERVE, Vec::new())];
    all.ask(&client(2), Code::GET, "subscribe/readings.roof", &register, b"");
    let opened = |all: &BridgeFixture| all.hub.as_ref().expect("it is there").counters.coap.opened.get();
    let before = opened(&all);
    for port in 3..100 {
        let get = request(CON, Code::GET, port, "subscribe/readings.roof", &[], b"");
        let answer = all.fixture.send(&client(port), &get).expect("it is answered at once");
        assert_eq!(answer.payload, b"20");
    }
    assert_eq!(opened(&all), before);
    // The hub does not answer these.
    let other = DatagramPath { peer: ([127, 0, 0, 2], 1).into(), ..client(1) };
    let read = |all: &mut BridgeFixture, path: &DatagramPath, number: usize| {
        all.fixture.next_id += 1;
        let uri = format!("subscribe/readings.{number}");
        all.fixture.send(path, &request(CON, Code::GET, all.fixture.next_id, &uri, &[], b""))
    };
    let waiting = (0..1000).take_while(|number| read(&mut all, &client(1), *number).is_none()).count();
    assert_eq!(waiting, FILTER_READS_MAX / 2);
    assert_eq!(read(&mut all, &client(4), 1000).expect("it is refused").code, Code::SERVICE_UNAVAILABLE);
    assert_eq!(read(&mut all, &client(4), 0), None, "it waits for the same read");
    assert_eq!(read(&mut all, &other, 1000), None);
    let answers = all.turn();
    assert_eq!(answers.len(), waiting + 2);
    assert!(answers.iter().all(|(_, answer)| answer.code == Code::NOT_FOUND));
    assert_eq!(read(&mut all, &client(4), 1001), None);
}

/// A message that is not stored is not missing: the answer is 5.03, and the client does not become an observer.
#[test]
fn a_message_that_is_not_stored_is_answered_unavailable() {
    let register = [(OptionNumber::OBSERVE, Vec::new())];
    for state in [vec![b'x'], vec![b'x'; OBSERVED_STATE_SIZE_MAX + 1]] {
        let mut all = BridgeFixture::new(&[]);
        for (port, options) in [(1, &[][..]), (2, &register)] {
            let get = request(CON, Code::GET, port, "subscribe/readings.a", options, b"");
            assert_eq!(all.fixture.send(&client(port), &get), None);
        }
        all.fill_states(&client(1));
        let resource = all.resource("readings.a");
        all.fixture.shard.set_state(resource, &state);
        all.fixture.shard.complete_state(resource);
        let answers = all.fixture.transmit();
        assert_eq!(answers.len(), 2);
        for (_, answer) in answers {
            assert_eq!((answer.code, answer.observe()), (Code::SERVICE_UNAVAILABLE, None));
            assert!(answer.value(OptionNumber::MAX_AGE).is_some());
        }
        assert_eq!(all.fixture.counters.states_dropped.get(), 1);
        assert_eq!(all.fixture.shard.exchange.observations.len(), 0);
    }
}

/// An observer whose registration is refreshed with 5.03 is no longer one.
#[test]
fn a_refresh_without_a_stored_message_ends_the_observation() {
    let mut all = BridgeFixture::new(&[]);
    let register = [(OptionNumber::OBSERVE, Vec::new())];
    let mut get = request(CON, Code::GET, 1, "subscribe/readings.a", &register, b"");
    assert_eq!(all.fixture.send(&client(1), &get), None);
    assert!(all.turn().remove(0).1.observe().is_some());
    let resource = all.resource("readings.a");
    all.fixture.shard.set_state(resource, &vec![b'x'; OBSERVED_STATE_SIZE_MAX + 1]);
    // The same token, in another message.
    get[3] = 2;
    let answer = all.fixture.send(&client(1), &get).expect("it is answered at once");
    assert_eq!((answer.code, answer.observe()), (Code::SERVICE_UNAVAILABLE, None));
    assert_eq!(all.fixture.shard.exchange.observations.len(), 0);
}

/// A filter that clients read together counts for one that waits for it and has room, with its state and its read.
#[test]
fn a_message_counts_for_a_client_that_waits_and_has_room() {
    let mut all = BridgeFixture::new(&[]);
    let other = DatagramPath { peer: ([127, 0, 0, 2], 1).into(), ..client(1) };
    for path in [client(1), other] {
        let get = request(CON, Code::GET, 1, "subscribe/readings.a", &[], b"");
        assert_eq!(all.fixture.send(&path, &get), None);
    }
    all.fill_states(&client(1));
    let resource = all.resource("readings.a");
    all.fixture.shard.set_state(resource, b"x");
    all.fixture.shard.complete_state(resource);
    let answers = all.fixture.transmit();
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|(_, answer)| (answer.code, text(answer)) == (Code::CONTENT, "x")));
    // The first has its whole share of reads.
    let reads = (0..).take_while(|number| {
        let uri = format!("subscribe/readings.{number}");
        all.fixture.send(&client(2), &request(CON, Code::GET, *number, &uri, &[], b"")).is_none()
    });
    assert_eq!(reads.count(), FILTER_READS_MAX / 2);
}

/// A request without room among those that wait starts no read, and leaves no resource.
#[test]
fn a_read_that_cannot_wait_leaves_nothing() {
    let mut all = BridgeFixture::new(&[]);
    let waiting = (0..).take_while(|id| {
        let get = request(NON, Code::GET, *id, "subscribe/readings.a", &[], b"");
        all.fixture.send(&client(1), &get).is_none()
    });
    assert_eq!(waiting.count(), PENDING_READS_MAX / 2);
    let get = request(NON, Code::GET, 7000, "subscribe/readings.b", &[], b"");
    let refused = all.fixture.send(&client(2), &get).expect("it is refused");
    assert_eq!(refused.code, Code::SERVICE_UNAVAILABLE);
    assert_eq!(all.fixture.shard.exchange.observations.resources(), 1);
    all.turn();
    let answer = all.ask(&client(2), Code::GET, "subscribe/readings.b", &[], b"");
    assert_eq!(answer.code, Code::NOT_FOUND, "it is read");
}

/// All observers of a long message read its blocks from the one state, and the ETag tells a newer one from it.
#[test]
fn blocks_of_a_long_message_come_from_the_observed_state() {
    let mut all = BridgeFixture::new(&[]);
    let publish = |all: &mut BridgeFixture, byte: u8| {
        let pieces = vec![byte; 3000];
        for (number, piece) in pieces.chunks(1024).enumerate() {
            let block = [block_option(OptionNumber::BLOCK1, number as u32, piece.len() == 1024, 1024)];
            all.ask(&client(1), Code::POST, "publish/readings.long", &block, piece);
        }
    };
    let block = |number| [block_option(OptionNumber::BLOCK2, number, false, 1024)];
    publish(&mut all, b'a');
    let register = [(OptionNumber::OBSERVE, Vec::new())];
    let mut tags = Vec::new();
    for port in [2, 3] {
        let first = all.ask(&client(port), Code::GET, "subscribe/readings.long", &register, b"");
        assert!(first.observe().is_some());
        let rest = all.ask(&client(port), Code::GET, "subscribe/readings.long", &block(2), b"");
        assert_eq!((rest.code, rest.payload), (Code::CONTENT, vec![b'a'; 3000 - 2048]));
        tags.push(first.value(OptionNumber::ETAG).expect("a block has one").to_vec());
    }
    assert_eq!(tags[0], tags[1]);
    // An observer continues while the message is replaced.
    publish(&mut all, b'b');
    let rest = all.ask(&client(2), Code::GET, "subscribe/readings.long", &block(1), b"");
    assert_eq!(rest.payload, [b'b'; 1024]);
    assert!(rest.value(OptionNumber::ETAG).is_some_and(|tag| tag != tags[0]));
}

/// A filter without a record is observed as well: its state is empty until the first message.
#[test]
fn a_filter_without_a_record_can_be_observed() {
    let mut all = BridgeFixture::new(&[]);
    let register = [(OptionNumber::OBSERVE, Vec::new())];
    for uri in ["subscribe/readings.new", "subscribe/plain.subject"] {
        let answer = all.ask(&client(2), Code::GET, uri, &register, b"");
        assert_eq!((answer.code, text(&answer), answer.observe().is_some()), (Code::CONTENT, "", true));
    }
    all.publish("publish/readings.new", b"1");
    let sent = all.fixture.transmit().into_iter().chain(all.turn());
    assert!(sent.count() <= 1);
}

/// Invariant 13: other addresses than loopback need `--coap-source` and a fresh Echo value, for each request.
#[test]
fn other_addresses_need_access_and_a_fresh_echo_value() {
    let mut closed = BridgeFixture::new(&[]);
    for (code, uri) in [(Code::POST, "publish/readings.a"), (Code::GET, "subscribe/readings.a")] {
        assert_eq!(closed.ask(&stranger(1), code, uri, &[], b"x").code, Code::FORBIDDEN);
    }
    assert_eq!(closed.fixture.counters.bridge_forbidden.get(), 2);

    let mut open = BridgeFixture::new(&["192.0.2.0/24"]);
    let required = open.ask(&stranger(1), Code::POST, "publish/readings.a", &[], b"x");
    assert_eq!(required.code, Code::UNAUTHORIZED);
    let echo = (OptionNumber::ECHO, required.value(OptionNumber::ECHO).expect("4.01 has one").to_vec());
    let fresh = [echo];
    let stored = open.ask(&stranger(1), Code::POST, "publish/readings.a", &fresh, b"x");
    assert_eq!((stored.code, open.stored()), (Code::CHANGED, 1));
    // The proof of the address is not enough: the source of the next request could be spoofed.
    assert_eq!(open.ask(&stranger(1), Code::POST, "publish/readings.a", &[], b"y").code, Code::UNAUTHORIZED);
    assert_eq!(
        open.ask(&stranger(2), Code::POST, "publish/readings.a", &fresh, b"y").code,
        Code::UNAUTHORIZED
    );
    open.fixture.now = open.fixture.now.after(Duration::from_secs(120));
    assert_eq!(
        open.ask(&stranger(1), Code::POST, "publish/readings.a", &fresh, b"y").code,
        Code::UNAUTHORIZED
    );
    assert_eq!(open.stored(), 1);
}

/// As over HTTP: a pool that matches everything does not get the hub's paths, and gets them where there is no access.
#[test]
fn a_pool_that_matches_everything_does_not_get_the_paths_of_the_hub() {
    for (access, goes_to_hub) in [(SourceRange::loopback(), true), (Vec::new(), false)] {
        let mut fixture = Fixture::new();
        let settings = CoapSettings { bridge: BridgeAccess::new(access), ..CoapSettings::default() };
        let pattern: crate::upstream::PathPattern = "/*".parse().expect("a pattern");
        let now = fixture.now;
        let shard = CoapShard::new(Arc::clone(&fixture.counters), HashKey(1, 2), now);
        fixture.shard = shard.with_settings(settings, now).with_pools(
            AppRoutes::new([&pattern].into_iter()),
            std::iter::once(ForwardingPool { slots: 1, has_affinity: false }),
            now,
        );
        for (code, uri) in [(Code::POST, "publish/a"), (Code::GET, "subscribe/a")] {
            fixture.next_id += 1;
            let datagram = request(CON, code, fixture.next_id, uri, &[], b"");
            assert_eq!(fixture.send(&client(1), &datagram), None);
            let call = fixture.shard.next_call().expect("a call");
            assert_eq!(matches!(call, CoapCall::Hub(_)), goes_to_hub, "{call:?}");
        }
    }
}
