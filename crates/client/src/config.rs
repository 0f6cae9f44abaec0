//! What a publisher may be told.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::ServerUrl;
use crate::backoff::{BackoffConfig, RetryBudgetConfig};
use crate::limits::{SPAN_MAX, SPOOL_SIZE_DEFAULT, UNACKNOWLEDGED_DEFAULT};

/// How a publisher sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PublishMode {
    /// [`send`](crate::Publisher::send) waits for the acknowledgement.
    #[default]
    Confirmed,
    /// `send` returns at once. Messages are acknowledged and sent again all the same; failures are told afterwards.
    NoWait,
    /// `send` returns at once, and nothing is acknowledged: at most once, for subjects that no stream keeps. Only how far
    /// the server has read comes back, now and then.
    OneWay,
}

/// What happens to a message that finds the spool full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverflowPolicy {
    /// The caller waits for room, as long as for an acknowledgement; then the new message is dropped. In the modes that do
    /// not wait it is dropped at once.
    #[default]
    Wait,
    /// The oldest message that is not with the server is dropped.
    DropOldest,
    /// The new message is dropped.
    DropNewest,
}

/// Where messages are held that the server does not take yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum SpoolMode {
    /// In memory, and only for as many attempts as the ladder allows; then they are dropped.
    Attempts,
    /// In memory, until they are delivered.
    #[default]
    Memory,
    /// In a directory that is made if it is not there, until they are delivered: by this publisher or the next one that
    /// uses the directory, also after a crash. A message is on disk before it is sent. One publisher at a time.
    Directory(PathBuf),
}

/// What a publisher may be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherConfig {
    /// The servers. After a failure the next one is tried.
    pub servers: Vec<ServerUrl>,
    /// What the server's operator sees as the name of the connection.
    pub name: Option<String>,
    /// How messages are sent.
    pub mode: PublishMode,
    /// When to try again.
    pub backoff: BackoffConfig,
    /// How much may be sent again.
    pub budget: RetryBudgetConfig,
    /// Where messages wait.
    pub spool_mode: SpoolMode,
    /// Bytes of messages that wait or are with the server; 64 MiB. A message counts 128 bytes more than it has; on disk it
    /// counts whole blocks of 4 KiB. Full: what `overflow` says.
    pub spool_size: u64,
    /// What happens to a message that finds the spool full.
    pub overflow: OverflowPolicy,
    /// Messages that may be with the server without its answer; 256. With 1, messages also keep their order when the
    /// server asks for one of them later. Full: messages wait in the spool.
    pub unacknowledged: usize,
    /// For a connection to open and the server to greet; 5 s. Then it is a failed attempt.
    pub connect_timeout: Duration,
    /// For the server to acknowledge a message; 5 s. Then it is sent again, and if nothing at all has come in that time,
    /// over another connection.
    pub acknowledge_timeout: Duration,
    /// How long `send` waits in all, for room and for the acknowledgement; 30 s. Then the message goes on without its
    /// caller, or, where nothing is kept, is dropped.
    pub send_timeout: Duration,
    /// How long a message is tried while no stream keeps its subject, or its stream stores nothing; 10 s. Then it is dropped.
    /// The others do not wait for it as long as no more than 1024 of them wait and they count no more than a quarter of the
    /// spool. Beyond that they take the places of `unacknowledged` messages: when they have all of them, everything waits
    /// in the spool until their stream takes them or their time is over. In a spool on disk a message that others have
    /// passed is also dropped when those count a quarter of the spool. Where Stilling says that only a disk hangs, no message
    /// is dropped.
    pub no_stream_timeout: Duration,
    /// After so long without a word from the server it is asked whether it lives; 20 s.
    pub ping_interval: Duration,
    /// The seed of the random numbers that cut the waits; nothing: an unpredictable one.
    pub seed: Option<u64>,
}

impl Default for PublisherConfig {
    fn default() -> PublisherConfig {
        PublisherConfig {
            servers: Vec::new(),
            name: None,
            mode: PublishMode::Confirmed,
            backoff: BackoffConfig::default(),
            budget: RetryBudgetConfig::default(),
            spool_mode: SpoolMode::Memory,
            spool_size: SPOOL_SIZE_DEFAULT,
            overflow: OverflowPolicy::Wait,
            unacknowledged: UNACKNOWLEDGED_DEFAULT,
            connect_timeout: Duration::from_secs(5),
            acknowledge_timeout: Duration::from_secs(5),
            send_timeout: Duration::from_secs(30),
            no_stream_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(20),
            seed: None,
        }
    }
}

impl PublisherConfig {
    /// The same, with no span longer than [`SPAN_MAX`], so that each has an end on the clock.
    pub(crate) fn bounded(mut self) -> PublisherConfig {
        for span in [
            &mut self.backoff.wait,
            &mut self.backoff.wait_max,
            &mut self.connect_timeout,
            &mut self.acknowledge_timeout,
            &mut self.send_timeout,
            &mut self.no_stream_timeout,
            &mut self.ping_interval,
        ] {
            *span = SPAN_MAX.min(*span);
        }
        self
    }
}
