//! `cargo xtask soak http`: a long load of many kinds at once, after which everything has to be as it was.
//!
//! ```text
//!  slow c=100      ████████████████████████████████    nobody may fail
//!  fast c=100      ████████████████████████████████    (rows 4.27 and 4.28 in parallel)
//!  bursts × 10       ██            ██
//!  resets, trickle ████████████████████████████████    somebody always means no good
//!  hand-overs      ███|███|███|███|███|███|███|███|    a second service, with an elastic pool in waves
//!  --app, direct   ████████████████████████████████    servers beside, with a moderate load
//!  compared                ├─warm─┤         ├─end─┤    memory, descriptors, threads
//! ```

mod foes;
mod honest;
mod schedule;
mod side;
mod succession;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};

use crate::Outcome;
use crate::bench::load::Place;
use crate::bench::server::{Driver, Server};
use crate::bench::{figures, idle, isolation, taken};
use crate::packages;
use crate::steps::{cargo, run};
use crate::tree;
use foes::Foes;
use honest::Met;
use side::SideSeen;
use succession::Succession;
use watch::{Look, MEASURES};

/// Between two looks at the server.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long the server has after the load, to be as it was before it: longer than it waits for a head, and than it
/// lingers.
const AFTERWARDS: Duration = Duration::from_secs(20);

/// Descriptors that a side server may keep: connections to its worker processes, and what tells of these.
const SIDE_SPARE: f64 = 24.0;

/// The server's options: those of row 4.27.
const OPTIONS: [&str; 4] = ["-C", "1000", "-w", "300"];

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The HTTP server
    Http(Http),
}

#[derive(Args)]
struct Http {
    /// How long
    #[arg(long, value_name = "M", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    minutes: u32,
    /// How the server talks to the kernel
    #[arg(long, value_enum, default_value_t = Choice::Uring)]
    driver: Choice,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Uring,
    Poll,
}

