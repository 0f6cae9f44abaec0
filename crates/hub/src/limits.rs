//! Every maximum of the hub, with its unit, its default and what happens when it is reached.

/// Bytes of requests, payloads in shared blocks included, that a shard gathers before it begins the next intake. One message may
/// make it longer.
pub const PUBLICATION_BATCH_SIZE: usize = 256 * 1024;

/// Intakes of one shard. All with the hub: the shard's publishing connections are not read until one comes back.
pub const PUBLICATION_BATCHES: usize = 8;

/// Bytes of messages and answers, payloads in shared blocks included, for one shard in one piece, and of the deliveries that the
/// shard makes of a piece at once. One message may make either longer; where it goes to many subscriptions of the shard, the
/// rest of them get it in the next deliveries.
pub const DELIVERY_BATCH_SIZE: usize = 256 * 1024;

/// Pieces of deliveries that may be with one shard. All there: what goes to this shard waits in its queue until one
/// comes back.
pub const DELIVERY_BATCHES: usize = 8;

/// Bytes that may wait for one shard which has all its pieces, payloads in shared blocks included although these
/// are kept by reference. Full: the hub takes no publication that would add to the queue and none of this shard's
/// connections, with what the same shards have handed in behind them, and records of streams on disk that would add
/// to it are released later; all of this goes on when the shard gives a piece back. What is begun may exceed the
/// bound: a message by its own size and eight bytes for each of its registrations in the shard, answers to the
/// shard's own connections by as much as these have published, and what one record or question makes for consumers
/// by as much again; more of that stops the hub for all until the shard takes some.
pub const SHARD_QUEUE_SIZE_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a batch from which on it is written although the one before is not durable yet.
pub const SEAL_SIZE: usize = 256 * 1024;

/// Bytes of a payload from which on deliveries refer to it where it is kept, in a batch. Shorter ones are copied into them.
pub const SHARED_PAYLOAD_SIZE_MIN: usize = 1024;

/// How long an open batch refers to payloads in the blocks of shards while the journal writes the one before, in nanoseconds.
/// Then the hub copies them in, so that a slow disk holds no blocks.
pub const OPEN_REFERENCES_NS_MAX: u64 = 20_000_000;

/// How often it is looked, while a stream waits for a batch, whether deliveries still refer to all of them, in nanoseconds. Shards
/// wake the hub when they give deliveries back; references may end a little later.
pub const REFERENCES_CHECK_EVERY_NS: u64 = 1_000_000;

/// How long a stream on disk that can take no more waits for a disk that does not answer at all, in nanoseconds. Then it
/// refuses what it cannot take (503, `err_code` 10023), counted as `hung`, until the disk answers.
pub const DISK_STALL_TIMEOUT_NS: u64 = 15_000_000_000;

/// How long a write may take before the disk is reported as slow, in nanoseconds.
pub const DISK_SLOW_NS: u64 = 1_000_000_000;

/// Shortest time between two log lines of one kind about one stream, in nanoseconds. Changes meanwhile are reported when it is
/// over: the latest, and how many there were.
pub const NOTICE_EVERY_NS: u64 = 10_000_000_000;

/// Ranges of damaged records that each stream remembers as counted, some 32 bytes each. Full: a further range is counted and
/// logged each time a reader comes to it, until retention has removed others.
pub const DAMAGED_RANGES_MAX: usize = 4096;

/// Log lines that wait for the thread of the hub to take them. More wait at their streams.
pub const NOTICES_MAX: usize = 64;

/// Batches that each of two streams on disk may have open, with the journal, or waiting for shards; more streams have equal shares of twice as
/// many. Reached: the stream takes nothing more until one of them is durable, so that streams that wait leave batches to the
/// others.
pub const BATCHES_PER_STREAM_MAX: usize = 32;

/// How often it is looked meanwhile, in nanoseconds.
pub const DISK_CHECK_EVERY_NS: u64 = 1_000_000_000;

/// Messages of one stream that may wait for the disk, unless its configuration says otherwise. Full: connections that publish
/// to it are parked until the disk has written: they are not read, and others go on.
pub const PENDING_DEFAULT: u32 = 262_144;

/// Bytes of the reply subjects to which the answers of these messages go. Full: the same.
pub const REPLIES_SIZE_MAX: usize = 32 * 1024 * 1024;

/// Bytes of requests of all connections that are parked because their stream is full; each request counts
/// [`PARKED_REQUEST_SIZE`] beside its parts, and the memory for them may be twice that. The connections that wait for one stream
/// may have as much as all streams leave free, so one stream has at most half. Full: a shard with a further such request waits
/// in front of the hub, with all of its connections; other shards go on.
pub const PARKED_SIZE_MAX: usize = 96 * 1024 * 1024;

