//! One stream: what goes into it, how safe that is, and how much of it is kept.

use std::fmt;
use std::time::Duration;

use super::filters::{RESERVED, filter, overlap};
use super::limits::{
    DEDUP_TIME_DEFAULT, DEDUP_TIME_MAX, MESSAGE_SIZE_DEFAULT, MESSAGE_SIZE_LARGEST, PENDING_DEFAULT,
    PENDING_LARGEST, RETENTION_BYTES_DISK, RETENTION_BYTES_LEAST, RETENTION_BYTES_MAX,
    RETENTION_BYTES_MEMORY, STREAM_NAME_SIZE_MAX, STREAM_SUBJECTS_MAX, STREAMS_MAX,
};
use super::{Setting, SettingError};

/// A named, ordered, numbered log of what is published to its subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Its name, and that of its folder: letters, digits, `-` and `_`.
    pub name: String,
    /// Filters of what belongs to it. No subject may belong to two streams.
    pub subjects: Vec<String>,
    /// When a message is acknowledged. Default: when it is on disk.
    pub durability: Durability,
    /// What is kept.
    pub retention: Retention,
    /// How long a message id (`Nats-Msg-Id`) is recognised, so that a message sent twice is stored once; 0: never. At most
    /// 1,000,000 ids, of 32 bytes each; then the oldest is forgotten. Default: 2 minutes.
    pub dedup_time: Duration,
    /// Bytes of a message with its headers; longer ones are refused. Default: 1 MiB.
    pub message_size_max: u32,
    /// Messages that may wait for the disk. When there are as many, connections that publish to the stream are not read until
    /// the disk has written. Default: 262,144.
    pub pending_max: u32,
}

/// When a message is acknowledged, hence what a crash can cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is on disk: nothing that was acknowledged is lost.
    #[default]
    Disk,
    /// When it is in the server's memory: a restart loses all.
    Memory,
    /// Never: whoever publishes is not told.
    None,
}

/// What is kept of a stream. The oldest records go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Most bytes, whatever else is said. Default: 10 GiB on disk, 64 MiB in memory.
    pub bytes: u64,
    /// Records that are enough: what is older than so many may go. Default: no such number.
    pub records: Option<u64>,
    /// How long a record has to be kept: what is older may go. Default: no such time.
    pub age: Option<Duration>,
}

impl StreamConfig {
    /// A stream on disk with the default bounds.
    #[must_use]
    pub fn new(name: impl Into<String>, subjects: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StreamConfig {
            name: name.into(),
            subjects: subjects.into_iter().map(Into::into).collect(),
            durability: Durability::Disk,
            retention: Retention::of(Durability::Disk),
            dedup_time: DEDUP_TIME_DEFAULT,
            message_size_max: MESSAGE_SIZE_DEFAULT,
            pending_max: PENDING_DEFAULT,
        }
    }

    /// The streams of a server that is told of none: `events`, bound to `events.>`.
    #[must_use]
    pub fn defaults() -> Vec<Self> {
        vec![StreamConfig::new("events", ["events.>"])]
    }

