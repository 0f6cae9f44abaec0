//! The format on disk. All numbers are little endian; all checksums are CRC-32C.
//!
//! A stream is a directory of segments, each named by its first sequence in twenty digits
//! (`00000000000000000001.segment`) and preallocated. All writes begin and end at a block of 4,096 bytes, and no block
//! is overwritten with other content.
//!
//! ```text
//! segment    │ header, 1 block │ batch │ batch │ … │ batch │ zeros up to the preallocated size
//!
//! header      0  8  magic "STILLSEG"                 ┐ these sixteen bytes mean
//!             8  4  format version, 1                │ the same in every version
//!            12  4  CRC of the block without this    ┘
//!            16  8  stream id: an unpredictable number, drawn when the stream was created
//!            24  8  epoch: incremented with each opening that wrote; never decreases along the log
//!            32  8  first sequence
//!            40  8  created, Unix time in ns
//!            48  8  first sequence of the previous segment; 0: none
//!            56  8  last valid sequence of the previous segment; later content there is ignored
//!            64  8  start of the de-duplication window, a sequence
//!            72  8  preallocated size; the file is shorter only after a clean close
//!            80  4  CRC of the last batch before
//!            84  2  length of the stream's name
//!            86  2  0
//!            88  …  the stream's name, at most 255 bytes, zeros
//!           344  8  creation time of the stream, Unix time in ns; 0 in older headers. This field and the next
//!                   replaced zeros that no reader examined, so the format version is still 1: each version reads
//!                   the other's files
//!           352  8  end of the valid content of the previous segment, in bytes; 0 in older headers
//!           360  …  zeros
//!
//! batch       0  4  magic "STBA"
//!             4  4  CRC of bytes 8..64 (the batch's CRC: it covers that of the body)
//!             8  8  stream id
//!            16  8  epoch, the segment's
//!            24  4  length of the batch with header and padding, a multiple of 4,096
//!            28  4  count of records; 0 in the batch of a clean close
//!            32  8  first sequence
//!            40  8  Unix time in ns, of all its records
//!            48  8  durable watermark when it was written: all records up to this sequence had been synced
//!            56  4  CRC of the previous batch
//!            60  4  CRC of bytes 64..length
//!            64  …  consecutive records, zeros
//!
//! record      0  4  length of the payload
//!             4  4  length of the headers
//!             8  2  length of the subject
//!            10  1  0: ordinary, 1: marker of a loss
//!            11  1  0
//!            12  …  subject, headers, payload
//! ```
//!
//! There is no second format for records of one size: a record has twelve bytes of overhead, has no checksum, time or
//! padding of its own, and is found by the sequence of its batch. Equal sizes would save ten bytes per record and
//! nothing else, since the unit of writing is the batch.
//!
//! There is one time per batch, before all records that were written together; an idle stream writes none.

pub(crate) mod batch;
pub(crate) mod record;
pub(crate) mod segment;
pub(crate) mod snapshot;

/// The format version that this program reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// The `N` bytes at `offset`. The caller has checked that they exist; otherwise zeros, never a panic.
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes.get(offset..).and_then(<[u8]>::first_chunk::<N>).copied().unwrap_or([0; N])
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, offset))
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}

/// Writes `value` at `offset`, which must be in bounds.
pub(crate) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

/// Whether all bytes are zero, as in space that was preallocated and never written.
pub(crate) fn is_blank(bytes: &[u8]) -> bool {
    let mut words = bytes.chunks_exact(64);
    words.all(|words| words.iter().fold(0, |all, byte| all | byte) == 0)
        && bytes.chunks_exact(64).remainder().iter().all(|byte| *byte == 0)
}
