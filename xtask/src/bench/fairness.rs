//! `cargo xtask bench fairness`: a well-behaved publisher and subscriber, alone and beside hostile clients.
//!
//! Each round measures the undisturbed pair first and then beside each disturbance, so that changes of the machine
//! affect all cases alike. A disconnect of the pair, or a p99 of more than twice the undisturbed p99 of the same round
//! (the median of all rounds), is a miss. A disturbance that has not taken place is an error.

mod disturbance;
mod pair;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::figures::{self, PageSection, median, spread, two_places};
use super::harness::{self, BenchOptions, is_wanted};
use super::server::{BenchDriver, BenchServer};
use super::{copy_binary, enter_namespace, machine};
use crate::XtaskResult;
use crate::steps::{cargo, run};
use crate::tree;
use disturbance::Disturbance;
pub(super) use pair::PairConnection;
use pair::PairFigures;

pub(super) const TITLE: &str = "Fairness between clients";

/// Most p99, as a multiple of the undisturbed p99.
const RATIO_MAX: f64 = 2.0;

/// Options of every server: unread output has so little room that clients which never read fill it within a second, and
/// shedding is off because it would refuse the slow requests that are to be reset in the queue.
const OPTIONS: [&str; 8] = [
    "--max-output-held",
    "1MiB",
    "--send-buffer",
    "16384",
    "--queue-target",
    "off",
    "--stream",
    "fair=fair.>:disk",
];

#[derive(Args)]
pub(super) struct FairnessArguments {
    #[command(flatten)]
    options: BenchOptions,
    /// Seconds of each measurement; 2 with --quick, which ignores misses
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "quick", value_parser = clap::value_parser!(u64).range(2..=600))]
    seconds: u64,
    /// Only cases with this in their name; repeatable
    #[arg(long, value_name = "WORD", conflicts_with = "write")]
    only: Vec<String>,
}

#[derive(Clone, Copy)]
struct FairnessServer {
    nats: SocketAddr,
    http: SocketAddr,
}

/// Measurements of one case on one driver, one per round.
struct FairnessMeasurement {
    driver: BenchDriver,
    case: Option<Disturbance>,
    figures: Vec<PairFigures>,
    evidence: String,
}

impl FairnessArguments {
    pub(super) fn run(mut self) -> XtaskResult {
        if self.options.quick {
            (self.options.rounds, self.seconds) = (2, 2);
        }
        enter_namespace(|| run(&mut cargo(["build", "--release", "-p", "stilling-cli"])))?;
        // Not in the system's temporary folder, which may be in memory.
        let folder = tempfile::tempdir_in(tree::target().canonicalize()?)?;
        let binary = copy_binary("stilling", folder.path())?;
        let (mut table, mut misses) = (figures::table(HEAD), 0);
        for driver in [BenchDriver::Uring, BenchDriver::Poll] {
            let all = self.measure(&binary, folder.path(), driver)?;
            for measured in &all {
                let (row, is_met) = measured.row(&all[0].figures);
                misses += usize::from(!is_met);
                table.push(row);
            }
        }
        let section = PageSection { title: TITLE.to_owned(), description: self.description(), table }.text();
        harness::publish(TITLE, &section, self.options.write)?;
        if misses > 0 && !self.options.quick {
            return Err(format!("{misses} cases missed their target").into());
        }
        Ok(())
    }

    /// Measures all cases on one driver, the undisturbed pair first.
    fn measure(
        &self,
        binary: &Path,
        folder: &Path,
        driver: BenchDriver,
    ) -> XtaskResult<Vec<FairnessMeasurement>> {
        let is_wanted = |case: &Disturbance| is_wanted(&self.only, case.name());
        let disturbances = Disturbance::ALL.into_iter().filter(is_wanted).map(Some);
        let measured =
            |case| FairnessMeasurement { driver, case, figures: Vec::new(), evidence: "–".to_owned() };
        let mut all: Vec<FairnessMeasurement> =
            std::iter::once(None).chain(disturbances).map(measured).collect();
        for round in 0..self.options.rounds {
            for measured in &mut all {
                let name = measured.name();
                let figures = self.measure_case(binary, folder, measured);
                let figures = figures.map_err(|error| format!("{}, {name}: {error}", driver.name()))?;
                println!("{}, round {round}, {name}: {figures:?}; {}", driver.name(), measured.evidence);
                measured.figures.push(figures);
            }
        }
        Ok(all)
    }

