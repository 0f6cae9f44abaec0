//! The server's own figures, read from its status page: the other half of a report. A figure that the server lacks
//! stays empty.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::connection::connect;
use super::error::CollectError;
use super::limits::PAGE_SIZE_MAX;

const MONITOR_TIMEOUT: Duration = Duration::from_secs(10);

/// A server's own figures. Those of a report cover its run only, except `pending` and `pending_max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MonitoredCounters {
    /// Accepted connections.
    pub accepts: Option<u64>,
    /// Received messages.
    pub received: Option<u64>,
    /// Bytes of received messages.
    pub received_bytes: Option<u64>,
    /// Received, unfinished messages, now.
    pub pending: Option<u64>,
    /// Maximum of `pending` since the server's start.
    pub pending_max: Option<u64>,
    /// Received messages that the server reports as lost.
    pub lost: Option<u64>,
}

impl MonitoredCounters {
    /// Growth since `before`, to exclude earlier traffic. A count below its earlier value belongs to a restarted server
    /// and is taken as it is.
    #[must_use]
    pub fn since(self, before: &MonitoredCounters) -> MonitoredCounters {
        let grown = |now: Option<u64>, before: Option<u64>| {
            let (now, before) = (now?, before.unwrap_or(0));
            Some(now.checked_sub(before).unwrap_or(now))
        };
        MonitoredCounters {
            accepts: grown(self.accepts, before.accepts),
            received: grown(self.received, before.received),
            received_bytes: grown(self.received_bytes, before.received_bytes),
            lost: grown(self.lost, before.lost),
            ..self
        }
    }
}

/// A source of a server's own figures.
pub trait CounterSource {
    /// Reads the figures.
    ///
    /// # Errors
    /// The server does not answer with a readable page.
    fn read_counters(&self) -> Result<MonitoredCounters, CollectError>;
}

/// A page of figures over HTTP: OpenMetrics of Stilling, or `/varz` of nats-server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    address: SocketAddr,
    path: String,
}

/// Parses URLs such as `http://127.0.0.1:9000/metrics` and `http://127.0.0.1:8222/varz`.
impl std::str::FromStr for Monitor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not http://ADDRESS:PORT/metrics or …/varz");
        let (address, path) =
            text.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        Ok(Monitor { address, path: format!("/{path}") })
    }
}

impl CounterSource for Monitor {
    fn read_counters(&self) -> Result<MonitoredCounters, CollectError> {
        let failed = |error| CollectError::Connect(self.address, error);
        let mut stream = connect(self.address, MONITOR_TIMEOUT).map_err(failed)?;
        stream.set_read_timeout(Some(MONITOR_TIMEOUT)).map_err(failed)?;
        write!(stream, "GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", self.path, self.address).map_err(failed)?;
        let mut answer = String::new();
        stream.take(PAGE_SIZE_MAX).read_to_string(&mut answer).map_err(failed)?;
        let wrong = |detail: &str| CollectError::Server(format!("{} {detail}", self.path));
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| wrong("is no answer"))?;
        if head.split(' ').nth(1) != Some("200") {
            return Err(wrong(head.lines().next().unwrap_or_default()));
        }
        if self.path.ends_with("varz") {
            varz(body).ok_or_else(|| wrong("is no JSON"))
        } else {
            Ok(metrics(body))
        }
    }
}

/// nats-server reports totals, but no messages inside it.
fn varz(body: &str) -> Option<MonitoredCounters> {
    let page: Value = serde_json::from_str(body).ok()?;
    Some(MonitoredCounters {
        accepts: page["total_connections"].as_u64(),
        received: page["in_msgs"].as_u64(),
        received_bytes: page["in_bytes"].as_u64(),
        ..MonitoredCounters::default()
    })
}

/// Sums each family over all labels.
fn metrics(body: &str) -> MonitoredCounters {
    let sum = |name: &str| {
        let values = body.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value =
                if rest.starts_with('{') { rest.rsplit_once("} ")?.1 } else { rest.strip_prefix(' ')? };
            value.split(' ').next()?.parse::<f64>().ok()
        });
        values.map(|value| value as u64).reduce(|sum, value| sum + value)
    };
    MonitoredCounters {
        accepts: sum("stilling_accepted_total"),
        received: sum("stilling_hub_messages_total"),
        received_bytes: sum("stilling_hub_received_bytes_total"),
        pending: sum("stilling_hub_stream_pending"),
        pending_max: sum("stilling_hub_stream_pending_max"),
        lost: sum("stilling_hub_losses_total"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_summed_over_their_labels_and_absent_ones_stay_gaps() {
        let figures = metrics(
            "# TYPE stilling_accepted counter\nstilling_accepted_total{shard=\"0\"} 3\n\
             stilling_accepted_total{shard=\"1\"} 4\n\
             stilling_hub_messages_total 70\nstilling_hub_received_bytes_total 700\n\
             stilling_hub_stream_pending{stream=\"a\"} 2\nstilling_hub_stream_pending{stream=\"b\"} 3\n\
             stilling_hub_stream_pending_max{stream=\"a\"} 9\n\
             stilling_hub_losses_total{ingress=\"nats\",reason=\"frozen\"} 1\n# EOF\n",
        );
        let expected = MonitoredCounters {
            accepts: Some(7),
            received: Some(70),
            received_bytes: Some(700),
            pending: Some(5),
            pending_max: Some(9),
            lost: Some(1),
        };
        assert_eq!(figures, expected);
        let figures = varz(r#"{"total_connections":2,"in_msgs":10,"in_bytes":100}"#).expect("it is JSON");
        assert_eq!((figures.accepts, figures.received, figures.pending_max), (Some(2), Some(10), None));
    }

    #[test]
    fn what_a_server_did_before_a_run_is_not_counted_for_it() {
        let figures = |accepts, lost, pending_max| MonitoredCounters {
            accepts: Some(accepts),
            lost,
            pending_max: Some(pending_max),
            ..MonitoredCounters::default()
        };
        let check = |before, now: MonitoredCounters, expected| assert_eq!(now.since(&before), expected);
        check(figures(10, Some(3), 7), figures(15, Some(3), 7), figures(5, Some(0), 7));
        check(figures(10, Some(3), 7), figures(2, Some(1), 4), figures(2, Some(1), 4));
        check(figures(0, None, 0), figures(1, None, 1), figures(1, None, 1));
    }

    #[test]
    fn a_monitor_is_an_address_with_a_path() {
        let monitor: Monitor = "http://127.0.0.1:8222/varz".parse().expect("it is one");
        assert_eq!(monitor.path, "/varz");
        for text in ["127.0.0.1:1/varz", "http://127.0.0.1:1", "http://localhost/varz"] {
            assert!(text.parse::<Monitor>().is_err(), "{text}");
        }
    }
}
