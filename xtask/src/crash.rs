//! `cargo xtask crash`: SIGKILL of the server under load, again and again; what it acknowledged has to be there.

use clap::Args;

use crate::Outcome;
use crate::bench::collect::{Place, VICTIMS, kill};

#[derive(Args)]
pub(crate) struct Arguments {
    /// How often each server is killed
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    kills: u32,
    /// Decides the moments
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Also kill nats-server, for comparison
    #[arg(long)]
    peers: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Outcome {
        Place::prepare()?;
        let (_guard, place) = Place::find()?;
        let is_ours = |name: &str| name.starts_with("stilling");
        let mut broken = Vec::new();
        let mut judged = 0;
        for peer in VICTIMS {
            let is_wanted = is_ours(peer.name()) || self.peers;
            if !is_wanted || !peer.is_able(&place) {
                continue;
            }
            let found = kill(peer, &place, self.kills, self.seed)?;
            judged += 1;
            println!(
                "{}: {} kills, {} acknowledged: {} lost, {} invented, {} reordered, {} refused; {} kept unacknowledged; \
                 {} failed starts, longest start {} ms",
                peer.name(),
                found.kills,
                found.acknowledged,
                found.lost,
                found.invented,
                found.reordered,
                found.refused,
                found.found_unacknowledged,
                found.failed_starts,
                found.longest_start_ms
            );
            for (kind, words) in &found.evidence {
                println!("  {kind}: {words}");
            }
            if is_ours(peer.name()) && !found.is_good() {
                broken.push(peer.name());
            }
        }
        if judged == 0 {
            return Err(
                "this build of Stilling does not speak NATS; `--peers` kills nats-server alone".into()
            );
        }
        if broken.is_empty() {
            return Ok(());
        }
        let Arguments { kills, seed, .. } = self;
        let names = broken.join(", ");
        Err(format!(
            "{names} broke their word; repeat it with\n    cargo xtask crash --kills {kills} --seed {seed}"
        )
        .into())
    }
}
