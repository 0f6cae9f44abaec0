//! `cargo xtask soak coap`: overload of worker processes, then interleaved clients with bodies in blocks over a network
//! that loses, duplicates and reorders (rows 1.1, 1.2 and 1.12).

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde::Deserialize;

use super::watch::ResourceSample;
use super::{SoakOptions, SoakVerdict, joined, level, resource_table, sample_until, verdict_table};
use crate::XtaskResult;
use crate::bench::server::{BenchDriver, BenchServer};
use crate::bench::{copy_binary, figures};
use crate::steps::{cargo, report, run};

/// Requests per second: ten times what three workers with 20 ms of sleep can do.
const OVERLOAD_RATE: u32 = 1_500;

/// Least correct answers per second: nine tenths of what they can do.
const GOODPUT_MIN: f64 = 135.0;

/// Requests for bodies per second: with lost datagrams some 4,000 are in progress at a time.
const BLOCK_REQUEST_RATE: u32 = 800;

/// Worker processes for the bodies: enough for requests that arrive together.
const BLOCK_PROCESSES: u32 = 16;

/// Blocks of a body of 10 KB.
const BLOCKS_PER_BODY: u64 = 10;

/// Kinds of failures that show an answer to another peer or request, or with other bytes.
const WRONG_ANSWERS: [&str; 7] =
    ["misdirected", "unknown_token", "wrong_id", "wrong_body", "wrong_block", "malformed", "unexpected_code"];

/// Most requests that a client gives up: with a tenth of the datagrams lost in each direction, all five transmissions
/// of one of ten messages fail for about 0.25 % of the requests.
const GIVEN_UP_PART_MAX: f64 = 0.005;

/// Least blocks read, as a part of those of all requests.
const BLOCKS_PART_MIN: f64 = 1.0 - GIVEN_UP_PART_MAX - REFUSED_PART_MAX;

/// Most requests for bodies that the server refuses.
const REFUSED_PART_MAX: f64 = 0.005;

#[derive(Args)]
pub(super) struct CoapSoak {
    #[command(flatten)]
    options: SoakOptions,
    /// Blocks that clients read after the overload
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    blocks: u64,
}

#[derive(Deserialize)]
struct CoapSoakReport {
    started: u64,
    completed: u64,
    completed_per_s: f64,
    blocks: u64,
    shed: u64,
    failures: BTreeMap<String, u64>,
    failures_total: u64,
}

impl CoapSoak {
    pub(super) fn prepare() -> XtaskResult {
        run(&mut cargo(["build", "--release", "-p", "stilling-peer-bare"]))
    }

    pub(super) fn soak(&self) -> XtaskResult {
        let guard = tempfile::tempdir()?;
        let binary = copy_binary("stilling", guard.path())?;
        let worker = copy_binary("stilling-peer-bare", guard.path())?;
        let (server, address) = start(guard.path(), &binary, &worker, self.options.driver())?;
        let (command, total_s) = (server.command.clone(), self.options.total_s());
        let process = server.first_process();
        let before = ResourceSample::at(process, 0.0).ok_or("the server ended before the load began")?;
        let start = Instant::now();
        let overload = [
            "--sockets=256".to_owned(),
            "--window=64".to_owned(),
            format!("--rate={OVERLOAD_RATE}"),
            format!("--seconds={total_s}"),
        ];
        let (resource_samples, overloaded) = std::thread::scope(|threads| {
            let generator = threads.spawn(|| {
                load(&binary, &format!("coap://{address}/work"), &overload).map_err(|error| error.to_string())
            });
            (sample_until(process, start, total_s, true), joined(generator))
        });
        let overloaded = overloaded?;
        println!("{} correct, {} shed; now {} blocks", overloaded.completed, overloaded.shed, self.blocks);
        let faults = [
            format!("--requests={}", self.blocks.div_ceil(BLOCKS_PER_BODY)),
            format!("--rate={BLOCK_REQUEST_RATE}"),
            "--sockets=64".to_owned(),
            "--window=64".to_owned(),
            "--variants=64".to_owned(),
            "--timeout=120".to_owned(),
            "--loss=10".to_owned(),
            "--duplication=5".to_owned(),
            "--reordering=5".to_owned(),
        ];
        let blocks = load(&binary, &format!("coap://{address}/large?n={{n}}"), &faults)?;
        let after = ResourceSample::at(process, start.elapsed().as_secs_f64());
        let ended_well = server.end();
        let mut verdicts = overload_verdicts(&overloaded);
        verdicts.extend(level("", &resource_samples, total_s));
        verdicts.extend(block_verdicts(&blocks, self.blocks));
        verdicts.push(SoakVerdict::of_stop(ended_well));
        print!(
            "{}{}",
            resource_table(&before, &resource_samples, after.as_ref(), total_s),
            verdict_table(&verdicts)
        );
        let description = format!(
            "Rows 1.1, 1.2 and 1.12, on `{command}` with three worker processes for `/work` and {BLOCK_PROCESSES} for `/large`: `stilling bench coap URL {}`, whose requests \
             need 20 ms of sleep, then `stilling bench coap URL {}` with 64 different bodies of 10 KB.",
            overload.join(" "),
            faults.join(" ")
        );
        self.options.conclude("coap", "CoAP overload and block transfers", description, &verdicts)
    }
}

