//! The server's own figures, from `/metrics` and from its last output.

use std::collections::BTreeMap;

use super::{TestPeer, eventually};

#[derive(Debug)]
pub(crate) struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses the samples of OpenMetrics text; other lines are skipped.
    pub(crate) fn of(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.strip_prefix("stilling_")?.rsplit_once(' '));
        Metrics(lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }

    /// The value of `name`, which may have its label: `closed_total{reason="done"}`. Without one, the sum over all
    /// labels.
    #[track_caller]
    pub(crate) fn value(&self, name: &str) -> u64 {
        let family = format!("{name}{{");
        let fitting = self.0.iter().filter(|(key, _)| *key == name || key.starts_with(&family));
        let values: Vec<f64> = fitting.map(|(_, value)| *value).collect();
        assert!(!values.is_empty(), "there is no metric {name}");
        values.iter().sum::<f64>() as u64
    }

    /// The sum of a metric over all labels but this one.
    #[track_caller]
    pub(crate) fn sum(&self, name: &str, label: &str) -> u64 {
        let family = format!("{name}{{");
        let fitting = self.0.iter().filter(|(key, _)| key.starts_with(&family) && key.contains(label));
        let values: Vec<f64> = fitting.map(|(_, value)| *value).collect();
        assert!(!values.is_empty(), "there is no metric {name} with {label}");
        values.iter().sum::<f64>() as u64
    }

    /// The value of a metric without labels, with its fraction.
    #[track_caller]
    pub(crate) fn exact(&self, name: &str) -> f64 {
        *self.0.get(name).unwrap_or_else(|| panic!("there is no metric {name}"))
    }

    #[track_caller]
    pub(crate) fn closed(&self, reason: &str) -> u64 {
        self.value(&format!("closed_total{{reason=\"{reason}\"}}"))
    }

    #[track_caller]
    pub(crate) fn answers(&self, status: u16) -> u64 {
        self.value(&format!("http_responses_total{{status=\"{status}\"}}"))
    }

    #[track_caller]
    pub(crate) fn jobs(&self, outcome: &str) -> u64 {
        self.value(&format!("jobs_total{{outcome=\"{outcome}\"}}"))
    }

    pub(crate) fn driver(&self) -> &str {
        self.0.keys().find(|key| key.starts_with("driver{")).expect("the driver is told")
    }

    /// Checks that every connection is open or has exactly one close reason; returns the difference.
    pub(crate) fn balance(&self) -> Result<(), String> {
        let come = ["accepted_total", "connected_total", "adopted_total"].map(|name| self.value(name));
        let come: u64 = come.iter().sum();
        let gone = self.value("closed_total") + self.value("refused_total{reason=\"capacity\"}");
        let open = self.value("connections");
        if come == gone + open { Ok(()) } else { Err(format!("{come} came, {gone} went, {open} are open")) }
    }
}

const METRICS_REQUEST: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

/// A kept connection for metrics: it is answered even when no other connection is accepted.
pub(crate) struct MetricsClient {
    peer: TestPeer,
    requests: u64,
}

impl MetricsClient {
    pub(super) fn new(peer: TestPeer) -> Self {
        MetricsClient { peer, requests: 0 }
    }

    /// The metrics now. The connection itself counts as open.
    #[track_caller]
    pub(crate) fn fetch(&mut self) -> Metrics {
        self.requests += 1;
        let answer = self.peer.ask(METRICS_REQUEST);
        assert_eq!(answer.status, 200);
        Metrics::of(answer.text())
    }

    /// Another page over the same connection.
    #[track_caller]
    pub(crate) fn page(&mut self, path: &str) -> String {
        let answer = self.peer.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(answer.status, 200);
        answer.into_text()
    }

    /// Fetches the metrics until they are as `wanted`, and returns them.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut wanted: impl FnMut(&Metrics) -> bool) -> Metrics {
        eventually(what, || Some(self.fetch()).filter(&mut wanted))
    }

    /// Fetches until the bytes received from all other connections are as `wanted`.
    #[track_caller]
    pub(crate) fn until_received(&mut self, what: &str, mut wanted: impl FnMut(u64) -> bool) {
        eventually(what, || {
            let received = self.fetch().value("received_bytes_total");
            wanted(received - self.requests * METRICS_REQUEST.len() as u64).then_some(())
        });
    }

    /// Fetches until only this connection is open and every other one is accounted for.
    #[track_caller]
    pub(crate) fn until_alone(&mut self) -> Metrics {
        self.until("all other connections are closed and counted", |metrics| {
            metrics.value("connections") == 1 && metrics.balance().is_ok()
        })
    }
}
