//! `cargo xtask bench fairness`: a well-behaved publisher and subscriber, alone and beside clients that would harm them.
//!
//! Each round measures the undisturbed pair first and then beside each disturbance, so that what the machine does meanwhile
//! meets all of them. A disconnect of the pair, or a p99 of more than twice the undisturbed one, is a miss.

mod disturbance;
mod pair;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::isolation;
use super::server::{Driver, Server};
use super::{idle, taken};
use crate::Outcome;
use crate::steps::{cargo, run};
use crate::tree;
use disturbance::Disturbance;
use pair::Figures;

/// How many times the undisturbed p99 is allowed.
const RATIO_MAX: f64 = 2.0;

#[derive(Args)]
pub(super) struct Arguments {
    /// Rounds of each case on each driver
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Only the cases whose names contain this; repeatable
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
}

/// Where the server under measurement is reached.
#[derive(Clone, Copy)]
struct Stage {
    nats: SocketAddr,
    http: SocketAddr,
}

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        if !isolation::is_inside() {
            run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))?;
        }
        isolation::enter()?;
        idle::raise_descriptors();
        // Not where the system keeps its temporary files: that may be memory.
        let folder = tempfile::tempdir_in(tree::target().canonicalize()?)?;
        let binary = taken(&tree::target().join("release/stilling"), folder.path())?;
        let mut misses = 0;
        for driver in [Driver::Uring, Driver::Poll] {
            misses += self.measure(&binary, folder.path(), driver)?;
        }
        if misses > 0 {
            return Err(format!("{misses} cases missed their target").into());
        }
        Ok(())
    }

    /// Measures all cases on one driver. Returns how many missed their target.
    fn measure(&self, binary: &Path, folder: &Path, driver: Driver) -> Outcome<usize> {
        let is_wanted = |case: &&Disturbance| {
            self.only.is_empty() || self.only.iter().any(|word| case.name().contains(word.as_str()))
        };
        let cases: Vec<Disturbance> = Disturbance::ALL.iter().filter(is_wanted).copied().collect();
        let mut undisturbed = Vec::new();
        let mut figures: Vec<Vec<Figures>> = cases.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.rounds {
            undisturbed.push(self.one(binary, folder, driver, None)?);
            for (case, figures) in cases.iter().zip(&mut figures) {
                figures.push(self.one(binary, folder, driver, Some(*case))?);
            }
        }
        let base =
            (median(&undisturbed, |figures| figures.ack), median(&undisturbed, |figures| figures.delivery));
        let lost: u64 = undisturbed.iter().map(|figures| figures.disconnects).sum();
        let name = driver.name();
        println!(
            "\n{name}: p99 of {} rounds of {} s, target <= {RATIO_MAX} x undisturbed",
            self.rounds, self.seconds
        );
        println!("  undisturbed: ack {:?}, delivery {:?}, {lost} disconnects", base.0, base.1);
        let mut misses = usize::from(lost > 0);
        for (case, figures) in cases.iter().zip(&figures) {
            let (ack, delivery) =
                (median(figures, |figures| figures.ack), median(figures, |figures| figures.delivery));
            let ratio = |span: Duration, base: Duration| span.as_secs_f64() / base.as_secs_f64().max(1e-6);
            let (of_ack, of_delivery) = (ratio(ack, base.0), ratio(delivery, base.1));
            let disconnects: u64 = figures.iter().map(|figures| figures.disconnects).sum();
            let is_met = disconnects == 0 && of_ack <= RATIO_MAX && of_delivery <= RATIO_MAX;
            misses += usize::from(!is_met);
            let verdict = if is_met { "met" } else { "MISSED" };
            println!(
                "  {}: ack {ack:?} ({of_ack:.2} x), delivery {delivery:?} ({of_delivery:.2} x), \
                 {disconnects} disconnects: {verdict}",
                case.name()
            );
        }
        Ok(misses)
    }

    /// One measurement on a server of its own.
    fn one(
        &self,
        binary: &Path,
        folder: &Path,
        driver: Driver,
        case: Option<Disturbance>,
    ) -> Outcome<Figures> {
        let data = tempfile::tempdir_in(folder)?;
        let nats = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let (at, path) = (nats.to_string(), data.path().join("data").display().to_string());
        let options = ["--nats", &at, "--data", &path, "--stream", "fair=fair.>:disk"];
        let server = Server::stilling(binary, driver, &options)?;
        let stage = Stage { nats, http: server.address };
        let span = Duration::from_secs(self.seconds);
        let disturbance = case.map(|case| case.begin(stage, span)).transpose()?;
        let figures = pair::measure(stage, span)?;
        drop(disturbance);
        Ok(figures)
    }
}

fn median(figures: &[Figures], of: impl Fn(&Figures) -> Duration) -> Duration {
    let mut spans: Vec<Duration> = figures.iter().map(of).collect();
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied().unwrap_or_default()
}
