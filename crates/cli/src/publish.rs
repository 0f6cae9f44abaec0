//! `stilling pub`: publishes messages from the command line or standard input and reports their outcome.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, ValueEnum};
use serde_json::json;
use stilling_client::{
    ConnectionError, DropReason, PublishOutcome, PublishTicket, Publisher, PublisherConfig, PublisherCounts,
    ServerUrl, SpoolMode,
};
use stilling_wire::nats::{Subject, SubjectLimits};

use crate::ConflictingOptions;

/// Maximum bytes of a message from standard input. Longer: it is rejected before anything is sent.
const INPUT_SIZE_MAX: u64 = 64 * 1024 * 1024;

/// Maximum time to retry a message that no stream stores; at most half the timeout. Exceeded: the message is dropped.
const NO_STREAM_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of checks for a connection error to report. A connection that succeeds within it reports nothing.
const CONNECTION_ERROR_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct PublishArguments {
    /// Subject to publish to; without it, only messages in the spool are delivered
    #[arg(required_unless_present = "spool", value_parser = subject())]
    subject: Option<String>,
    /// The message; - reads it from standard input [default: empty]
    payload: Option<String>,
    /// Server address, such as nats://user:password@host:4222 or unix:///run/stilling/nats; repeatable, the next one is
    /// used when one fails
    #[arg(short, long, value_name = "ADDRESS", default_value = "nats://127.0.0.1:4222", value_parser = server())]
    server: Vec<ServerUrl>,
    /// Delivery mode
    #[arg(short, long, value_enum, default_value_t = ModeOption::Confirmed)]
    mode: ModeOption,
    /// Keep messages in this directory until they are delivered, those of earlier calls first; one process at a time
    #[arg(long, value_name = "DIRECTORY")]
    spool: Option<PathBuf>,
    /// Maximum bytes of undelivered messages, with overhead per message; in a directory each message takes at least 4096
    #[arg(long, value_name = "BYTES", default_value_t = 67_108_864, value_parser = clap::value_parser!(u64).range(65_536..=1_099_511_627_776))]
    spool_size: u64,
    /// Policy for a message when the spool is full
    #[arg(long, value_enum, default_value_t = OverflowOption::Wait)]
    overflow: OverflowOption,
    /// Maximum messages sent without an acknowledgement; 1 keeps their order in every case
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    unacknowledged: u32,
    /// Send the message N times
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Send messages of this size instead of a payload
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["payload", "lines"], value_parser = clap::value_parser!(u32).range(0..=67_108_864))]
    size: Option<u32>,
    /// Maximum messages per second [default: as fast as they are accepted]
    #[arg(short, long, value_name = "R", value_parser = rate())]
    rate: Option<f64>,
    /// Read standard input to its end; each line is a message
    #[arg(short, long, conflicts_with_all = ["payload", "count"])]
    lines: bool,
    /// Header of each message; repeatable
    #[arg(short = 'H', long, value_name = "NAME:VALUE", value_parser = header())]
    header: Vec<(String, String)>,
    /// Maximum seconds to deliver the remaining messages after the last one is submitted
    #[arg(short, long, value_name = "S", default_value = "10", value_parser = seconds())]
    timeout: Duration,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeOption {
    /// Each message is acknowledged, and sent again until it is
    Confirmed,
    /// As confirmed, but a full spool drops messages instead of blocking
    NoWait,
    /// No acknowledgements: at most once, for subjects that no stream stores
    OneWay,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OverflowOption {
    /// Wait for space, up to the timeout; then drop the message
    Wait,
    /// Drop the oldest waiting message
    DropOldest,
    /// Drop the new message
    DropNewest,
}

/// Undelivered messages in the spool's directory; none is lost. `EX_TEMPFAIL` of sysexits(3).
#[derive(Debug)]
pub(crate) struct MessagesSpooled(String);

impl fmt::Display for MessagesSpooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for MessagesSpooled {}

/// Prints why the server is unreachable, once per reason, until the messages are delivered or dropped.
fn report_connection_errors(publisher: &Publisher, ended: Receiver<()>) {
    let mut reported = None;
    while ended.recv_timeout(CONNECTION_ERROR_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let connection_error = publisher.connection_error();
        if let Some(connection_error) =
            connection_error.filter(|connection_error| reported.as_ref() != Some(connection_error))
        {
            let _ = writeln!(std::io::stderr(), "stilling: waiting: {connection_error}");
            reported = Some(connection_error);
        }
    }
}

fn subject() -> impl TypedValueParser<Value = String> {
    clap::builder::StringValueParser::new().try_map(|text| {
        Subject::parse(text.as_bytes(), &SubjectLimits::default()).map_err(|bad| bad.to_string())?;
        Ok::<_, String>(text)
    })
}

pub(crate) fn server() -> impl TypedValueParser<Value = ServerUrl> {
    clap::builder::StringValueParser::new().try_map(|text| text.parse::<ServerUrl>())
}

fn header() -> impl TypedValueParser<Value = (String, String)> {
    clap::builder::StringValueParser::new().try_map(|text| match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.trim().to_owned())),
        _ => Err("a header is NAME:VALUE"),
    })
}