/// Bytes of requests of one such connection. It is not read while it is parked, so only what its shard has read before
/// counts: at most a body of `POST /publish` of the longest kind. More: the same.
pub const PARKED_PER_CLIENT_SIZE_MAX: usize = 20 * 1024 * 1024;

/// Bytes that a parked request counts for beside its parts.
pub const PARKED_REQUEST_SIZE: usize = 64;

/// `PING`s of one parked connection that are parked although there is no room; its end is in any case. More: the same.
pub const PARKED_BARRIERS_MAX: usize = 64;

/// Requests of parked connections that are processed in one turn of the hub. The others are processed in the next
/// turns.
pub const UNPARKED_PER_TURN: usize = 4096;

/// Bytes of such requests, counted as above. The last one may make it more.
pub const UNPARKED_SIZE_PER_TURN: usize = 256 * 1024;

/// Answers for one batch for which memory is kept when they have been given. What more took is given back.
pub const PENDING_ACKS_KEPT_MAX: usize = 16_384;

/// Bytes of reply subjects for which memory is kept the same way.
pub const REPLIES_KEPT_SIZE_MAX: usize = 1024 * 1024;

/// Batches of one stream for whose answers such memory is kept. That of more is given back.
pub const SPARE_PENDING_ACKS_MAX: usize = 4;

/// Subscriptions in one shard, and registrations of all shards. More are refused with `-ERR 'maximum subscriptions exceeded'`.
pub const SUBSCRIPTIONS_MAX: usize = 1_000_000;

/// Subscriptions of one connection unless told otherwise. More are refused the same way, and the connection is closed.
pub const SUBSCRIPTIONS_PER_CLIENT_MAX: usize = 10_000;

/// Tokens of the filters of one connection's subscriptions, each of which may cost some 250 bytes. One more filter than fit is
/// refused, and the connection is closed.
pub const FILTER_TOKENS_PER_CLIENT_MAX: usize = 100_000;

/// Tokens of the filters of all registrations. One more filter than fit is refused as one subscription too many is.
pub const FILTER_TOKENS_MAX: usize = 8_000_000;

/// How long a stream recognises a message id unless told otherwise, in nanoseconds. Then it is forgotten.
pub const DEDUP_TIME_NS: u64 = 120_000_000_000;

/// Message ids that a stream recognises, 32 bytes of memory each, and half as much again while their table grows. Full: the
/// oldest is forgotten before its time, and counted.
pub const DEDUP_IDS_MAX: u64 = 1_000_000;

/// Message ids that are moved to a larger table with each new one, until all are there.
pub const DEDUP_MOVED_PER_ID: u64 = 4;

/// Message ids of one stream whose time is over and whose memory is freed in one turn of the hub. The others are already
/// unknown, and freed in the next turns.
pub const DEDUP_REMOVED_PER_TURN: u64 = 1024;

/// How often a hub that has nothing else to do frees such memory, in nanoseconds.
pub const SWEEP_EVERY_NS: u64 = 10_000_000;

/// Consumers in all. More are refused with an error object (`err_code` 10026).
pub const CONSUMERS_MAX: usize = 10_000;

/// Consumers that one connection has made and that are still there. More are refused with an error object (`err_code`
/// 10026), until others have gone.
pub const CONSUMERS_PER_CLIENT_MAX: usize = 1000;

/// Bytes of the question that makes a consumer. A longer one is refused with an error object (`err_code` 10003).
pub const CONSUMER_CONFIG_SIZE_MAX: usize = 16 * 1024;

/// Bytes of the configurations of all consumers. Full: further consumers are refused with an error object (`err_code` 10023).
pub const CONSUMER_CONFIGS_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Filters of one consumer. One with more is refused with an error object (`err_code` 10003).
pub const FILTERS_PER_CONSUMER_MAX: usize = 64;

/// Tokens of the filters of the consumers that one connection has made, each of which may cost some 250 bytes. One more filter
/// than fit is refused with an error object (`err_code` 10026).
pub const CONSUMER_FILTER_TOKENS_PER_CLIENT_MAX: usize = 500_000;

/// Tokens of the filters of all consumers. One more filter than fit is refused with an error object (`err_code` 10023).
pub const CONSUMER_FILTER_TOKENS_MAX: usize = 4_000_000;

/// Longest time that a consumer stays which nobody listens to, in nanoseconds. Who asks for longer gets this, and is told.
pub const INACTIVE_NS_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Longest time that a consumer stays without a listener when its client has left, in nanoseconds. Where another one finds no
/// room the one whose client left first is removed at once.
pub const INACTIVE_ORPHAN_NS_MAX: u64 = 60 * 1_000_000_000;

/// Steps per turn of the hub in which it removes the consumers and the requests for messages of clients that have left. The
/// rest waits for the next turns.
pub const DEPARTED_CONSUMER_STEPS_PER_TURN: usize = 256;

