//! `cargo xtask soak http`: the HTTP server under clients of many kinds at once.
//!
//! ```text
//!  slow c=100      ████████████████████████████████    no request may fail
//!  fast c=100      ████████████████████████████████    (`soak parallel` judges rows 4.27 and 4.28)
//!  bursts × 10       ██            ██
//!  resets, trickle ████████████████████████████████    hostile clients all the time
//!  hand-overs      ███|███|███|███|███|███|███|███|    a second service, with an elastic pool in waves
//!  --app, direct   ████████████████████████████████    side servers with a moderate load
//!  compared                ├─warm─┤         ├─end─┤    memory, descriptors, threads
//! ```

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use clap::Args;

use super::hostile_traffic::HostileTraffic;
use super::side::{self, SideObservation};
use super::succession::{self, HandoverObservation};
use super::watch::ResourceSample;
use super::well_behaved::{self, RequestTally};
use super::{
    SoakOptions, SoakVerdict, joined, level, resource_table, sample_until, schedule, verdict_table,
    wait_for_release,
};
use crate::XtaskResult;
use crate::bench::load::BenchEnvironment;
use crate::bench::server::{BenchDriver, BenchServer};
use crate::bench::{copy_binary, figures, isolation};

/// Descriptors that a side server may keep: connections to its worker processes and their control descriptors.
const SIDE_SPARE: f64 = 24.0;

/// The server's options: those of row 4.27, without refusals.
const OPTIONS: [&str; 6] = ["-C", "1000", "-w", "300", "--queue-target", "off"];

#[derive(Args)]
pub(super) struct HttpSoak {
    #[command(flatten)]
    options: SoakOptions,
}

struct HttpObservation {
    /// Before any load.
    before: ResourceSample,
    resource_samples: Vec<ResourceSample>,
    /// After all clients have gone.
    after: Option<ResourceSample>,
    tally: Vec<RequestTally>,
    hostile_traffic: HostileTraffic,
    ended_well: bool,
    succession: Option<HandoverObservation>,
    sides: Vec<SideObservation>,
}

impl HttpSoak {
    pub(super) fn soak(&self) -> XtaskResult {
        let folder = tempfile::tempdir()?;
        let binary = copy_binary("stilling", folder.path())?;
        let driver = self.options.driver();
        let server = BenchServer::stilling(&binary, driver, &OPTIONS)?;
        let environment = |name: &str| -> XtaskResult<BenchEnvironment> {
            let folder = folder.path().join(name);
            std::fs::create_dir(&folder)?;
            Ok(BenchEnvironment { folder, binary: binary.clone(), counts_instructions: false })
        };
        let environments = [
            environment("slow")?,
            environment("fast")?,
            environment("burst")?,
            environment("succession")?,
            environment("side")?,
        ];
        let total_s = self.options.total_s();
        println!(
            "`{}` for {} min; TCP congestion control {}",
            server.command,
            self.options.minutes,
            isolation::congestion()
        );
        let command = server.command.clone();
        let observation = watched(server, &environments, driver, total_s)?;
        let verdicts = verdicts(&observation, total_s);
        print!("{}", tables(&observation, &verdicts, total_s));
        let description = format!(
            "Slow and fast clients, bursts, resets, connections that trickle, hand-overs and worker processes at once on \
             `{command}`."
        );
        self.options.conclude("http", "HTTP under clients of many kinds", description, &verdicts)
    }
}

/// Puts all load on the server while sampling it.
fn watched(
    server: BenchServer,
    environments: &[BenchEnvironment; 5],
    driver: BenchDriver,
    total_s: f64,
) -> XtaskResult<HttpObservation> {
    let process = server.processes()[0];
    let before = ResourceSample::at(process, 0.0).ok_or("the server ended before the load began")?;
    let over = AtomicBool::new(false);
    let sides = side::all(&environments[4], driver)?;
    let hostile_traffic = HostileTraffic::default();
    let bursts = schedule::bursts(total_s);
    let start = Instant::now();
    let address = server.address;
    let (resource_samples, tally, succession, sides) = std::thread::scope(|threads| {
        let slow = threads.spawn(|| well_behaved::slow(&server, &environments[0], &over));
        let fast = threads.spawn(|| well_behaved::fast(&server, &environments[1], &over));
        let burst = threads.spawn(|| well_behaved::bursts(&server, &environments[2], &bursts, start, &over));
        threads.spawn(|| hostile_traffic.reset(address, &over));
        threads.spawn(|| hostile_traffic.trickle(address, &over));
        let succession = threads.spawn(|| {
            succession::run(&environments[3], driver, total_s, &over).map_err(|error| error.to_string())
        });
        let over = &over;
        let sides: Vec<_> = sides
            .into_iter()
            .map(|side| {
                threads.spawn(move || side.run(start, total_s, over).map_err(|error| error.to_string()))
            })
            .collect();
        let resource_samples = sample_until(process, start, total_s, true);
        over.store(true, Relaxed);
        let mut tally = vec![joined(slow)];
        tally.extend(joined(fast));
        tally.push(joined(burst));
        let sides: Vec<_> = sides.into_iter().map(joined).collect();
        (resource_samples, tally, joined(succession), sides)
    });
    let succession = Some(succession?);
    let sides = sides.into_iter().collect::<Result<_, _>>()?;
    let after = wait_for_release(process, start, &before);
    let ended_well = server.end();
    Ok(HttpObservation {
        before,
        resource_samples,
        after,
        tally,
        hostile_traffic,
        ended_well,
        succession,
        sides,
    })
}

