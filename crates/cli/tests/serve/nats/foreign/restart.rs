//! A client's life with a server that is killed and started again in the middle. The client publishes numbers, one after the
//! other, each until it is acknowledged, always under the same `Nats-Msg-Id`, until it has come back; it follows its own stream
//! with an ordered consumer, and tells:
//!
//! ```text
//!   acknowledged <number> <sequence>      its message is stored
//!   failed <number> <why>                 it is not known whether it is; it is sent again
//!   delivered <number> <sequence>         by a consumer that the server pushes to
//!   pulled <number> <sequence>            by one that asks
//!   disconnected, reconnected             what its library says of the connection
//!   error <text>                          what else its library says
//!   heard afterwards                      a plain subscription of before is there again
//!   all of it                             it has ended, and has seen everything
//! ```

use std::net::SocketAddr;

use super::super::Hub;
use super::programs::ALL_OF_IT;
use crate::support::Driver;

/// Acknowledgements before the server is killed.
const BEFORE: usize = 100;

/// What a client has told.
#[derive(Debug, Default)]
pub(super) struct Life {
    acknowledged: Vec<(u64, u64)>,
    pub(super) delivered: Vec<(u64, u64)>,
    pub(super) pulled: Vec<(u64, u64)>,
    /// Each with its number.
    failed: Vec<String>,
    errors: Vec<String>,
    /// What became of its connection.
    connection: Vec<String>,
    heard: usize,
    has_ended: bool,
}

impl Life {
    #[track_caller]
    fn hear(&mut self, line: Option<String>) {
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
            "heard" => self.heard += 1,
            _ if line == ALL_OF_IT => self.has_ended = true,
            _ => panic!("{line}: {self:?}"),
        }
    }
}

impl Life {
    /// What it was told of a message whose acknowledgement the server did not live to give, if there was one.
    #[track_caller]
    pub(super) fn failed_only_by(&self, why: &str) {
        assert!(self.failed.iter().all(|failed| failed.ends_with(why)), "{:?}", self.failed);
    }
}

/// Lets a client live through it: what it was told is so, nothing is lost, invented, stored twice or delivered twice.
pub(super) fn live_through<T: FnMut() -> Option<String>>(
    driver: Driver,
    start: impl FnOnce(SocketAddr) -> T,
) -> Life {
    let hub = Hub::start_alone(driver, "");
    let mut life = Life::default();
    let mut tells = start(hub.nats());
    while life.acknowledged.len() < BEFORE {
        life.hear(tells());
    }
    let hub = hub.crash_in_place(driver, "", || {
        while life.connection.is_empty() {
            life.hear(tells());
        }
    });
    while !life.has_ended {
        life.hear(tells());
    }
    let count = life.acknowledged.len();
    let (records, behind) = hub.records("events", count);
    let records: Vec<(u64, u64)> =
        records.into_iter().map(|(at, text)| (text.parse().expect("a number"), at)).collect();
    let numbers: Vec<u64> = records.iter().map(|record| record.0).collect();
    assert_eq!(numbers, (1..=count as u64).collect::<Vec<_>>(), "{life:?}");
    assert_eq!(behind, 0, "{life:?}");
    assert_eq!(life.acknowledged, records);
    assert_eq!(life.delivered, records);
    // Some say at the end that they have left.
    assert_eq!(life.connection[..2], ["disconnected", "reconnected"], "{life:?}");
    assert!(life.connection[2..].iter().all(|what| what == "disconnected") && life.heard == 1, "{life:?}");
    drop(tells);
    hub.server.finish();
    life
}
