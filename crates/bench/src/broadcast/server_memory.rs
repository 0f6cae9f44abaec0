//! User memory of the measured server, from `/proc`.

use serde::{Deserialize, Serialize};

/// Bytes of the server's memory (`Pss`) at three moments of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMemory {
    /// With the first subscribers, which let the server allocate what all share.
    pub before: u64,
    /// Subscribers after those.
    pub subscribers: u32,
    /// With all subscribers, before the first message.
    pub subscribed: u64,
    /// After the last delivery, with all subscribers.
    pub delivered: u64,
}

impl ServerMemory {
    /// Bytes of one subscriber that has not received a message.
    pub fn per_subscriber(&self) -> f64 {
        (self.subscribed as f64 - self.before as f64) / f64::from(self.subscribers.max(1))
    }
}

/// Bytes of memory of a process; pages shared with others count in part. `None` if there is no such process.
pub(super) fn of(process: u32) -> Option<u64> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?)
}

fn parse(rollup: &str) -> Option<u64> {
    let rest = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(rest.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_manual_says() {
        let rollup =
            "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss:      512 kB\nPss_Anon: 9 kB\n";
        assert_eq!(parse(rollup), Some(512 * 1024));
        assert_eq!(parse("Rss: 1 kB\n"), None);
        let memory = ServerMemory { before: 1000, subscribers: 10, subscribed: 6000, delivered: 9000 };
        assert_eq!(memory.per_subscriber(), 500.0);
    }
}