pub(crate) fn rate() -> impl TypedValueParser<Value = f64> {
    clap::builder::StringValueParser::new().try_map(|text| match text.parse::<f64>() {
        Ok(rate) if (1e-6..=1e9).contains(&rate) => Ok(rate),
        _ => Err(format!("`{text}` is not a rate from 1e-6 to 1e9 per second")),
    })
}

/// Parses a number of seconds from 0 to a year.
pub(crate) fn seconds() -> impl TypedValueParser<Value = Duration> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
        if (0.0..=31_536_000.0).contains(&seconds) {
            Ok(Duration::from_secs_f64(seconds))
        } else {
            Err("it must be in the range 0 to 31536000".to_owned())
        }
    })
}

/// Outcome of the messages so far.
#[derive(Default)]
struct PublishSummary {
    /// Stream, sequence and duplicate flag of the last stored message.
    last: Option<(String, u64, bool)>,
    first_drop: Option<DropReason>,
    /// Lines that were too long to submit.
    too_long: u64,
}

impl PublishSummary {
    fn record(&mut self, outcome: PublishOutcome) {
        match outcome {
            PublishOutcome::Delivered { stream, sequence, duplicate } => {
                self.last = Some((stream, sequence, duplicate));
            }
            PublishOutcome::Dropped(reason) => {
                self.first_drop.get_or_insert(reason);
            }
            PublishOutcome::Queued => {}
        }
    }
}

