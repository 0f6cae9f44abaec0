//! async-nats, in the test's own process.

use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull, push};
use async_nats::jetstream::context::{ContextBuilder, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event, HeaderMap};
use futures_util::StreamExt;
use tokio::sync::watch;

use super::programs::SUCCESS_LINE;
use crate::support::HANG_TIMEOUT;

/// Timeout of an acknowledgement, after which the message is sent again.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Messages published after the client has reconnected.
const AFTERWARDS: u32 = 100;

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(HANG_TIMEOUT, work).await.expect("it ends") });
}

pub(super) fn everything(address: SocketAddr) {
    run(async {
        let client = async_nats::connect(address.to_string()).await.expect("it connects");
        assert!(client.is_server_compatible(2, 9, 0));
        plain(&client).await;
        requests(&client).await;
        let context = ContextBuilder::new().timeout(HANG_TIMEOUT).build(client.clone());
        streams(&context).await;
        replay(&context).await;
        client.drain().await.expect("it drains");
    });
}

async fn plain(client: &Client) {
    let mut got = client.subscribe("a.*").await.expect("it subscribes");
    let mut headers = HeaderMap::new();
    headers.insert("X", "1");
    client.publish_with_headers("a.b", headers, "hello".into()).await.expect("it publishes");
    client.publish("a.c.d", "not for us".into()).await.expect("it publishes");
    client.publish("a.big", vec![b'z'; 900_000].into()).await.expect("it publishes");
    client.flush().await.expect("it flushes");
    let first = got.next().await.expect("a message");
    let headers = first.headers.expect("it has headers");
    assert_eq!((first.subject.as_str(), &first.payload[..]), ("a.b", &b"hello"[..]));
    assert_eq!(headers.get("X").expect("it is there").as_str(), "1");
    let second = got.next().await.expect("a message");
    assert_eq!((second.subject.as_str(), second.payload.len()), ("a.big", 900_000));
}

async fn requests(client: &Client) {
    let mut workers = Vec::new();
    for _ in 0..2 {
        let mut asked = client.queue_subscribe("service", "workers".into()).await.expect("it subscribes");
        let client = client.clone();
        workers.push(tokio::spawn(async move {
            let mut count = 0;
            while let Some(question) = asked.next().await {
                if question.payload == "end" {
                    break;
                }
                count += 1;
                let reply = question.reply.expect("somebody waits");
                client.publish(reply, question.payload).await.expect("it answers");
            }
            count
        }));
    }
    client.flush().await.expect("it flushes");
    for number in 0..30 {
        let answer = client.request("service", number.to_string().into()).await.expect("it is answered");
        assert_eq!(answer.payload, number.to_string());
    }
    let mut counts = Vec::new();
    // Each worker that receives the message ends, so the next message reaches the other one.
    while workers.iter().any(|worker| !worker.is_finished()) {
        client.publish("service", "end".into()).await.expect("it publishes");
        client.flush().await.expect("it flushes");
    }
    for worker in workers {
        counts.push(worker.await.expect("it ends"));
    }
    assert!(counts.iter().sum::<u32>() == 30 && counts.iter().all(|count| *count > 0), "{counts:?}");
    let nobody = client.request("nobody", "?".into()).await.expect_err("nobody is there");
    assert_eq!(nobody.kind(), async_nats::RequestErrorKind::NoResponders);
}

async fn publish(context: &Context, id: &str) -> Result<jetstream::publish::PublishAck, PublishErrorKind> {
    let message = PublishMessage::build().payload(id.to_owned().into()).message_id(id);
    let stored = context.send_publish("events.n", message).await.map_err(|error| error.kind())?;
    stored.await.map_err(|error| error.kind())
}

async fn streams(context: &Context) {
    for number in 1..=100 {
        let ack = publish(context, &number.to_string()).await.expect("it is stored");
        assert_eq!((ack.stream.as_str(), ack.sequence, ack.duplicate), ("events", number, false));
    }
    let again = publish(context, "7").await.expect("it is there");
    assert_eq!((again.sequence, again.duplicate), (7, true));
    let wrong = PublishMessage::build().payload("x".into()).expected_last_sequence(5);
    let refused = context.send_publish("events.n", wrong).await.expect("it is sent").await;
    assert_eq!(refused.expect_err("it is refused").kind(), PublishErrorKind::WrongLastSequence);
    let nowhere = context.publish("nowhere", "x".into()).await.expect("it is sent").await;
    assert_eq!(nowhere.expect_err("no stream has it").kind(), PublishErrorKind::StreamNotFound);
    let kept = context.publish("memory.n", "m".into()).await.expect("it is sent").await;
    assert_eq!(kept.expect("it is stored").sequence, 1);
    let mut several = Vec::new();
    for number in 0..500 {
        several.push(context.publish("events.many", number.to_string().into()).await.expect("it is sent"));
    }
    for (number, stored) in several.into_iter().enumerate() {
        assert_eq!(stored.await.expect("it is stored").sequence, 101 + number as u64);
    }
    let mut stream = context.get_stream("events").await.expect("it is there");
    let state = &stream.info().await.expect("it is described").state;
    assert_eq!((state.messages, state.last_sequence), (600, 600));
    assert_eq!(stream.get_raw_message(7).await.expect("it is there").payload, "7");
    assert_eq!(stream.direct_get(8).await.expect("it is there").payload, "8");
    assert!(stream.get_raw_message(9999).await.is_err());
    assert!(context.get_stream("nothing").await.is_err());
    let durable = pull::Config { durable_name: Some("d".to_owned()), ..pull::Config::default() };
    let refused = stream.create_consumer(durable).await.expect_err("it is refused").to_string();
    assert!(refused.contains("ordered consumer"), "{refused}");
}

