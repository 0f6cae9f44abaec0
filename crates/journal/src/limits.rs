//! Limits of the journal, each with unit, default and effect when reached.

/// Bytes of a block, the unit of all writes: satisfies O_DIRECT on common disks.
pub const BLOCK_SIZE: usize = 4096;

/// Default size of a segment in bytes. Full: the next batch opens a new segment.
pub const SEGMENT_SIZE_DEFAULT: u64 = 64 * 1024 * 1024;

/// Smallest segment in bytes, where its size is derived from a stream's retention.
pub const SEGMENT_SIZE_MIN: u64 = 256 * 1024;

/// Largest segment in bytes; larger values are cut to this. Recovery's index of the last segment grows with it, by at
/// most 64 bytes per block.
pub const SEGMENT_SIZE_MAX: u64 = 1024 * 1024 * 1024;

/// Default size of a batch in bytes. Full: the record opens the next batch.
pub const BATCH_SIZE_DEFAULT: usize = 256 * 1024;

/// Largest batch in bytes, hence largest record with subject and headers; a batch that claims a larger size is damaged.
pub const BATCH_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Smallest payload in bytes that stays in its shared block until its batch is built. Smaller payloads are copied at
/// once.
pub const DEFERRED_COPY_SIZE_MIN: usize = 1024;

/// Most bytes of unbuilt payloads in a batch that the hub builds itself while the journal is idle, because waking the
/// builder's thread would take longer. More: the builder builds it.
pub const HUB_BUILD_IDLE_SIZE_MAX: usize = 64 * 1024;

/// Most bytes of unbuilt payloads in a batch that the hub builds itself while the journal has other batches, because
/// building costs no more than the wake. More: the builder builds it.
pub const HUB_BUILD_BUSY_SIZE_MAX: usize = 16 * 1024;

/// Batches per durable write. More are written with the next one.
pub const WRITE_BATCHES_MAX: usize = 16;

/// Longest subject of a record in bytes. Longer: the record is rejected.
pub const SUBJECT_SIZE_MAX: usize = u16::MAX as usize;

/// Longest name of a stream in bytes. Longer: the name is rejected.
pub const STREAM_NAME_SIZE_MAX: usize = 255;

/// Largest sequence of a stream. Files and batches that claim a larger one are ignored as foreign.
pub const SEQUENCE_MAX: u64 = 1 << 62;

/// Largest epoch of a stream: one for each opening that writes. Headers that claim a larger one are ignored as foreign.
pub const EPOCH_MAX: u64 = 1 << 62;

/// Findings listed by a recovery or an inspection. More: further ones are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Bytes per read from a segment. The memory of a reader: this, or the longest batch it meets.
pub const READ_SIZE: usize = 256 * 1024;

/// Bytes between two entries of a segment's offset index, with which readers search a sequence. A search reads at most
/// as many additional bytes; an entry uses 16 bytes of memory.
pub const INDEX_INTERVAL_SIZE: u64 = 1024 * 1024;

/// Largest step in bytes by which fresh space is zeroed ahead of small durable writes, so that these do not change the
/// extents of the file.
pub const ZERO_AHEAD_SIZE: usize = 8 * 1024 * 1024;

/// First step in bytes by which fresh space is zeroed ahead, small for streams with few records; each step doubles the
/// zeroed space, up to [`ZERO_AHEAD_SIZE`].
pub const ZERO_AHEAD_SIZE_FIRST: usize = 256 * 1024;

/// Smallest durable write in bytes that goes to fresh space directly, because zeroing would cost more than the change
/// of extents.
pub const ZERO_AHEAD_BELOW: usize = 256 * 1024;

/// Small writes in a row to a segment before fresh space is zeroed ahead of the next one; a single small write among
/// large ones does not justify it.
pub const ZERO_AHEAD_AFTER: u32 = 4;

/// Segments of a stream whose files are checked per round, once a second. More: the others are checked in the next
/// rounds.
pub const CHECKED_SEGMENTS_MAX: usize = 256;

/// First delay in milliseconds before a stream that waits for space is retried; each further delay is twice as long, up
/// to [`RETRY_DELAY_MS_MAX`].
pub const RETRY_DELAY_MS_MIN: u64 = 100;

/// Largest delay in milliseconds between two retries of a stream that waits for space.
pub const RETRY_DELAY_MS_MAX: u64 = 1000;

/// Milliseconds between two checks that the files of all streams exist.
pub const CHECK_INTERVAL_MS: u64 = 1000;

/// Unread notices per stream that belong to no batch (failed write, waiting, resumed, frozen). More: a wait that ends
/// before its notice is read is not reported, and of several failed writes only the latest is.
pub const NOTICES_PER_STREAM: usize = 6;

/// Streams per journal thread. More: the journal does not start.
pub const STREAMS_MAX: usize = 1024;

/// Bytes of records per chunk that the replay thread reads. A single record may exceed it.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// Bytes of the state in a snapshot; writing it takes as much memory again. A longer one is refused, and a file that
/// claims a larger size is ignored.
pub const SNAPSHOT_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Bytes of the name of a gate in a snapshot. A longer one is cut.
pub const SNAPSHOT_GATE_SIZE_MAX: usize = 255;

/// Readers that the replay thread keeps open between two requests. More: the least recently used one is closed, and
/// its next request searches its position again.
pub const OPEN_READERS_MAX: usize = 64;