    /// What is wrong with it by itself, under its place in the list.
    fn problems(&self, index: usize, found: &mut Vec<SettingError>) {
        let mut say = |key, reason| found.push(SettingError::stream(index, key, reason));
        let name = &self.name;
        if !is_name(name) {
            say(
                "name",
                format!(
                    "`{name}` cannot name a stream, nor its folder: it takes 1 to {STREAM_NAME_SIZE_MAX} letters, digits, `-` or `_`"
                ),
            );
        }
        if self.subjects.is_empty() {
            say(
                "subjects",
                format!(
                    "the stream `{name}` has no subjects, so nothing could ever enter it; such as [\"{name}.>\"]"
                ),
            );
        }
        if self.subjects.len() > STREAM_SUBJECTS_MAX {
            let count = self.subjects.len();
            say(
                "subjects",
                format!("{count} filters are more than the {STREAM_SUBJECTS_MAX} that a stream can have"),
            );
        }
        for text in &self.subjects {
            match filter(text) {
                Err(reason) => say("subjects", reason),
                Ok(wanted) => {
                    let reserved =
                        RESERVED.iter().find(|own| filter(own).is_ok_and(|own| overlap(wanted, own)));
                    if let Some(own) = reserved {
                        say(
                            "subjects",
                            format!(
                                "`{text}` takes in subjects of `{own}`, which are the server's own; begin with a word of yours, such as `{name}.>`"
                            ),
                        );
                    }
                }
            }
        }
        if !(RETENTION_BYTES_LEAST..=RETENTION_BYTES_MAX).contains(&self.retention.bytes) {
            let bytes = self.retention.bytes;
            say(
                "retention-bytes",
                format!(
                    "{bytes} is not in {RETENTION_BYTES_LEAST}..={RETENTION_BYTES_MAX} (1MiB to 1024TiB)"
                ),
            );
        }
        if self.retention.records == Some(0) {
            say(
                "retention-records",
                "0 would keep nothing; leave the key out to keep as many as there is room for".to_owned(),
            );
        }
        if self.retention.age == Some(Duration::ZERO) {
            say(
                "retention-age",
                "0 would keep nothing; leave the key out to keep records as long as there is room for them"
                    .to_owned(),
            );
        }
        if self.dedup_time > DEDUP_TIME_MAX {
            let (time, most) = (self.dedup_time.as_secs_f64(), DEDUP_TIME_MAX.as_secs());
            say("dedup-time", format!("{time} s is not in 0..={most} s (0 to 1d)"));
        }
        if !(1..=MESSAGE_SIZE_LARGEST).contains(&self.message_size_max) {
            say(
                "max-message-size",
                format!("{} is not in 1..={MESSAGE_SIZE_LARGEST}", self.message_size_max),
            );
        }
        if !(1..=PENDING_LARGEST).contains(&self.pending_max) {
            say("max-pending", format!("{} is not in 1..={PENDING_LARGEST}", self.pending_max));
        }
    }
}

impl Retention {
    /// What is kept by default.
    #[must_use]
    pub fn of(durability: Durability) -> Self {
        let bytes = match durability {
            Durability::Disk => RETENTION_BYTES_DISK,
            Durability::Memory | Durability::None => RETENTION_BYTES_MEMORY,
        };
        Retention { bytes, records: None, age: None }
    }
}

impl Durability {
    /// All of them, with their words.
    pub const ALL: [(Durability, &str); 3] =
        [(Durability::Disk, "disk"), (Durability::Memory, "memory"), (Durability::None, "none")];
}

impl std::str::FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, word)| *word == text);
        found.map(|(durability, _)| durability).ok_or_else(|| {
            format!("`{text}` is no durability: disk (acknowledged when it is on disk), memory or none")
        })
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
            Durability::None => "none",
        })
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=STREAM_NAME_SIZE_MAX).contains(&text.len()) && text.bytes().all(is_letter)
}

/// What is wrong with streams, each by itself and with each other.
pub(super) fn problems(streams: &[StreamConfig], found: &mut Vec<SettingError>) {
    if streams.len() > STREAMS_MAX {
        let reason =
            format!("{} streams are more than the {STREAMS_MAX} that one server can have", streams.len());
        found.push(SettingError { setting: Setting::Option("stream"), reason });
        return;
    }
    for (index, stream) in streams.iter().enumerate() {
        stream.problems(index, found);
        if let Some(first) = streams[..index].iter().position(|before| before.name == stream.name) {
            let reason =
                format!("`{}` is the name of stream {}, too; each needs its own", stream.name, first + 1);
            found.push(SettingError::stream(index, "name", reason));
        }
        for text in &stream.subjects {
            if let Some((before, taken)) = taker(&streams[..index], text) {
                let reason = format!(
                    "`{text}` of the stream `{}` overlaps `{taken}` of the stream `{}`; a subject belongs to one stream",
                    stream.name, before.name
                );
                found.push(SettingError::stream(index, "subjects", reason));
            }
        }
    }
}