    fn measure_case(
        &self,
        binary: &Path,
        folder: &Path,
        measured: &mut FairnessMeasurement,
    ) -> XtaskResult<PairFigures> {
        let data = tempfile::tempdir_in(folder)?;
        let nats = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let (at, path) = (nats.to_string(), data.path().join("data").display().to_string());
        let options = [&["--nats", &at, "--data", &path][..], &OPTIONS].concat();
        let server = BenchServer::stilling(binary, measured.driver, &options)?;
        let server_addresses = FairnessServer { nats, http: server.address };
        let span = Duration::from_secs(self.seconds);
        let running = measured.case.map(|case| case.begin(server_addresses, span)).transpose()?;
        let figures = pair::measure(server_addresses, span)?;
        if let Some(running) = running {
            measured.evidence = running.finish(server_addresses)?;
        }
        Ok(figures)
    }

    fn description(&self) -> String {
        let command = match self.options.quick {
            true => "--quick".to_owned(),
            false => format!("--rounds {} --seconds {}", self.options.rounds, self.seconds),
        };
        let lines = machine::listed([]);
        format!(
            "Row 4.35. A publisher that waits for each acknowledgement of a stream on disk before it sends the next message, at \
             most 500 a second, and a subscriber that reads at once: alone, and beside hostile clients. \
             Latencies run from sending a message to its acknowledgement and to its delivery. Each round measures the pair \
             alone and then beside each disturbance, each time on a new server (`{}`). A cell has the median over the rounds \
             and, in brackets, the minimum and the maximum; × is the p99 divided by the undisturbed one of the same round, with a target of at \
             most {RATIO_MAX}. Disconnects are those of the pair; the target is none. The last column says what took place \
             beside the pair in the last round, as the clients concerned and the server's metrics tell: a round in which \
             it did not take place is an error. \
             `cargo xtask bench fairness {command} --write` writes this section.\n\n{lines}",
            OPTIONS.join(" ")
        )
    }
}

const HEAD: &str = "server | beside the pair | ack p99 ms | × | delivery p99 ms | × | longest ms | \
                    disconnects | what took place";

impl FairnessMeasurement {
    fn name(&self) -> &'static str {
        self.case.map_or("nothing", Disturbance::name)
    }

    /// The row of the table, and whether the case meets its target.
    fn row(&self, undisturbed: &[PairFigures]) -> (Vec<String>, bool) {
        let milliseconds = |of: fn(&PairFigures) -> Duration| -> Vec<f64> {
            self.figures.iter().map(|figures| of(figures).as_secs_f64() * 1e3).collect()
        };
        let ratio = |of: fn(&PairFigures) -> Duration| {
            let base = undisturbed.iter().map(|figures| of(figures).as_secs_f64().max(1e-6) * 1e3);
            median(milliseconds(of).into_iter().zip(base).map(|(of_case, base)| of_case / base).collect())
        };
        let (of_ack, of_delivery) = (ratio(|figures| figures.ack), ratio(|figures| figures.delivery));
        let disconnects: u64 = self.figures.iter().map(|figures| figures.disconnects).sum();
        let is_met = disconnects == 0 && of_ack <= RATIO_MAX && of_delivery <= RATIO_MAX;
        let format_ratio = |ratio: f64| match ratio <= RATIO_MAX {
            true => two_places(ratio),
            false => format!("{} **missed**", two_places(ratio)),
        };
        let row = vec![
            self.driver.name().to_owned(),
            self.name().to_owned(),
            spread(milliseconds(|figures| figures.ack), two_places),
            format_ratio(of_ack),
            spread(milliseconds(|figures| figures.delivery), two_places),
            format_ratio(of_delivery),
            spread(milliseconds(|figures| figures.longest), two_places),
            disconnects.to_string(),
            self.evidence.clone(),
        ];
        (row, is_met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratios are of the same round, and a disconnect is a miss however short the latencies are.
    #[test]
    fn a_case_is_compared_with_the_pair_alone_in_the_same_round() {
        let figures = |ack, disconnects| PairFigures {
            ack: Duration::from_millis(ack),
            delivery: Duration::from_millis(ack),
            longest: Duration::from_millis(ack),
            disconnects,
        };
        let undisturbed = [figures(1, 0), figures(10, 0), figures(100, 0)];
        let measured = |figures| FairnessMeasurement {
            driver: BenchDriver::Poll,
            case: Some(Disturbance::Leavers),
            figures,
            evidence: String::new(),
        };
        let (row, is_met) = measured(vec![figures(2, 0), figures(20, 0), figures(900, 0)]).row(&undisturbed);
        assert!(is_met && row[3] == "2.00" && row[5] == "2.00", "{row:?}");
        let (row, is_met) = measured(vec![figures(3, 0), figures(30, 0), figures(1, 0)]).row(&undisturbed);
        assert!(!is_met && row[3] == "3.00 **missed**", "{row:?}");
        let (row, is_met) = measured(vec![figures(1, 0), figures(10, 1), figures(100, 0)]).row(&undisturbed);
        assert!(!is_met && row[7] == "1", "{row:?}");
    }
}
