//! One connection that uses several features at once.

use std::thread;

use super::{NatsServerFixture, RawNatsClient};
use crate::support::DriverUnderTest;

on_both_drivers!(a_connection_with_a_feed_a_consumer_and_requests_gets_each_in_order);

const MESSAGES: u64 = 600;

/// Subscriptions beside the connection's own, enough for a feed in each of two shards.
const SHARERS: usize = 20;

/// Each of them is complete and in
/// order, whatever is between.
fn a_connection_with_a_feed_a_consumer_and_requests_gets_each_in_order(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "-A 2 --stream feed=feed.>:disk");
    let sharers: Vec<RawNatsClient> = (0..SHARERS)
        .map(|_| {
            let mut sharer = fixture.client();
            sharer.send("SUB feed.* 1\r\n");
            sharer.flush();
            sharer
        })
        .collect();
    let mut service = fixture.client();
    service.send("SUB service 1\r\n");
    service.flush();
    let service = thread::spawn(move || {
        for _ in 0..MESSAGES {
            let head = service.line();
            let reply = head.split(' ').nth(3).unwrap_or_else(|| panic!("{head}")).to_owned();
            let text = service.line();
            service.send(format!("PUB {reply} {}\r\n{text}\r\n", text.len()));
        }
    });
    let mut client = fixture.client();
    client.send("SUB feed.* 1\r\nSUB push 2\r\nSUB inbox.* 3\r\nSUB answer 4\r\n");
    let config = r#"{"ack_policy":"none","deliver_policy":"all","deliver_subject":"push"}"#;
    let create = format!(r#"{{"stream_name":"feed","config":{config}}}"#);
    client.send(format!("PUB $JS.API.CONSUMER.CREATE.feed answer {}\r\n{create}\r\n", create.len()));
    assert!(client.line().starts_with("MSG answer 4 "));
    client.line();
    let mut publisher = fixture.client();
    let publisher = thread::spawn(move || {
        for number in 0..MESSAGES {
            let text = number.to_string();
            publisher.send(format!("PUB feed.a {}\r\n{text}\r\n", text.len()));
        }
        publisher.flush();
    });
    let mut next = [0; 4];
    for number in 0..MESSAGES {
        let text = number.to_string();
        client.send(format!("PUB service inbox.{number} {}\r\n{text}\r\n", text.len()));
        // Reads in between, so that all three are under way.
        read_until(&mut client, &mut next, 3, number + 1);
    }
    for sid in [1, 2] {
        read_until(&mut client, &mut next, sid, MESSAGES);
    }
    assert_eq!(next, [0, MESSAGES, MESSAGES, MESSAGES]);
    assert_eq!(client.flush(), Vec::<String>::new(), "nothing twice");
    for thread in [publisher, service] {
        thread.join().expect("it has done its part");
    }
    let metrics = fixture.server.watch().until("feeds are shared", |metrics| metrics.value("hub_feeds") > 0);
    assert!(metrics.value("hub_feed_subscriptions") as usize >= SHARERS / 2);
    for mut sharer in sharers {
        let lines = sharer.lines(2 * MESSAGES as usize);
        assert!((0..).zip(lines.chunks(2)).all(|(number, lines)| lines[1] == number.to_string()));
    }
    drop(client);
    fixture.server.finish();
}

/// Reads until `count` messages of a subscription have arrived. Each subscription's payloads are consecutive numbers.
#[track_caller]
fn read_until(client: &mut RawNatsClient, next: &mut [u64; 4], sid: usize, count: u64) {
    while next[sid] < count {
        let head = client.line();
        let of: usize = head.split(' ').nth(2).and_then(|sid| sid.parse().ok()).expect("a message");
        assert_eq!(client.line(), next[of].to_string(), "{head}");
        next[of] += 1;
    }
}
