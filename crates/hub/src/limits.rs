//! Maxima of the hub: unit, default, and the effect of reaching them.

/// Bytes of requests in a publication batch, payloads in shared blocks included, before a shard begins the next one. A
/// batch may exceed it by one message.
pub const PUBLICATION_BATCH_SIZE: usize = 256 * 1024;

/// Publication batches per shard. When the hub holds all of them, the shard does not read publishing connections until
/// one comes back.
pub const PUBLICATION_BATCHES: usize = 8;

/// Bytes of messages and answers in a routed batch or a delivery batch, payloads in shared blocks included. Either may
/// exceed it by one message. A message to many subscriptions of a shard continues in the next delivery batch.
pub const DELIVERY_BATCH_SIZE: usize = 256 * 1024;

/// Uses of a delivery batch after which its memory is compared with the largest of them. Beyond four times that, and
/// beyond [`DELIVERY_BATCH_SIZE`] for each of its four tables, memory is freed. A batch that hands out feeds has up to 80
/// bytes for each connection of the shard that reads one, and 4 for each message of a feed for sids of one size.
pub const MEMORY_CHECKED_EVERY: u32 = 256;

/// Subscriptions of a shard with the same filter and header support, and the same sid or sids of one size, from which they
/// share one encoded copy of each message, a feed. Below, each gets lines of its own.
pub const FEED_SHARERS_MIN: usize = 8;

/// Bytes of the largest block of an open feed. Full: its subscriptions get the messages that they have not received
/// yet, and the feed continues in another block. A longer message gets a block of its own size.
pub const FEED_BLOCK_SIZE: usize = DELIVERY_BATCH_SIZE;

/// Bytes of the smallest feed's memory.
pub const FEED_BLOCK_SIZE_MIN: usize = 4096;

/// Bytes of all shards' memory for feeds, not counting longer messages: each shard may use an equal part, at least
/// [`FEED_BLOCK_SIZE`]. Full: the shard's deliveries continue in its next turn, when everything that was sent from them
/// is in the kernel or copied.
pub const FEEDS_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Open or closed feeds of all shards, some 300 bytes each: each shard may have an equal part, at least one. Full:
/// further subscriptions get lines of their own.
pub const FEEDS_MAX: usize = 65_536;

/// Routed batches in flight to one shard. When the shard holds all of them, its deliveries wait in its queue until one
/// comes back.
pub const ROUTED_BATCHES: usize = 8;

/// Bytes queued for a shard that holds all its routed batches, payloads in shared blocks included although the queue
/// keeps references. Full: a publication that would add to the queue waits, as do the requests of this shard's
/// connections, and later requests of the same shards wait behind them. Disk stream records that would add to the queue
/// are released later. Processing resumes when the shard returns a routed batch. Work that has begun may exceed the
/// bound: a message by its size and eight bytes per registration in the shard, answers to the shard's own connections
/// by the size of their publications. Consumer messages of one record or API request may fill it up to twice the bound;
/// then the hub stops for all shards until this shard returns a routed batch.
pub const SHARD_QUEUE_SIZE_MAX: usize = 4 * 1024 * 1024;

/// Bytes from which an open batch is written although the previous one is not durable yet.
pub const SEAL_SIZE: usize = 256 * 1024;

/// Bytes from which deliveries refer to a payload in a batch instead of copying it.
pub const SHARED_PAYLOAD_SIZE_MIN: usize = 1024;

/// Nanoseconds an open batch may refer to payloads in the shards' blocks while the journal writes the previous batch.
/// Then the hub copies them, so that a slow disk does not pin blocks.
pub const OPEN_REFERENCES_NS_MAX: u64 = 20_000_000;

/// Nanoseconds between checks for a free batch while deliveries refer to all batches of a stream. Shards wake the hub
/// when they return deliveries, but the references may end slightly later.
pub const REFERENCES_CHECK_EVERY_NS: u64 = 1_000_000;

