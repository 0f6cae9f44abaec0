//! async-nats, in the test's own process: each case is a function that returns its error.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull, push};
use async_nats::jetstream::context::{ContextBuilder, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context, stream};
use async_nats::{Client, ConnectOptions, HeaderMap, RequestErrorKind, Subscriber};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;

const CASE_TIMEOUT: Duration = Duration::from_secs(20);

type CaseResult = Result<(), Box<dyn Error>>;

struct ConformanceContext {
    address: SocketAddr,
    client: Client,
    streams: Context,
    name: &'static str,
}

macro_rules! cases {
    ($($name:ident)*) => {
        async fn run_case(name: &'static str, context: &ConformanceContext) -> CaseResult {
            match name { $(stringify!($name) => $name(context).await,)* _ => Err("no such case".into()) }
        }

        const CASES: &[&str] = &[$(stringify!($name)),*];
    };
}

cases! {
    connect_describes_the_server connect_options wrong_password wildcards headers_and_reply queue_groups request_reply
    request_without_an_answer no_responders unsubscribe unsubscribe_after_a_number_of_messages drain_of_a_subscription
    drain_of_a_connection flush_and_rtt a_message_of_max_payload a_message_over_max_payload no_echo
    invalid_publish_subjects_leave_the_connection_open permissions reconnect
    publish publish_async publish_once_under_an_id publish_with_expectations publish_without_a_stream account_info stream_info
    stream_lists get_message ordered_push ordered_pull ordered_pull_stays_idle ordered_from_somewhere fetch headers_only
    consumers api_errors an_identical_stream_is_there a_domain_that_is_not_there refusals
}

pub(super) fn all_cases(address: SocketAddr) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut results = Vec::new();
    for &name in CASES {
        let outcome = runtime.block_on(async {
            let context = context(address, name).await?;
            tokio::time::timeout(CASE_TIMEOUT, run_case(name, &context)).await?
        });
        results.push(match outcome {
            Ok(()) => format!("ok {name}"),
            Err(error) => format!("FAIL {name} {error}"),
        });
    }
    results.push("done".to_owned());
    results
}

async fn context(address: SocketAddr, name: &'static str) -> Result<ConformanceContext, Box<dyn Error>> {
    let client = root().connect(address.to_string()).await?;
    let streams = ContextBuilder::new().timeout(CASE_TIMEOUT).build(client.clone());
    Ok(ConformanceContext { address, client, streams, name })
}

fn root() -> ConnectOptions {
    ConnectOptions::with_user_and_password("root".to_owned(), "all".to_owned())
}

impl ConformanceContext {
    fn subject(&self, last: &str) -> String {
        format!("core.{}.{last}", self.name)
    }

    fn event(&self) -> String {
        format!("events.{}", self.name)
    }

    async fn other(&self, options: ConnectOptions) -> Result<Client, Box<dyn Error>> {
        Ok(options.connect(self.address.to_string()).await?)
    }

    async fn stream(&self) -> Result<stream::Stream, Box<dyn Error>> {
        Ok(self.streams.get_stream("events").await?)
    }

