//! The first block of a segment: its stream, its first sequence, and the previous segment.

use super::{FORMAT_VERSION, is_blank, put, u16_at, u32_at, u64_at};
use crate::limits::{
    BATCH_SIZE_MAX, BLOCK_SIZE, EPOCH_MAX, SEGMENT_SIZE_MAX, SEQUENCE_MAX, STREAM_NAME_SIZE_MAX,
};

const MAGIC: [u8; 8] = *b"STILLSEG";
const NAME_AT: usize = 88;
const STREAM_CREATED_AT: usize = 344;
const PREVIOUS_END_AT: usize = 352;
const SUFFIX: &str = ".segment";
const DIGITS: usize = 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) stream_id: u64,
    pub(crate) epoch: u64,
    pub(crate) first: u64,
    pub(crate) created_ns: u64,
    pub(crate) previous_first: u64,
    pub(crate) previous_last: u64,
    /// End of the valid content of the previous segment in bytes; 0 in older headers.
    pub(crate) previous_end: u64,
    pub(crate) deduplicate_from: u64,
    pub(crate) size: u64,
    pub(crate) chain: u32,
    pub(crate) name: String,
    /// Creation time of the stream; 0 in older headers.
    pub(crate) stream_created_ns: u64,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum FirstBlock {
    Header(SegmentHeader),
    /// An intact header of another format version.
    Version(u32),
    /// Only zeros.
    Blank,
    /// Other content, or a damaged header.
    Damaged,
}

impl SegmentHeader {
    pub(crate) fn write(&self, block: &mut [u8]) {
        block.fill(0);
        put(block, 0, &MAGIC);
        put(block, 8, &FORMAT_VERSION.to_le_bytes());
        for (offset, value) in [
            (16, self.stream_id),
            (24, self.epoch),
            (32, self.first),
            (40, self.created_ns),
            (48, self.previous_first),
            (56, self.previous_last),
            (64, self.deduplicate_from),
            (72, self.size),
            (STREAM_CREATED_AT, self.stream_created_ns),
            (PREVIOUS_END_AT, self.previous_end),
        ] {
            put(block, offset, &value.to_le_bytes());
        }
        put(block, 80, &self.chain.to_le_bytes());
        let name = &self.name.as_bytes()[..self.name.len().min(STREAM_NAME_SIZE_MAX)];
        put(block, 84, &(name.len() as u16).to_le_bytes());
        put(block, NAME_AT, name);
        let crc = crc_of(block);
        put(block, 12, &crc.to_le_bytes());
    }
}

/// Parses the first block of a file; it may be shorter than a block.
pub(crate) fn read(block: &[u8]) -> FirstBlock {
    if is_blank(block) {
        return FirstBlock::Blank;
    }
    if block.len() < BLOCK_SIZE || !block.starts_with(&MAGIC) || u32_at(block, 12) != crc_of(block) {
        return FirstBlock::Damaged;
    }
    match u32_at(block, 8) {
        FORMAT_VERSION => {}
        other => return FirstBlock::Version(other),
    }
    let length = usize::from(u16_at(block, 84));
    let name = block.get(NAME_AT..NAME_AT + length).and_then(|name| std::str::from_utf8(name).ok());
    let (Some(name), true) = (name, length <= STREAM_NAME_SIZE_MAX) else { return FirstBlock::Damaged };
    let header = SegmentHeader {
        stream_id: u64_at(block, 16),
        epoch: u64_at(block, 24),
        first: u64_at(block, 32),
        created_ns: u64_at(block, 40),
        previous_first: u64_at(block, 48),
        previous_last: u64_at(block, 56),
        previous_end: u64_at(block, PREVIOUS_END_AT),
        deduplicate_from: u64_at(block, 64),
        size: u64_at(block, 72),
        chain: u32_at(block, 80),
        name: name.to_owned(),
        stream_created_ns: u64_at(block, STREAM_CREATED_AT),
    };
    let in_order = header.previous_first <= header.previous_last.saturating_add(1)
        && header.previous_last < header.first
        && header.first <= SEQUENCE_MAX
        && header.epoch <= EPOCH_MAX
        && header.size <= SEGMENT_SIZE_MAX + BATCH_SIZE_MAX as u64 + BLOCK_SIZE as u64;
    if in_order { FirstBlock::Header(header) } else { FirstBlock::Damaged }
}

fn crc_of(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..])
}

pub(crate) fn file_name(first: u64) -> String {
    format!("{first:0DIGITS$}{SUFFIX}")
}

/// The first sequence in a file's name, if it is the name of a segment.
pub(crate) fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    if digits.len() != DIGITS || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|first| (1..=SEQUENCE_MAX).contains(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            stream_id: 7,
            epoch: 3,
            first: 100,
            created_ns: 1_700_000_000_000_000_000,
            previous_first: 1,
            previous_last: 98,
            previous_end: 40_960,
            deduplicate_from: 12,
            size: 65536,
            chain: 0xdead_beef,
            name: "events".to_owned(),
            stream_created_ns: 1_600_000_000_000_000_000,
        }
    }

    #[test]
    fn a_header_reads_back_and_every_flipped_bit_of_it_is_seen() {
        let mut block = vec![1; BLOCK_SIZE];
        header().write(&mut block);
        assert_eq!(read(&block), FirstBlock::Header(header()));
        for bit in 0..BLOCK_SIZE * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&block), FirstBlock::Damaged, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn another_version_is_distinguished_from_damage() {
        let mut block = vec![0; BLOCK_SIZE];
        header().write(&mut block);
        put(&mut block, 8, &2_u32.to_le_bytes());
        assert_eq!(read(&block), FirstBlock::Damaged);
        let crc = crc_of(&block);
        put(&mut block, 12, &crc.to_le_bytes());
        assert_eq!(read(&block), FirstBlock::Version(2));
    }

    #[test]
    fn only_twenty_digits_name_a_segment() {
        assert_eq!(first_of(&file_name(42)), Some(42));
        for name in [
            "42.segment",
            "00000000000000000000.segment",
            "+0000000000000000042.segment",
            "00000000000000000042",
            "99999999999999999999.segment",
            "lock",
            "",
        ] {
            assert_eq!(first_of(name), None, "{name}");
        }
    }
}