/// Nanoseconds that a full disk stream waits for a disk that completes no write. Then the stream refuses publications
/// (503, `err_code` 10023), counted as `hung`, until the disk responds.
pub const DISK_STALL_TIMEOUT_NS: u64 = 15_000_000_000;

/// Nanoseconds after which a write is reported as slow.
pub const DISK_SLOW_NS: u64 = 1_000_000_000;

/// Minimum nanoseconds between two log lines of one kind about one stream. Changes in between are reported afterwards:
/// the latest and their number.
pub const NOTICE_EVERY_NS: u64 = 10_000_000_000;

/// Ranges of damaged records that a stream has counted, some 32 bytes each. Full: a further range is counted and logged
/// each time a reader reaches it, until retention removes earlier ranges.
pub const DAMAGED_RANGES_MAX: usize = 4096;

/// Log lines queued for the hub thread. Further lines wait in their streams.
pub const NOTICES_MAX: usize = 64;

/// Batches of one of two disk streams that are open, with the journal, or waiting for shards. More than two streams
/// share twice this number equally; a single stream has no such bound. Full: the stream accepts no publications until
/// one of its batches is released, so that other streams still find batches.
pub const BATCHES_PER_STREAM_MAX: usize = 32;

/// Nanoseconds between checks of the disk while a stream waits.
pub const DISK_CHECK_EVERY_NS: u64 = 1_000_000_000;

/// Messages of one stream that may wait for the disk, unless configured. Full: connections that publish to the stream
/// are parked (their requests wait, and they are not read) until the disk has written; other connections continue.
pub const PENDING_DEFAULT: u32 = 262_144;

/// Bytes of reply subjects of messages that wait for the disk, per stream. Full: as for [`PENDING_DEFAULT`].
pub const REPLIES_SIZE_MAX: usize = 32 * 1024 * 1024;

/// Bytes of requests of all connections parked for full streams; each request counts [`PARKED_REQUEST_SIZE`] in
/// addition to its parts, and the memory may be twice that. The connections parked for one stream may use as many bytes
/// as remain free for all streams, so at most half of the total. Full: a shard whose next request would be parked waits
/// with all its connections; other shards continue.
pub const PARKED_SIZE_MAX: usize = 96 * 1024 * 1024;

/// Bytes of parked requests of one connection. A parked connection is not read, so only requests already read count: at
/// most one `POST /publish` body of maximum size. Full: as for [`PARKED_SIZE_MAX`].
pub const PARKED_PER_CLIENT_SIZE_MAX: usize = 20 * 1024 * 1024;

/// Bytes that a parked request counts for in addition to its parts.
pub const PARKED_REQUEST_SIZE: usize = 64;

/// `PING`s per connection that are parked even without room for parked requests. A request to close after all answers
/// and a disconnect are always parked. Full: as for [`PARKED_SIZE_MAX`].
pub const PARKED_BARRIERS_MAX: usize = 64;

/// Requests of parked connections that the hub processes in one turn. The others wait for the next turns.
pub const UNPARKED_PER_TURN: usize = 4096;

/// Bytes of parked requests that the hub processes in one turn, counted as for [`PARKED_SIZE_MAX`]. The last request
/// may exceed it.
pub const UNPARKED_SIZE_PER_TURN: usize = 256 * 1024;

/// Pending acknowledgements per batch for which memory is kept after use. Larger memory is freed.
pub const PENDING_ACKS_CAPACITY_MAX: usize = 16_384;

/// Bytes of reply subjects per batch for which memory is kept after use. Larger memory is freed.
pub const REPLIES_CAPACITY_MAX: usize = 1024 * 1024;

/// Sets of memory for pending acknowledgements kept per stream. Further sets are freed.
pub const SPARE_PENDING_ACKS_MAX: usize = 4;

/// Subscriptions per shard, and registrations of all shards. Further ones are refused with `-ERR 'maximum subscriptions
/// exceeded'`.
pub const SUBSCRIPTIONS_MAX: usize = 1_000_000;

