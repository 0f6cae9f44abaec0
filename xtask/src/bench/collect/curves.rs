//! The same load under one changing condition: message size, backlog, confirmed or not.

use super::figures::{self, PageSection};
use super::load::CollectLoad;
use super::peers::CollectPeer;
use super::scenarios::{self, ACKNOWLEDGED, BACKLOG_LOAD, BACKLOG_RATE_MIN, BACKLOGS};
use super::{BenchSample, BenchTarget, CollectBench};
use crate::XtaskResult;
use crate::bench::harness;

/// Row 0.18: unconfirmed sending is faster than this multiple of confirmed sending.
const UNCONFIRMED_FACTOR: f64 = 1.0;

/// Median of the ratios of two rates within each round.
fn median_ratio(above: &[BenchSample], below: &[BenchSample]) -> Option<f64> {
    let all = above.iter().zip(below).map(|(above, below)| above.rate / below.rate);
    let ratios: Vec<f64> = all.collect();
    let is_measured = !ratios.is_empty() && ratios.iter().all(|ratio| ratio.is_finite());
    is_measured.then(|| figures::median(ratios))
}

fn rates(samples: &[BenchSample]) -> String {
    figures::spread(samples.iter().map(|sample| sample.rate), figures::thousands)
}

impl CollectBench {
    /// Row 0.5: the rate against the size of the messages.
    pub(super) fn curve(&self) -> XtaskResult<PageSection> {
        let peers = self.available_peers(&[
            CollectPeer::StillingUring,
            CollectPeer::StillingPoll,
            CollectPeer::JetStream,
        ]);
        let mut head = vec!["bytes".to_owned()];
        for peer in &peers {
            head.extend([format!("{}, messages/s", peer.name()), format!("{}, MB/s", peer.name())]);
        }
        let mut table = vec![head];
        let mut command_line = String::new();
        let (rounds, seconds) = (self.options.rounds, if self.options.quick { 1 } else { 2 });
        for size in scenarios::CURVE_SIZES {
            let load = CollectLoad { size, seconds, ..ACKNOWLEDGED };
            let measurements =
                harness::run_rounds(rounds, &peers, |_, peer| load.measure(*peer, &self.programs))?;
            let mut row = vec![figures::thousands(size.into())];
            for samples in measurements {
                let median = figures::median(samples.iter().map(|sample| sample.rate).collect());
                row.extend([rates(&samples), figures::thousands(median * f64::from(size) / 1e6)]);
            }
            command_line = load.command_line();
            table.push(row);
        }
        let description =
            format!("Row 0.5: the same load with messages of other sizes, such as `{command_line}`.");
        Ok(PageSection { title: scenarios::CURVE.to_owned(), description, table })
    }

    /// Row 0.5: the rate against the messages already in the stream.
    pub(super) fn backlog(&self) -> XtaskResult<PageSection> {
        let peers = self.available_peers(&[CollectPeer::StillingUring, CollectPeer::StillingPoll]);
        let cases = BACKLOGS.iter().flat_map(|backlog| peers.iter().map(move |peer| (*backlog, *peer)));
        let cases: Vec<(u64, CollectPeer)> = cases.collect();
        let measurements = harness::run_rounds(self.options.rounds, &cases, |round, (backlog, peer)| {
            let sample = CollectLoad { backlog: *backlog, ..BACKLOG_LOAD }.measure(*peer, &self.programs)?;
            let rate = sample.rate;
            println!("backlog {backlog}, round {round}, {}: {rate:.0} messages/s", peer.name());
            Ok(sample)
        })?;
        // For each backlog, the samples of each peer.
        let measurements: Vec<_> = measurements.chunks(peers.len().max(1)).collect();
        let mut table = vec![vec!["messages in the stream".to_owned()]];
        table[0].extend(peers.iter().map(|peer| format!("{}, messages/s", peer.name())));
        for (backlog, of_peers) in BACKLOGS.into_iter().zip(&measurements) {
            let mut row = vec![figures::thousands(backlog as f64)];
            row.extend(of_peers.iter().map(|samples| rates(samples)));
            table.push(row);
        }
        for (at, peer) in peers.iter().enumerate() {
            for (backlog, of_peers) in BACKLOGS.into_iter().zip(&measurements).skip(1) {
                let ratio = median_ratio(&of_peers[at], &measurements[0][at]);
                let backlog = figures::thousands(backlog as f64);
                let what = format!("messages/s, backlog of {backlog} ÷ none, {}", peer.name());
                self.targets.add_target(BenchTarget::at_least(what, BACKLOG_RATE_MIN, ratio, "×"));
            }
        }
        let description = format!(
            "Row 0.5: `{}` to a stream that already holds the given number of messages, \
             all unread.",
            BACKLOG_LOAD.command_line()
        );
        Ok(PageSection { title: scenarios::BACKLOG.to_owned(), description, table })
    }

