//! `stilling journal cat`: prints a stream's records, in the memory of a single read.
//!
//! The output ends with the records written before the command started. A gap is printed at its position with its
//! cause; loss markers are records of a stream and are printed as such.

use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::{StringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use stilling_journal::{Gap, GapCause, ReadOutcome, Record, RecordKind, StartAt};
use stilling_wire::nats::{Filter, Headers, Subject, SubjectLimits};

use super::{INSPECTIONS_MAX, JournalError, StreamDirectory, stream, time};
use crate::subscribe::{escape_control, put_payload};

#[derive(Args)]
pub(super) struct CatArguments {
    /// The stream's directory: DATA/STREAM
    #[arg(value_name = "STREAM")]
    path: PathBuf,
    /// Start at this sequence, a time such as 2026-01-31T12:00:00Z, or a span back such as 10m [default: the first
    /// stored record]
    #[arg(long, value_name = "POSITION", value_parser = place())]
    from: Option<StartAt>,
    /// End with this sequence, or before the first record later than a time [default: the last]
    #[arg(long, value_name = "POSITION", value_parser = place())]
    to: Option<StartAt>,
    /// Output format of records
    #[arg(long, value_enum, default_value_t = RecordFormat::Text)]
    format: RecordFormat,
    /// Only records of these subjects: * matches one token, > all that follow
    #[arg(long, value_name = "FILTER", value_parser = filter())]
    subject: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RecordFormat {
    /// One line each: sequence, time, subject, payload; other lines begin with #
    Text,
    /// One line each: sequence, subject, payload; a line with the time before the first of each second
    Log,
    /// One JSON object each: the payload is data if it is JSON, else text, else base64
    Json,
    /// Payloads only, each with a line end; everything else goes to standard error
    Raw,
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The widest limits: the server has applied its own, narrower ones to every stored record.
const LIMITS: SubjectLimits = SubjectLimits { size_max: u16::MAX, tokens_max: u16::MAX };

fn place() -> impl TypedValueParser<Value = StartAt> {
    StringValueParser::new().try_map(|text| {
        if let Ok(sequence) = text.parse() {
            return Ok(StartAt::Sequence(sequence));
        }
        let time = match (humantime::parse_rfc3339_weak(&text), humantime::parse_duration(&text)) {
            (Ok(time), _) => time,
            (_, Ok(span)) => SystemTime::now().checked_sub(span).unwrap_or(UNIX_EPOCH),
            _ => {
                return Err(
                    "expected a sequence, a time such as 2026-01-31T12:00:00Z, or a span back such as 10m",
                );
            }
        };
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(StartAt::Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
    })
}

fn filter() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|text| match Filter::parse(text.as_bytes(), &LIMITS) {
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    })
}

impl CatArguments {
    pub(super) fn run(self) -> Result<(), JournalError> {
        let stream = stream(&self.path)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let missing = self.print_all(&stream, &mut out)?;
        out.flush()?;
        match missing {
            0 => Ok(()),
            missing => Err(JournalError::Damaged(Some(format!(
                "{missing} records cannot be shown because they are damaged: `stilling journal verify {}` reports where",
                stream.location()
            )))),
        }
    }

    /// Prints the requested records; returns the number of damaged records.
    fn print_all(&self, stream: &StreamDirectory, out: &mut impl Write) -> Result<u64, JournalError> {
        let filter = self.subject.as_ref().map(|text| Filter::parse(text.as_bytes(), &LIMITS));
        let filter = filter.transpose().map_err(|error| JournalError::Unreadable(error.to_string()))?;
        let inspection = stream.inspect()?;
        let first = inspection.list().first().map_or(1, |segment| segment.first);
        let mut reader = inspection.read_from(self.from.unwrap_or(StartAt::Sequence(first)));
        let not_before_ns = match self.from {
            Some(StartAt::Time(time_ns)) => time_ns,
            Some(StartAt::Sequence(_)) | None => 0,
        };
        let (mut missing, mut attempts, mut has_begun) = (0, 0, false);
        let mut second = None;
        loop {
            let is_removed = match reader.read() {
                Ok(ReadOutcome::End) => return Ok(missing),
                Ok(ReadOutcome::Gap(Gap { first, .. })) if self.is_past_end(first, 0) => return Ok(missing),
                Ok(ReadOutcome::Gap(Gap { first, last, cause })) => {
                    let last = match self.to {
                        Some(StartAt::Sequence(to)) => last.min(to),
                        Some(StartAt::Time(_)) | None => last,
                    };
                    if cause == GapCause::Damaged {
                        missing += last + 1 - first;
                    }
                    self.print_gap(out, (first, last), cause)?;
                    false
                }
                Ok(ReadOutcome::Batch(batch)) => {
                    has_begun |= batch.time_ns >= not_before_ns;
                    for (sequence, record) in batch.records.filter(|_| has_begun) {
                        if self.is_past_end(sequence, batch.time_ns) {
                            return Ok(missing);
                        }
                        let is_wanted = filter.is_none_or(|filter| {
                            Subject::parse(record.subject, &LIMITS)
                                .is_ok_and(|subject| filter.matches(subject))
                        });
                        if is_wanted {
                            self.print_second(out, &mut second, batch.time_ns)?;
                            self.print(out, sequence, batch.time_ns, &record)?;
                        }
                    }
                    false
                }
                // A server removed the segment meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound && attempts < INSPECTIONS_MAX => true,
                Err(error) => {
                    return Err(JournalError::Unreadable(format!(
                        "{} cannot be read: {error}",
                        stream.location()
                    )));
                }
            };
            if is_removed {
                attempts += 1;
                reader = stream.inspect()?.read_from(StartAt::Sequence(reader.next_sequence()));
            }
        }
    }

    /// Returns whether a record is after the end of the requested range.
    fn is_past_end(&self, sequence: u64, time_ns: u64) -> bool {
        match self.to {
            Some(StartAt::Sequence(to)) => sequence > to,
            Some(StartAt::Time(to_ns)) => time_ns > to_ns,
            None => false,
        }
    }

    /// Prints the time if the next record has another second than the last one.
    fn print_second(
        &self,
        out: &mut impl Write,
        last: &mut Option<u64>,
        time_ns: u64,
    ) -> Result<(), JournalError> {
        let second = time_ns / NANOS_PER_SECOND;
        if self.format == RecordFormat::Log && last.replace(second) != Some(second) {
            writeln!(out, "# {}", time(second * NANOS_PER_SECOND).replace(".000Z", "Z"))?;
        }
        Ok(())
    }

    fn print(
        &self,
        out: &mut impl Write,
        sequence: u64,
        time_ns: u64,
        record: &Record<'_>,
    ) -> Result<(), JournalError> {
        let Record { kind, subject, headers, payload } = record;
        match (self.format, kind) {
            (RecordFormat::Raw, RecordKind::Ordinary) => {
                out.write_all(payload)?;
                out.write_all(b"\n")?;
            }
            (RecordFormat::Raw, RecordKind::Loss) => {
                writeln!(
                    std::io::stderr(),
                    "# {sequence}: messages were lost here: {}",
                    escape_line(payload)
                )?;
            }
            (RecordFormat::Text | RecordFormat::Log, kind) => {
                let mark = if *kind == RecordKind::Loss { " # messages were lost here" } else { "" };
                write!(out, "{sequence} ")?;
                if self.format == RecordFormat::Text {
                    write!(out, "{} ", time(time_ns))?;
                }
                writeln!(out, "{}:{mark} {}", escape_line(subject), escape_line(payload))?;
            }
            (RecordFormat::Json, kind) => {
                let mut object = json!({
                    "seq": sequence,
                    "time": time(time_ns),
                    "subject": String::from_utf8_lossy(subject),
                });
                if *kind == RecordKind::Loss {
                    object["kind"] = json!("loss");
                }
                if !headers.is_empty() {
                    object["headers"] = fields(headers);
                }
                put_payload(&mut object, payload);
                writeln!(out, "{object}")?;
            }
        }
        Ok(())
    }

    fn print_gap(
        &self,
        out: &mut impl Write,
        (first, last): (u64, u64),
        cause: GapCause,
    ) -> Result<(), JournalError> {
        let (name, words) = match cause {
            GapCause::Removed => ("removed", "were removed by retention"),
            GapCause::Damaged => ("damaged", "are damaged"),
            GapCause::Torn => ("torn", "may have been acknowledged: their write is torn or damaged"),
        };
        match self.format {
            RecordFormat::Text | RecordFormat::Log => writeln!(out, "# {first} to {last} {words}")?,
            RecordFormat::Json => {
                let gap = json!({ "first": first, "last": last, "cause": name });
                writeln!(out, "{}", json!({ "gap": gap }))?;
            }
            RecordFormat::Raw => writeln!(std::io::stderr(), "# {first} to {last} {words}")?,
        }
        Ok(())
    }
}

/// Bytes as one line without control characters.
fn escape_line(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => escape_control(text),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// Headers as an object: each name with all its values.
fn fields(headers: &[u8]) -> Value {
    let mut object = Map::new();
    let Ok(parsed) = Headers::parse(headers) else {
        return json!(escape_line(headers));
    };
    for (name, value) in parsed {
        let values = object.entry(escape_line(name)).or_insert_with(|| json!([]));
        if let Value::Array(values) = values {
            values.push(json!(String::from_utf8_lossy(value)));
        }
    }
    Value::Object(object)
}
