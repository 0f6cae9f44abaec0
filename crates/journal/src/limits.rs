//! Every maximum of the journal, with its unit, its default and what happens when it is reached.

/// Bytes of a block, the unit in which everything is written: what O_DIRECT wants on every disk that is sold.
pub const BLOCK_SIZE: usize = 4096;

/// Bytes of a segment unless told otherwise. Full: the next batch opens a new segment.
pub const SEGMENT_SIZE_DEFAULT: u64 = 64 * 1024 * 1024;

/// Bytes of a segment at least, where its size follows from how much of a stream is kept.
pub const SEGMENT_SIZE_MIN: u64 = 256 * 1024;

/// Most bytes of a segment that can be chosen; more is cut to this. The index that recovery builds of the last
/// segment grows with it, by at most 64 bytes per block.
pub const SEGMENT_SIZE_MAX: u64 = 1024 * 1024 * 1024;

/// Bytes of a batch unless told otherwise. Full: the record opens the next batch.
pub const BATCH_SIZE_DEFAULT: usize = 256 * 1024;

/// Most bytes of a batch, hence of a record with its subject and headers; a batch that says it is longer is damage.
pub const BATCH_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Bytes of a payload in a shared block from which on it is copied when its batch is built. Shorter ones are copied at once.
pub const BUILT_LATER_SIZE_MIN: usize = 1024;

/// Bytes of payloads in shared blocks up to which the writer builds a batch itself when the journal has nothing else to do: the
/// other thread would take longer to wake. More: that builds it.
pub const BUILT_AT_ONCE_SIZE_MAX: usize = 64 * 1024;

/// The same while the journal has other batches: building so little costs no more than the wake.
pub const BUILT_BESIDE_SIZE_MAX: usize = 16 * 1024;

/// Batches that one durable write takes. More go out with the next write.
pub const WRITE_BATCHES_MAX: usize = 16;

/// Bytes of a record's subject. Longer: the record is refused.
pub const SUBJECT_SIZE_MAX: usize = u16::MAX as usize;

/// Bytes of a stream's name. Longer: the name is refused.
pub const STREAM_NAME_SIZE_MAX: usize = 255;

/// The last sequence a stream can have. Files and batches that claim a higher one are not ours.
pub const SEQUENCE_MAX: u64 = 1 << 62;

/// The last epoch a stream can have: one for each opening that writes. A head that claims a higher one is not ours.
pub const EPOCH_MAX: u64 = 1 << 62;

/// Findings of a recovery or an inspection that are kept one by one; further ones are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Bytes that are read from a segment at once. Memory of a reader: this, or the longest batch it meets.
pub const READ_SIZE: usize = 256 * 1024;

/// Bytes of a segment between two places that are remembered for readers that look for a sequence. They read at most so
/// many bytes too much; a segment remembers sixteen bytes for each.
pub const MARK_DISTANCE: u64 = 1024 * 1024;

/// Most bytes of fresh space that are zeroed at once ahead of small durable writes, so that these need no new extents.
pub const ZERO_AHEAD_SIZE: usize = 8 * 1024 * 1024;

/// Bytes that are zeroed ahead at first, so that a stream with few records costs little; each step is as long as all
/// before it, up to [`ZERO_AHEAD_SIZE`].
pub const ZERO_AHEAD_SIZE_FIRST: usize = 256 * 1024;

/// Durable writes of at least so many bytes go into fresh space as it is: zeroing it would cost more than the extents.
pub const ZERO_AHEAD_BELOW: usize = 256 * 1024;

/// Shorter writes into a segment, in a row, before fresh space is zeroed ahead of the next: the odd one among long writes is
/// not worth it.
pub const ZERO_AHEAD_AFTER: u32 = 4;

/// Segments of a stream that are looked for at once, once a second, whether they are still there. More: the others follow
/// with the next looks.
pub const CHECKED_SEGMENTS_MAX: usize = 256;

/// Milliseconds after which a stream that waits for room is tried again; each further wait is twice as long, up to
/// [`RETRY_DELAY_MS_MAX`].
pub const RETRY_DELAY_MS_MIN: u64 = 100;

/// Milliseconds between two tries of a stream that waits for room, at most.
pub const RETRY_DELAY_MS_MAX: u64 = 1000;

/// Milliseconds between two looks whether the files of all streams are still there.
pub const CHECK_INTERVAL_MS: u64 = 1000;

/// Reports of each stream that belong to no batch (failed write, waiting, resumed, frozen) and have not been taken yet. More: a
/// wait that was not reported in time is not reported at all, and of failed writes the latest is.
pub const NOTICES_PER_STREAM: usize = 6;

/// Streams that one journal thread serves. More: it does not start.
pub const STREAMS_MAX: usize = 1024;

/// Bytes of records that are read for somebody at once. One record may make it longer.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// Readers that the replay thread keeps open between two orders. More: the one that was used least lately is closed and
/// looks for its place again.
pub const OPEN_READERS_MAX: usize = 64;
