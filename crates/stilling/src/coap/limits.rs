//! Bounds of CoAP, with unit and behaviour at the bound. The transmission parameters are those of RFC 7252 §4.8.

use std::time::Duration;

/// How long a request is recognised as a duplicate (`EXCHANGE_LIFETIME`). Later its message id may be reused.
pub(crate) const EXCHANGE_LIFETIME: Duration = Duration::from_secs(247);

/// Requests that a shard recognises as duplicates. More within [`EXCHANGE_LIFETIME`]: the oldest is forgotten, and
/// counted.
pub(crate) const EXCHANGES_MAX: usize = 256 * 1024;

/// Bytes of the replies of these requests, per shard. More: the oldest reply is overwritten. A duplicate of its request
/// is executed again if the method is safe, and ignored if it is not.
pub(crate) const REPLIES_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Bytes of exchanges that a server hands over to its successor, over all shards; each shard may use its share. More: the
/// oldest are not handed over.
pub(crate) const HANDED_EXCHANGES_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Bytes of a message that this side sends: a block of 1,024 bytes with its options. An answer that does not fit is
/// 5.00.
pub(crate) const MESSAGE_SIZE_MAX: usize = 1280;

/// Bytes of an answer's body. More: 5.00.
pub(crate) const BODY_SIZE_MAX: usize = 1024 * 1024;

/// Bytes of answers, per shard, of which clients may still request blocks. More: the oldest are overwritten, and the
/// answer is made again when its next block is requested.
pub(crate) const BODIES_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Answers, per shard, of which clients may still request blocks. More: the oldest with the same bits of its hash is
/// forgotten, as above.
pub(crate) const BODIES_MAX: usize = 1024;

/// Bytes of a request that distinguish its answer from others: method, path, query and the like. Longer: its answer is
/// made again for each block.
pub(crate) const CACHE_KEY_SIZE_MAX: usize = 1024;

/// Bytes of a request's body in blocks. More: 4.13 with the maximum as Size1.
pub(crate) const REQUEST_BODY_SIZE_MAX: usize = 64 * 1024;

/// Request bodies, per shard, of which blocks are still to come. More: 5.03, unless one of them is idle for
/// [`ASSEMBLY_IDLE_MIN`] and is dropped.
pub(crate) const ASSEMBLIES_MAX: usize = 64;

/// How long an incomplete request body is kept after its last block. A later block is answered 4.08.
pub(crate) const ASSEMBLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Idle time from which an incomplete request body makes room for another one.
pub(crate) const ASSEMBLY_IDLE_MIN: Duration = Duration::from_secs(5);

/// Confirmable messages of a shard that wait for their acknowledgement, or for their turn. A client address (IPv6: a /64,
/// loopback included) has at most as many as are free, half of them if it is alone. More: a separate response is sent as
/// a non-confirmable message, and counted.
pub(crate) const TRANSMISSIONS_MAX: usize = 1024;

/// Confirmable messages for one peer that wait behind the one in flight. More: as for [`TRANSMISSIONS_MAX`].
pub(crate) const TRANSMISSIONS_PER_PEER_MAX: usize = 8;

/// Time until the first retransmission at least (`ACK_TIMEOUT`); at most 1.5 times as long (`ACK_RANDOM_FACTOR`). It
/// doubles with each retransmission.
pub(crate) const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Retransmissions of a confirmable message (`MAX_RETRANSMIT`). Then its peer counts as gone.
pub(crate) const RETRANSMISSIONS_MAX: u8 = 4;

/// Requests of a shard that are not answered yet. More: 5.03 with [`RETRY_AFTER_SECONDS`].
pub(crate) const PENDING_EXCHANGES_MAX: usize = 4096;

/// Publications among these requests. They may wait for a disk that hangs, and leave the rest to others. A client address
/// (IPv6: a /64, loopback included) has at most as many as are free, half of them if it is alone. More: 5.03.
pub(crate) const PENDING_PUBLICATIONS_MAX: usize = PENDING_EXCHANGES_MAX / 2;

/// Requests among them that wait for the first state of a filter. As for [`PENDING_PUBLICATIONS_MAX`].
pub(crate) const PENDING_READS_MAX: usize = PENDING_EXCHANGES_MAX / 4;

/// How long a confirmable request may wait for its answer before it is acknowledged without one. Its answer is then a
/// message of its own.
pub(crate) const SEPARATE_AFTER: Duration = Duration::from_millis(1000);

/// Max-Age, in seconds, of answers that ask a client to repeat its request later.
pub(crate) const RETRY_AFTER_SECONDS: u32 = 5;

/// Bytes of an answer to an address that is not loopback and has not proved itself by Echo, as a multiple of its
/// request. Longer: smaller blocks, or a reply from the budget of [`UNPROVEN_BUDGET_PER_SECOND`], or 4.01 with an Echo
/// value, or no answer.
pub(crate) const AMPLIFICATION_MAX: usize = 3;

/// Bytes beyond [`AMPLIFICATION_MAX`], per shard and second, that unproven addresses get all together. More: a reply is
/// replaced by 4.01 with an Echo value.
pub(crate) const UNPROVEN_BUDGET_PER_SECOND: usize = 16 * 1024;

/// Bytes of this budget that can be saved.
pub(crate) const UNPROVEN_BUDGET_MAX: usize = 16 * 1024;

/// Bytes of a reply at most that an unproven address gets from this budget. Longer: a smaller block.
pub(crate) const UNPROVEN_REPLY_SIZE_MAX: usize = 256;

