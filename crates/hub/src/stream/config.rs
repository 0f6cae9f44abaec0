//! Configuration of a stream: subjects, durability and retention.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::limits::{
    DEDUP_TIME_NS, DISK_STREAM_SIZE, MEMORY_STREAM_SIZE, MESSAGE_SIZE_DEFAULT, PENDING_DEFAULT,
};

/// A named, ordered, numbered log of the messages published to its subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Name of the stream and its directory: letters, digits, `-` and `_`.
    pub name: String,
    /// Filters of its subjects. No subject may belong to two streams.
    pub subjects: Vec<String>,
    /// When a message is acknowledged. Default: when it is on disk.
    pub durability: Durability,
    /// Bounds of the kept records.
    pub retention: Retention,
    /// Time for which a message id (`Nats-Msg-Id`) is recognised, so that a repeated message is stored once; 0: never.
    /// At most 1,000,000 ids of 32 bytes each; beyond that the oldest is forgotten. Default: 2 minutes.
    pub dedup_time: Duration,
    /// Maximum bytes of a message with its headers; longer messages are refused. Default: 1 MiB.
    pub message_size_max: u32,
    /// Messages that may wait for the disk. When reached, connections that publish to the stream are not read until the
    /// disk has written. Default: 262,144.
    pub pending_max: u32,
    /// Name of the [gate](crate::Gate) that decides what enters the stream, as in the
    /// [registry](crate::GateRegistry). Default: none.
    pub gate: Option<String>,
    /// What happens to subscriptions over WebSocket and SSE whose clients read too slowly. Default: they catch up.
    pub slow_subscribers: SlowSubscribers,
    /// Time in which a subscription that catches up must come nearer to the newest record; then the policy of slow
    /// subscribers applies, which is to skip if it is to catch up. Default: unbounded.
    pub catch_up_time: Option<Duration>,
}

/// What happens to a subscription over WebSocket or SSE when more than a bound of its output waits for its client. With a
/// [`catch_up_time`](StreamConfig::catch_up_time) it catches up first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowSubscribers {
    /// When its client has read what waits, it continues with the record that follows. It misses only what retention
    /// removes meanwhile, and receives a notice of that.
    #[default]
    CatchUp,
    /// When its client has read what waits, it continues with the newest record, after a notice of the gap.
    Skip,
    /// Its connection is closed as a slow consumer.
    Disconnect,
}

/// When a message is acknowledged, and thus what a crash can lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is on disk: no acknowledged message is lost. It becomes visible at the same time.
    #[default]
    Disk,
    /// When it is in the server's memory: a restart loses everything.
    Memory,
    /// When it is numbered and sent to subscribers: it is not stored.
    None,
}

/// Bounds of the kept records. The oldest records are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum bytes, regardless of the other bounds; 0: unbounded on disk, 64 MiB in memory. Default: 10 GiB on disk,
    /// 64 MiB in memory.
    pub bytes: u64,
    /// Number of records to keep: older ones may be removed. Default: no such bound.
    pub records: Option<u64>,
    /// Time to keep a record: older ones may be removed. Default: no such bound.
    pub age: Option<Duration>,
}

impl StreamConfig {
    /// Creates the configuration of a disk stream with the default bounds.
    #[must_use]
    pub fn new(name: impl Into<String>, subjects: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StreamConfig {
            name: name.into(),
            subjects: subjects.into_iter().map(Into::into).collect(),
            durability: Durability::Disk,
            retention: Retention::of(Durability::Disk),
            dedup_time: Duration::from_nanos(DEDUP_TIME_NS),
            message_size_max: MESSAGE_SIZE_DEFAULT,
            pending_max: PENDING_DEFAULT,
            gate: None,
            slow_subscribers: SlowSubscribers::CatchUp,
            catch_up_time: None,
        }
    }

    /// Returns what happens to a subscription when more than a bound of its output waits for its client: with a
    /// [`catch_up_time`](Self::catch_up_time) it catches up before the policy for slow subscribers applies.
    #[must_use]
    pub fn first_slow_policy(&self) -> SlowSubscribers {
        if self.catch_up_time.is_some() { SlowSubscribers::CatchUp } else { self.slow_subscribers }
    }

    pub(crate) fn catch_up_time_ns(&self) -> Option<u64> {
        self.catch_up_time.map(nanos)
    }

    pub(crate) fn dedup_time_ns(&self) -> u64 {
        nanos(self.dedup_time)
    }
}

/// The default stream of a server without configured streams: `events`, bound to `events.>`.
impl Default for StreamConfig {
    fn default() -> Self {
        StreamConfig::new("events", ["events.>"])
    }
}

impl Retention {
    /// Returns the default bounds.
    #[must_use]
    pub fn of(durability: Durability) -> Self {
        let bytes = match durability {
            Durability::Disk => DISK_STREAM_SIZE,
            Durability::Memory | Durability::None => MEMORY_STREAM_SIZE,
        };
        Retention { bytes, records: None, age: None }
    }

    /// Returns the bound in bytes, if there is one.
    #[must_use]
    pub fn bytes_max(self) -> Option<u64> {
        Some(self.bytes).filter(|bytes| *bytes > 0)
    }

    pub(crate) fn for_journal(self) -> stilling_journal::LogRetention {
        let Retention { records, age, .. } = self;
        stilling_journal::LogRetention { bytes_max: self.bytes_max(), records, age_ns: age.map(nanos) }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Durability {
    /// All values with their names.
    pub const ALL: [(Durability, &str); 3] =
        [(Durability::Disk, "disk"), (Durability::Memory, "memory"), (Durability::None, "none")];
}

impl SlowSubscribers {
    /// All values with their names.
    pub const ALL: [(SlowSubscribers, &str); 3] = [
        (SlowSubscribers::CatchUp, "catch-up"),
        (SlowSubscribers::Skip, "skip"),
        (SlowSubscribers::Disconnect, "disconnect"),
    ];
}

impl FromStr for SlowSubscribers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, word)| *word == text);
        found.map(|(policy, _)| policy).ok_or_else(|| {
            format!("`{text}` is not a policy for slow subscribers: expected catch-up, skip or disconnect")
        })
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, word)| *word == text);
        found.map(|(durability, _)| durability).ok_or_else(|| {
            format!("`{text}` is not a durability: expected disk (acknowledged when it is on disk), memory or none")
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

#[cfg(test)]
mod tests {
    use super::*;

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
