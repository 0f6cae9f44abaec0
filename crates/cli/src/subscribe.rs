//! `stilling sub`: prints messages as they are published, or a stream from any position, one line each.

use std::error::Error;
use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use clap::builder::TypedValueParser;
use serde_json::json;
use stilling_client::{
    FollowStart, FollowedStream, MissedCause, ReceivedMessage, ServerUrl, Subscriber, SubscriberConfig,
    SubscriberEvent,
};

use crate::InvalidArgument;
use crate::publish::{seconds, server};

#[derive(Args)]
pub(crate) struct SubscribeArguments {
    /// Subjects to receive: * matches one token, > all that follow
    filter: String,
    /// Server address, such as nats://user:password@host:4222 or unix:///run/stilling/nats; repeatable, the next one is
    /// used when one fails
    #[arg(short, long, value_name = "ADDRESS", default_value = "nats://127.0.0.1:4222", value_parser = server())]
    server: Vec<ServerUrl>,
    /// Follow this stream: each message arrives once, and messages removed before delivery are reported
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Start position: a sequence, a time such as 2026-01-31T12:00:00Z, a span back such as 10m, all, or new
    #[arg(long, value_name = "POSITION", requires = "stream", default_value = "all", value_parser = position())]
    from: FollowStart,
    /// Share the messages with all other subscribers of this queue
    #[arg(short, long, value_name = "NAME", conflicts_with = "stream")]
    queue: Option<String>,
    /// End after N messages
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after S seconds without a message [default: never]
    #[arg(short, long, value_name = "S", value_parser = seconds())]
    timeout: Option<Duration>,
    /// Print payloads only, each with a line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print one JSON object per message: its payload is data if it is JSON, else text, else base64
    #[arg(long)]
    json: bool,
}

fn position() -> impl TypedValueParser<Value = FollowStart> {
    clap::builder::StringValueParser::new().try_map(|text| {
        if let Ok(sequence) = text.parse() {
            return Ok(FollowStart::Sequence(sequence));
        }
        match (text.as_str(), humantime::parse_rfc3339_weak(&text), humantime::parse_duration(&text)) {
            ("all", ..) => Ok(FollowStart::All),
            ("new", ..) => Ok(FollowStart::New),
            (_, Ok(time), _) => Ok(FollowStart::Time(time)),
            (_, _, Ok(span)) => {
                let time = SystemTime::now().checked_sub(span).unwrap_or(SystemTime::UNIX_EPOCH);
                Ok(FollowStart::Time(time))
            }
            _ => Err(
                "expected a sequence, a time such as 2026-01-31T12:00:00Z, a span back such as 10m, all, or new",
            ),
        }
    })
}

impl SubscribeArguments {
    /// Prints messages until the count is reached, the timeout passes or the output closes.
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let stream = self.stream.clone().map(|stream| FollowedStream { stream, from: self.from });
        let mut subscriber = Subscriber::new(SubscriberConfig {
            servers: self.server.clone(),
            name: Some("stilling sub".to_owned()),
            filter: self.filter.clone(),
            queue: self.queue.clone(),
            stream,
            ..SubscriberConfig::default()
        })
        .map_err(|error| InvalidArgument(error.to_string()))?;
        let (mut seen, mut last, mut said) = (0, Instant::now(), None);
        let mut out = std::io::stdout().lock();
        while self.count.is_none_or(|count| seen < count) {
            let left = self.timeout.map_or(Duration::MAX, |timeout| timeout.saturating_sub(last.elapsed()));
            match subscriber.next_event(left)? {
                Some(SubscriberEvent::Message(message)) => {
                    match self.print(&mut out, &message) {
                        // The reader has closed the pipe: not an error.
                        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                        printed => printed?,
                    }
                    (seen, last) = (seen + 1, Instant::now());
                }
                // Each reason is printed once.
                Some(SubscriberEvent::Interrupted(trouble)) if said.as_ref() != Some(&trouble) => {
                    writeln!(std::io::stderr(), "stilling: waiting: {trouble}")?;
                    said = Some(trouble);
                }
                Some(SubscriberEvent::Interrupted(_)) => {}
                Some(SubscriberEvent::Missed { first, last, cause }) => {
                    let what =
                        if first == last { format!("{first} is") } else { format!("{first} to {last} are") };
                    let why = match cause {
                        MissedCause::Removed => "not in the stream any more",
                        MissedCause::Damaged => "damaged on the disk of the server",
                        MissedCause::Torn => "cut off by a crash of the server",
                    };
                    writeln!(std::io::stderr(), "stilling: missed: {what} {why}")?;
                }
                Some(SubscriberEvent::Recreated { last }) => writeln!(
                    std::io::stderr(),
                    "stilling: the stream was recreated after sequence {last} was received; following the new one from its first message"
                )?,
                Some(SubscriberEvent::Connected) => said = None,
                None => {}
            }
            if self.timeout.is_some_and(|timeout| last.elapsed() >= timeout) {
                return match self.count {
                    Some(count) => Err(format!("{seen} of {count} messages arrived in time").into()),
                    None => Ok(()),
                };
            }
        }
        Ok(())
    }

    fn print(&self, out: &mut impl Write, message: &ReceivedMessage) -> std::io::Result<()> {
        if self.raw {
            out.write_all(&message.payload)?;
            out.write_all(b"\n")?;
        } else if self.json {
            writeln!(out, "{}", as_json(message))?;
        } else {
            if let Some(position) = &message.position {
                let time = humantime::format_rfc3339_millis(position.time());
                write!(out, "{} {} {time} ", position.stream, position.sequence)?;
            }
            write!(out, "{}: ", message.subject)?;
            match std::str::from_utf8(&message.payload) {
                Ok(text) => writeln!(out, "{}", escape_control(text))?,
                Err(_) => writeln!(out, "{}", message.payload.escape_ascii())?,
            }
        }
        out.flush()
    }
}

/// Escapes control characters, which would move a terminal's cursor.
pub(crate) fn escape_control(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line
}

fn as_json(message: &ReceivedMessage) -> serde_json::Value {
    let mut object = json!({ "subject": message.subject });
    if let Some(position) = &message.position {
        object["stream"] = json!(position.stream);
        object["seq"] = json!(position.sequence);
        object["time"] = json!(humantime::format_rfc3339_nanos(position.time()).to_string());
    }
    if let Some(reply) = &message.reply {
        object["reply"] = json!(reply);
    }
    put_payload(&mut object, &message.payload);
    object
}

/// Adds a payload to its object: as data if it is JSON, else as text, else as base64.
pub(crate) fn put_payload(object: &mut serde_json::Value, payload: &[u8]) {
    match std::str::from_utf8(payload) {
        Ok(text) => match serde_json::from_str::<serde_json::Value>(text) {
            Ok(data) => object["data"] = data,
            Err(_) => object["text"] = json!(text),
        },
        Err(_) => object["base64"] = json!(BASE64_STANDARD.encode(payload)),
    }
}
