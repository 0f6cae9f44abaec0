//! The deterministic world: the shipped code over a simulated network, in virtual time, from one seed.
//!
//! A simulation is a [`Network`], one or more shards that meet it through a [`SimDriver`], and [`SimPeer`]s that play the
//! other side. Which read is split, which connection is reset and which completion comes late is drawn from the seed at
//! the rates of [`FaultRates`]; the same seed gives the same run, which [`Network::trace_hash`] proves.
//!
//! The driver also plays the judge of the seam: a shard that attaches a token twice, arms two receives, uses a token
//! after it was closed or gives a buffer back twice is stopped by a panic that names the token.
//!
//! ```
//! use stilling_engine::Token;
//! use stilling_engine::driver::{Driver, DriverEvent, SourceKind, Wait};
//! use stilling_simulation::{Address, Network, Options, SimDriver};
//!
//! let network = Network::new(42, Options::default());
//! let mut driver = SimDriver::new(&network);
//! let (here, there) = network.pair();
//! let token = Token::new(0, 1);
//! driver.attach(token, here, SourceKind::Stream, false)?;
//! driver.receive(token);
//!
//! let mut peer = stilling_simulation::Peer::new(there);
//! peer.write(b"hello")?;
//! let (mut stops, mut events) = (Vec::new(), Vec::new());
//! driver.turn(network.now(), Wait::No, std::iter::empty(), &mut stops, &mut events)?;
//! let [DriverEvent::Received { buffer, len, .. }] = events[..] else { panic!("{events:?}") };
//! assert_eq!(&driver.buffer(buffer)[..len as usize], b"hello");
//! driver.release(buffer);
//! # std::io::Result::Ok(())
//! ```
#![forbid(unsafe_code)]

pub mod driver;
pub mod echo;
pub mod faults;
pub mod http;
pub mod migration;
pub mod network;
pub mod report;
mod rig;
pub mod sharing;
pub mod single_shard;
pub mod streams;
pub mod suite;
pub mod trace;
pub mod unread;

pub use driver::SimDriver;
pub use faults::{FaultCounts, FaultRates, NetworkFault};
pub use network::{
    Address, Network, NetworkOptions, PeerKey, SimDatagramPeer, SimPeer, SimPeerListener, SimSocket,
};
pub use report::{RunReport, SeedFailure};
pub use rig::SimRig;
pub use stilling_ring::SplitMix64;