    /// Publishes the numbers below `count` to a subject of the stream, and returns their sequences.
    async fn fill(&self, subject: &str, count: u64) -> Result<Vec<u64>, Box<dyn Error>> {
        let mut sequences = Vec::new();
        for number in 0..count {
            let stored = self.streams.publish(subject.to_owned(), number.to_string().into()).await?.await?;
            sequences.push(stored.sequence);
        }
        Ok(sequences)
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(got: T, expected: T) -> CaseResult {
    if got == expected { Ok(()) } else { Err(format!("{got:?}, expected {expected:?}").into()) }
}

fn demand(holds: bool, what: impl std::fmt::Debug) -> CaseResult {
    if holds { Ok(()) } else { Err(format!("{what:?}").into()) }
}

fn refused<T, E: std::fmt::Display>(outcome: Result<T, E>, words: &str) -> CaseResult {
    match outcome {
        Ok(_) => Err(format!("it was taken, expected {words}").into()),
        Err(error) if error.to_string().to_lowercase().contains(words) => Ok(()),
        Err(error) => Err(format!("{error}, expected {words}").into()),
    }
}

/// Waits until the server has processed all earlier messages; a flush of this client only waits for the write.
async fn settle(client: &Client) {
    let _ = client.request("sensors.nothing", "".into()).await;
}

async fn next(messages: &mut Subscriber) -> Result<String, Box<dyn Error>> {
    let message = messages.next().await.ok_or("no message comes")?;
    Ok(String::from_utf8(message.payload.to_vec())?)
}

async fn connect_describes_the_server(context: &ConformanceContext) -> CaseResult {
    let info = context.client.server_info();
    equal((info.max_payload, info.headers, info.port), (1_048_576, true, context.address.port()))?;
    equal(info.client_ip.as_str(), "127.0.0.1")?;
    demand(!info.go.is_empty() && !info.host.is_empty() && info.client_id > 0, &info)?;
    demand(context.client.is_server_compatible(2, 9, 0), &info.version)
}

async fn connect_options(context: &ConformanceContext) -> CaseResult {
    for (number, options) in
        [root().no_echo(), root().name("a name"), root().retry_on_initial_connect()].into_iter().enumerate()
    {
        let subject = context.subject(&number.to_string());
        let mut got = context.client.subscribe(subject.clone()).await?;
        settle(&context.client).await;
        let other = context.other(options).await?;
        other.publish(subject, "x".into()).await?;
        settle(&other).await;
        equal(next(&mut got).await?.as_str(), "x")?;
    }
    Ok(())
}

async fn wrong_password(context: &ConformanceContext) -> CaseResult {
    let options = ConnectOptions::with_user_and_password("root".to_owned(), "wrong".to_owned());
    refused(options.connect(context.address.to_string()).await, "authorization")
}

async fn wildcards(context: &ConformanceContext) -> CaseResult {
    let mut one = context.client.subscribe(context.subject("*.c")).await?;
    let mut rest = context.client.subscribe(context.subject(">")).await?;
    for subject in ["a.c", "b.c", "a.d", "a.c.e"] {
        context.client.publish(context.subject(subject), subject.into()).await?;
    }
    for subject in ["a.c", "b.c"] {
        equal(next(&mut one).await?.as_str(), subject)?;
    }
    for subject in ["a.c", "b.c", "a.d", "a.c.e"] {
        equal(next(&mut rest).await?.as_str(), subject)?;
    }
    Ok(())
}

async fn headers_and_reply(context: &ConformanceContext) -> CaseResult {
    let subject = context.subject("a");
    let mut got = context.client.subscribe(subject.clone()).await?;
    let mut headers = HeaderMap::new();
    headers.append("A", "1");
    headers.append("A", "2");
    context
        .client
        .publish_with_reply_and_headers(subject.clone(), "back.to", headers, vec![0, 255, 13, 10].into())
        .await?;
    context.client.publish(subject, "".into()).await?;
    let message = got.next().await.ok_or("no message comes")?;
    let values: Vec<_> = message.headers.ok_or("no headers")?.get_all("A").map(ToString::to_string).collect();
    equal(values, vec!["1".to_owned(), "2".to_owned()])?;
    equal((message.reply.as_deref(), &message.payload[..]), (Some("back.to"), &[0, 255, 13, 10][..]))?;
    equal(next(&mut got).await?.as_str(), "")
}

async fn queue_groups(context: &ConformanceContext) -> CaseResult {
    let (count_sender, mut counts) = mpsc::unbounded_channel();
    for (number, queue) in [Some("q"), Some("q"), None].into_iter().enumerate() {
        let subject = context.subject("a");
        let mut got = match queue {
            Some(queue) => context.client.queue_subscribe(subject, queue.to_owned()).await?,
            None => context.client.subscribe(subject).await?,
        };
        let count_sender = count_sender.clone();
        tokio::spawn(
            async move { while got.next().await.is_some_and(|_| count_sender.send(number).is_ok()) {} },
        );
    }
    for _ in 0..100 {
        context.client.publish(context.subject("a"), "x".into()).await?;
    }
    let mut all = [0; 3];
    for _ in 0..200 {
        all[counts.recv().await.ok_or("too few")?] += 1;
    }
    demand(all[0] > 0 && all[1] > 0 && all[2] == 100, all)
}

/// Answers requests with their payload behind `re:`.
async fn answer(context: &ConformanceContext) -> CaseResult {
    let mut asked = context.client.subscribe(context.subject("a")).await?;
    let client = context.client.clone();
    tokio::spawn(async move {
        while let Some(request) = asked.next().await {
            let text = format!("re:{}", String::from_utf8_lossy(&request.payload));
            if let Some(reply) = request.reply {
                let _ = client.publish(reply, text.into()).await;
            }
        }
    });
    Ok(())
}

async fn request_reply(context: &ConformanceContext) -> CaseResult {
    answer(context).await?;
    for number in 0..50 {
        let got = context.client.request(context.subject("a"), number.to_string().into()).await?;
        equal(&got.payload[..], format!("re:{number}").as_bytes())?;
    }
    let mut headers = HeaderMap::new();
    headers.insert("A", "1");
    let got = context.client.request_with_headers(context.subject("a"), headers, "h".into()).await?;
    equal(&got.payload[..], b"re:h")
}

async fn request_without_an_answer(context: &ConformanceContext) -> CaseResult {
    let _silent = context.client.subscribe(context.subject("a")).await?;
    let request = async_nats::Request::new().payload("x".into()).timeout(Some(Duration::from_millis(100)));
    let error = context.client.send_request(context.subject("a"), request).await.err().ok_or("an answer")?;
    equal(error.kind(), RequestErrorKind::TimedOut)
}

async fn no_responders(context: &ConformanceContext) -> CaseResult {
    let error = context.client.request(context.subject("a"), "x".into()).await.err().ok_or("an answer")?;
    equal(error.kind(), RequestErrorKind::NoResponders)
}

async fn unsubscribe(context: &ConformanceContext) -> CaseResult {
    let mut ended = context.client.subscribe(context.subject("a")).await?;
    let mut goes_on = context.client.subscribe(context.subject("a")).await?;
    ended.unsubscribe().await?;
    context.client.publish(context.subject("a"), "x".into()).await?;
    equal(next(&mut goes_on).await?.as_str(), "x")?;
    demand(ended.next().await.is_none(), "a message for an ended subscription")
}

async fn unsubscribe_after_a_number_of_messages(context: &ConformanceContext) -> CaseResult {
    let mut limited = context.client.subscribe(context.subject("a")).await?;
    limited.unsubscribe_after(3).await?;
    for number in 0..6 {
        context.client.publish(context.subject("a"), number.to_string().into()).await?;
    }
    let got: Vec<_> = limited.map(|message| message.payload.to_vec()).collect().await;
    equal(got, vec![b"0".to_vec(), b"1".to_vec(), b"2".to_vec()])
}

async fn drain_of_a_subscription(context: &ConformanceContext) -> CaseResult {
    let mut subscription = context.client.subscribe(context.subject("a")).await?;
    for _ in 0..50 {
        context.client.publish(context.subject("a"), "x".into()).await?;
    }
    // The client drops a drained subscription at its next turn, with messages in flight.
    for _ in 0..50 {
        next(&mut subscription).await?;
    }
    subscription.drain().await?;
    context.client.publish(context.subject("a"), "late".into()).await?;
    equal(subscription.count().await, 0)
}

async fn drain_of_a_connection(context: &ConformanceContext) -> CaseResult {
    let mut got = context.client.subscribe(context.subject("a")).await?;
    settle(&context.client).await;
    let other = context.other(root()).await?;
    for number in 0..50 {
        other.publish(context.subject("a"), number.to_string().into()).await?;
    }
    other.drain().await?;
    for number in 0..50 {
        equal(next(&mut got).await?, number.to_string())?;
    }
    Ok(())
}

async fn flush_and_rtt(context: &ConformanceContext) -> CaseResult {
    context.client.flush().await?;
    context.client.publish(context.subject("a"), "x".into()).await?;
    context.client.flush().await?;
    equal(context.client.connection_state(), async_nats::connection::State::Connected)
}

async fn a_message_of_max_payload(context: &ConformanceContext) -> CaseResult {
    let mut got = context.client.subscribe(context.subject("a")).await?;
    let size = context.client.server_info().max_payload;
    context.client.publish(context.subject("a"), vec![b'z'; size].into()).await?;
    equal(next(&mut got).await?.len(), size)
}

async fn a_message_over_max_payload(context: &ConformanceContext) -> CaseResult {
    let size = context.client.server_info().max_payload + 1;
    refused(context.client.publish(context.subject("a"), vec![b'z'; size].into()).await, "payload")
}

async fn no_echo(context: &ConformanceContext) -> CaseResult {
    let other = context.other(root().no_echo()).await?;
    let mut own = other.subscribe(context.subject("a")).await?;
    let mut foreign = context.client.subscribe(context.subject("a")).await?;
    settle(&other).await;
    settle(&context.client).await;
    other.publish(context.subject("a"), "own".into()).await?;
    equal(next(&mut foreign).await?.as_str(), "own")?;
    context.client.publish(context.subject("a"), "foreign".into()).await?;
    equal(next(&mut own).await?.as_str(), "foreign")
}

async fn invalid_publish_subjects_leave_the_connection_open(context: &ConformanceContext) -> CaseResult {
    let (event_sender, mut events) = mpsc::unbounded_channel();
    let options = root().skip_subject_validation(true).event_callback(move |event| {
        let _ = event_sender.send(event.to_string());
        std::future::ready(())
    });
    let other = context.other(options).await?;
    let mut got = other.subscribe(context.subject("a")).await?;
    let (long, deep) = ("a".repeat(1200), format!("{}b", "a.".repeat(64)));
    for invalid in ["a..b", ".a", "a.", "a.*", "a.>", "*", ">", &long, &deep] {
        other.publish(invalid.to_owned(), "x".into()).await?;
    }
    other.publish(context.subject("a"), "still".into()).await?;
    equal(next(&mut got).await?.as_str(), "still")?;
    let mut all = Vec::new();
    while let Ok(event) = events.try_recv() {
        all.push(event);
    }
    equal(all, vec!["connected".to_owned()])
}

async fn permissions(context: &ConformanceContext) -> CaseResult {
    let (event_sender, mut events) = mpsc::unbounded_channel();
    let options = ConnectOptions::with_user_and_password("sensor".to_owned(), "s".to_owned());
    let other = context
        .other(options.event_callback(move |event| {
            let _ = event_sender.send(event.to_string().to_lowercase());
            std::future::ready(())
        }))
        .await?;
    let inbox = other.new_inbox();
    let mut answers = other.subscribe(inbox.clone()).await?;
    let mut watched = context.client.subscribe("sensors.async").await?;
    settle(&context.client).await;
    other.publish("orders.a", "x".into()).await?;
    let _refused = other.subscribe("orders.b").await?;
    let mut messages = String::new();
    let expected = ["permissions violation for publish", "permissions violation for subscription"];
    while !expected.iter().all(|what| messages.contains(what)) {
        messages += &events.recv().await.ok_or("no event")?;
    }
    other.publish("sensors.async", "allowed".into()).await?;
    equal(next(&mut watched).await?.as_str(), "allowed")?;
    context.client.publish(inbox, "y".into()).await?;
    equal(next(&mut answers).await?.as_str(), "y")
}

async fn reconnect(context: &ConformanceContext) -> CaseResult {
    let (event_sender, mut events) = mpsc::unbounded_channel();
    let options = root().event_callback(move |event| {
        let _ = event_sender.send(event.to_string());
        std::future::ready(())
    });
    let other = context.other(options).await?;
    let mut got = other.subscribe(context.subject("a")).await?;
    settle(&other).await;
    other.force_reconnect().await?;
    for expected in ["disconnected", "connected"] {
        while events.recv().await.ok_or("no event")? != expected {}
    }
    settle(&other).await;
    context.client.publish(context.subject("a"), "afterwards".into()).await?;
    equal(next(&mut got).await?.as_str(), "afterwards")
}

async fn publish(context: &ConformanceContext) -> CaseResult {
    let first = context.streams.publish(context.event(), "1".into()).await?.await?;
    let second = context.streams.publish(context.event(), "2".into()).await?.await?;
    equal(
        (second.stream.as_str(), second.sequence, second.duplicate),
        ("events", first.sequence + 1, false),
    )?;
    let wrong = PublishMessage::build().payload("x".into()).expected_stream("memory");
    refused(context.streams.send_publish(context.event(), wrong).await?.await, "stream does not match")
}

async fn publish_async(context: &ConformanceContext) -> CaseResult {
    let mut answers = Vec::new();
    for number in 0..200 {
        answers.push(context.streams.publish(context.event(), number.to_string().into()).await?);
    }
    let mut last = None;
    for answer in answers {
        let sequence = answer.await?.sequence;
        demand(last.is_none_or(|last| sequence == last + 1), sequence)?;
        last = Some(sequence);
    }
    Ok(())
}

async fn publish_once_under_an_id(context: &ConformanceContext) -> CaseResult {
    let message = || PublishMessage::build().payload("1".into()).message_id("async-id");
    let once = context.streams.send_publish(context.event(), message()).await?.await?;
    let again = context.streams.send_publish(context.event(), message()).await?.await?;
    equal((again.sequence, again.duplicate), (once.sequence, true))
}

async fn publish_with_expectations(context: &ConformanceContext) -> CaseResult {
    let last = context.streams.publish(context.event(), "1".into()).await?.await?.sequence;
    let message = || PublishMessage::build().payload("2".into()).expected_last_sequence(last);
    equal(context.streams.send_publish(context.event(), message()).await?.await?.sequence, last + 1)?;
    let error = context.streams.send_publish(context.event(), message()).await?.await.err().ok_or("taken")?;
    equal(error.kind(), PublishErrorKind::WrongLastSequence)
}

async fn publish_without_a_stream(context: &ConformanceContext) -> CaseResult {
    let error = context.streams.publish("nowhere.async", "x".into()).await?.await.err().ok_or("taken")?;
    equal(error.kind(), PublishErrorKind::StreamNotFound)
}

async fn account_info(context: &ConformanceContext) -> CaseResult {
    let account = context.streams.query_account().await?;
    equal(account.streams, 2)
}

async fn stream_info(context: &ConformanceContext) -> CaseResult {
    let mut stream = context.stream().await?;
    let before = stream.info().await?.state.clone();
    context.streams.publish(context.event(), "x".repeat(1000).into()).await?.await?;
    let info = stream.info().await?;
    equal(
        (info.config.name.as_str(), info.config.subjects.clone()),
        ("events", vec!["events.>".to_owned()]),
    )?;
    let state = &info.state;
    equal((state.messages, state.last_sequence), (before.messages + 1, before.last_sequence + 1))?;
    demand(state.bytes > before.bytes && state.first_timestamp.year() > 2023, state)?;
    demand(info.created.year() > 2023 && state.last_timestamp.year() > 2023, info)?;
    refused(context.streams.get_stream("missing").await, "not found")
}

async fn stream_lists(context: &ConformanceContext) -> CaseResult {
    let mut names: Vec<String> = context.streams.stream_names().try_collect().await?;
    names.sort();
    equal(names, vec!["events".to_owned(), "memory".to_owned()])?;
    let infos: Vec<stream::Info> = context.streams.streams().try_collect().await?;
    equal(infos.len(), 2)?;
    equal(context.streams.stream_by_subject("events.x").await?.as_str(), "events")?;
    demand(context.streams.stream_by_subject("nowhere.x").await.is_err(), "a stream for nowhere.x")
}

async fn get_message(context: &ConformanceContext) -> CaseResult {
    let mut headers = HeaderMap::new();
    headers.insert("A", "1");
    let stored = context.streams.publish_with_headers(context.event(), headers, "got".into()).await?.await?;
    let stream = context.stream().await?;
    for message in [stream.get_raw_message(stored.sequence).await?, stream.direct_get(stored.sequence).await?]
    {
        equal((message.subject.as_str(), &message.payload[..]), (context.event().as_str(), &b"got"[..]))?;
        equal(message.headers.get("A").map(async_nats::HeaderValue::as_str), Some("1"))?;
        equal(message.sequence, stored.sequence)?;
    }
    let found = stream.direct_get_next_for_subject(context.event(), Some(1)).await?;
    equal(found.sequence, stored.sequence)?;
    demand(stream.get_raw_message(999_999).await.is_err(), "a message that is not there")?;
    demand(stream.direct_get(999_999).await.is_err(), "a message that is not there")
}

fn ordered(context: &ConformanceContext, deliver_policy: DeliverPolicy) -> pull::OrderedConfig {
    pull::OrderedConfig { filter_subject: context.event(), deliver_policy, ..pull::OrderedConfig::default() }
}

async fn ordered_push(context: &ConformanceContext) -> CaseResult {
    context.fill(&context.event(), 50).await?;
    let config = push::OrderedConfig {
        deliver_subject: context.client.new_inbox(),
        filter_subject: context.event(),
        ..push::OrderedConfig::default()
    };
    let mut messages = context.stream().await?.create_consumer(config).await?.messages().await?;
    for number in 0..50 {
        let message = messages.next().await.ok_or("no message comes")??;
        equal(&message.payload[..], number.to_string().as_bytes())?;
    }
    context.streams.publish(context.event(), "new".into()).await?.await?;
    let message = messages.next().await.ok_or("no message comes")??;
    let pending = message.info().map_err(|error| error.to_string())?.pending;
    equal((&message.payload[..], pending), (&b"new"[..], 0))
}

async fn ordered_pull(context: &ConformanceContext) -> CaseResult {
    context.fill(&context.event(), 300).await?;
    let config = ordered(context, DeliverPolicy::All);
    let mut messages = context.stream().await?.create_consumer(config).await?.messages().await?;
    for number in 0..300 {
        let message = messages.next().await.ok_or("no message comes")??;
        equal(&message.payload[..], number.to_string().as_bytes())?;
    }
    Ok(())
}

/// Requests expire without messages: the consumer requests again, and is not recreated.
async fn ordered_pull_stays_idle(context: &ConformanceContext) -> CaseResult {
    let config = pull::Config {
        filter_subject: context.event(),
        ack_policy: AckPolicy::None,
        inactive_threshold: Duration::from_secs(30),
        ..pull::Config::default()
    };
    let consumer = context.stream().await?.create_consumer(config).await?;
    let request = consumer.stream().expires(Duration::from_secs(1)).heartbeat(Duration::from_millis(300));
    let mut messages = request.messages().await?;
    context.fill(&context.event(), 1).await?;
    messages.next().await.ok_or("no message comes")??;
    let silence = tokio::time::timeout(Duration::from_millis(3500), messages.next()).await;
    demand(silence.is_err(), "a missed heartbeat, or another error, while nothing came")?;
    context.fill(&context.event(), 1).await?;
    messages.next().await.ok_or("no message comes")??;
    Ok(())
}

async fn ordered_from_somewhere(context: &ConformanceContext) -> CaseResult {
    let sequences = context.fill(&context.event(), 5).await?;
    let stream = context.stream().await?;
    let first = stream.get_raw_message(sequences[0]).await?.time;
    for (policy, expected) in [
        (DeliverPolicy::All, "0"),
        (DeliverPolicy::ByStartSequence { start_sequence: sequences[2] }, "2"),
        (DeliverPolicy::ByStartTime { start_time: first }, "0"),
    ] {
        let consumer = stream.create_consumer(ordered(context, policy)).await?;
        let message = consumer.messages().await?.next().await.ok_or("no message comes")??;
        equal(&message.payload[..], expected.as_bytes())?;
    }
    Ok(())
}

async fn fetch(context: &ConformanceContext) -> CaseResult {
    context.fill(&context.event(), 7).await?;
    let config = pull::Config {
        filter_subject: context.event(),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    let consumer = context.stream().await?.create_consumer(config).await?;
    let count = async |batch: pull::Batch| batch.filter(|one| std::future::ready(one.is_ok())).count().await;
    equal(count(consumer.fetch().max_messages(4).messages().await?).await, 4)?;
    let batch = consumer.batch().max_messages(5).expires(Duration::from_millis(500)).messages().await?;
    equal(count(batch).await, 3)?;
    equal(count(consumer.fetch().max_messages(5).messages().await?).await, 0)
}

async fn headers_only(context: &ConformanceContext) -> CaseResult {
    context.streams.publish(context.event(), "12345".into()).await?.await?;
    let config = pull::OrderedConfig { headers_only: true, ..ordered(context, DeliverPolicy::All) };
    let consumer = context.stream().await?.create_consumer(config).await?;
    let message = consumer.messages().await?.next().await.ok_or("no message comes")??;
    let headers = message.headers.clone().ok_or("no headers")?;
    equal(headers.get("Nats-Msg-Size").map(ToString::to_string), Some("5".to_owned()))?;
    equal(message.payload.len(), 0)
}

async fn consumers(context: &ConformanceContext) -> CaseResult {
    let stream = context.stream().await?;
    let config = pull::Config {
        name: Some("async-own".to_owned()),
        filter_subject: context.event(),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    stream.create_consumer(config.clone()).await?;
    let mut consumer = stream.create_consumer(config).await?;
    equal(consumer.info().await?.name.as_str(), "async-own")?;
    let names: Vec<String> = stream.consumer_names().try_collect().await?;
    demand(names.contains(&"async-own".to_owned()), &names)?;
    let infos: Vec<jetstream::consumer::Info> = stream.consumers().try_collect().await?;
    demand(infos.iter().any(|info| info.name == "async-own"), infos.len())?;
    stream.delete_consumer("async-own").await?;
    refused(stream.delete_consumer("async-own").await, "not found")
}

async fn api_errors(context: &ConformanceContext) -> CaseResult {
    refused(context.streams.delete_stream("missing").await, "not found")?;
    let config = stream::Config { name: "missing".to_owned(), ..stream::Config::default() };
    refused(context.streams.update_stream(config).await, "not found")
}

async fn an_identical_stream_is_there(context: &ConformanceContext) -> CaseResult {
    let config = context.stream().await?.cached_info().config.clone();
    context.streams.create_stream(config.clone()).await?;
    context.streams.update_stream(config).await?;
    Ok(())
}

async fn a_domain_that_is_not_there(context: &ConformanceContext) -> CaseResult {
    let elsewhere = jetstream::with_domain(context.client.clone(), "elsewhere");
    let error = elsewhere.query_account().await.err().ok_or("an answer")?.to_string();
    demand(!error.contains("timed out"), error)
}

/// Unsupported features are refused.
async fn refusals(context: &ConformanceContext) -> CaseResult {
    let stream = context.stream().await?;
    let none = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    for (words, config) in [
        ("durable", pull::Config { durable_name: Some("d".to_owned()), ..none.clone() }),
        ("ack_policy", pull::Config { ack_policy: AckPolicy::Explicit, ..none.clone() }),
        ("replay_policy", pull::Config { replay_policy: ReplayPolicy::Original, ..none.clone() }),
        ("max_batch", pull::Config { max_batch: 1, ..none.clone() }),
        ("last_per_subject", pull::Config { deliver_policy: DeliverPolicy::LastPerSubject, ..none.clone() }),
    ] {
        refused(stream.create_consumer(config).await, words)?;
    }
    let other = stream::Config {
        name: "other".to_owned(),
        subjects: vec!["other.>".to_owned()],
        ..stream::Config::default()
    };
    refused(context.streams.create_stream(other).await, "configuration")?;
    let changed = stream::Config { max_messages: 5, ..stream.cached_info().config.clone() };
    refused(context.streams.update_stream(changed).await, "max_msgs")?;
    refused(context.streams.delete_stream("events").await, "configuration")?;
    demand(stream.purge().await.is_err(), "a purge")?;
    demand(stream.delete_message(1).await.is_err(), "a deletion")?;
    demand(stream.get_last_raw_message_by_subject("events.a").await.is_err(), "a last message")
}