/// Steps in which the hub removes registrations of clients that have left, at most once per [`DEPARTED_REGISTRATIONS_EVERY_NS`], and
/// as many in each turn for those that messages would have matched. Such registrations get nothing, but take time of each
/// message to their subject until they are removed. A new registration removes one, too. A step is a registration, or the
/// comparison of its filter with 16 streams. A shard removes as many subscriptions in each of its turns.
///
/// A step takes 1 to 2 µs, as its memory is cold, so a message that arrives during the removal waits for some 25 µs, and the
/// removal every millisecond takes less than a thirtieth of the hub's thread. Without the pauses the thread would be busy
/// without interruption, and whatever the kernel runs on the same core would wait for a scheduling slice of several
/// milliseconds.
pub const DEPARTED_REGISTRATIONS_PER_TURN: usize = 16;

/// Subscriptions that have ended, and that the hub has nothing more for, which a new one of the same shard removes.
pub const ENDED_SUBSCRIPTIONS_PER_SUB: usize = 2;

/// Matches of messages with such subscriptions that allow one more step in a turn. A match takes some nanoseconds, so the removal
/// takes about as long as the matches that allow it, and a subscription that was left is met at most about so many times.
pub const DEPARTED_MATCHES_PER_STEP: u64 = 128;

/// Nanoseconds between two turns that remove such subscriptions.
pub const DEPARTED_REGISTRATIONS_EVERY_NS: u64 = 1_000_000;

/// Consumers checked for expiry and heartbeats per 50 ms. With more of them each waits for its turn.
pub const CONSUMERS_CHECKED_PER_TICK: usize = 1024;

/// Consumers that read or send a chunk in one turn of the hub. The others are the first of the next turn.
pub const CHUNKS_PER_TURN: usize = 64;

/// Filters that are compared with records of chunks in one turn of the hub. The rest of the chunks waits for the next turn.
pub const FILTERS_COMPARED_PER_TURN: usize = 65_536;

/// Consumers that are told at once of those of a stream. Who wants the others asks from the next place on.
pub const CONSUMERS_PER_PAGE: usize = 256;

/// Bytes of configurations on such a page; one may make it longer. What is behind them is on the next page.
pub const CONSUMERS_PAGE_SIZE: usize = 128 * 1024;

/// Bytes of questions and answers of the API in one turn of the hub. A connection with a further question is parked
/// until the next turn; other connections go on.
pub const API_SIZE_PER_TURN: usize = 1024 * 1024;

/// Bytes of memory streams that the hub reads in one turn to go on with questions for a subject's next record. The rest
/// is read in the next turns.
pub const API_READ_SIZE_PER_TURN: usize = 1024 * 1024;

/// Reads of the disk for such questions that may be under way at once, in all. More wait; so consumers have the other
/// reads.
pub const API_DISK_READS_MAX: usize = 16;

/// Questions of one connection for single records that may be unanswered. More are refused (503, `err_code` 10008).
pub const READS_PER_CLIENT_MAX: usize = 64;

/// Requests for messages that may wait at one consumer. More are answered `409 Exceeded MaxWaiting`, as all below.
pub const PULLS_PER_CONSUMER_MAX: usize = 512;

/// Requests for messages of one connection that may wait.
pub const PULLS_PER_CLIENT_MAX: usize = 8192;

/// Requests for messages that may wait in all.
pub const PULLS_MAX: usize = 65_536;

/// Bytes of a message with its headers unless told otherwise. Longer: refused, and its sender is told.
pub const MESSAGE_SIZE_DEFAULT: u32 = 1024 * 1024;

/// Bytes that a stream on disk keeps unless told otherwise. Full: the oldest records go.
pub const DISK_STREAM_SIZE: u64 = 10 * 1024 * 1024 * 1024;

/// Bytes that a memory stream keeps unless told otherwise. Full: the oldest records go.
pub const MEMORY_STREAM_SIZE: u64 = 64 * 1024 * 1024;

/// Nanoseconds within which records of a memory stream have the same time.
pub const MEMORY_TIME_STEP_NS: u64 = 1_000_000;

/// Shortest time between two rounds of retention, in nanoseconds; each is for one stream. A stream is longer than it should be by
/// what comes meanwhile, and by a segment.
pub const RETAIN_EVERY_NS: u64 = 1_000_000_000;

/// How often a hub that has nothing else to do looks at records that may have become too old, in nanoseconds.
pub const AGES_EVERY_NS: u64 = 10_000_000_000;

/// Shortest time between two marker records of losses in one stream, in nanoseconds. What is lost meanwhile is in the next.
pub const MARKER_EVERY_NS: u64 = 1_000_000_000;