/// Stilling with a pool for `/work` and one for `/large`, and its CoAP address.
fn start(
    folder: &Path,
    binary: &Path,
    worker: &Path,
    driver: BenchDriver,
) -> XtaskResult<(BenchServer, SocketAddr)> {
    let address = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let pool = |name: &str, processes: u32, work_ms: u32, size: u32| {
        let worker = worker.display();
        format!(
            "[[app]]\nname = '{name}'\nmatch = '/{name}'\n\
             command = \"exec '{worker}' worker '{{socket}}' {work_ms} {size}\"\nprocesses = {processes}\n\n"
        )
    };
    let settings = folder.join("coap.toml");
    let large = pool("large", BLOCK_PROCESSES, 0, 1024 * BLOCKS_PER_BODY as u32);
    fs::write(&settings, pool("work", 3, 20, 64) + &large)?;
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--accept-threads", "1", "--driver", driver.option()]);
    command.args(["--coap", &address.to_string(), "--config"]).arg(&settings);
    let command_line = format!("stilling serve --coap … --driver {} --config …", driver.option());
    Ok((BenchServer::announced(driver.option(), command_line, command)?, address))
}

fn load(binary: &Path, url: &str, options: &[String]) -> XtaskResult<CoapSoakReport> {
    report(Command::new(binary).args(["bench", "coap", url, "--wait=30", "--json"]).args(options))
}

fn overload_verdicts(found: &CoapSoakReport) -> Vec<SoakVerdict> {
    vec![
        SoakVerdict {
            what: "overload: correct answers per second".to_owned(),
            limit: format!("≥ {GOODPUT_MIN}"),
            holds: found.completed_per_s >= GOODPUT_MIN,
            measured: format!("{:.1}; {} requests shed", found.completed_per_s, found.shed),
        },
        wrong_answers("overload", found),
    ]
}

fn block_verdicts(found: &CoapSoakReport, wanted: u64) -> Vec<SoakVerdict> {
    let given_up = found.started.saturating_sub(found.completed + found.shed);
    let part_of_all = |requests: u64| requests as f64 / found.started.max(1) as f64;
    let (part, refused) = (part_of_all(given_up), part_of_all(found.shed));
    vec![
        SoakVerdict {
            what: "blocks: read with correct bytes".to_owned(),
            limit: format!("≥ {}", figures::thousands(wanted as f64 * BLOCKS_PART_MIN)),
            holds: found.blocks as f64 >= wanted as f64 * BLOCKS_PART_MIN,
            measured: figures::thousands(found.blocks as f64),
        },
        SoakVerdict {
            what: "blocks: requests that clients gave up".to_owned(),
            limit: format!("≤ {} %", GIVEN_UP_PART_MAX * 100.0),
            holds: part <= GIVEN_UP_PART_MAX,
            measured: format!("{:.3} %: {:?}", part * 100.0, found.failures),
        },
        SoakVerdict {
            what: "blocks: refused requests".to_owned(),
            limit: format!("≤ {} %", REFUSED_PART_MAX * 100.0),
            holds: refused <= REFUSED_PART_MAX,
            measured: format!("{:.3} %", refused * 100.0),
        },
        wrong_answers("blocks", found),
    ]
}

fn wrong_answers(phase: &str, found: &CoapSoakReport) -> SoakVerdict {
    let wrong: u64 = WRONG_ANSWERS.iter().filter_map(|kind| found.failures.get(*kind)).sum();
    SoakVerdict {
        what: format!("{phase}: misdirected answers and wrong bytes"),
        limit: "0".to_owned(),
        holds: wrong == 0 && found.completed > 0,
        measured: format!("{wrong}; {} failures of all kinds", found.failures_total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> CoapSoakReport {
        CoapSoakReport {
            started: 1000,
            completed: 1000,
            completed_per_s: GOODPUT_MIN,
            blocks: 10_000,
            shed: 0,
            failures: BTreeMap::new(),
            failures_total: 0,
        }
    }

    /// Rows 1.2 and 1.12: each criterion is judged separately.
    #[test]
    fn every_criterion_is_checked() {
        let missed = |change: &dyn Fn(&mut CoapSoakReport)| -> Vec<String> {
            let mut found = found();
            change(&mut found);
            let all = overload_verdicts(&found).into_iter().chain(block_verdicts(&found, 10_000));
            all.filter(|verdict| !verdict.holds).map(|verdict| verdict.what).collect()
        };
        assert!(missed(&|_| ()).is_empty());
        assert_eq!(missed(&|found| found.completed_per_s = 134.0), ["overload: correct answers per second"]);
        assert_eq!(missed(&|found| found.blocks = 9_000), ["blocks: read with correct bytes"]);
        assert_eq!(missed(&|found| found.completed = 990), ["blocks: requests that clients gave up"]);
        let refused = missed(&|found| (found.completed, found.shed) = (990, 10));
        assert_eq!(refused, ["blocks: refused requests"]);
        for kind in WRONG_ANSWERS {
            let wrong = missed(&|found| _ = found.failures.insert(kind.to_owned(), 1));
            assert_eq!(wrong.len(), 2, "{kind}: {wrong:?}");
        }
        assert!(missed(&|found| _ = found.failures.insert("timeout".to_owned(), 1)).is_empty());
    }
}
