//! The CoAP world: the shipped shard with a pool of worker processes, and clients on a network that loses, repeats and
//! reorders datagrams.
//!
//! ```text
//!  clients (CoapClientCore) ─ datagrams ─ SimDriver ─ Shard ─ ShardService ─ CoapShard ─ UpstreamPool ─┐
//!  a stranger (random bytes) ─           ┘                                                             │
//!  processes that die, hang, are slow or answer garbage ─ Unix sockets ─ UpstreamConnection ───────────┘
//! ```
//!
//! Each request has an id in its body or path, from which its bytes and those of its answer follow. Checks: a process
//! executes the id of a POST once (and the bytes are right); a client gets only messages that name its own tokens and
//! message ids, from the address that it asked; a complete answer has the bytes of its request; one of a resource that
//! changes has the bytes of a single version, and not of one that was outdated when it was requested; each datagram is
//! in one class; no more datagrams leave than requests, acknowledgements and retransmissions allow; each forwarded
//! request ends with one result. Observers get states of their resource only, and none of its ids twice. Once faults have
//! stopped, each client gets an answer, and each observer gets each state.

mod assembly;
mod client;
mod content;
mod conversation;
mod ledger;
mod observer;
mod operation;
mod parameters;
mod process;
mod process_connection;
mod verification;
mod world;

use std::cell::RefCell;
use std::rc::Rc;

use stilling::parts::ShardService;
use stilling_engine::Shard;

use crate::SplitMix64;
use crate::driver::SimDriver;
use crate::network::Network;
use crate::report::{RunReport, SeedFailure, attempt};
use crate::turns::run_until_stopped;

use parameters::CoapWorldParameters;

type CoapSimShard = Shard<SimDriver, ShardService>;

/// What happened in a world, or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoapTotals {
    /// Complete answers whose bytes were checked.
    pub answers: u64,
    /// Of `answers`: those with several blocks.
    pub long_answers: u64,
    /// Requests whose bodies had several blocks.
    pub long_requests: u64,
    /// Requests without a success: refused, or given up by their clients.
    pub failures: u64,
    /// Requests that their clients abandoned.
    pub abandoned: u64,
    /// Requests executed by processes.
    pub executions: u64,
    /// Duplicates recognised by the server.
    pub duplicates: u64,
    /// Separate responses of the server.
    pub separate_responses: u64,
    /// Requests refused until their address is proved.
    pub echo_required: u64,
    /// Requests refused without a free worker, or shed.
    pub overloads: u64,
    /// Requests whose process died, or answered garbage.
    pub worker_failures: u64,
    /// Requests that a process did not answer in time.
    pub worker_timeouts: u64,
    /// Processes that died or were killed.
    pub deaths: u64,
    /// States that observers got.
    pub notifications: u64,
    /// Versions of the resource that changes.
    pub versions: u64,
}

/// Result of a world without failures.
#[derive(Clone, Debug)]
pub struct CoapReport {
    /// Hash, faults and end.
    pub report: RunReport,
    /// What happened.
    pub totals: CoapTotals,
    /// The events as text, if requested.
    pub text: Vec<String>,
}

/// Runs the world of `seed`; with `verbose`, the report or failure has the events as text.
///
/// # Errors
/// The failure found.
pub fn run(seed: u64, verbose: bool) -> Result<CoapReport, SeedFailure> {
    let network = RefCell::new(None);
    attempt(seed, || play(seed, verbose, &network)).map_err(|mut failure| {
        failure.text = network.borrow().as_ref().map(Network::take_text).unwrap_or_default();
        failure
    })
}

fn play(seed: u64, verbose: bool, keep: &RefCell<Option<Network>>) -> Result<CoapReport, String> {
    let parameters = CoapWorldParameters::draw(&mut SplitMix64::new(seed));
    let (mut shard, world) = assembly::build(parameters);
    let network = world.network();
    *keep.borrow_mut() = Some(network.clone());
    if verbose {
        network.record_text();
    }
    let world = Rc::new(RefCell::new(world));
    let hook_world = Rc::clone(&world);
    let step = move |limit| hook_world.borrow_mut().advance(limit).map_err(std::io::Error::other);
    shard.driver().set_wait_hook(Box::new(step));
    run_until_stopped(&mut shard, &network, || world.borrow_mut().step().map(drop))?;
    verification::drain_and_check(shard, &mut world.borrow_mut())
}
