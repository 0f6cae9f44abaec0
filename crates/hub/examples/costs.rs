//! Costs of idle consumers and disconnecting clients for other clients, in processor time.
//!
//! `cargo run --release -p stilling-hub --example costs`
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::collections::VecDeque;
use std::time::Duration;

use stilling_hub::{
    ClientOptions, Durability, HashKey, Hub, HubConfig, HubRequest, Ingress, JournalStorage, Now,
    Publication, PublicationBatch, Retention, RoutedBatch, ShardSenders, ShardSubscriptions, StreamConfig,
    UnixNanos,
};

/// Senders that discard everything at once.
struct NullSenders;

impl ShardSenders for NullSenders {
    fn swap(&mut self, _: usize, routed_batch: &mut RoutedBatch) -> bool {
        routed_batch.clear();
        true
    }
}

type MemoryHub = Hub<JournalStorage, NullSenders>;

fn table() -> ShardSubscriptions {
    ShardSubscriptions::new(HashKey(1, 2), 10_000)
}

fn hub() -> MemoryHub {
    let (durability, retention) = (Durability::Memory, Retention::of(Durability::Memory));
    let stream = StreamConfig { durability, retention, ..StreamConfig::default() };
    let config = HubConfig { streams: vec![stream], ..HubConfig::default() };
    Hub::new(config, &[], (JournalStorage::default(), NullSenders), 1, (HashKey(1, 2), UnixNanos::EPOCH))
}

/// Processor time of this thread, without other programs; it advances with the kernel's tick of some milliseconds.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let word = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(word.expect("nanoseconds"))
}

fn subscribe(
    hub: &mut MemoryHub,
    table: &mut ShardSubscriptions,
    token: u64,
    filters: impl Iterator<Item = String>,
) {
    let mut publication_batch = PublicationBatch::new();
    for (number, filter) in filters.enumerate() {
        let sid = number.to_string();
        table
            .subscribe(token, ClientOptions::default(), (filter.as_bytes(), b"", sid.as_bytes()))
            .expect("there is room");
        table.push_changes(&mut publication_batch);
        assert_eq!(
            hub.process_requests(0, &publication_batch, 0, Now::simulated(0)),
            publication_batch.len()
        );
        publication_batch.clear();
    }
}

/// Runs requests of a client and all their effects. Returns the time and number of the turns.
fn ask(hub: &mut MemoryHub, token: u64, requests: &[HubRequest<'_>], now_ns: u64) -> (Duration, u32) {
    let client_options = ClientOptions { headers: true, no_responders: true, no_echo: false };
    let mut publication_batches = VecDeque::new();
    for some in requests.chunks(1000) {
        let mut publication_batch = PublicationBatch::new();
        some.iter().for_each(|request| publication_batch.push(token, client_options, request));
        publication_batches.push_back((publication_batch, 0));
    }
    let (begun, mut turns) = (busy(), 0);
    while turns == 0 || !publication_batches.is_empty() || !hub.is_quiet() {
        hub.poll_storage(Now::simulated(now_ns));
        if let Some((publication_batch, at)) = publication_batches.front_mut() {
            *at = hub.process_requests(0, publication_batch, *at, Now::simulated(now_ns));
            if *at == publication_batch.len() {
                publication_batches.pop_front();
            }
        }
        hub.flush();
        turns += 1;
    }
    (busy() - begun, turns)
}

fn publication<'a>(subject: &'a str, reply: &'a str, payload: &'a str) -> HubRequest<'a> {
    HubRequest::Publish(Publication {
        ingress: Ingress::Nats,
        subject: subject.as_bytes(),
        reply: reply.as_bytes(),
        headers: b"",
        payload: payload.as_bytes().into(),
        ticket: None,
    })
}

fn acknowledgements(hub: &mut MemoryHub) -> Duration {
    let some: Vec<_> = (0..300).map(|_| publication("events.other", "inbox.1", "hello")).collect();
    ask(hub, 1, &some, 1).0
}

fn main() {
    let mut plain = hub();
    let mut table = table();
    subscribe(&mut plain, &mut table, 1, ["inbox.*".to_owned()].into_iter());
    println!("300 acknowledgements: {:?}", acknowledgements(&mut plain));

    let mut with_consumers = hub();
    let mut table = self::table();
    subscribe(&mut with_consumers, &mut table, 1, ["inbox.*".to_owned()].into_iter());
    subscribe(&mut with_consumers, &mut table, 2, ["push.*".to_owned()].into_iter());
    let filters: Vec<_> = (0..64).map(|number| format!("\"events.k.{number}\"")).collect();
    for number in 0..1000 {
        let config = format!(
            r#"{{"config":{{"ack_policy":"none","name":"c{number}","deliver_subject":"push.{number}","deliver_policy":"new","filter_subjects":[{}]}}}}"#,
            filters.join(",")
        );
        ask(&mut with_consumers, 2, &[publication("$JS.API.CONSUMER.CREATE.events", "", &config)], 0);
    }
    assert_eq!(with_consumers.counters().consumers.get(), 1000);
    println!("the same beside 1,000 consumers x 64 filters: {:?}", acknowledgements(&mut with_consumers));

    for is_same in [true, false] {
        let (mut full, mut table) = (hub(), self::table());
        for token in 0..10_u64 {
            let filters = (0..10_000).map(|number| match is_same {
                true => "a.b".to_owned(),
                false => format!("a.{token}.{number}"),
            });
            subscribe(&mut full, &mut table, token, filters);
        }
        let begun = busy();
        table.disconnect(3);
        let (time, turns) = ask(&mut full, 3, &[HubRequest::Disconnect], 1);
        assert_eq!(table.len(), 90_000);
        let mut publication_batch = PublicationBatch::new();
        while table.has_removals() {
            table.remove_some();
            table.push_changes(&mut publication_batch);
        }
        println!("the shard: {:?}", busy() - begun - time);
        println!(
            "10,000 of 100,000 subscriptions leave, {} filters: {turns} turns of {:?}",
            if is_same { "equal" } else { "different" },
            time / turns
        );
    }
}