/// Bytes of a reply that an address without proof must be allowed before its request with an effect is executed: the
/// smallest block with all options. Less: 4.01 with an Echo value, because a client that got one after the execution
/// would have the request executed again.
pub(crate) const EFFECT_REPLY_SIZE_MIN: usize = 72;

/// Peers of a shard that have proved their address. More: one with the same bits of its hash is forgotten, and proves
/// itself again.
pub(crate) const PROVEN_PEERS_MAX: usize = 4096;

/// How long the proof of an address, and an Echo value, are valid.
pub(crate) const ECHO_LIFETIME: Duration = Duration::from_secs(60);

/// Bytes of a request's path. Longer: 4.04.
pub(crate) const PATH_SIZE_MAX: usize = 512;

/// Bytes that a demo resource stores. More: 4.13.
pub(crate) const DEMO_STORED_SIZE_MAX: usize = REQUEST_BODY_SIZE_MAX;

/// Requests whose executions the demo resource `/executions` counts, by their numbers from 0 on; a bit for each. A greater
/// number: 4.00.
pub(crate) const DEMO_EXECUTIONS_MAX: usize = 1 << 20;

/// Average handling time of forwarded requests beyond which new ones are shed, by default (row 1.8): the time after
/// which a client repeats a request that is not acknowledged.
pub(crate) const SLOW_TIME: Duration = ACK_TIMEOUT;

/// Time in which the average handling time halves while no request is handled.
pub(crate) const HANDLING_TIME_HALF_LIFE: Duration = Duration::from_secs(1);

/// How long new requests are shed after one that found no worker. An answer of a worker ends it at once.
pub(crate) const NO_WORKER_HOLD: Duration = Duration::from_secs(1);

/// Replies to shed requests, per shard and second. More: further new requests get no reply.
pub(crate) const SHED_REPLIES_PER_SECOND_MAX: u32 = 20_000;

/// Bytes of requests that wait for worker processes, per shard. More: 5.03.
pub(crate) const FORWARDED_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Bytes of incomplete responses of worker processes, per shard. More: 5.03.
pub(crate) const RESPONSES_SIZE_MAX: usize = 32 * 1024 * 1024;

/// How long a forwarded request may take, whatever the pool's own timeout. Reached: 5.04.
pub(crate) const FORWARD_TIMEOUT: Duration = EXCHANGE_LIFETIME;

/// Bytes of the location that a worker names. Longer: the answer has none.
pub(crate) const LOCATION_SIZE_MAX: usize = 256;

/// Observers of a shard. A client address (IPv6: a /64, loopback included) has at most as many as are free, half of them
/// if it is alone. More: a request to observe is answered without observation (RFC 7641 §4.1), and counted.
pub(crate) const OBSERVERS_MAX: usize = 4096;

/// Observed filters of a shard. Each counts for the client that asked for it first, or for another one that observes it.
/// A client address has at most as many as are free, as for [`OBSERVERS_MAX`]. More: 5.03.
pub(crate) const OBSERVED_RESOURCES_MAX: usize = 4096;

/// Filters of a shard whose first state is being read, up to [`INITIAL_RECORDS_READ`] records each; requests for the same
/// filter share one read. A client address has at most as many as are free, as for [`OBSERVERS_MAX`]. More: 5.03.
pub(crate) const FILTER_READS_MAX: usize = 256;

/// Bytes of a state that is stored for its observers. Longer: the older state stays, and the new one is
/// counted. Without an older state, requests for it are answered 5.03.
pub(crate) const OBSERVED_STATE_SIZE_MAX: usize = 64 * 1024;

/// Bytes of all these states, per shard. A client address has at most as many as are free, as for
/// [`OBSERVED_RESOURCES_MAX`]. More: as for [`OBSERVED_STATE_SIZE_MAX`], unless another client that observes
/// the filter or waits for it has room.
pub(crate) const OBSERVED_STATES_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Clients of a filter, besides its owner, that are asked for room for a state. None of them has room: as for
/// [`OBSERVED_STATE_SIZE_MAX`].
pub(crate) const STATE_OWNERS_TRIED_MAX: usize = 8;

/// Of this many notifications of an observer one is confirmable.
pub(crate) const CONFIRMABLE_EVERY: u32 = 10;

/// The longest time without a confirmable notification. Reached: the state is sent again (RFC 7641 §4.5).
pub(crate) const CONFIRMABLE_INTERVAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The least time between notifications of an observer until the time of a round trip is known (RFC 7641 §4.5.1).
/// States in between are not sent.
pub(crate) const NOTIFICATION_INTERVAL: Duration = Duration::from_secs(3);

/// How long a confirmable notification waits that has no room among [`TRANSMISSIONS_MAX`] or
/// [`TRANSMISSIONS_PER_PEER_MAX`].
pub(crate) const NOTIFICATION_RETRY_DELAY: Duration = Duration::from_secs(1);

/// How often a shard checks whether other shards have changed the demo resources that it observes.
pub(crate) const DEMO_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of publications that wait for room in the queue to the hub, per shard. A client address has at most as many as
/// are free, as for [`OBSERVERS_MAX`]. More: 5.03.
pub(crate) const PUBLICATIONS_SIZE_MAX: usize = 16 * 1024 * 1024;

/// How long a publication may take. Reached: 5.03 if it has not entered the hub, else 5.04.
pub(crate) const PUBLICATION_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a stream may take to return its newest record. Reached: 5.04.
pub(crate) const STATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Records at the end of a stream among which the first state of an observed filter is sought. None of them matches: the
/// filter has no state until the next message.
pub(crate) const INITIAL_RECORDS_READ: u64 = 1000;