    /// Row 0.18: unconfirmed beside confirmed sending, in turn.
    pub(super) fn unconfirmed(&self) -> XtaskResult<PageSection> {
        let peers = self.available_peers(&[CollectPeer::StillingUring, CollectPeer::StillingPoll]);
        let cases = peers.iter().flat_map(|peer| [(*peer, true), (*peer, false)]);
        let cases: Vec<(CollectPeer, bool)> = cases.collect();
        let seconds = if self.options.quick { 1 } else { 4 };
        let kept = CollectLoad { seconds, ..ACKNOWLEDGED };
        let each = CollectLoad { window: 1, per_message: true, ..kept };
        let mut table = figures::table(
            "server | connections | confirmed/s | unconfirmed/s | ratio | lost, reported | failures",
        );
        for (connections, load) in [("persistent", kept), ("one per message", each)] {
            let measurements =
                harness::run_rounds(self.options.rounds, &cases, |round, (peer, confirmed)| {
                    let sample =
                        CollectLoad { confirmed: *confirmed, ..load }.measure(*peer, &self.programs)?;
                    let (name, rate) = (peer.name(), sample.rate);
                    println!(
                        "confirmed {confirmed}, {connections}, round {round}, {name}: {rate:.0} messages/s"
                    );
                    Ok(sample)
                })?;
            for (peer, measurements) in peers.iter().zip(measurements.chunks(2)) {
                let (confirmed, unconfirmed) = (&measurements[0], &measurements[1]);
                let ratio = median_ratio(unconfirmed, confirmed);
                let count =
                    |of: fn(&BenchSample) -> u64| confirmed.iter().chain(unconfirmed).map(of).sum::<u64>();
                let (lost, failures) = (count(|sample| sample.lost), count(|sample| sample.failures));
                let what = |what: &str| format!("{what}, {}, connections: {connections}", peer.name());
                let faster = what("messages/s, unconfirmed ÷ confirmed");
                self.targets.add_target(BenchTarget::above(faster, UNCONFIRMED_FACTOR, ratio, "×"));
                let unaccounted = what("failures and unaccounted messages");
                self.targets.add_target(BenchTarget::at_most(unaccounted, 0.0, Some(failures as f64), ""));
                let mut row = vec![peer.name().to_owned(), connections.to_owned(), rates(confirmed)];
                row.extend([
                    rates(unconfirmed),
                    figures::times(ratio),
                    lost.to_string(),
                    failures.to_string(),
                ]);
                table.push(row);
            }
        }
        let description = format!(
            "Row 0.18: `{}` with and without `--unconfirmed`, then with a connection per message, in turn. A rate is that of \
             messages that are in the stream; *lost, reported* are those that the server reports as lost.",
            kept.command_line()
        );
        Ok(PageSection { title: scenarios::UNCONFIRMED_TITLE.to_owned(), description, table })
    }
}

#[cfg(test)]
mod tests {
    use super::super::slowest_send_ms;
    use super::*;

    #[test]
    fn the_slowest_send_is_that_of_all_rounds_and_ratios_are_computed_within_them() {
        let sample = |rate, max_ms| BenchSample { rate, max_ms, ..BenchSample::default() };
        let (slow, fast) = (sample(10.0, Some(3.0)), sample(20.0, Some(5.0)));
        assert_eq!(slowest_send_ms(&[slow.clone(), fast.clone()]), Some(5.0));
        assert_eq!(slowest_send_ms(&[slow.clone(), sample(1.0, None)]), None);
        assert_eq!(slowest_send_ms(&[]), None);
        assert_eq!(median_ratio(&[fast.clone(), slow.clone()], &[slow, fast]), Some(1.25));
        assert_eq!(median_ratio(&[], &[]), None);
    }
}
