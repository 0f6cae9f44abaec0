//! The HTTP world: the shipped shards, HTTP sessions and worker pool over the simulated network, with clients of all
//! kinds. Some worlds also have a hub and NATS clients.
//!
//! ```text
//!  HTTP clients (well-behaved, hostile) ─ network ─ SimDriver ─ Shard ─ ShardService ─ JobSubmitter ─ Pool, stepped
//!  NATS clients                         ─                             └ NatsSession ─ Port ─ Hub, on the first shard
//! ```
//!
//! The first shard announces its sleep, as in production, and sleeps until its driver has events or it is woken;
//! meanwhile `http_world` runs the rest of the world. Clients, driver and the shards' audits check all the time;
//! `verification` checks at the end: one response per request, in order and exact; one reason per closed connection;
//! all buffers returned, all slots free; each job answered once; each message in the stream once, in order, at its
//! acknowledged position; all clients finished after faults stop.

mod assembly;
mod exchange;
mod hostile;
mod http_world;
mod nats_clients;
mod parameters;
mod test_routes;
mod verification;
mod version;
mod well_behaved;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use stilling::parts::ShardService;
use stilling_engine::{CloseReason, Shard};
use stilling_ring::Time;

use crate::SplitMix64;
use crate::driver::SimDriver;
use crate::network::{Address, Network};
use crate::report::{RunReport, SeedFailure, attempt};
use crate::turns::run_until_stopped;

pub use hostile::HostileStyle;
pub use well_behaved::WellBehavedStyle;

use nats_clients::NatsTally;
use parameters::HttpWorldParameters;

/// Start of every world, in seconds since 1970.
const CALENDAR_START: u64 = 1_700_000_000;

type HttpSimShard = Shard<SimDriver, ShardService>;

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpWorldOptions {
    /// Record the events as text; a failure then contains them.
    pub verbose: bool,
}

/// Result of a world without failures.
#[derive(Clone, Debug)]
pub struct HttpReport {
    /// Hash, faults and end.
    pub report: RunReport,
    /// Well-behaved clients by style.
    pub styles: BTreeMap<WellBehavedStyle, u32>,
    /// Hostile clients by style.
    pub hostile_styles: BTreeMap<HostileStyle, u32>,
    /// Closed connections by reason.
    pub closed: BTreeMap<CloseReason, u64>,
    /// Responses checked by well-behaved clients, and acknowledgements checked by NATS publishers.
    pub answers: u64,
    /// Connections of well-behaved and NATS clients that ended early for an accepted reason: damaged by the network,
    /// drained or cut short.
    pub retries: u64,
    /// Responses cut short as expected.
    pub broken: u64,
    /// Live messages received by NATS clients; publishers also receive their own.
    pub messages_received: u64,
    /// Records read from the stream at the end and verified.
    pub records_audited: u64,
    /// The events as text, if requested.
    pub text: Vec<String>,
}

/// The world as seen by one client during a step.
struct HttpClientContext<'a> {
    network: &'a Network,
    now: Time,
    address: &'a Address,
    hub_address: &'a Address,
    nats_tally: &'a mut NatsTally,
    random: &'a mut SplitMix64,
    draining: bool,
    /// The server's memory is so small that it may close connections of well-behaved clients.
    is_short_of_memory: bool,
    /// Responses may wait for workers, and are cut short when they wait too long.
    has_workers: bool,
    answers: u64,
    retries: u64,
    broken: u64,
}

/// Runs the world of `seed`.
///
/// # Errors
/// The failure found.
pub fn run(seed: u64, options: &HttpWorldOptions) -> Result<HttpReport, SeedFailure> {
    let network = RefCell::new(None);
    attempt(seed, || play(seed, options, &network)).map_err(|mut failure| {
        failure.text = network.borrow().as_ref().map(Network::take_text).unwrap_or_default();
        failure
    })
}

fn play(
    seed: u64,
    options: &HttpWorldOptions,
    keep: &RefCell<Option<Network>>,
) -> Result<HttpReport, String> {
    let parameters = HttpWorldParameters::draw(&mut SplitMix64::new(seed));
    let (mut shard, http_world) = parameters.build();
    let network = http_world.borrow().network();
    *keep.borrow_mut() = Some(network.clone());
    if options.verbose {
        network.record_text();
    }
    let hook_world = Rc::clone(&http_world);
    let step = move |limit| hook_world.borrow_mut().advance(limit).map_err(std::io::Error::other);
    shard.driver().set_wait_hook(Box::new(step));
    run_until_stopped(&mut shard, &network, || http_world.borrow_mut().after_turn())?;
    verification::drain_and_check(shard, &http_world)
}
