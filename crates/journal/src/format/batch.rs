//! The header of a batch.

use super::record::RECORD_HEADER_SIZE;
use super::{put, u32_at, u64_at};
use crate::limits::{BATCH_SIZE_MAX, BLOCK_SIZE, EPOCH_MAX, SEQUENCE_MAX};

const MAGIC: [u8; 4] = *b"STBA";

/// Bytes of a batch before its first record.
pub(crate) const BATCH_HEADER_SIZE: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchHeader {
    pub(crate) stream_id: u64,
    pub(crate) epoch: u64,
    pub(crate) length: u32,
    pub(crate) count: u32,
    pub(crate) first: u64,
    pub(crate) time_ns: u64,
    pub(crate) watermark: u64,
    pub(crate) previous_crc: u32,
    pub(crate) body_crc: u32,
    /// The CRC of this header; [`write`](BatchHeader::write) computes it.
    pub(crate) crc: u32,
}

impl BatchHeader {
    /// The sequence of the last record; one before the first if there is none.
    pub(crate) fn last(&self) -> u64 {
        self.first + u64::from(self.count) - 1
    }

    pub(crate) fn write(&self, batch: &mut [u8]) -> u32 {
        put(batch, 0, &MAGIC);
        put(batch, 8, &self.stream_id.to_le_bytes());
        put(batch, 16, &self.epoch.to_le_bytes());
        put(batch, 24, &self.length.to_le_bytes());
        put(batch, 28, &self.count.to_le_bytes());
        put(batch, 32, &self.first.to_le_bytes());
        put(batch, 40, &self.time_ns.to_le_bytes());
        put(batch, 48, &self.watermark.to_le_bytes());
        put(batch, 56, &self.previous_crc.to_le_bytes());
        put(batch, 60, &self.body_crc.to_le_bytes());
        let crc = crc32c::crc32c(&batch[8..BATCH_HEADER_SIZE]);
        put(batch, 4, &crc.to_le_bytes());
        crc
    }

    /// The header at the beginning of `bytes`, if it is intact and plausible: a valid length, valid sequences, and a
    /// watermark below them.
    pub(crate) fn read(bytes: &[u8]) -> Option<BatchHeader> {
        let head = bytes.get(..BATCH_HEADER_SIZE)?;
        let crc = u32_at(head, 4);
        if !head.starts_with(&MAGIC) || crc32c::crc32c(&head[8..]) != crc {
            return None;
        }
        let header = BatchHeader {
            stream_id: u64_at(head, 8),
            epoch: u64_at(head, 16),
            length: u32_at(head, 24),
            count: u32_at(head, 28),
            first: u64_at(head, 32),
            time_ns: u64_at(head, 40),
            watermark: u64_at(head, 48),
            previous_crc: u32_at(head, 56),
            body_crc: u32_at(head, 60),
            crc,
        };
        let length = header.length as usize;
        let records = (header.count as usize).saturating_mul(RECORD_HEADER_SIZE);
        let can_be = (BLOCK_SIZE..=BATCH_SIZE_MAX).contains(&length)
            && length.is_multiple_of(BLOCK_SIZE)
            && records <= length - BATCH_HEADER_SIZE
            && (1..=SEQUENCE_MAX).contains(&header.first)
            && header.epoch <= EPOCH_MAX
            && header.watermark < header.first;
        can_be.then_some(header)
    }
}