/// The stream of several that takes in some of the subjects of a filter, and by which filter of its own.
fn taker<'a>(streams: &'a [StreamConfig], text: &str) -> Option<(&'a StreamConfig, &'a str)> {
    let wanted = filter(text).ok()?;
    streams.iter().find_map(|stream| {
        let is_taken = |taken: &&String| filter(taken).is_ok_and(|taken| overlap(wanted, taken));
        stream.subjects.iter().find(is_taken).map(|taken| (stream, taken.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Vec<StreamConfig>);

    fn said(change: Change) -> Vec<String> {
        let mut streams = StreamConfig::defaults();
        change(&mut streams);
        let mut found = Vec::new();
        problems(&streams, &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn streams_that_belong_side_by_side_are_accepted() {
        for change in [
            (|_| ()) as Change,
            |streams| streams.clear(),
            |streams| streams.push(StreamConfig::new("orders-2_b", ["orders.*", "orders.*.new"])),
            |streams| streams[0].subjects.push("events.more".to_owned()),
            |streams| streams[0].dedup_time = Duration::ZERO,
            |streams| {
                streams[0].retention =
                    Retention { bytes: 1 << 20, records: Some(1), age: Some(Duration::from_nanos(1)) }
            },
        ] {
            assert_eq!(said(change), [""; 0]);
        }
    }

    #[test]
    fn a_stream_that_cannot_work_is_refused_with_its_key_and_what_is_allowed() {
        let cases: [(Change, &str); 13] = [
            (|streams| streams[0].name.clear(), "stream 1, name: `` cannot name a stream"),
            (|streams| streams[0].name = "a/b".to_owned(), "it takes 1 to 64 letters, digits, `-` or `_`"),
            (|streams| streams[0].name = "a".repeat(65), "stream 1, name: "),
            (
                |streams| streams[0].subjects.clear(),
                "stream 1, subjects: the stream `events` has no subjects",
            ),
            (
                |streams| streams[0].subjects = vec!["a.".repeat(70) + "b"],
                "is no subject and no filter: expected at most",
            ),
            (
                |streams| streams[0].subjects = vec!["a..b".to_owned()],
                "`a..b` is no subject and no filter: expected no empty token at byte 2",
            ),
            (|streams| streams[0].subjects = vec![">".to_owned()], "`>` takes in subjects of `$JS.>`"),
            (|streams| streams[0].retention.bytes = 1, "stream 1, retention-bytes: 1 is not in 1048576..="),
            (
                |streams| streams[0].retention.records = Some(0),
                "stream 1, retention-records: 0 would keep nothing",
            ),
            (
                |streams| streams[0].dedup_time = Duration::from_secs(86_401),
                "stream 1, dedup-time: 86401 s is not in 0..=86400 s",
            ),
            (
                |streams| streams[0].message_size_max = 0,
                "stream 1, max-message-size: 0 is not in 1..=8388608",
            ),
            (
                |streams| streams.push(StreamConfig::new("events", ["a"])),
                "stream 2, name: `events` is the name of stream 1",
            ),
            (
                |streams| streams.push(StreamConfig::new("new", ["a", "*.new"])),
                "stream 2, subjects: `*.new` of the stream `new` overlaps `events.>` of the stream `events`; a subject belongs to one stream",
            ),
        ];
        for (change, expected) in cases {
            let said = said(change);
            assert!(said.iter().any(|said| said.contains(expected)), "{expected}: {said:?}");
        }
        assert_eq!(said(|streams| streams[0].retention.age = Some(Duration::ZERO)).len(), 1);
        assert_eq!(said(|streams| *streams = vec![StreamConfig::new("a", ["a"]); STREAMS_MAX + 1]).len(), 1);
        assert_eq!(
            said(|streams| streams[0].subjects = (0..=STREAM_SUBJECTS_MAX).map(|n| n.to_string()).collect())
                .len(),
            1
        );
    }

    #[test]
    fn durabilities_are_read_as_they_are_written() {
        for (durability, word) in Durability::ALL {
            assert_eq!(durability.to_string(), word);
            assert_eq!(word.parse(), Ok(durability));
        }
        let refused = "disc".parse::<Durability>().expect_err("a wrong word");
        assert!(refused.contains("`disc`") && refused.contains("memory or none"), "{refused}");
    }
}
