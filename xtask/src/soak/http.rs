//! `cargo xtask soak http`: the HTTP server under clients of many kinds at once.
//!
//! ```text
//!  slow c=100      ████████████████████████████████    nobody may fail
//!  fast c=100      ████████████████████████████████    (`soak parallel` judges rows 4.27 and 4.28)
//!  bursts × 10       ██            ██
//!  resets, trickle ████████████████████████████████    somebody always means no good
//!  hand-overs      ███|███|███|███|███|███|███|███|    a second service, with an elastic pool in waves
//!  --app, direct   ████████████████████████████████    servers beside, with a moderate load
//!  compared                ├─warm─┤         ├─end─┤    memory, descriptors, threads
//! ```

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use clap::Args;

use super::foes::Foes;
use super::honest::{self, Met};
use super::side::{self, SideSeen};
use super::succession::{self, Succession};
use super::watch::Look;
use super::{Options, Verdict, everybody_gone, joined, level, look_on, looks_table, schedule, verdict_table};
use crate::Outcome;
use crate::bench::load::Place;
use crate::bench::server::{Driver, Server};
use crate::bench::{figures, isolation, taken};

/// Descriptors that a side server may keep: connections to its worker processes, and what tells of these.
const SIDE_SPARE: f64 = 24.0;

/// The server's options: those of row 4.27, whose requests are never refused.
const OPTIONS: [&str; 6] = ["-C", "1000", "-w", "300", "--queue-target", "off"];

#[derive(Args)]
pub(super) struct Http {
    #[command(flatten)]
    options: Options,
}

/// All that was seen.
struct Seen {
    /// Before any load.
    before: Look,
    looks: Vec<Look>,
    /// When everybody had gone.
    after: Option<Look>,
    met: Vec<Met>,
    foes: Foes,
    ended_well: bool,
    succession: Option<Succession>,
    sides: Vec<SideSeen>,
}

impl Http {
    pub(super) fn soak(&self) -> Outcome {
        let folder = tempfile::tempdir()?;
        let binary = taken("stilling", folder.path())?;
        let driver = self.options.driver();
        let server = Server::stilling(&binary, driver, &OPTIONS)?;
        let place = |name: &str| -> Outcome<Place> {
            let folder = folder.path().join(name);
            std::fs::create_dir(&folder)?;
            Ok(Place { folder, binary: binary.clone(), counts_instructions: false })
        };
        let places = [place("slow")?, place("fast")?, place("burst")?, place("succession")?, place("side")?];
        let total_s = self.options.total_s();
        println!(
            "`{}` for {} min; TCP congestion control {}",
            server.command,
            self.options.minutes,
            isolation::congestion()
        );
        let command = server.command.clone();
        let seen = watched(server, &places, driver, total_s)?;
        let verdicts = verdicts(&seen, total_s);
        print!("{}", tables(&seen, &verdicts, total_s));
        let words = format!(
            "Slow and fast clients, bursts, resets, connections that trickle, hand-overs and worker processes at once on \
             `{command}`."
        );
        self.options.conclude("http", "HTTP under clients of many kinds", words, &verdicts)
    }
}

/// Puts all load on the server and looks at it all the while.
fn watched(server: Server, places: &[Place; 5], driver: Driver, total_s: f64) -> Outcome<Seen> {
    let process = server.processes()[0];
    let before = Look::at(process, 0.0).ok_or("the server has gone before it began")?;
    let over = AtomicBool::new(false);
    let sides = side::all(&places[4], driver)?;
    let foes = Foes::default();
    let bursts = schedule::bursts(total_s);
    let start = Instant::now();
    let address = server.address;
    let (looks, met, succession, sides) = std::thread::scope(|threads| {
        let slow = threads.spawn(|| honest::slow(&server, &places[0], &over));
        let fast = threads.spawn(|| honest::fast(&server, &places[1], &over));
        let burst = threads.spawn(|| honest::bursts(&server, &places[2], &bursts, start, &over));
        threads.spawn(|| foes.reset(address, &over));
        threads.spawn(|| foes.trickle(address, &over));
        let succession = threads
            .spawn(|| succession::run(&places[3], driver, total_s, &over).map_err(|error| error.to_string()));
        let over = &over;
        let sides: Vec<_> = sides
            .into_iter()
            .map(|side| {
                threads.spawn(move || side.run(start, total_s, over).map_err(|error| error.to_string()))
            })
            .collect();
        let looks = look_on(process, start, total_s, true);
        over.store(true, Relaxed);
        let mut met = vec![joined(slow)];
        met.extend(joined(fast));
        met.push(joined(burst));
        let sides: Vec<_> = sides.into_iter().map(joined).collect();
        (looks, met, joined(succession), sides)
    });
    let succession = Some(succession?);
    let sides = sides.into_iter().collect::<Result<_, _>>()?;
    let after = everybody_gone(process, start, &before);
    let ended_well = server.end();
    Ok(Seen { before, looks, after, met, foes, ended_well, succession, sides })
}