/// Subscriptions per connection, unless configured. A further one is refused the same way, and the connection is
/// closed.
pub const SUBSCRIPTIONS_PER_CLIENT_MAX: usize = 10_000;

/// Tokens of the filters of one connection's subscriptions, each up to some 250 bytes of memory. A filter beyond that
/// is refused, and the connection is closed.
pub const FILTER_TOKENS_PER_CLIENT_MAX: usize = 100_000;

/// Tokens of the filters of all registrations. A filter beyond that is refused like a subscription beyond
/// [`SUBSCRIPTIONS_MAX`].
pub const FILTER_TOKENS_MAX: usize = 8_000_000;

/// Nanoseconds for which a stream recognises a message id, unless configured. Then the stream forgets the id.
pub const DEDUP_TIME_NS: u64 = 120_000_000_000;

/// Message ids that a stream recognises, 32 bytes of memory each, half as much again while the table grows. Full: the
/// oldest id is forgotten early, and counted.
pub const DEDUP_IDS_MAX: u64 = 1_000_000;

/// Message ids moved to a larger table per new id, until all are moved.
pub const DEDUP_MOVED_PER_ID: u64 = 4;

/// Expired message ids of one stream freed in one turn of the hub. The others are freed in the next turns; expired ids
/// are not recognised in any case.
pub const DEDUP_REMOVED_PER_TURN: u64 = 1024;

/// Nanoseconds between two wake-ups of an idle hub that free expired message ids.
pub const SWEEP_EVERY_NS: u64 = 10_000_000;

/// Total consumers. Further ones are refused with an error object (`err_code` 10026).
pub const CONSUMERS_MAX: usize = 10_000;

/// Consumers created by one connection and not removed. Further ones are refused with an error object (`err_code`
/// 10026) until others are removed.
pub const CONSUMERS_PER_CLIENT_MAX: usize = 1000;

/// Bytes of the request that creates a consumer. A longer one is refused with an error object (`err_code` 10003).
pub const CONSUMER_CONFIG_SIZE_MAX: usize = 16 * 1024;

/// Bytes of the configurations of all consumers. Full: further consumers are refused with an error object (`err_code`
/// 10023).
pub const CONSUMER_CONFIGS_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Filters per consumer. A consumer with more is refused with an error object (`err_code` 10003).
pub const FILTERS_PER_CONSUMER_MAX: usize = 64;

/// Tokens of the filters of the consumers created by one connection, each up to some 250 bytes of memory. A filter
/// beyond that is refused with an error object (`err_code` 10026).
pub const CONSUMER_FILTER_TOKENS_PER_CLIENT_MAX: usize = 500_000;

/// Tokens of the filters of all consumers. A filter beyond that is refused with an error object (`err_code` 10023).
pub const CONSUMER_FILTER_TOKENS_MAX: usize = 4_000_000;

/// Maximum nanoseconds that a consumer without subscribers is kept. A longer requested time is reduced to this, and the
/// answer shows it.
pub const INACTIVE_NS_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Maximum nanoseconds that a consumer without subscribers is kept after its client has disconnected. When a new
/// consumer finds no room, the consumers of disconnected clients without subscribers are removed at once, those of the
/// earliest disconnect first.
pub const INACTIVE_ORPHAN_NS_MAX: u64 = 60 * 1_000_000_000;

/// Steps per turn of the hub for the consumers and pull requests of disconnected clients. The others wait for the next
/// turns.
pub const DISCONNECTED_CONSUMER_STEPS_PER_TURN: usize = 256;

/// Steps of one round that removes registrations of disconnected clients; rounds are at least
/// [`STALE_REGISTRATIONS_EVERY_NS`] apart. Each turn has this number of further steps for stale registrations that
/// match its messages: they receive nothing, but each message to their subject takes longer until they are removed. A
/// new registration also removes one. A step is the removal of a registration, or the comparison of its filter with 16
/// streams. A shard removes this number of subscriptions per turn.
///
/// A step takes 1 to 2 µs because its memory is cold: a message that arrives during the removal waits some 25 µs, and
/// one removal per millisecond takes less than a thirtieth of the hub's thread. Without pauses the thread would be busy
/// without interruption, and other threads on its core would wait for a scheduling slice of several milliseconds.
pub const STALE_REGISTRATIONS_PER_TURN: usize = 16;

