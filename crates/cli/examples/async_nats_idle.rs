//! `async_nats_idle ADDRESS SECONDS`: ordered consumers of async-nats after a silence, for `cargo xtask bench
//! idle-consumers`.
//!
//! Prints `KIND MICROSECONDS kept|reset` for each kind of consumer: the delay of the first message after the silence,
//! and whether the consumer is the same.
#![allow(clippy::print_stdout, reason = "a program for a benchmark")]
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::{pull, push};
use async_nats::jetstream::{self, Message};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::timeout;

type ExampleResult<T = ()> = Result<T, Box<dyn Error>>;

const SUBJECT: &str = "events.async_nats.idle";

const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> ExampleResult {
    let words: Vec<String> = std::env::args().collect();
    let [_, address, seconds] = words.as_slice() else {
        return Err("arguments: ADDRESS SECONDS".into());
    };
    let silence = Duration::from_secs(seconds.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { timeout(silence + REPLY_TIMEOUT, idle(address, silence)).await? })
}

async fn idle(address: &str, silence: Duration) -> ExampleResult {
    let options = ConnectOptions::with_user_and_password("root".to_owned(), "all".to_owned());
    let client = options.connect(address).await?;
    let events = jetstream::new(client.clone()).get_stream("events").await?;
    let push = push::OrderedConfig {
        deliver_subject: client.new_inbox(),
        filter_subject: SUBJECT.to_owned(),
        ..push::OrderedConfig::default()
    };
    let pull = pull::OrderedConfig { filter_subject: SUBJECT.to_owned(), ..pull::OrderedConfig::default() };
    let pushed = events.create_consumer(push).await?.messages().await?;
    let pulled = events.create_consumer(pull).await?.messages().await?;
    let begin = Instant::now();
    let mut arrivals = stream::select(
        pushed.map_err(|error| error.to_string()).map(|message| arrival("push", &message?, begin)),
        pulled.map_err(|error| error.to_string()).map(|message| arrival("pull", &message?, begin)),
    );
    let publish = async || client.publish(SUBJECT, begin.elapsed().as_nanos().to_string().into()).await;
    publish().await?;
    let mut before = HashMap::new();
    while before.len() < 2 {
        let arrival = arrivals.next().await.ok_or("the consumers ended")??;
        before.insert(arrival.kind, arrival.consumer);
    }
    println!("waiting");
    // Consumers process heartbeats only while they are polled.
    if let Ok(early) = timeout(silence, arrivals.next()).await {
        return Err(format!("{early:?} during the silence").into());
    }
    publish().await?;
    for _ in 0..before.len() {
        let ArrivalDelay { kind, consumer, delay } = arrivals.next().await.ok_or("the consumers ended")??;
        let verdict = if before[kind] == consumer { "kept" } else { "reset" };
        println!("{kind} {} {verdict}", delay.as_micros());
    }
    Ok(())
}

#[derive(Debug)]
struct ArrivalDelay {
    kind: &'static str,
    consumer: String,
    delay: Duration,
}

fn arrival(kind: &'static str, message: &Message, begin: Instant) -> Result<ArrivalDelay, String> {
    let sent = String::from_utf8_lossy(&message.payload).parse().map_err(|error| format!("{error}"))?;
    let consumer = message.info().map_err(|error| error.to_string())?.consumer.to_owned();
    Ok(ArrivalDelay { kind, consumer, delay: begin.elapsed().saturating_sub(Duration::from_nanos(sent)) })
}
