//! Publisher configuration.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::ServerUrl;
use crate::backoff::{BackoffConfig, RetryBudgetConfig};
use crate::limits::{SPAN_MAX, SPOOL_SIZE_DEFAULT, UNACKNOWLEDGED_DEFAULT};

/// Delivery guarantee and blocking behaviour of a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PublishMode {
    /// [`send`](crate::Publisher::send) waits for the acknowledgement.
    #[default]
    Confirmed,
    /// `send` returns at once. Messages are acknowledged and retried; failures are reported later.
    NoWait,
    /// `send` returns at once, and messages are not acknowledged: at most once, for subjects that no stream stores. The
    /// server only confirms, once per batch, that it has read them.
    OneWay,
}

/// Policy for a new message while the spool is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverflowPolicy {
    /// The caller waits for room, at most as long as for an acknowledgement; then the new message is dropped. In modes
    /// that do not wait it is dropped at once.
    #[default]
    Wait,
    /// The oldest message that has not been sent is dropped.
    DropOldest,
    /// The new message is dropped.
    DropNewest,
}

/// Storage for messages that the server has not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum SpoolMode {
    /// Memory, for as many attempts as the backoff allows; then they are dropped.
    Attempts,
    /// Memory, until delivery.
    #[default]
    Memory,
    /// A directory, created if missing, until delivery: by this publisher or the next one that opens the directory,
    /// also after a crash. A message is on disk before it is sent. One publisher at a time.
    Directory(PathBuf),
}

/// Configuration of a publisher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherConfig {
    /// The servers. After a failure the publisher connects to the next one.
    pub servers: Vec<ServerUrl>,
    /// Name of the connection, shown to the server's operator.
    pub name: Option<String>,
    /// Delivery guarantee and blocking behaviour.
    pub mode: PublishMode,
    /// Attempts and waits after failures.
    pub backoff: BackoffConfig,
    /// Limit on retries.
    pub budget: RetryBudgetConfig,
    /// Storage for unacknowledged messages.
    pub spool_mode: SpoolMode,
    /// Bytes of all messages held, sent or not; 64 MiB. A message costs 128 bytes more than its size; on disk it costs
    /// whole blocks of 4 KiB. Full: `overflow` applies.
    pub spool_size: u64,
    /// Policy for a new message while the spool is full.
    pub overflow: OverflowPolicy,
    /// Messages sent and not yet answered; 256. With 1, messages keep their order even when the server defers one of
    /// them. Reached: messages wait in the spool.
    pub unacknowledged: usize,
    /// Timeout for connecting and for the handshake; 5 s. Exceeded: the attempt has failed.
    pub connect_timeout: Duration,
    /// Timeout for an acknowledgement; 5 s. Exceeded: the message is sent again, over another connection if nothing at
    /// all was received in that time.
    pub acknowledge_timeout: Duration,
    /// Total time that `send` waits for room and for the acknowledgement; 30 s. Exceeded: `send` returns and the
    /// message stays queued, or is dropped with [`SpoolMode::Attempts`].
    pub send_timeout: Duration,
    /// How long a message is retried while no stream stores its subject, or its stream cannot store; 10 s. Exceeded:
    /// the message is dropped. At most 1024 such messages, which cost at most a quarter of the spool, are parked: other
    /// messages pass them. Further ones keep `unacknowledged` slots; when they occupy all slots, all other messages
    /// wait in the spool until the stream accepts them or this time is over. In a spool on disk a parked message is
    /// also dropped when the messages that have passed it cost a quarter of the spool. No message is dropped for this
    /// reason while Stilling reports that the disk hangs.
    pub no_stream_timeout: Duration,
    /// Silence after which the publisher sends a PING; 20 s.
    pub ping_interval: Duration,
    /// Seed of the random jitter of waits; `None`: unpredictable.
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
    /// The same configuration with all spans cut to [`SPAN_MAX`], so that deadlines do not overflow.
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