impl PublishArguments {
    /// Publishes and reports the outcome. Undelivered messages are an error.
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        if self.mode == ModeOption::OneWay && self.spool.is_some() {
            let words = "one-way messages are not kept: leave out --spool, or choose another --mode";
            crate::StillingArguments::command().error(ErrorKind::ArgumentConflict, words).print()?;
            return Err(Box::new(ConflictingOptions));
        }
        let publisher = Publisher::new(self.config())?;
        for finding in &publisher.findings().entries {
            writeln!(std::io::stderr(), "stilling: the spool: {finding}")?;
        }
        let begun = Instant::now();
        let mut summary = PublishSummary::default();
        let open = std::thread::scope(|scope| {
            // The closure drops the sender when it ends, which ends the thread.
            let (_delivering, ended) = mpsc::channel::<()>();
            scope.spawn(|| report_connection_errors(&publisher, ended));
            let open = match &self.subject {
                Some(subject) => self.publish_all(&publisher, subject, begun, &mut summary),
                None => Ok(VecDeque::new()),
            };
            publisher.flush(self.timeout);
            open
        })?;
        for outcome in open.iter().filter_map(PublishTicket::outcome) {
            summary.record(outcome);
        }
        for failure in publisher.failures() {
            summary.first_drop.get_or_insert(failure.reason);
        }
        let connection_error = publisher.connection_error();
        let mut counts = publisher.close(Duration::ZERO);
        counts.submitted += summary.too_long;
        counts.dropped += summary.too_long;
        // `close` has dropped all messages that are not in a spool directory.
        self.print(&counts, &summary, begun.elapsed())?;
        self.check_delivery(&counts, summary.first_drop, connection_error)
    }

    /// Returns an error for dropped messages and for messages in the spool.
    fn check_delivery(
        self,
        counts: &PublisherCounts,
        first_drop: Option<DropReason>,
        connection_error: Option<ConnectionError>,
    ) -> Result<(), Box<dyn Error>> {
        let wait = (counts.held > 0).then(|| {
            let place = self.spool.map(|path| path.display().to_string()).unwrap_or_default();
            let wait = if counts.held == 1 { "waits" } else { "wait" };
            let held = messages(counts.held);
            format!(
                "{held} {wait} in {place} and will be delivered by the next `stilling pub --spool {place}`"
            )
        });
        if counts.dropped > 0 {
            let why = match (&connection_error, first_drop) {
                (_, Some(reason)) => reason.to_string(),
                (Some(connection_error), None) => connection_error.to_string(),
                (None, None) => {
                    "no acknowledgement in time; if no stream has this subject, send it with --mode one-way"
                        .to_owned()
                }
            };
            let wait = wait.map(|wait| format!("; {wait}")).unwrap_or_default();
            let dropped = messages(counts.dropped);
            return Err(format!("{dropped} of {} not delivered: {why}{wait}", total(counts)).into());
        }
        if let Some(wait) = wait {
            let why = connection_error
                .map_or("the server has not acknowledged them yet".to_owned(), |it| it.to_string());
            return Err(Box::new(MessagesSpooled(format!("{wait}: {why}"))));
        }
        Ok(())
    }

    fn config(&self) -> PublisherConfig {
        use stilling_client::{OverflowPolicy as O, PublishMode as M};
        PublisherConfig {
            servers: self.server.clone(),
            name: Some("stilling pub".to_owned()),
            mode: match self.mode {
                ModeOption::Confirmed => M::Confirmed,
                ModeOption::NoWait => M::NoWait,
                ModeOption::OneWay => M::OneWay,
            },
            spool_mode: self.spool.clone().map_or(SpoolMode::Memory, SpoolMode::Directory),
            spool_size: self.spool_size,
            overflow: match self.overflow {
                OverflowOption::Wait => O::Wait,
                OverflowOption::DropOldest => O::DropOldest,
                OverflowOption::DropNewest => O::DropNewest,
            },
            unacknowledged: self.unacknowledged as usize,
            send_timeout: self.timeout,
            // Leaves time to report the drop.
            no_stream_timeout: NO_STREAM_TIMEOUT.min(self.timeout / 2),
            ..PublisherConfig::default()
        }
    }

    /// Submits all messages at the requested rate. Returns the tickets of the open ones.
    fn publish_all(
        &self,
        publisher: &Publisher,
        subject: &str,
        begun: Instant,
        summary: &mut PublishSummary,
    ) -> Result<VecDeque<PublishTicket>, Box<dyn Error>> {
        let headers: Vec<(&str, &str)> =
            self.header.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut tickets: VecDeque<PublishTicket> = VecDeque::new();
        let mut too_long = (0, 0);
        let mut number = 0_u32;
        let mut send = |payload: &[u8]| {
            if let Some(rate) = self.rate {
                let due = begun + Duration::from_secs_f64(f64::from(number) / rate);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            number = number.saturating_add(1);
            tickets.push_back(publisher.submit_with(subject, &headers, payload));
            while let Some(outcome) = tickets.front().and_then(PublishTicket::outcome) {
                summary.record(outcome);
                tickets.pop_front();
            }
        };
        if self.lines {
            let mut input = std::io::stdin().lock();
            while let Some(line) = next_line(&mut input, INPUT_SIZE_MAX)? {
                match line {
                    InputLine::Whole(line) => send(&line),
                    InputLine::TooLong(size) => {
                        too_long = (too_long.0 + 1, size);
                        writeln!(
                            std::io::stderr(),
                            "stilling: a line of {size} bytes is dropped: the maximum is {INPUT_SIZE_MAX} bytes"
                        )?;
                    }
                }
            }
        } else {
            let payload = self.payload()?;
            for _ in 0..self.count {
                send(&payload);
            }
        }
        if let (count @ 1.., size) = too_long {
            summary.too_long = count;
            let reason = DropReason::TooLarge { size: size as usize, size_max: INPUT_SIZE_MAX as usize };
            summary.first_drop.get_or_insert(reason);
        }
        Ok(tickets)
    }

    fn payload(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        match (self.size, self.payload.as_deref()) {
            (Some(size), _) => Ok(vec![b'x'; size as usize]),
            (None, Some("-")) => {
                let mut payload = Vec::new();
                std::io::stdin().lock().take(INPUT_SIZE_MAX + 1).read_to_end(&mut payload)?;
                if payload.len() as u64 > INPUT_SIZE_MAX {
                    return Err(format!(
                        "standard input has more than {INPUT_SIZE_MAX} bytes: send it in parts"
                    )
                    .into());
                }
                Ok(payload)
            }
            (None, payload) => Ok(payload.unwrap_or_default().as_bytes().to_vec()),
        }
    }

    fn print(
        &self,
        counts: &PublisherCounts,
        summary: &PublishSummary,
        elapsed: Duration,
    ) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", as_json(counts, summary, elapsed))?;
        } else if total(counts) <= 1 && counts.delivered == total(counts) {
            match &summary.last {
                _ if counts.delivered == 0 => writeln!(out, "no messages")?,
                Some((stream, sequence, false)) if !stream.is_empty() => {
                    writeln!(out, "{stream} {sequence}")?;
                }
                Some((stream, sequence, true)) => writeln!(out, "{stream} {sequence} (duplicate)")?,
                _ => writeln!(out, "delivered")?,
            }
        } else if total(counts) > 1 {
            write!(out, "{}", table(counts, summary, elapsed))?;
        }
        out.flush()
    }
}

