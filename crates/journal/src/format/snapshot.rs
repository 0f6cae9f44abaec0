//! A snapshot file: the state of a stream's gate after a record.
//!
//! ```text
//!   00000000000000016000.snapshot    └ header (one block) │ state, padded to whole blocks
//! ```
//!
//! Header, little endian: magic, version (u32), CRC of the header's other bytes (u32), stream id (u64), sequence (u64),
//! size of the state (u64), CRC of the state (u32), size of the gate's name (u16), the name.

use std::fmt;

use super::{FORMAT_VERSION, put, u16_at, u32_at, u64_at};
use crate::limits::{BLOCK_SIZE, SEQUENCE_MAX, SNAPSHOT_GATE_SIZE_MAX, SNAPSHOT_SIZE_MAX};

const MAGIC: [u8; 8] = *b"STILLSNP";
const NAME_AT: usize = 46;
const SUFFIX: &str = ".snapshot";
const DIGITS: usize = 20;

/// The state of a stream's gate after a record.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Sequence of the last record that the state includes.
    pub sequence: u64,
    /// Name of the gate.
    pub gate: String,
    /// The state, opaque to the journal.
    pub state: Vec<u8>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} at {}, {} bytes)", self.gate, self.sequence, self.state.len())
    }
}

impl Snapshot {
    /// Bytes of its file.
    pub(crate) fn file_size(&self) -> usize {
        BLOCK_SIZE + self.state.len().next_multiple_of(BLOCK_SIZE)
    }

    /// Writes the file's content into zeroed memory of [`file_size`](Self::file_size) bytes.
    pub(crate) fn write(&self, stream_id: u64, into: &mut [u8]) {
        put(into, BLOCK_SIZE, &self.state);
        let header = &mut into[..BLOCK_SIZE];
        put(header, 0, &MAGIC);
        put(header, 8, &FORMAT_VERSION.to_le_bytes());
        for (offset, value) in [(16, stream_id), (24, self.sequence), (32, self.state.len() as u64)] {
            put(header, offset, &value.to_le_bytes());
        }
        put(header, 40, &crc32c::crc32c(&self.state).to_le_bytes());
        let name = &self.gate.as_bytes()[..self.gate.len().min(SNAPSHOT_GATE_SIZE_MAX)];
        put(header, 44, &(name.len() as u16).to_le_bytes());
        put(header, NAME_AT, name);
        let crc = crc_of(header);
        put(header, 12, &crc.to_le_bytes());
    }

    /// Parses a file of this stream.
    ///
    /// # Errors
    /// Why it is no snapshot of it.
    pub(crate) fn read(bytes: &[u8], stream_id: u64) -> Result<Snapshot, String> {
        let (header, rest) = bytes.split_at_checked(BLOCK_SIZE).ok_or("it is cut off")?;
        if !header.starts_with(&MAGIC) || u32_at(header, 12) != crc_of(header) {
            return Err("its header is damaged".to_owned());
        }
        let version = u32_at(header, 8);
        if version != FORMAT_VERSION {
            return Err(format!("it has the format version {version}, not {FORMAT_VERSION}"));
        }
        if u64_at(header, 16) != stream_id {
            return Err("it belongs to another stream".to_owned());
        }
        let name = header.get(NAME_AT..NAME_AT + usize::from(u16_at(header, 44)));
        let gate = name.and_then(|name| std::str::from_utf8(name).ok()).ok_or("its header is damaged")?;
        let size = usize::try_from(u64_at(header, 32)).ok().filter(|size| *size <= SNAPSHOT_SIZE_MAX);
        let state = size.and_then(|size| rest.get(..size)).ok_or("it is cut off")?;
        if crc32c::crc32c(state) != u32_at(header, 40) {
            return Err("its state is damaged".to_owned());
        }
        let snapshot =
            Snapshot { sequence: u64_at(header, 24), gate: gate.to_owned(), state: state.to_vec() };
        // A file has its whole size before it is durable, so nothing depends on a shorter one.
        if bytes.len() < snapshot.file_size() { Err("it is cut off".to_owned()) } else { Ok(snapshot) }
    }
}

fn crc_of(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..])
}

pub(crate) fn file_name(sequence: u64) -> String {
    format!("{sequence:0DIGITS$}{SUFFIX}")
}

/// The sequence in a file's name, if it is the name of a snapshot.
pub(crate) fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    if digits.len() != DIGITS || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|sequence| (1..=SEQUENCE_MAX).contains(sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_reads_back_and_every_flipped_bit_of_it_is_seen() {
        for size in [0, 5, BLOCK_SIZE] {
            let state = (0..size).map(|at| at as u8).collect();
            let snapshot = Snapshot { sequence: 9, gate: "auction".to_owned(), state };
            let mut bytes = vec![0; snapshot.file_size()];
            snapshot.write(7, &mut bytes);
            assert_eq!(Snapshot::read(&bytes, 7), Ok(snapshot.clone()));
            assert_eq!(Snapshot::read(&bytes, 8), Err("it belongs to another stream".to_owned()));
            // Padding is not read.
            for bit in 0..(BLOCK_SIZE + size) * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Snapshot::read(&bytes, 7).is_err(), "bit {bit} of {size}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for cut in [0, 100, BLOCK_SIZE + size - 1, snapshot.file_size() - 1] {
                assert!(Snapshot::read(&bytes[..cut], 7).is_err(), "cut at {cut} of {size}");
            }
        }
    }

    #[test]
    fn names_are_those_of_snapshots() {
        assert_eq!(sequence_of(&file_name(16_000)), Some(16_000));
        for name in ["00000000000000000000.snapshot", "1.snapshot", "00000000000000000001.segment", "lock"] {
            assert_eq!(sequence_of(name), None, "{name}");
        }
    }
}
