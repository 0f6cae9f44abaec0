//! Deterministic simulation: the shipped code over a simulated network, in virtual time, from one seed.
//!
//! A simulation consists of a [`Network`], one or more shards attached through a [`SimDriver`], and [`SimPeer`]s for
//! the remote ends. The seed decides which read is split, which connection is reset and which completion is late, at
//! the rates of [`FaultRates`]. The same seed gives the same run; [`Network::trace_hash`] verifies that.
//!
//! The driver also checks the driver contract: it panics, naming the token, when a shard attaches a token twice, arms
//! two receives, uses a token after it was closed or releases a buffer twice.
//!
//! ```
//! use stilling_engine::Token;
//! use stilling_engine::driver::{Driver, DriverEvent, SourceKind, Wait};
//! use stilling_simulation::{Network, NetworkOptions, SimDriver, SimPeer};
//!
//! let network = Network::new(42, NetworkOptions::default());
//! let mut driver = SimDriver::new(&network);
//! let (here, there) = network.pair();
//! let token = Token::new(0, 1);
//! driver.attach(token, here, SourceKind::Stream, false)?;
//! driver.receive(token);
//!
//! let mut peer = SimPeer::new(there);
//! peer.write(b"hello")?;
//! let (mut incomplete_sends, mut events) = (Vec::new(), Vec::new());
//! driver.turn(network.now(), Wait::No, std::iter::empty(), &mut incomplete_sends, &mut events)?;
//! let [DriverEvent::Received { buffer, len, .. }] = events[..] else { panic!("{events:?}") };
//! assert_eq!(&driver.buffer(buffer)[..len as usize], b"hello");
//! driver.release(buffer);
//! # std::io::Result::Ok(())
//! ```
#![forbid(unsafe_code)]

pub mod coap;
pub mod driver;
pub mod echo;
pub mod faults;
pub mod http;
pub mod migration;
pub mod network;
pub mod on_demand;
mod overview;
pub mod report;
mod rig;
pub mod sharing;
pub mod single_shard;
pub mod streams;
pub mod suite;
pub mod trace;
mod turns;
pub mod unread;

pub use driver::SimDriver;
pub use faults::{FaultCounts, FaultRates, NetworkFault};
pub use network::{
    Address, Network, NetworkOptions, PeerKey, SimDatagramPeer, SimPeer, SimPeerListener, SimSocket,
};
pub use report::{RunReport, SeedFailure};
pub use rig::SimRig;
pub use stilling_ring::SplitMix64;