#[derive(PartialEq, Eq, Debug)]
enum InputLine {
    /// Without its line end.
    Whole(Vec<u8>),
    /// A line of this many bytes, all skipped.
    TooLong(u64),
}

/// Returns the next line with at most `size_max` bytes, or `None` at the end of the input.
fn next_line(input: &mut impl BufRead, size_max: u64) -> std::io::Result<Option<InputLine>> {
    let mut line = Vec::new();
    if input.by_ref().take(size_max + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.pop_if(|last| *last == b'\n').is_some() || line.len() as u64 <= size_max {
        return Ok(Some(InputLine::Whole(line)));
    }
    let mut size = line.len() as u64;
    drop(line);
    loop {
        let there = match input.fill_buf() {
            Ok(there) => there,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = there.iter().position(|byte| *byte == b'\n');
        let skipped = end.unwrap_or(there.len());
        let is_last = end.is_some() || there.is_empty();
        size += skipped as u64;
        input.consume(end.map_or(skipped, |end| end + 1));
        if is_last {
            return Ok(Some(InputLine::TooLong(size)));
        }
    }
}

fn total(counts: &PublisherCounts) -> u64 {
    counts.submitted + counts.recovered
}

fn messages(count: u64) -> String {
    if count == 1 { "1 message".to_owned() } else { format!("{count} messages") }
}

fn mean_latency(counts: &PublisherCounts) -> Duration {
    let timed = counts.delivered.min(counts.submitted).max(1);
    counts.send_time_sum.div_f64(timed as f64)
}

fn table(counts: &PublisherCounts, summary: &PublishSummary, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let mut out = String::new();
    let mut line = |name: &str, value: String| out.push_str(&format!("{name:<22}{value}\n"));
    let given = match counts.recovered {
        0 => counts.submitted.to_string(),
        recovered => format!("{} and {recovered} from the spool", counts.submitted),
    };
    line("messages", given);
    line("delivered", format!("{} ({:.2}/s)", counts.delivered, counts.delivered as f64 / seconds));
    if counts.duplicates > 0 {
        line("  duplicates", counts.duplicates.to_string());
    }
    let megabytes = counts.delivered_bytes as f64 / 1e6;
    line("megabytes", format!("{megabytes:.2} ({:.2}/s)", megabytes / seconds));
    line("dropped", counts.dropped.to_string());
    line("waiting", counts.held.to_string());
    line("sent again", counts.retried.to_string());
    line("connections", format!("{} opened, {} failed", counts.connected, counts.connection_failures));
    if counts.deferrals > 0 {
        line("deferrals", counts.deferrals.to_string());
    }
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    let spread = (counts.send_time_min.unwrap_or_default(), counts.send_time_max.unwrap_or_default());
    line(
        "send time (ms)",
        format!("min {:.3}, mean {:.3}, max {:.3}", ms(spread.0), ms(mean_latency(counts)), ms(spread.1)),
    );
    if let Some((stream, sequence, _)) = summary.last.as_ref().filter(|(stream, ..)| !stream.is_empty()) {
        line("last", format!("{stream} {sequence}"));
    }
    line("time", format!("{seconds:.3} s"));
    out
}

fn as_json(counts: &PublisherCounts, summary: &PublishSummary, elapsed: Duration) -> serde_json::Value {
    let last = summary.last.as_ref().filter(|(stream, ..)| !stream.is_empty());
    json!({
        "submitted": counts.submitted,
        "recovered": counts.recovered,
        "delivered": counts.delivered,
        "duplicates": counts.duplicates,
        "delivered_bytes": counts.delivered_bytes,
        "dropped": counts.dropped,
        "held": counts.held,
        "retried": counts.retried,
        "connected": counts.connected,
        "connection_failures": counts.connection_failures,
        "deferrals": counts.deferrals,
        "send_time_min_s": counts.send_time_min.map(|span| span.as_secs_f64()),
        "send_time_mean_s": mean_latency(counts).as_secs_f64(),
        "send_time_max_s": counts.send_time_max.map(|span| span.as_secs_f64()),
        "elapsed_s": elapsed.as_secs_f64(),
        "stream": last.map(|(stream, ..)| stream),
        "last_sequence": last.map(|(_, sequence, _)| sequence),
        "first_drop": summary.first_drop.as_ref().map(ToString::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_to_its_end_and_cut_nowhere() {
        let check = |text: &str, expected: &[InputLine]| {
            // A small buffer splits the lines.
            let mut input = std::io::BufReader::with_capacity(3, text.as_bytes());
            let lines: Vec<InputLine> =
                std::iter::from_fn(|| next_line(&mut input, 5).expect("memory can be read")).collect();
            assert_eq!(lines, expected, "{text:?}");
        };
        let whole = |text: &str| InputLine::Whole(text.into());
        check("", &[]);
        check("a\n\nb", &[whole("a"), whole(""), whole("b")]);
        check("12345\n12345", &[whole("12345"), whole("12345")]);
        check("123456\na\n", &[InputLine::TooLong(6), whole("a")]);
        check("12345678901\na", &[InputLine::TooLong(11), whole("a")]);
        check("a\n1234567", &[whole("a"), InputLine::TooLong(7)]);
        check("123456", &[InputLine::TooLong(6)]);
    }
}