fn verdicts(observation: &HttpObservation, total_s: f64) -> Vec<SoakVerdict> {
    let mut verdicts = Vec::new();
    let mut judge = |what: String, limit: &str, holds: bool, measured: String| {
        verdicts.push(SoakVerdict { what, limit: limit.to_owned(), holds, measured });
    };
    for tally in run_all_clients(observation) {
        let broken = tally.broken.iter().map(|detail| format!("; {detail}")).collect::<String>();
        let measured =
            format!("{} of {} failed, {} refused{broken}", tally.failures, tally.requests, tally.refused);
        judge(format!("no request fails: {}", tally.name), "0", tally.is_good(), measured);
    }
    verdicts.extend(level("", &observation.resource_samples, total_s));
    for side in &observation.sides {
        verdicts.extend(level(&format!(" with {}", side.name), &side.resource_samples, total_s));
    }
    let mut judge = |what: String, limit: &str, holds: bool, measured: String| {
        verdicts.push(SoakVerdict { what, limit: limit.to_owned(), holds, measured });
    };
    let hostile_traffic = &observation.hostile_traffic;
    let [resets, trickled, ended, refused] = [
        &hostile_traffic.resets,
        &hostile_traffic.trickled,
        &hostile_traffic.ended,
        &hostile_traffic.refused,
    ]
    .map(|count| count.load(Relaxed));
    let measured = format!(
        "{resets} connections reset, {trickled} trickled, {ended} of them ended by the server, {refused} not accepted"
    );
    judge("the server ends connections that trickle".to_owned(), "≥ 1", resets > 0 && ended > 0, measured);
    let before = observation.before.descriptors;
    let measured = observation
        .after
        .map_or("it has gone".to_owned(), |after| format!("{} of {before}", after.descriptors));
    let all_closed = observation.after.is_some_and(|after| after.descriptors <= before);
    judge("all descriptors are closed".to_owned(), "as before", all_closed, measured);
    let measured = if observation.ended_well { "exit status 0" } else { "it did not" }.to_owned();
    judge("the server stops on SIGTERM".to_owned(), "status 0", observation.ended_well, measured);
    for side in &observation.sides {
        let before = side.before.descriptors + SIDE_SPARE;
        let measured =
            side.after.map_or("it has gone".to_owned(), |after| format!("{} of {before}", after.descriptors));
        let is_empty = side.after.is_some_and(|after| after.descriptors <= before);
        let what = format!("{}: all descriptors are closed, and it stops on SIGTERM", side.name);
        judge(what, "as before, with spare ones", is_empty && side.ended_well, measured);
    }
    verdicts.extend(observation.succession.iter().flat_map(HandoverObservation::verdicts));
    verdicts
}

/// Results of all well-behaved clients.
fn run_all_clients(observation: &HttpObservation) -> impl Iterator<Item = &RequestTally> {
    let hand_overs = observation.succession.iter().flat_map(|succession| &succession.tally);
    observation.tally.iter().chain(hand_overs).chain(observation.sides.iter().flat_map(|side| &side.tally))
}

fn tables(observation: &HttpObservation, verdicts: &[SoakVerdict], total_s: f64) -> String {
    let mut text = String::from(
        "\n| clients | requests | per second | failed | refused | p99 ms | max ms |\n|---|---|---|---|---|---|---|\n",
    );
    for tally in run_all_clients(observation) {
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            tally.name,
            figures::thousands(tally.requests as f64),
            figures::thousands(tally.rate()),
            tally.failures,
            tally.refused,
            figures::two_places(figures::median(tally.p99s_ms.clone())),
            figures::two_places(tally.max_ms)
        );
    }
    text += &resource_table(
        &observation.before,
        &observation.resource_samples,
        observation.after.as_ref(),
        total_s,
    );
    text += &verdict_table(verdicts);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(resident_at_end: f64) -> HttpObservation {
        let look = |at: u32| {
            let resident = if at < 80 { 100e6 } else { resident_at_end };
            ResourceSample { at_s: f64::from(at), resident, descriptors: 50.0, threads: 9.0 }
        };
        let hostile_traffic = HostileTraffic::default();
        hostile_traffic.resets.store(1, Relaxed);
        hostile_traffic.ended.store(1, Relaxed);
        let before = ResourceSample { descriptors: 12.0, ..ResourceSample::default() };
        let tally = RequestTally { requests: 5, ..RequestTally::new("one") };
        HttpObservation {
            before,
            resource_samples: (0..100).map(look).collect(),
            after: Some(before),
            tally: vec![tally],
            hostile_traffic,
            ended_well: true,
            succession: None,
            sides: Vec::new(),
        }
    }

    fn broken(observation: &HttpObservation) -> Vec<String> {
        let broken = verdicts(observation, 100.0).into_iter().filter(|verdict| !verdict.holds);
        broken.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn what_does_not_hold_is_named() {
        assert!(broken(&observation(100e6)).is_empty());
        assert_eq!(broken(&observation(120e6)), ["level: resident memory"]);
        let mut leaky = observation(100e6);
        leaky.after = Some(ResourceSample { descriptors: 13.0, ..ResourceSample::default() });
        leaky.tally[0].failures = 1;
        assert_eq!(broken(&leaky), ["no request fails: one", "all descriptors are closed"]);
        let text = tables(&leaky, &verdicts(&leaky, 100.0), 100.0);
        assert_eq!(text.matches("**missed**").count(), 2, "{text}");
    }

    #[test]
    fn a_server_that_is_gone_holds_nothing() {
        let mut gone = observation(100e6);
        gone.resource_samples.truncate(40);
        gone.after = None;
        gone.ended_well = false;
        assert_eq!(broken(&gone).len(), 3 + 2, "{:?}", broken(&gone));
    }
}
