//! Ends of publications and subscriptions that the hub's timing makes rare.

use std::sync::Arc;
use std::time::Duration;

use stilling_engine::DatagramPath;
use stilling_hub::{Durability, HashKey, JournalStorage, Now, StreamConfig};
use stilling_ring::Time;
use stilling_wire::coap::{CoapMessage, MessageType, MessageWriter, OptionNumber, Token as CoapToken};

use super::super::{BridgeAccess, CoapCall, CoapCounters, CoapEndpoint, CoapSettings};
use super::*;
use crate::hub::testing::hub_with;
use crate::hub::{Runner, StreamDirectory};
use crate::settings::SourceRange;

/// An endpoint with its hub, whose stream `readings` is in memory.
struct HubFixture {
    coap: CoapShard,
    counters: Arc<CoapCounters>,
    bridge: HubBridge,
    hub: HubHandle,
    runner: Runner<JournalStorage>,
    now: Time,
    next_id: u16,
}

impl HubFixture {
    fn new() -> HubFixture {
        let stream =
            StreamConfig { durability: Durability::Memory, ..StreamConfig::new("readings", ["readings.>"]) };
        let directory = Arc::new(StreamDirectory::new(std::slice::from_ref(&stream)));
        let (port, runner, _) = hub_with(vec![stream]);
        let hub = HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0);
        let (counters, now) = (Arc::<CoapCounters>::default(), Time::ZERO.after(Duration::from_secs(1000)));
        let settings =
            CoapSettings { bridge: BridgeAccess::new(SourceRange::loopback()), ..CoapSettings::default() };
        let coap = CoapShard::new(Arc::clone(&counters), HashKey(1, 2), now).with_settings(settings, now);
        let (bridge, hub) = (HubBridge::default(), hub.with_streams(directory));
        HubFixture { coap, counters, bridge, hub, runner, now, next_id: 0 }
    }

    /// Sends a non-confirmable request and makes its calls in the hub. Returns the code and payload of a direct answer.
    fn send(&mut self, port: u16, code: Code, path: &str, registers: bool) -> Option<(Code, Vec<u8>)> {
        self.next_id += 1;
        let token = CoapToken::new(&self.next_id.to_be_bytes()).expect("a short token");
        let mut buffer = vec![0; 256];
        let mut writer =
            MessageWriter::new(&mut buffer, MessageType::NonConfirmable, code, self.next_id, token)
                .expect("there is room");
        if registers {
            writer.option(OptionNumber::OBSERVE, b"").expect("there is room");
        }
        for segment in path.split('/') {
            writer.option(OptionNumber::URI_PATH, segment.as_bytes()).expect("there is room");
        }
        let datagram = writer.payload(path.as_bytes()).expect("there is room").to_vec();
        let from = DatagramPath { socket: 0, peer: ([127, 0, 0, 1], port).into(), local: None };
        let reply = self.coap.receive(self.now, &from, &datagram, false, CoapEndpoint { demo: false });
        let answer = reply.map(parse);
        self.call();
        answer
    }

    fn call(&mut self) {
        while let Some(call) = self.coap.next_call() {
            let CoapCall::Hub(call) = call else { panic!("{call:?}") };
            self.bridge.call(call, Some(&mut self.hub), &mut self.coap);
        }
    }

    /// Lets the hub work, and returns what the endpoint sends.
    fn turn(&mut self) -> Vec<(u16, Code, Vec<u8>)> {
        let mut sent = Vec::new();
        for _ in 0..8 {
            self.call();
            self.hub.turn(|| Now::simulated(0));
            self.runner.turn(Now::simulated(0));
            while let Some((token, mail)) = self.hub.next_mail() {
                self.bridge.receive(token, mail, &mut self.hub, &mut self.coap);
            }
            sent.extend(self.transmit());
        }
        sent
    }

    /// The port of each receiver, with the code and payload.
    fn transmit(&mut self) -> Vec<(u16, Code, Vec<u8>)> {
        let mut sent = Vec::new();
        while let Some((path, message)) = self.coap.poll_transmit(self.now) {
            let (code, payload) = parse(message);
            sent.push((path.peer.port(), code, payload));
            self.coap.transmitted();
        }
        sent
    }

    fn deliver(&mut self, number: u32, delivery: DeliveryItem<'_>) {
        let token = Token::new(SUBSCRIPTION_INDEX, number);
        self.bridge.receive_messages(token, delivery, &mut self.hub, &mut self.coap);
    }

    fn observers(&mut self) -> u64 {
        self.coap.publish_metrics(self.now);
        self.counters.observers.get()
    }
}

fn parse(datagram: &[u8]) -> (Code, Vec<u8>) {
    let message = CoapMessage::parse(datagram).expect("a message of the server is valid");
    (message.code, message.payload.to_vec())
}

