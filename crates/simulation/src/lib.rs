//! The deterministic world: the shipped code over a simulated network, in virtual time, from one seed.
//!
//! A simulation is a [`Network`], one or more shards that meet it through a [`SimDriver`], and [`Peer`]s that play the
//! other side. Which read is split, which connection is reset and which completion comes late is drawn from the seed at
//! the rates of [`Faults`]; the same seed gives the same run, which [`Network::trace_hash`] proves.
//!
//! The driver also plays the judge of the seam: a shard that attaches a token twice, arms two receives, uses a token
//! after it was closed or gives a buffer back twice is stopped by a panic that names the token.
//!
//! ```
//! use stilling_engine::Token;
//! use stilling_engine::driver::{Driver, Event, Kind, Wait};
//! use stilling_simulation::{Address, Network, Options, SimDriver};
//!
//! let network = Network::new(42, Options::default());
//! let mut driver = SimDriver::new(&network);
//! let (here, there) = network.pair();
//! let token = Token::new(0, 1);
//! driver.attach(token, here, Kind::Stream, false)?;
//! driver.receive(token);
//!
//! let mut peer = stilling_simulation::Peer::new(there);
//! peer.write(b"hello")?;
//! let (mut stops, mut events) = (Vec::new(), Vec::new());
//! driver.turn(network.now(), Wait::No, std::iter::empty(), &mut stops, &mut events)?;
//! let [Event::Received { buffer, len, .. }] = events[..] else { panic!("{events:?}") };
//! assert_eq!(&driver.buffer(buffer)[..len as usize], b"hello");
//! driver.release(buffer);
//! # std::io::Result::Ok(())
//! ```
#![forbid(unsafe_code)]

pub mod alone;
pub mod driver;
pub mod echo;
pub mod faults;
pub mod http;
pub mod moving;
pub mod network;
pub mod report;
mod rig;
pub mod sharing;
pub mod streams;
pub mod suite;
pub mod trace;
pub mod unread;

pub use driver::SimDriver;
pub use faults::{Fault, FaultCounts, Faults};
pub use network::{Address, DatagramPeer, Network, Options, Peer, PeerKey, PeerListener, SimSocket};
pub use report::{Failure, Report};
pub use rig::SimRig;
pub use stilling_ring::SplitMix64;
