//! Publishes messages to, and follows streams of, a server that speaks the NATS client protocol: Stilling or nats-server.
//! Plain blocking calls; a server that is slow, full, restarting or not there yet is an ordinary thing.
//!
//! ```text
//!   caller ── send ──► spool (memory or disk) ─► window ─► connection ─► server
//!      ▲                                            │            ▲
//!      └── Delivered | Queued | Dropped(reason) ◄───┘   ladder, budget, hints
//! ```
//!
//! - Every message ends in exactly one way and is counted: [`PublisherCounts::is_balanced`].
//! - A message that is sent again is recognised by the server (`Nats-Msg-Id`): one record, however often it is tried.
//! - A flooded server hears less from everybody until it has recovered: [`RetryBackoff`], [`RetryBudget`], its own hints.
//! - It does not matter who is started first.
//!
//! ```
//! use std::time::Duration;
//! use stilling_client::{Config, Keep, LadderConfig, Outcome, Publisher};
//!
//! // Nobody listens there, so what is sent waits.
//! let config = Config {
//!     servers: vec!["nats://127.0.0.1:1".parse()?],
//!     ladder: LadderConfig { attempts: 1, wait: Duration::from_millis(1), ..LadderConfig::default() },
//!     keep: Keep::Memory,
//!     ..Config::default()
//! };
//! let publisher = Publisher::new(config)?;
//! match publisher.send("events.door", b"open") {
//!     Outcome::Delivered { stream, sequence, .. } => println!("{stream} has it as {sequence}"),
//!     Outcome::Queued => println!("it waits: {:?}", publisher.trouble()),
//!     Outcome::Dropped(reason) => println!("dropped: {reason}"),
//! }
//! let counts = publisher.close(Duration::ZERO);
//! assert!(counts.is_balanced());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Following a stream from its beginning:
//!
//! ```no_run
//! use stilling_client::{From, StreamPlace, Subscriber, SubscriberConfig};
//!
//! let subscriber = Subscriber::new(SubscriberConfig {
//!     servers: vec!["nats://127.0.0.1:4222".parse()?],
//!     filter: "events.>".to_owned(),
//!     stream: Some(StreamPlace { stream: "events".to_owned(), from: From::All }),
//!     ..SubscriberConfig::default()
//! })?;
//! for message in subscriber {
//!     let message = message?;
//!     println!("{} {:?}", message.subject, message.place);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod address;
mod backoff;
mod blocking_connection;
mod config;
mod connection_error;
mod handshake;
mod identity;
pub mod limits;
mod link;
mod message;
mod outcome;
mod publisher;
mod publisher_thread;
mod request;
mod shared;
mod socket;
mod spool;
mod spool_entry;
mod subscriber;
mod ticket;

pub use address::{BadAddress, Credentials, ServerAddress, ServerUrl};
pub use backoff::{BackoffConfig, JitterRng, RetryBackoff, RetryBudget, RetryBudgetConfig};
pub use config::{OverflowPolicy, PublishMode, PublisherConfig, SpoolMode};
pub use connection_error::ConnectionError;
pub use message::{ReceivedMessage, StreamPosition};
pub use outcome::{DropReason, PublishFailure, PublishOutcome, PublisherCounts};
pub use publisher::{Publisher, StartError};
pub use request::{Requester, RequesterError};
pub use subscriber::{
    FollowStart, FollowedStream, MissedCause, SubscribeError, Subscriber, SubscriberConfig, SubscriberEvent,
};
pub use ticket::PublishTicket;