/// A slow read of a stream ends the requests that wait for it, and its observations, and the filter is read anew.
#[test]
fn a_slow_consumer_fails_the_requests_that_wait() {
    let mut all = HubFixture::new();
    for port in [1, 2] {
        assert_eq!(all.send(port, Code::GET, "subscribe/readings.a", port == 2), None);
    }
    all.deliver(1, DeliveryItem::SlowConsumer);
    let answers = all.transmit();
    assert_eq!(answers.len(), 2);
    for (_, code, reason) in &answers {
        assert_eq!((*code, &reason[..]), (Code::SERVICE_UNAVAILABLE, &too_slow().body[..]));
    }
    assert_eq!(all.send(3, Code::GET, "subscribe/readings.a", true), None);
    assert_eq!(all.turn(), [(3, Code::CONTENT, Vec::new())]);
    assert_eq!(all.observers(), 1);
    all.deliver(2, DeliveryItem::SlowConsumer);
    assert_eq!((all.turn(), all.observers()), (Vec::new(), 0));
    assert_eq!(all.hub.counters.coap.open(), 0);
}

/// A filter that fails before the answers with its state have left is answered with the failure.
#[test]
fn a_failure_replaces_the_state_that_has_not_been_sent() {
    let mut all = HubFixture::new();
    for port in [1, 2] {
        assert_eq!(all.send(port, Code::GET, "subscribe/readings.a", port == 2), None);
    }
    let resource = all.bridge.subscriptions.id(1).expect("it is subscribed");
    all.coap.set_state(resource, b"x");
    all.coap.complete_state(resource);
    all.deliver(1, DeliveryItem::SlowConsumer);
    let answers = all.transmit();
    let codes: Vec<_> = answers.iter().map(|(port, code, _)| (*port, *code)).collect();
    assert_eq!(codes, [(1, Code::SERVICE_UNAVAILABLE), (2, Code::SERVICE_UNAVAILABLE)]);
    assert_eq!(all.observers(), 0);
}

/// Numbers repeat: a subscription that lasts keeps its own, and mail for one that has ended reaches no other.
#[test]
fn a_repeated_number_delivers_nothing_to_another_subscription() {
    let mut all = HubFixture::new();
    let old = |all: &HubFixture| all.bridge.subscriptions.id(1);
    assert_eq!(all.send(1, Code::GET, "subscribe/readings.a", true), None);
    all.turn();
    let first = old(&all).expect("it is subscribed");
    // All numbers have been used.
    all.bridge.last_number = NUMBER_MASK;
    assert_eq!(all.send(2, Code::GET, "subscribe/readings.b", true), None);
    all.turn();
    assert_eq!(old(&all), Some(first));
    assert!(all.bridge.subscriptions.id(2).is_some_and(|second| second != first));
    all.send(9, Code::POST, "publish/readings.a", false);
    let notified: Vec<_> = all.turn().into_iter().filter(|(_, code, _)| *code == Code::CONTENT).collect();
    assert_eq!(notified, [(1, Code::CONTENT, b"publish/readings.a".to_vec())]);
    // The first ends; its mail comes later.
    all.coap.fail_state(first, too_slow);
    all.turn();
    assert_eq!(old(&all), None);
    let frame = [&4_u32.to_le_bytes()[..], b"late"].concat();
    all.deliver(1, DeliveryItem::Bytes(&frame, b""));
    assert_eq!(all.turn(), []);
    let read = all.send(3, Code::GET, "subscribe/readings.b", false);
    assert_eq!(read.expect("it is observed").0, Code::NOT_FOUND);
}

/// A publication that is withdrawn again, because its answer has not left yet, ends once.
#[test]
fn a_publication_is_withdrawn_once() {
    let mut all = HubFixture::new();
    for port in [1, 2] {
        assert_eq!(all.send(port, Code::POST, "publish/readings.a", false), None);
    }
    assert_eq!(all.hub.pending_coap_publications, 2);
    let exchange = all.bridge.publications.id(1).expect("it is in the hub");
    for _ in 0..2 {
        all.bridge.call(BridgeCall::Withdraw(exchange), Some(&mut all.hub), &mut all.coap);
        assert_eq!(all.hub.pending_coap_publications, 1);
        assert_eq!(all.hub.counters.publications_unanswered.get(), 1);
        assert_eq!(all.hub.counters.publications_shed.get(), 0);
    }
    let answers: Vec<_> = all.turn().into_iter().map(|(port, code, _)| (port, code)).collect();
    assert_eq!(answers, [(1, Code::GATEWAY_TIMEOUT), (2, Code::CHANGED)]);
    assert_eq!(all.hub.pending_coap_publications, 0);
}

/// A withdrawn publication has its number until the hub has finished it, so its outcome ends no other.
#[test]
fn a_late_outcome_does_not_end_a_later_publication() {
    let mut all = HubFixture::new();
    assert_eq!(all.send(1, Code::POST, "publish/readings.a", false), None);
    let exchange = all.bridge.publications.id(1).expect("it is in the hub");
    all.bridge.call(BridgeCall::Withdraw(exchange), Some(&mut all.hub), &mut all.coap);
    // All numbers have been used.
    all.bridge.last_number = NUMBER_MASK;
    assert_eq!(all.send(2, Code::POST, "publish/readings.a", false), None);
    assert!(all.bridge.publications.id(1).is_none() && all.bridge.publications.id(2).is_some());
    let answers = all.turn();
    let codes: Vec<_> = answers.iter().map(|(port, code, _)| (*port, *code)).collect();
    assert_eq!(codes, [(1, Code::GATEWAY_TIMEOUT), (2, Code::CHANGED)]);
    assert_eq!(answers[1].2, br#"{"stream":"readings","seq":2}"#);
    assert_eq!((all.hub.pending_coap_publications, all.bridge.withdrawn.len()), (0, 0));
}
