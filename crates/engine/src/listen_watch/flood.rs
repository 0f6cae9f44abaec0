//! Detects a SYN flood from the TCP counters of a network namespace. Performs no I/O and reads no clock.
//!
//! The system sends SYN cookies (tcp(7), `tcp_syncookies`) once the queue of half-open connections of a listener is
//! full. A client with a real address returns its cookie within a round trip; a spoofed address never does. So a flood is
//! many cookies that are not returned. Connections that overflow the accept queue have completed their handshakes and
//! are no evidence, and neither are cookies of a burst of clients, however many.
//!
//! Without cookies the system drops requests at a full queue. Those of a burst are repeated after a second and more,
//! those of a flood come in every sample.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Time;
use crate::limits::{
    FLOOD_COOKIES_MIN, FLOOD_DROPS_MIN, FLOOD_QUIET_MAX, FLOOD_QUIET_MIN, FLOOD_WINDOW_SAMPLES,
    FLOOD_WITHOUT_COOKIES_SAMPLES, SYN_COOKIE_RETURN_TIME,
};

/// Counts of `TcpExt` in `/proc/net/netstat`: totals, or their differences between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynCounts {
    /// `SyncookiesSent`.
    pub cookies_sent: u64,
    /// `SyncookiesRecv`: valid cookies that clients returned.
    pub cookies_returned: u64,
    /// `SyncookiesFailed`: invalid cookies.
    pub cookies_failed: u64,
    /// `ListenOverflows`: full accept queue.
    pub listen_overflows: u64,
    /// `ListenDrops`: all connection requests dropped, overflows included.
    pub listen_drops: u64,
    /// `TCPReqQFullDoCookies`: requests that met a full queue of half-open connections and were eligible for a cookie.
    pub queue_full_cookies: u64,
    /// `TCPReqQFullDrop`: requests dropped at a full queue of half-open connections.
    pub queue_full_drops: u64,
}

impl SynCounts {
    /// The difference to an earlier sample.
    #[must_use]
    pub fn since(&self, earlier: &SynCounts) -> SynCounts {
        SynCounts {
            cookies_sent: self.cookies_sent.saturating_sub(earlier.cookies_sent),
            cookies_returned: self.cookies_returned.saturating_sub(earlier.cookies_returned),
            cookies_failed: self.cookies_failed.saturating_sub(earlier.cookies_failed),
            listen_overflows: self.listen_overflows.saturating_sub(earlier.listen_overflows),
            listen_drops: self.listen_drops.saturating_sub(earlier.listen_drops),
            queue_full_cookies: self.queue_full_cookies.saturating_sub(earlier.queue_full_cookies),
            queue_full_drops: self.queue_full_drops.saturating_sub(earlier.queue_full_drops),
        }
    }
}

/// The counts of one interval, which ends at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynSample {
    /// The end of the interval, not before that of the previous sample.
    pub at: Time,
    /// Counts of the interval.
    pub counts: SynCounts,
    /// Whether the system sends SYN cookies (`net.ipv4.tcp_syncookies`).
    pub has_cookies: bool,
}

/// A change of the state of a [`SynFloodDetector`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodChange {
    /// A flood was detected.
    Began {
        /// Connection requests within the window that no client completed.
        unanswered: u64,
    },
    /// Nothing has shown a flood for some time.
    Ended {
        /// Time from the detection to the last sign of the flood.
        lasted: Duration,
    },
}

#[derive(Clone, Copy, Debug)]
struct Flood {
    since: Time,
    last_evidence: Time,
}

/// State machine fed with one [`SynSample`] per interval.
#[derive(Debug)]
pub struct SynFloodDetector {
    /// The last samples, oldest first.
    window: VecDeque<SynSample>,
    flood: Option<Flood>,
    /// Time without evidence after which a flood has ended. Doubles with each flood that follows soon on another.
    quiet: Duration,
    last_end: Option<Time>,
}

impl Default for SynFloodDetector {
    fn default() -> Self {
        SynFloodDetector::new()
    }
}

impl SynFloodDetector {
    /// A detector that has seen nothing.
    #[must_use]
    pub fn new() -> SynFloodDetector {
        SynFloodDetector {
            window: VecDeque::with_capacity(FLOOD_WINDOW_SAMPLES + 1),
            flood: None,
            quiet: FLOOD_QUIET_MIN,
            last_end: None,
        }
    }

    /// When the present flood was detected.
    #[must_use]
    pub fn flood_since(&self) -> Option<Time> {
        self.flood.map(|flood| flood.since)
    }

    /// Takes the next sample; returns a change of the state.
    pub fn sample(&mut self, sample: SynSample) -> Option<FloodChange> {
        let at = sample.at;
        self.window.push_back(sample);
        if self.window.len() > FLOOD_WINDOW_SAMPLES {
            self.window.pop_front();
        }
        let unanswered = self.evidence(at);
        let Some(flood) = &mut self.flood else {
            let unanswered = unanswered?;
            self.begin(at);
            return Some(FloodChange::Began { unanswered });
        };
        if unanswered.is_some() {
            flood.last_evidence = at;
        } else if at.since(flood.last_evidence) >= self.quiet {
            let lasted = flood.last_evidence.since(flood.since);
            self.flood = None;
            self.last_end = Some(at);
            return Some(FloodChange::Ended { lasted });
        }
        None
    }

    fn begin(&mut self, at: Time) {
        self.flood = Some(Flood { since: at, last_evidence: at });
        let is_soon = self.last_end.is_some_and(|end| at.since(end) < FLOOD_QUIET_MAX);
        self.quiet = if is_soon { (2 * self.quiet).min(FLOOD_QUIET_MAX) } else { FLOOD_QUIET_MIN };
    }

    /// Unanswered connection requests, if they show a flood.
    fn evidence(&self, now: Time) -> Option<u64> {
        let cookies = self.unreturned_cookies(now);
        cookies.or_else(|| self.steady_drops())
    }

    /// Cookies in the window that were not returned in time, if they are at least a quarter: fewer can be loss. All
    /// returned ones count, also those of cookies that are not due yet, so a steady flood is seen if it causes at least
    /// half of the cookies.
    fn unreturned_cookies(&self, now: Time) -> Option<u64> {
        let is_due = |sample: &&SynSample| now.since(sample.at) >= SYN_COOKIE_RETURN_TIME;
        let due = sum(self.window.iter().filter(is_due).map(|sample| sample.counts.cookies_sent));
        let returned = sum(self.window.iter().map(|sample| sample.counts.cookies_returned));
        let unreturned = due.saturating_sub(returned);
        (unreturned >= FLOOD_COOKIES_MIN && unreturned >= due / 4).then_some(unreturned)
    }

    /// Requests dropped at a full queue of half-open connections, if no cookies are sent and each of the last samples
    /// has many. A full accept queue also fills that queue, so samples with overflows are no evidence.
    fn steady_drops(&self) -> Option<u64> {
        let dropped = |sample: &SynSample| {
            let SynCounts { listen_drops, listen_overflows, .. } = sample.counts;
            let dropped = listen_drops.saturating_sub(listen_overflows);
            let is_evidence = !sample.has_cookies && listen_overflows == 0 && dropped >= FLOOD_DROPS_MIN;
            is_evidence.then_some(dropped)
        };
        let last = self.window.iter().rev().take(FLOOD_WITHOUT_COOKIES_SAMPLES);
        let counts: Vec<u64> = last.map_while(dropped).collect();
        (counts.len() == FLOOD_WITHOUT_COOKIES_SAMPLES).then(|| sum(counts.into_iter()))
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
#[path = "flood_tests.rs"]
mod tests;