/// Something that has to hold, and whether it does.
struct Verdict {
    what: String,
    holds: bool,
    found: String,
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

impl Arguments {
    pub(crate) fn run(self) -> Outcome {
        let What::Http(arguments) = self.what;
        if !isolation::is_inside() {
            packages::install(&packages::FOR_SOAK)?;
            run(&mut cargo(["build", "--release", "-p", "stilling-cli"]))?;
        }
        isolation::enter()?;
        idle::raise_descriptors();
        arguments.soak()
    }
}

impl Http {
    fn soak(&self) -> Outcome {
        let folder = tempfile::tempdir()?;
        let binary = taken(&tree::target().join("release/stilling"), folder.path())?;
        let driver = match self.driver {
            Choice::Uring => Driver::Uring,
            Choice::Poll => Driver::Poll,
        };
        let server = Server::stilling(&binary, driver, &OPTIONS)?;
        let place = |name: &str| -> Outcome<Place> {
            let folder = folder.path().join(name);
            std::fs::create_dir(&folder)?;
            Ok(Place { folder, binary: binary.clone(), counts_instructions: false })
        };
        let places = [place("slow")?, place("fast")?, place("burst")?, place("succession")?, place("side")?];
        let total_s = f64::from(self.minutes) * 60.0;
        println!(
            "`{}` for {} min; TCP congestion control {}",
            server.command,
            self.minutes,
            isolation::congestion()
        );
        let seen = watched(server, &places, driver, total_s)?;
        let verdicts = verdicts(&seen, total_s);
        print!("{}", tables(&seen, &verdicts, total_s));
        let broken: Vec<&str> =
            verdicts.iter().filter(|verdict| !verdict.holds).map(|verdict| verdict.what.as_str()).collect();
        if broken.is_empty() { Ok(()) } else { Err(format!("did not hold: {}", broken.join("; ")).into()) }
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

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Looks at the server until the time is over or it has gone, and says once a minute how it is, if it `talks`.
fn look_on(process: u32, start: Instant, total_s: f64, talks: bool) -> Vec<Look> {
    let mut looks = Vec::new();
    let mut minute = 0;
    loop {
        let at_s = start.elapsed().as_secs_f64();
        if at_s >= total_s {
            return looks;
        }
        let Some(look) = Look::at(process, at_s) else {
            println!("the server has gone after {at_s:.0} s");
            return looks;
        };
        if talks && at_s as u64 / 60 >= minute {
            let row: Vec<_> = MEASURES
                .iter()
                .map(|measure| format!("{} {}", measure.name, measure.shown((measure.of)(&look))))
                .collect();
            println!("minute {minute}: {}", row.join(", "));
            minute += 1;
        }
        looks.push(look);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until the server has no more descriptors than before the load, for a bounded time.
fn everybody_gone(process: u32, start: Instant, before: &Look) -> Option<Look> {
    let end = Instant::now() + AFTERWARDS;
    loop {
        let look = Look::at(process, start.elapsed().as_secs_f64())?;
        if look.descriptors <= before.descriptors || Instant::now() >= end {
            return Some(look);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn verdicts(seen: &Seen, total_s: f64) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut judge = |what: String, holds: bool, found: String| verdicts.push(Verdict { what, holds, found });
    for met in everybody(seen) {
        let broken = met.broken.iter().map(|words| format!("; {words}")).collect::<String>();
        let found = format!("{} of {} failed, {} refused{broken}", met.failures, met.requests, met.refused);
        judge(format!("nobody fails: {}", met.name), met.is_good(), found);
    }
    let (warm, end) = (schedule::warm(total_s), schedule::end(total_s));
    let mut level = |whose: &str, looks: &[Look]| {
        for measure in MEASURES {
            let (warm, end) = (measure.middle(looks, warm), measure.middle(looks, end));
            let bound = measure.shown(measure.bound(warm));
            let what = format!("level{whose}: {} (at most {bound} at the end)", measure.name);
            let found =
                format!("{} after the warm-up, {} at the end", measure.shown(warm), measure.shown(end));
            judge(what, measure.is_level(warm, end), found);
        }
    };
    level("", &seen.looks);
    for side in &seen.sides {
        level(&format!(" with {}", side.name), &side.looks);
    }
    let foes = &seen.foes;
    let [resets, trickled, ended, refused] =
        [&foes.resets, &foes.trickled, &foes.ended, &foes.refused].map(|count| count.load(Relaxed));
    let found = format!(
        "{resets} connections reset, {trickled} trickled, {ended} of them ended by the server, {refused} not accepted"
    );
    judge("the server ends those who trickle".to_owned(), resets > 0 && ended > 0, found);
    let before = seen.before.descriptors;
    let found =
        seen.after.map_or("it has gone".to_owned(), |after| format!("{} of {before}", after.descriptors));
    let all_closed = seen.after.is_some_and(|after| after.descriptors <= before);
    judge("all descriptors are given back".to_owned(), all_closed, found);
    let found = if seen.ended_well { "exit status 0" } else { "it did not" }.to_owned();
    judge("the server ends when asked to".to_owned(), seen.ended_well, found);
    for side in &seen.sides {
        let before = side.before.descriptors + SIDE_SPARE;
        let found =
            side.after.map_or("it has gone".to_owned(), |after| format!("{} of {before}", after.descriptors));
        let is_empty = side.after.is_some_and(|after| after.descriptors <= before);
        let what = format!("with {} all descriptors are given back, and it ends when asked to", side.name);
        judge(what, is_empty && side.ended_well, found);
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
    text += "\n| server | before | after the warm-up | at the end | most | when all had gone |\n|---|---|---|---|---|---|\n";
    let (warm, end) = (schedule::warm(total_s), schedule::end(total_s));
    for measure in MEASURES {
        let most = seen.looks.iter().map(measure.of).fold(0.0, f64::max);
        let cells = [
            measure.shown((measure.of)(&seen.before)),
            measure.shown(measure.middle(&seen.looks, warm)),
            measure.shown(measure.middle(&seen.looks, end)),
            measure.shown(most),
            seen.after.map_or_else(figures::unknown, |after| measure.shown((measure.of)(&after))),
        ];
        text += &format!("| {} | {} |\n", measure.name, cells.join(" | "));
    }
    text += "\n| what has to hold | | found |\n|---|---|---|\n";
    for Verdict { what, holds, found } in verdicts {
        text += &format!("| {what} | {} | {found} |\n", if *holds { "holds" } else { "**BROKEN**" });
    }
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
        broken.map(|verdict| verdict.what.split(['(']).next().unwrap_or("").trim().to_owned()).collect()
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
        assert_eq!(text.matches("**BROKEN**").count(), 2, "{text}");
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