/// Ended subscriptions that a new subscription of the same shard removes, once the hub has processed their end.
pub const ENDED_SUBSCRIPTIONS_PER_SUB: usize = 2;

/// Matches of messages with stale registrations that add one removal step to the turn. A match takes nanoseconds, so
/// the removal takes about as long as these matches, and a stale registration is matched about this many times at
/// most.
pub const STALE_MATCHES_PER_STEP: u64 = 128;

/// Minimum nanoseconds between two rounds that remove stale registrations.
pub const STALE_REGISTRATIONS_EVERY_NS: u64 = 1_000_000;

/// Consumers checked for expiry and heartbeats per 50 ms. With more consumers each one is checked less often.
pub const CONSUMERS_CHECKED_PER_TICK: usize = 1024;

/// Consumers that read or send a chunk in one turn of the hub. The others come first in the next turn.
pub const CHUNKS_PER_TURN: usize = 64;

/// Filters compared with records of chunks in one turn of the hub. The rest of the chunks waits for the next turn.
pub const FILTERS_COMPARED_PER_TURN: usize = 65_536;

/// Subscriptions over WebSocket and SSE that catch up, in total. A further one is refused: SSE closes, WebSocket closes
/// with 1013.
pub const CATCH_UPS_MAX: usize = 65_536;

/// Concurrent disk reads of subscriptions that catch up. Further ones wait in order.
pub const CATCH_UP_READS_MAX: usize = 16;

/// Bytes of chunks that wait for room in the shards of subscriptions that catch up, outstanding reads included; a record
/// longer than a chunk may exceed it. Full: further reads wait, also for shards with room.
pub const CATCH_UP_CHUNKS_SIZE_MAX: usize = 32 * 1024 * 1024;

/// Catch-ups tried in one turn of the hub; those without room in their shard use no chunk ([`CHUNKS_PER_TURN`]). The
/// others come first in the next turn.
pub const CATCH_UP_ATTEMPTS_PER_TURN: usize = 4096;

/// Records that one read for a consumer or a catch-up returns. The rest is read next.
pub const RECORDS_PER_READ: u32 = 4096;

/// Nanoseconds after which a catch-up is tried again that found no free read, no room in its shard or a stream that is
/// not open.
pub const CATCH_UP_RETRY_NS: u64 = 50_000_000;

/// Streams described per answer. The client requests the rest with an offset.
pub const STREAMS_PER_PAGE: usize = 256;

/// Names of streams listed per answer. The client requests the rest with an offset.
pub const STREAM_NAMES_PER_PAGE: usize = 1024;

/// Consumers of a stream listed per answer. The client requests the rest with an offset.
pub const CONSUMERS_PER_PAGE: usize = 256;

/// Bytes of configurations per answer; one configuration may exceed it. The rest is in the next answer.
pub const CONSUMERS_PAGE_SIZE: usize = 128 * 1024;

/// Bytes of API requests and answers in one turn of the hub. A connection with a further request is parked until the
/// next turn; other connections continue.
pub const API_SIZE_PER_TURN: usize = 1024 * 1024;

/// Bytes of memory streams read in one turn of the hub for requests for a subject's next record. The rest is read in
/// the next turns.
pub const API_READ_SIZE_PER_TURN: usize = 1024 * 1024;

/// Concurrent disk reads for requests for single records. Further ones wait; the other reads are reserved for
/// consumers.
pub const API_DISK_READS_MAX: usize = 16;

/// Unanswered requests for single records per connection. Further ones are refused (503, `err_code` 10008).
pub const READS_PER_CLIENT_MAX: usize = 64;

