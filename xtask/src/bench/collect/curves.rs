//! The same load under one changing condition: message size, backlog, waiting or not.

use super::figures::{self, Section};
use super::load::Load;
use super::peers::Peer;
use super::scenarios::{self, ACKNOWLEDGED, BACKLOG_RATE_MIN, BACKLOGS, ONTO_BACKLOG};
use super::{Bench, Sample, Target};
use crate::Outcome;

/// Row 0.18: sending without waiting is faster than that.
const UNWAITED_FACTOR: f64 = 1.0;

/// The ratio of two rates in each round, and the median of these ratios.
fn median_ratio(above: &[Sample], below: &[Sample]) -> Option<f64> {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above.rate / below.rate).collect();
    let is_measured = !ratios.is_empty() && ratios.iter().all(|ratio| ratio.is_finite());
    is_measured.then(|| figures::median(ratios))
}

impl Bench {
    /// Row 0.5: the rate against the size of the messages.
    pub(super) fn curve(&self) -> Outcome<Section> {
        let peers = self.able(&[Peer::StillingUring, Peer::StillingPoll, Peer::JetStream]);
        let mut head = vec!["bytes".to_owned()];
        for peer in &peers {
            head.extend([format!("{}, messages/s", peer.name()), format!("{}, MB/s", peer.name())]);
        }
        let mut table = vec![head];
        let mut shown = String::new();
        for size in scenarios::CURVE_SIZES {
            let mut row = vec![figures::thousands(size.into())];
            let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); peers.len()];
            let load = Load { size, seconds: if self.quick { 1 } else { 2 }, ..ACKNOWLEDGED };
            for _ in 0..self.rounds {
                for (peer, samples) in peers.iter().zip(&mut samples) {
                    samples.push(load.measure(*peer, &self.place)?);
                }
            }
            for samples in samples {
                let rates: Vec<f64> = samples.iter().map(|sample| sample.rate).collect();
                let megabytes = figures::median(rates.clone()) * f64::from(size) / 1e6;
                row.extend([figures::spread(&rates, figures::thousands), figures::thousands(megabytes)]);
            }
            shown = load.shown();
            table.push(row);
        }
        let words = format!("Row 0.5: the same load with messages of other sizes, such as `{shown}`.");
        Ok(Section { title: scenarios::CURVE.to_owned(), words, table })
    }

    /// Row 0.5: the rate against the messages that lie in the stream already.
    pub(super) fn backlog(&self) -> Outcome<Section> {
        let peers = self.able(&[Peer::StillingUring, Peer::StillingPoll]);
        let mut samples: Vec<[Vec<Sample>; BACKLOGS.len()]> =
            peers.iter().map(|_| Default::default()).collect();
        for round in 0..self.rounds {
            for (at, backlog) in BACKLOGS.into_iter().enumerate() {
                for (peer, samples) in peers.iter().zip(&mut samples) {
                    let sample = Load { backlog, ..ONTO_BACKLOG }.measure(*peer, &self.place)?;
                    let rate = sample.rate;
                    println!("backlog {backlog}, round {round}, {}: {rate:.0} messages/s", peer.name());
                    samples[at].push(sample);
                }
            }
        }
        let mut table = vec![vec!["messages in the stream".to_owned()]];
        table[0].extend(peers.iter().map(|peer| format!("{}, messages/s", peer.name())));
        for (at, backlog) in BACKLOGS.into_iter().enumerate() {
            let mut row = vec![figures::thousands(backlog as f64)];
            for samples in &samples {
                let rates: Vec<f64> = samples[at].iter().map(|sample| sample.rate).collect();
                row.push(figures::spread(&rates, figures::thousands));
            }
            table.push(row);
        }
        let mut targets = self.targets.borrow_mut();
        for (peer, samples) in peers.iter().zip(&samples) {
            for (backlog, with) in BACKLOGS.into_iter().zip(samples).skip(1) {
                let ratio = median_ratio(with, &samples[0]);
                let backlog = figures::thousands(backlog as f64);
                let what = format!("messages/s, backlog of {backlog} ÷ none, {}", peer.name());
                targets.push(Target::at_least(what, BACKLOG_RATE_MIN, ratio, "×"));
            }
        }
        let words = format!(
            "Row 0.5: `{}` onto a stream that holds so many messages already, which nothing has read.",
            ONTO_BACKLOG.shown()
        );
        Ok(Section { title: scenarios::BACKLOG.to_owned(), words, table })
    }

    /// Row 0.18: sending without waiting beside confirmed sending, in turn.
    pub(super) fn unwaited(&self) -> Outcome<Section> {
        let peers = self.able(&[Peer::StillingUring, Peer::StillingPoll]);
        let seconds = if self.quick { 1 } else { 4 };
        let kept = Load { seconds, ..ACKNOWLEDGED };
        let each = Load { window: 1, per_message: true, ..kept };
        let head = [
            "server",
            "connections",
            "confirmed/s",
            "without waiting/s",
            "ratio",
            "lost, counted",
            "failures",
        ];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        for (connections, load) in [("kept", kept), ("one per message", each)] {
            let mut samples: Vec<[Vec<Sample>; 2]> = peers.iter().map(|_| Default::default()).collect();
            for round in 0..self.rounds {
                for (peer, samples) in peers.iter().zip(&mut samples) {
                    for (confirmed, samples) in [true, false].into_iter().zip(samples) {
                        let sample = Load { confirmed, ..load }.measure(*peer, &self.place)?;
                        let (name, rate) = (peer.name(), sample.rate);
                        println!(
                            "confirmed {confirmed}, {connections}, round {round}, {name}: {rate:.0} messages/s"
                        );
                        samples.push(sample);
                    }
                }
            }
            for (peer, [confirmed, unwaited]) in peers.iter().zip(&samples) {
                let ratio = median_ratio(unwaited, confirmed);
                let count = |of: fn(&Sample) -> u64| confirmed.iter().chain(unwaited).map(of).sum::<u64>();
                let (lost, failures) = (count(|sample| sample.lost), count(|sample| sample.failures));
                let what = |what: &str| format!("{what}, {}, connections: {connections}", peer.name());
                let mut targets = self.targets.borrow_mut();
                let faster = what("messages/s, without waiting ÷ confirmed");
                targets.push(Target::above(faster, UNWAITED_FACTOR, ratio, "×"));
                let unaccounted = what("failures and unaccounted messages");
                targets.push(Target::at_most(unaccounted, 0.0, Some(failures as f64), ""));
                let rates = |samples: &[Sample]| {
                    let rates: Vec<f64> = samples.iter().map(|sample| sample.rate).collect();
                    figures::spread(&rates, figures::thousands)
                };
                let shown =
                    ratio.map_or_else(figures::unknown, |ratio| format!("×{}", figures::two_places(ratio)));
                let mut row = vec![peer.name().to_owned(), connections.to_owned(), rates(confirmed)];
                row.extend([rates(unwaited), shown, lost.to_string(), failures.to_string()]);
                table.push(row);
            }
        }
        let words = format!(
            "Row 0.18: `{}` with and without `--unconfirmed`, then with a connection per message, in turn. A rate is that of \
             messages that are in the stream; *lost, counted* are those that the server's ledger names.",
            kept.shown()
        );
        Ok(Section { title: scenarios::UNWAITED.to_owned(), words, table })
    }
}

#[cfg(test)]
mod tests {
    use super::super::slowest_send_ms;
    use super::*;

    #[test]
    fn the_slowest_send_is_that_of_all_rounds_and_ratios_are_taken_within_them() {
        let sample = |rate, max_ms| Sample { rate, max_ms, ..Sample::default() };
        let (slow, fast) = (sample(10.0, Some(3.0)), sample(20.0, Some(5.0)));
        assert_eq!(slowest_send_ms(&[slow.clone(), fast.clone()]), Some(5.0));
        assert_eq!(slowest_send_ms(&[slow.clone(), sample(1.0, None)]), None);
        assert_eq!(slowest_send_ms(&[]), None);
        assert_eq!(median_ratio(&[fast.clone(), slow.clone()], &[slow, fast]), Some(1.25));
        assert_eq!(median_ratio(&[], &[]), None);
    }
}
