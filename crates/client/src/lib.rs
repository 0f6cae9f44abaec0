//! Publishes to and follows streams of a server that speaks the NATS client protocol: Stilling or nats-server. The API
//! is blocking. While the server is slow, full, restarting or absent, the client waits and retries. [`coap`] is a client
//! for CoAP servers.
//!
//! ```text
//!   caller ── send ──► spool (memory or disk) ─► window ─► connection ─► server
//!      ▲                                            │            ▲
//!      └── Delivered | Queued | Dropped(reason) ◄───┘   backoff, budget, hints
//! ```
//!
//! - Every message ends in exactly one outcome and is counted once: [`PublisherCounts::is_balanced`].
//! - The server recognises a retried message by its `Nats-Msg-Id` and stores it once, however often it is sent.
//! - All clients reduce their load on an overloaded server until it recovers: [`RetryBackoff`], [`RetryBudget`],
//!   `Retry-After` hints of the server.
//! - Client and server may start in any order.
//!
//! ```
//! use std::time::Duration;
//! use stilling_client::{BackoffConfig, PublishOutcome, Publisher, PublisherConfig, SpoolMode};
//!
//! // No server listens on port 1, so the message stays in the spool.
//! let config = PublisherConfig {
//!     servers: vec!["nats://127.0.0.1:1".parse()?],
//!     backoff: BackoffConfig { attempts: 1, wait: Duration::from_millis(1), ..BackoffConfig::default() },
//!     spool_mode: SpoolMode::Memory,
//!     ..PublisherConfig::default()
//! };
//! let publisher = Publisher::new(config)?;
//! match publisher.send("events.door", b"open") {
//!     PublishOutcome::Delivered { stream, sequence, .. } => println!("stored in {stream} as {sequence}"),
//!     PublishOutcome::Queued => println!("queued: {:?}", publisher.connection_error()),
//!     PublishOutcome::Dropped(reason) => println!("dropped: {reason}"),
//! }
//! let counts = publisher.close(Duration::ZERO);
//! assert!(counts.is_balanced());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Following a stream from its beginning:
//!
//! ```no_run
//! use stilling_client::{FollowStart, FollowedStream, Subscriber, SubscriberConfig};
//!
//! let subscriber = Subscriber::new(SubscriberConfig {
//!     servers: vec!["nats://127.0.0.1:4222".parse()?],
//!     filter: "events.>".to_owned(),
//!     stream: Some(FollowedStream { stream: "events".to_owned(), from: FollowStart::All }),
//!     ..SubscriberConfig::default()
//! })?;
//! for message in subscriber {
//!     let message = message?;
//!     println!("{} {:?}", message.subject, message.position);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod address;
mod backoff;
mod blocking_connection;
pub mod coap;
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
