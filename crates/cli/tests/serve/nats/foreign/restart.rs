//! A client during a kill and restart of the server. The client publishes numbers, one after the other, each until it
//! is acknowledged, always under the same `Nats-Msg-Id`, until it has reconnected; it follows its own stream with an
//! ordered consumer, and prints:
//!
//! ```text
//! acknowledged <number> <sequence>      its message is stored
//! failed <number> <why>                 the outcome is unknown; it is sent again
//! delivered <number> <sequence>         by a push consumer
//! pulled <number> <sequence>            by a pull consumer
//! disconnected, reconnected             connection events of its library
//! error <text>                          other events of its library
//! received afterwards                   a plain subscription from before works again
//! all checks passed                     the program has ended and received everything
//! ```

use std::net::SocketAddr;

use super::super::NatsServerFixture;
use super::programs::SUCCESS_LINE;
use crate::support::DriverUnderTest;

const BEFORE: usize = 100;

#[derive(Debug, Default)]
pub(super) struct RestartLog {
    acknowledged: Vec<(u64, u64)>,
    pub(super) delivered: Vec<(u64, u64)>,
    pub(super) pulled: Vec<(u64, u64)>,
    /// Each with its number.
    failed: Vec<String>,
    errors: Vec<String>,
    connection: Vec<String>,
    received: usize,
    has_ended: bool,
}

impl RestartLog {
    #[track_caller]
    fn record(&mut self, line: Option<String>) {
        let line = line.unwrap_or_else(|| panic!("it tells nothing more: {self:?}"));
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let numbers = || {
            let (number, sequence) = rest.split_once(' ').expect("two numbers");
            (number.parse().expect("a number"), sequence.parse().expect("a number"))
        };
        match what {
            "acknowledged" => self.acknowledged.push(numbers()),
            "delivered" => self.delivered.push(numbers()),
            "pulled" => self.pulled.push(numbers()),
            "failed" => self.failed.push(rest.to_owned()),
            "error" => self.errors.push(rest.to_owned()),
            "disconnected" | "reconnected" => self.connection.push(line),
            "received" => self.received += 1,
            _ if line == SUCCESS_LINE => self.has_ended = true,
            _ => panic!("{line}: {self:?}"),
        }
    }
}

impl RestartLog {
    /// Checks the error of a message that lost its acknowledgement with the server, if there was one.
    #[track_caller]
    pub(super) fn failed_only_by(&self, why: &str) {
        assert!(self.failed.iter().all(|failed| failed.ends_with(why)), "{:?}", self.failed);
    }
}

/// Runs a client through a kill and restart: its reports are true, and nothing is lost, invented, stored twice or
/// delivered twice.
pub(super) fn live_through<T: FnMut() -> Option<String>>(
    driver: DriverUnderTest,
    start: impl FnOnce(SocketAddr) -> T,
) -> RestartLog {
    let fixture = NatsServerFixture::start_restartable(driver, "");
    let mut log = RestartLog::default();
    let mut next_line = start(fixture.nats());
    while log.acknowledged.len() < BEFORE {
        log.record(next_line());
    }
    let fixture = fixture.crash_in_place(driver, "", || {
        while log.connection.is_empty() {
            log.record(next_line());
        }
    });
    while !log.has_ended {
        log.record(next_line());
    }
    let count = log.acknowledged.len();
    let (records, behind) = fixture.records("events", count);
    let records: Vec<(u64, u64)> =
        records.into_iter().map(|(at, text)| (text.parse().expect("a number"), at)).collect();
    let numbers: Vec<u64> = records.iter().map(|record| record.0).collect();
    assert_eq!(numbers, (1..=count as u64).collect::<Vec<_>>(), "{log:?}");
    assert_eq!(behind, 0, "{log:?}");
    assert_eq!(log.acknowledged, records);
    assert_eq!(log.delivered, records);
    // Some clients report their final disconnect.
    assert_eq!(log.connection[..2], ["disconnected", "reconnected"], "{log:?}");
    assert!(log.connection[2..].iter().all(|what| what == "disconnected") && log.received == 1, "{log:?}");
    drop(next_line);
    fixture.server.finish();
    log
}