/// Pull requests that may wait per consumer. Further ones are answered `409 Exceeded MaxWaiting`.
pub const PULLS_PER_CONSUMER_MAX: usize = 512;

/// Pull requests that may wait per connection. Further ones are answered `409 Exceeded MaxWaiting`.
pub const PULLS_PER_CLIENT_MAX: usize = 8192;

/// Pull requests that may wait in total. Further ones are answered `409 Exceeded MaxWaiting`.
pub const PULLS_MAX: usize = 65_536;

/// Bytes of a message with its headers, unless configured. A longer message is refused, and the publisher gets an
/// error.
pub const MESSAGE_SIZE_DEFAULT: u32 = 1024 * 1024;

/// Bytes that a disk stream keeps, unless configured. Full: the oldest records are removed.
pub const DISK_STREAM_SIZE: u64 = 10 * 1024 * 1024 * 1024;

/// Bytes that a memory stream keeps, unless configured. Full: the oldest records are removed.
pub const MEMORY_STREAM_SIZE: u64 = 64 * 1024 * 1024;

/// Nanoseconds within which records of a memory stream have the same time.
pub const MEMORY_TIME_STEP_NS: u64 = 1_000_000;

/// Minimum nanoseconds between two rounds of retention, each for one stream in turn. A stream may exceed its bounds by
/// a segment and by the records between two of its rounds.
pub const RETAIN_EVERY_NS: u64 = 1_000_000_000;

/// Nanoseconds between two wake-ups of an idle hub for retention by age.
pub const AGE_RETENTION_EVERY_NS: u64 = 10_000_000_000;

/// Minimum nanoseconds between two loss markers in one stream. The next marker includes the losses in between.
pub const MARKER_EVERY_NS: u64 = 1_000_000_000;

/// Bytes of the reason that a gate gives for a rejection. Longer text is cut.
pub const REJECT_REASON_SIZE_MAX: usize = 128;

/// Records that a gate may store instead of one message. More: the message is rejected, counted as a failure of the
/// gate. Together more than a batch or a segment: the message is refused as too large.
pub const GATE_RECORDS_MAX: usize = 64;

/// Bytes of the name of a gate. A longer one is refused at the start.
pub const GATE_NAME_SIZE_MAX: usize = 64;

/// Bytes of records after which the state of a gate is written to a snapshot; fewer if the stream keeps less than eight
/// times as many bytes, and at least [`GATE_SNAPSHOT_RATIO`] times the bytes of the last snapshot. A restart replays
/// about as many. Retention removes only records that a snapshot covers, so a stream may exceed its bounds by as many
/// bytes.
pub const GATE_SNAPSHOT_EVERY_SIZE: u64 = 16 * 1024 * 1024;

/// Bytes of records per byte of a gate's snapshot, at least: snapshots add at most this part to what is written.
pub const GATE_SNAPSHOT_RATIO: u64 = 4;

/// Auctions that the gate `auction` keeps, up to 160 bytes of memory and 154 bytes of a snapshot each. Full: the one
/// that was closed first is forgotten; if all are open, a further one is rejected.
pub const AUCTIONS_MAX: usize = 10_000;

/// Bytes of an auction's name. Messages with a longer one are rejected.
pub const AUCTION_NAME_SIZE_MAX: usize = 64;

/// Bytes of a bidder's name. Bids with a longer one are rejected.
pub const AUCTION_BIDDER_SIZE_MAX: usize = 64;

/// Bytes of a message to an auction. Longer ones are rejected.
pub const AUCTION_BODY_SIZE_MAX: usize = 4096;

/// Highest price in minor units: the largest integer that JavaScript represents exactly. Bids with a higher one are
/// rejected.
pub const AUCTION_PRICE_MAX: u64 = (1 << 53) - 1;

/// Bytes of a message for a subscriber over WebSocket or SSE, with escapes and prefixes of lines. More: the subscriber
/// gets a notice of a gap instead, or nothing if no stream stores the message.
pub const ENCODED_MESSAGE_SIZE_MAX: usize = 15 * 1024 * 1024;
