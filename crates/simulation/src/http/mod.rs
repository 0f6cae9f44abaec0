//! The HTTP world: the shipped shards, HTTP sessions and worker pool over the simulated network, with clients of every
//! sort on the other side. In some worlds there is a hub beside them, with clients that speak NATS.
//!
//! ```text
//!  honest, hostile clients ─ network ─ SimDriver ─ Shard ─ ShardService ─ Lane ─ Pool, played by hand
//!  talkers                 ─                             └ NatsSession ─ Port ─ Hub, on the first shard
//! ```
//!
//! The first shard really sleeps: announced, until its driver has news or somebody wakes it; meanwhile the others act
//! (`http_world`). What must hold is checked all along by the clients, the driver and the shards' own audits, and at the
//! end by `settle`: one answer per request, in order and byte for byte; one reason per closed connection; every
//! buffer back, every slot free; every job answered once; every message in the stream once, in order, where its
//! acknowledgement said; nobody left waiting once the network has become kind.

mod assembly;
mod exchange;
mod hostile;
mod http_world;
mod nats_talker;
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

pub use hostile::HostileStyle;
pub use well_behaved::WellBehavedStyle;

use nats_talker::NatsTally;
use parameters::HttpWorldParameters;

/// Seconds after 1970 at the beginning of every world.
const CALENDAR_START: u64 = 1_700_000_000;

/// Turns of a shard without the time moving. More: it spins.
const TURNS_AT_ONCE_MAX: u32 = 20_000;

type HttpSimShard = Shard<SimDriver, ShardService>;

/// What to do beside running the world.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpWorldOptions {
    /// Keep the text of the run; a failure then has it.
    pub verbose: bool,
}

/// A world that went well.
#[derive(Clone, Debug)]
pub struct HttpReport {
    /// Hash, faults and end.
    pub report: RunReport,
    /// Honest clients by their style.
    pub styles: BTreeMap<WellBehavedStyle, u32>,
    /// Hostile clients by their manner.
    pub manners: BTreeMap<HostileStyle, u32>,
    /// Closed connections by their reason.
    pub closed: BTreeMap<CloseReason, u64>,
    /// Answers that honest clients got, each checked.
    pub answers: u64,
    /// Connections that honest clients tried again because the network harmed them.
    pub retries: u64,
    /// Answers that broke off, as some have to.
    pub broken: u64,
    /// Messages that talkers heard of each other.
    pub messages_received: u64,
    /// Records that were read in the end and found to be what they should.
    pub records_audited: u64,
    /// The text of the run, if it was asked for.
    pub text: Vec<String>,
}

/// The world as one client sees it during a step.
struct HttpClientContext<'a> {
    network: &'a Network,
    now: Time,
    address: &'a Address,
    hub_address: &'a Address,
    nats_tally: &'a mut NatsTally,
    random: &'a mut SplitMix64,
    /// The server has been asked to end.
    draining: bool,
    /// The server's stores are so small that it may have to give honest connections up.
    is_short_of_memory: bool,
    /// Answers may wait for workers, and break off when they wait for too long.
    has_workers: bool,
    answers: u64,
    retries: u64,
    broken: u64,
}

/// Runs the world of `seed`.
///
/// # Errors
/// Whatever did not hold.
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
        network.keep_text();
    }
    let hook_world = Rc::clone(&http_world);
    let step = move |limit| hook_world.borrow_mut().advance(limit).map_err(std::io::Error::other);
    shard.driver().set_wait_hook(Box::new(step));
    let (mut turns, mut since) = (0, Time::ZERO);
    while !shard.is_stopped() {
        shard.turn(true).map_err(|error| error.to_string())?;
        shard.audit()?;
        http_world.borrow_mut().after_turn()?;
        (turns, since) = if network.now() > since { (0, network.now()) } else { (turns + 1, since) };
        if turns > TURNS_AT_ONCE_MAX {
            return Err("the shard spins: it turns and turns, and no time passes".to_owned());
        }
    }
    verification::drain_and_check(shard, &http_world)
}