fn from(sequence: u64) -> DeliverPolicy {
    DeliverPolicy::ByStartSequence { start_sequence: sequence }
}

fn sequence(message: &jetstream::Message) -> u64 {
    message.info().expect("it says where it stands").stream_sequence
}

async fn pushed(context: &Context, filter: &str, from: DeliverPolicy) -> push::Ordered {
    let stream = context.get_stream("events").await.expect("it is there");
    let config = push::OrderedConfig {
        deliver_subject: context.client().new_inbox(),
        filter_subject: filter.to_owned(),
        deliver_policy: from,
        ..push::OrderedConfig::default()
    };
    let consumer = stream.create_consumer(config).await.expect("it is made");
    consumer.messages().await.expect("it follows")
}

async fn pulled(context: &Context, filter: &str, from: DeliverPolicy) -> pull::Ordered {
    let stream = context.get_stream("events").await.expect("it is there");
    let config = pull::OrderedConfig {
        filter_subject: filter.to_owned(),
        deliver_policy: from,
        ..pull::OrderedConfig::default()
    };
    let consumer = stream.create_consumer(config).await.expect("it is made");
    consumer.messages().await.expect("it follows")
}

async fn replay(context: &Context) {
    let mut all = pushed(context, "events.n", DeliverPolicy::All).await;
    let mut asked = pulled(context, "events.n", DeliverPolicy::All).await;
    for number in 1..=100 {
        let message = all.next().await.expect("it goes on").expect("a message");
        assert_eq!((sequence(&message), &message.payload[..]), (number, number.to_string().as_bytes()));
        let message = asked.next().await.expect("it goes on").expect("a message");
        assert_eq!((sequence(&message), &message.payload[..]), (number, number.to_string().as_bytes()));
    }
    publish(context, "new").await.expect("it is stored");
    assert_eq!(all.next().await.expect("it goes on").expect("a message").payload, "new");
    assert_eq!(asked.next().await.expect("it goes on").expect("a message").payload, "new");
    let mut later = pushed(context, "events.>", from(599)).await;
    let mut asked = pulled(context, "events.>", from(599)).await;
    for expected in 599..=601 {
        assert_eq!(sequence(&later.next().await.expect("it goes on").expect("a message")), expected);
        assert_eq!(sequence(&asked.next().await.expect("it goes on").expect("a message")), expected);
    }
}

/// Runs the client of [`super::restart`] on a thread of its own.
pub(super) fn restart(address: SocketAddr) -> impl FnMut() -> Option<String> {
    let (line_sender, lines) = channel();
    std::thread::spawn(move || run(live(address, line_sender)));
    move || lines.recv_timeout(HANG_TIMEOUT).ok()
}

async fn live(address: SocketAddr, line_sender: Sender<String>) {
    // After a failed test the channel is closed.
    let print_line = move |line: String| drop(line_sender.send(line));
    let (came, back) = watch::channel(0);
    let print_delivery = print_line.clone();
    let options =
        ConnectOptions::new().max_reconnects(None).reconnect_delay_callback(|_| Duration::from_millis(50));
    let options = options.event_callback(move |event| {
        match event {
            Event::Connected if *came.borrow() > 0 => {
                print_delivery("reconnected".to_owned());
                came.send_replace(2);
            }
            Event::Disconnected => {
                print_delivery("disconnected".to_owned());
                came.send_replace(1);
            }
            Event::ClientError(error) => print_delivery(format!("error {error}")),
            Event::ServerError(error) => print_delivery(format!("error {error}")),
            _ => {}
        }
        std::future::ready(())
    });
    let client = options.connect(address.to_string()).await.expect("it connects");
    let context = ContextBuilder::new().timeout(ATTEMPT).build(client.clone());
    let mut received = client.subscribe("plain").await.expect("it subscribes");
    let mut all = pushed(&context, "events.n", DeliverPolicy::All).await;
    let mut asked = pulled(&context, "events.n", DeliverPolicy::All).await;
    let (count, mut counted) = watch::channel(u64::MAX);

    let publishing = async {
        let (mut number, mut left) = (0, AFTERWARDS);
        while left > 0 {
            number += 1;
            let text = number.to_string();
            loop {
                match publish(&context, &text).await {
                    Ok(stored) => break print_line(format!("acknowledged {number} {}", stored.sequence)),
                    Err(kind) => print_line(format!("failed {number} {kind}")),
                }
            }
            left -= u32::from(*back.borrow() == 2);
        }
        count.send_replace(number);
    };
    let following = async {
        let (mut pushed, mut pulled) = (0, 0);
        while pushed < *counted.borrow_and_update() || pulled < *counted.borrow() {
            tokio::select! {
                message = all.next() => match message.expect("it goes on") {
                    Ok(message) => {
                        pushed += 1;
                        let text = String::from_utf8_lossy(&message.payload);
                        print_line(format!("delivered {text} {}", sequence(&message)));
                    }
                    Err(error) => print_line(format!("error {error}")),
                },
                message = asked.next() => match message.expect("it goes on") {
                    Ok(message) => {
                        pulled += 1;
                        let text = String::from_utf8_lossy(&message.payload);
                        print_line(format!("pulled {text} {}", sequence(&message)));
                    }
                    Err(error) => print_line(format!("error {error}")),
                },
                _ = counted.changed() => {}
            }
        }
    };
    tokio::join!(publishing, following);
    client.publish("plain", "afterwards".into()).await.expect("it publishes");
    let message = received.next().await.expect("the subscription is there again");
    print_line(format!("received {}", String::from_utf8_lossy(&message.payload)));
    client.drain().await.expect("it drains");
    print_line(SUCCESS_LINE.to_owned());
}
