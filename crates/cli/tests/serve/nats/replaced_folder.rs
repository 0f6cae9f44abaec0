//! A data folder that is replaced between two server runs, and a follower that has read the old one.

use stilling_client::{FollowStart, FollowedStream, Subscriber, SubscriberConfig, SubscriberEvent};

use super::NatsServerFixture;
use super::faults::publish;
use crate::support::{DriverUnderTest, HANG_TIMEOUT};

on_both_drivers! {
    a_follower_reports_a_data_folder_that_was_replaced_by_a_longer_one,
}

/// Messages in the folder that the follower has read, and in its replacement.
const BEFORE: u32 = 3;
const AFTER: u32 = 10;

fn with_messages(fixture: NatsServerFixture, numbers: std::ops::Range<u32>) -> NatsServerFixture {
    let mut client = fixture.client();
    client.send("SUB inbox.* 1\r\n");
    publish(&mut client, "events.a", numbers);
    fixture
}

/// The next `count` messages by sequence and payload, and the other events except those of the connection's state.
#[track_caller]
fn follow(follower: &mut Subscriber, count: u32) -> (Vec<(u64, String)>, Vec<SubscriberEvent>) {
    let (mut messages, mut others) = (Vec::new(), Vec::new());
    while messages.len() < count as usize {
        match follower.next_event(HANG_TIMEOUT).expect("it follows").expect("it comes in time") {
            SubscriberEvent::Message(message) => {
                let payload = String::from_utf8(message.payload).expect("a number");
                messages.push((message.position.expect("it is of a stream").sequence, payload));
            }
            SubscriberEvent::Connected | SubscriberEvent::Interrupted(_) => {}
            event => others.push(event),
        }
    }
    (messages, others)
}

/// Row 0.31: the creation time distinguishes a longer stream of the same name from the old one: it is reported, and
/// followed from its first message.
fn a_follower_reports_a_data_folder_that_was_replaced_by_a_longer_one(driver: DriverUnderTest) {
    let fixture = with_messages(NatsServerFixture::start_restartable(driver, ""), 0..BEFORE);
    let NatsServerFixture { server, data: longer } =
        with_messages(NatsServerFixture::start(driver, ""), 100..100 + AFTER);
    server.finish();
    let mut follower = Subscriber::new(SubscriberConfig {
        servers: vec![format!("nats://{}", fixture.nats()).parse().expect("an address")],
        filter: "events.>".to_owned(),
        stream: Some(FollowedStream { stream: "events".to_owned(), from: FollowStart::All }),
        ..SubscriberConfig::default()
    })
    .expect("the settings are right");
    let expected =
        |numbers: std::ops::Range<u32>| (1..).zip(numbers.map(|number| number.to_string())).collect();
    assert_eq!(follow(&mut follower, BEFORE), (expected(0..BEFORE), vec![]));
    let streams = fixture.data.path().join("streams");
    let fixture = fixture.crash_in_place(driver, "", || {
        std::fs::rename(&streams, streams.with_extension("before")).expect("our folder");
        std::fs::rename(longer.path().join("streams"), &streams).expect("the same file system");
    });
    let anew = vec![SubscriberEvent::Recreated { last: u64::from(BEFORE) }];
    assert_eq!(follow(&mut follower, AFTER), (expected(100..100 + AFTER), anew));
    drop(follower);
    fixture.server.finish();
}
