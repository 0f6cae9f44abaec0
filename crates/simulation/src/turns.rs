//! Turns of the shipped shard in a world, until it stops.

use stilling::parts::ShardService;
use stilling_engine::Shard;
use stilling_ring::Time;

use crate::driver::SimDriver;
use crate::network::Network;

/// Turns of a shard, or steps of a world, while time stands still; more count as spinning.
pub(crate) const TURNS_AT_ONCE_MAX: u32 = 20_000;

/// Runs a shard until it stops, and audits it after each turn.
///
/// # Errors
/// That of the turn, the audit or `after_turn`; or that the shard spins.
pub(crate) fn run_until_stopped(
    shard: &mut Shard<SimDriver, ShardService>,
    network: &Network,
    mut after_turn: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let (mut turns, mut since) = (0, Time::ZERO);
    while !shard.is_stopped() {
        shard.turn(true).map_err(|error| error.to_string())?;
        shard.audit()?;
        after_turn()?;
        (turns, since) = if network.now() > since { (0, network.now()) } else { (turns + 1, since) };
        if turns > TURNS_AT_ONCE_MAX {
            return Err("the shard spins: too many turns while time stands still".to_owned());
        }
    }
    Ok(())
}