fn verdicts(seen: &Seen, total_s: f64) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut judge = |what: String, limit: &str, holds: bool, found: String| {
        verdicts.push(Verdict { what, limit: limit.to_owned(), holds, found });
    };
    for met in everybody(seen) {
        let broken = met.broken.iter().map(|words| format!("; {words}")).collect::<String>();
        let found = format!("{} of {} failed, {} refused{broken}", met.failures, met.requests, met.refused);
        judge(format!("nobody fails: {}", met.name), "0", met.is_good(), found);
    }
    verdicts.extend(level("", &seen.looks, total_s));
    for side in &seen.sides {
        verdicts.extend(level(&format!(" with {}", side.name), &side.looks, total_s));
    }
    let mut judge = |what: String, limit: &str, holds: bool, found: String| {
        verdicts.push(Verdict { what, limit: limit.to_owned(), holds, found });
    };
    let foes = &seen.foes;
    let [resets, trickled, ended, refused] =
        [&foes.resets, &foes.trickled, &foes.ended, &foes.refused].map(|count| count.load(Relaxed));
    let found = format!(
        "{resets} connections reset, {trickled} trickled, {ended} of them ended by the server, {refused} not accepted"
    );
    judge("the server ends connections that trickle".to_owned(), "≥ 1", resets > 0 && ended > 0, found);
    let before = seen.before.descriptors;
    let found =
        seen.after.map_or("it has gone".to_owned(), |after| format!("{} of {before}", after.descriptors));
    let all_closed = seen.after.is_some_and(|after| after.descriptors <= before);
    judge("all descriptors are given back".to_owned(), "as before", all_closed, found);
    let found = if seen.ended_well { "exit status 0" } else { "it did not" }.to_owned();
    judge("the server ends when asked to".to_owned(), "status 0", seen.ended_well, found);
    for side in &seen.sides {
        let before = side.before.descriptors + SIDE_SPARE;
        let found =
            side.after.map_or("it has gone".to_owned(), |after| format!("{} of {before}", after.descriptors));
        let is_empty = side.after.is_some_and(|after| after.descriptors <= before);
        let what = format!("with {} all descriptors are given back, and it ends when asked to", side.name);
        judge(what, "as before, with spare ones", is_empty && side.ended_well, found);
    }
    verdicts.extend(seen.succession.iter().flat_map(Succession::verdicts));
    verdicts
}

/// All clients that mean well.
fn everybody(seen: &Seen) -> impl Iterator<Item = &Met> {
    let hand_overs = seen.succession.iter().flat_map(|succession| &succession.met);
    seen.met.iter().chain(hand_overs).chain(seen.sides.iter().flat_map(|side| &side.met))
}

fn tables(seen: &Seen, verdicts: &[Verdict], total_s: f64) -> String {
    let mut text = String::from(
        "\n| clients | requests | per second | failed | refused | p99 ms | max ms |\n|---|---|---|---|---|---|---|\n",
    );
    for met in everybody(seen) {
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            met.name,
            figures::thousands(met.requests as f64),
            figures::thousands(met.rate()),
            met.failures,
            met.refused,
            figures::two_places(figures::median(met.p99s_ms.clone())),
            figures::two_places(met.max_ms)
        );
    }
    text += &looks_table(&seen.before, &seen.looks, seen.after.as_ref(), total_s);
    text += &verdict_table(verdicts);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(resident_at_end: f64) -> Seen {
        let look = |at: u32| {
            let resident = if at < 80 { 100e6 } else { resident_at_end };
            Look { at_s: f64::from(at), resident, descriptors: 50.0, threads: 9.0 }
        };
        let foes = Foes::default();
        foes.resets.store(1, Relaxed);
        foes.ended.store(1, Relaxed);
        let before = Look { descriptors: 12.0, ..Look::default() };
        let met = Met { requests: 5, ..Met::new("one") };
        Seen {
            before,
            looks: (0..100).map(look).collect(),
            after: Some(before),
            met: vec![met],
            foes,
            ended_well: true,
            succession: None,
            sides: Vec::new(),
        }
    }

    fn broken(seen: &Seen) -> Vec<String> {
        let broken = verdicts(seen, 100.0).into_iter().filter(|verdict| !verdict.holds);
        broken.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn what_does_not_hold_is_named() {
        assert!(broken(&seen(100e6)).is_empty());
        assert_eq!(broken(&seen(120e6)), ["level: resident memory"]);
        let mut leaky = seen(100e6);
        leaky.after = Some(Look { descriptors: 13.0, ..Look::default() });
        leaky.met[0].failures = 1;
        assert_eq!(broken(&leaky), ["nobody fails: one", "all descriptors are given back"]);
        let text = tables(&leaky, &verdicts(&leaky, 100.0), 100.0);
        assert_eq!(text.matches("**missed**").count(), 2, "{text}");
    }

    #[test]
    fn a_server_that_is_gone_holds_nothing() {
        let mut gone = seen(100e6);
        gone.looks.truncate(40);
        gone.after = None;
        gone.ended_well = false;
        assert_eq!(broken(&gone).len(), 3 + 2, "{:?}", broken(&gone));
    }
}
