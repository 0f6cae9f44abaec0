//! `cargo xtask crash`: repeated SIGKILL of the server under load; acknowledged messages must be stored.

use clap::{Args, ValueEnum};

use crate::XtaskResult;
use crate::bench::collect::{CollectPeer, CollectPrograms, CrashDemands, KILLED_PEERS, kill};

/// Most acknowledgements per run of the server: enough for several segments of 1 MiB.
const ACKS: u64 = 50_000;

/// Acknowledged messages of 512 bytes that exceed the smallest bound of retention.
const RETAINED_MAX: u64 = 50_000;

#[derive(Args)]
pub(crate) struct CrashArguments {
    /// Number of kills per driver, distributed over the combinations of retention and write method
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    kills: u32,
    /// Seed of the kill times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only this driver
    #[arg(long, value_enum, value_name = "DRIVER")]
    driver: Option<CrashDriver>,
    /// Only this bound of retention
    #[arg(long, value_enum, value_name = "BYTES")]
    retention_bytes: Option<CrashRetention>,
    /// Only this write method
    #[arg(long, value_enum, value_name = "METHOD")]
    write_method: Option<CrashWriteMethod>,
    /// Also kill nats-server, for comparison
    #[arg(long)]
    peers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CrashDriver {
    Uring,
    Poll,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CrashRetention {
    #[value(name = "8MiB")]
    Small,
    #[value(name = "10GiB")]
    Large,
}

impl CrashRetention {
    const fn argument(self) -> &'static str {
        match self {
            CrashRetention::Small => "8MiB",
            CrashRetention::Large => "10GiB",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CrashWriteMethod {
    Direct,
    Buffered,
}

fn selected_values<T: ValueEnum + Copy>(only: Option<T>) -> Vec<T> {
    only.map_or_else(|| T::value_variants().to_vec(), |only| vec![only])
}

fn value_name<T: ValueEnum>(value: T) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

impl CrashArguments {
    pub(crate) fn run(self) -> XtaskResult {
        CollectPrograms::prepare()?;
        let (_guard, programs) = CollectPrograms::find()?;
        let mut broken = Vec::new();
        let mut judged = 0;
        for peer in
            KILLED_PEERS.into_iter().filter(|peer| self.matches_driver(*peer) && peer.is_available(&programs))
        {
            for demands in self.demands(peer) {
                judged += 1;
                if !report(peer, &programs, &demands)? {
                    broken.push(peer.name());
                }
            }
        }
        if judged == 0 {
            return Err("this build of Stilling has no NATS support; `--peers` kills only nats-server".into());
        }
        if broken.is_empty() {
            return Ok(());
        }
        broken.dedup();
        Err(format!("{} failed; repeat with\n    {}", broken.join(", "), self.command()).into())
    }

    /// The command with these options.
    fn command(&self) -> String {
        let CrashArguments { kills, seed, driver, retention_bytes, write_method, peers } = self;
        let mut command = format!("cargo xtask crash --kills {kills} --seed {seed}");
        let choices = [
            ("driver", driver.and_then(value_name)),
            ("retention-bytes", retention_bytes.and_then(value_name)),
            ("write-method", write_method.and_then(value_name)),
        ];
        for (option, value) in choices {
            if let Some(value) = value {
                command += &format!(" --{option} {value}");
            }
        }
        if *peers {
            command += " --peers";
        }
        command
    }

    fn matches_driver(&self, peer: CollectPeer) -> bool {
        let matches_driver = |driver| self.driver.is_none_or(|only| only == driver);
        match peer {
            CollectPeer::StillingUring => matches_driver(CrashDriver::Uring),
            CollectPeer::StillingPoll => matches_driver(CrashDriver::Poll),
            _ => self.peers,
        }
    }

    fn demands(&self, peer: CollectPeer) -> Vec<CrashDemands> {
        let one = CrashDemands {
            kills: self.kills,
            seed: self.seed,
            acks: ACKS,
            retention_bytes: None,
            retention_removes: false,
            is_buffered: false,
            descriptors_every: 0,
        };
        if !is_ours(peer) {
            return vec![one];
        }
        let (bounds, methods) = (selected_values(self.retention_bytes), selected_values(self.write_method));
        let kills = self.kills.div_ceil((bounds.len() * methods.len()) as u32);
        let of = |bound: &CrashRetention, method: &CrashWriteMethod| CrashDemands {
            kills,
            retention_bytes: Some(bound.argument()),
            retention_removes: *bound == CrashRetention::Small,
            is_buffered: *method == CrashWriteMethod::Buffered,
            descriptors_every: 1,
            ..one
        };
        bounds.iter().flat_map(|bound| methods.iter().map(move |method| of(bound, method))).collect()
    }
}

fn is_ours(peer: CollectPeer) -> bool {
    matches!(peer, CollectPeer::StillingUring | CollectPeer::StillingPoll)
}

/// Runs the kills and prints the findings; returns whether Stilling passed.
fn report(peer: CollectPeer, programs: &CollectPrograms, demands: &CrashDemands) -> XtaskResult<bool> {
    let findings = kill(peer, programs, demands)?;
    let keeps = demands.retention_bytes.map(|bytes| format!(", keeps {bytes}")).unwrap_or_default();
    let method = if demands.is_buffered { ", buffered" } else { "" };
    println!(
        "{}{keeps}{method}: {} kills, {} acknowledged: {} lost, {} invented, {} reordered, {} stored twice, {} refused; \
         {} stored unacknowledged, {} removed by retention; {} failed starts, {} descriptor leaks, {}, {} in the wrong method, longest start {} ms",
        peer.name(),
        findings.kills,
        findings.acknowledged,
        findings.lost,
        findings.invented,
        findings.reordered,
        findings.stored_twice,
        findings.refused,
        findings.stored_unacknowledged(),
        findings.removed,
        findings.failed_starts,
        findings.descriptor_leaks,
        findings.memory(),
        findings.wrong_write_method,
        findings.longest_start_ms
    );
    for (kind, detail) in &findings.evidence {
        println!("  {kind}: {detail}");
    }
    // With a small bound, retention must have removed most records; otherwise the run has not tested it.
    let is_exceeded = demands.retention_removes && findings.acknowledged > RETAINED_MAX;
    if is_exceeded && findings.removed == 0 {
        println!("  retention removed none of {} messages", findings.acknowledged);
        return Ok(false);
    }
    if findings.lacks_memory(demands) {
        println!("  memory should be compared in one run of {}, but was in none", demands.descriptors_every);
    }
    Ok(!is_ours(peer) || findings.is_good(demands))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct CrashCommand {
        #[command(flatten)]
        arguments: CrashArguments,
    }

    #[test]
    fn the_command_to_repeat_a_run_has_all_its_options() {
        for options in [
            "--kills 500 --seed 1",
            "--kills 8 --seed 3 --driver uring --retention-bytes 8MiB --write-method buffered --peers",
            "--kills 8 --seed 3 --driver poll --retention-bytes 10GiB --write-method direct",
        ] {
            let command = CrashCommand::try_parse_from(options.split(' ')).expect("valid options");
            assert_eq!(command.arguments.command(), format!("cargo xtask crash {options}"));
        }
    }

    /// The first runs of the server cannot reach the 10 GiB bound, so a run without a comparison has not tested memory.
    #[test]
    fn memory_is_demanded_of_the_runs_with_the_large_bound() {
        let arguments = CrashArguments {
            kills: 500,
            seed: 1,
            driver: None,
            retention_bytes: None,
            write_method: None,
            peers: false,
        };
        let findings = crate::bench::collect::CrashFindings { acknowledged: 1, ..Default::default() };
        for peer in [CollectPeer::StillingUring, CollectPeer::StillingPoll] {
            let runs = arguments.demands(peer);
            assert_eq!(runs.len(), 4);
            for demands in runs {
                let is_large = demands.retention_bytes == Some("10GiB");
                assert_eq!(findings.lacks_memory(&demands), is_large, "{demands:?}");
            }
        }
    }
}
