//! Records inside a batch.

use super::{put, u16_at, u32_at};
use crate::limits::{BATCH_SIZE_MAX, SUBJECT_SIZE_MAX};

/// Bytes of a record in addition to subject, headers and payload.
pub(crate) const RECORD_HEADER_SIZE: usize = 12;

/// The purpose of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// A published message.
    Ordinary,
    /// A marker: messages were rejected, shed or lost before they reached the stream.
    Loss,
}

/// One record, borrowed from its bytes. The three parts are opaque to the journal. `P` is the representation of the
/// payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a, P = &'a [u8]> {
    /// The purpose.
    pub kind: RecordKind,
    /// The subject; at most [`SUBJECT_SIZE_MAX`] bytes.
    pub subject: &'a [u8],
    /// The headers, in any form.
    pub headers: &'a [u8],
    /// The payload.
    pub payload: P,
}

impl<'a, P> Record<'a, P> {
    /// The same record with another payload, or with another representation of it.
    #[must_use]
    pub fn with_payload<Q>(&self, payload: Q) -> Record<'a, Q> {
        Record { kind: self.kind, subject: self.subject, headers: self.headers, payload }
    }
}

impl<'a> Record<'a> {
    /// An ordinary record without headers.
    #[must_use]
    pub fn new(subject: &'a [u8], payload: &'a [u8]) -> Record<'a> {
        Record { kind: RecordKind::Ordinary, subject, headers: &[], payload }
    }

    /// Bytes that the record takes in a batch; `None` if it fits no batch.
    #[must_use]
    pub fn size(&self) -> Option<usize> {
        let size = RECORD_HEADER_SIZE
            .checked_add(self.subject.len())?
            .checked_add(self.headers.len())?
            .checked_add(self.payload.len())?;
        (size <= BATCH_SIZE_MAX && self.subject.len() <= SUBJECT_SIZE_MAX).then_some(size)
    }

    pub(crate) fn write(&self, into: &mut [u8]) {
        self.write_before_payload(into).copy_from_slice(self.payload);
    }

    /// Writes the record without its payload at the beginning of `into`, which has its [`size`](Record::size). Returns
    /// the room for the payload.
    pub(crate) fn write_before_payload<'b>(&self, into: &'b mut [u8]) -> &'b mut [u8] {
        let Record { kind, subject, headers, payload } = self;
        // `size` has checked that the lengths fit their fields.
        put(into, 0, &(payload.len() as u32).to_le_bytes());
        put(into, 4, &(headers.len() as u32).to_le_bytes());
        put(into, 8, &(subject.len() as u16).to_le_bytes());
        let flag = match kind {
            RecordKind::Ordinary => 0,
            RecordKind::Loss => 1,
        };
        put(into, 10, &[flag, 0]);
        let (into_subject, rest) = into[RECORD_HEADER_SIZE..].split_at_mut(subject.len());
        let (into_headers, into_payload) = rest.split_at_mut(headers.len());
        into_subject.copy_from_slice(subject);
        into_headers.copy_from_slice(headers);
        into_payload
    }

    /// The record at the beginning of `bytes` and the bytes after it; `None` if it is incomplete.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<(Record<'a>, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(RECORD_HEADER_SIZE)?;
        let kind = match (head[10], head[11]) {
            (0, 0) => RecordKind::Ordinary,
            (1, 0) => RecordKind::Loss,
            _ => return None,
        };
        let (subject, rest) = rest.split_at_checked(usize::from(u16_at(head, 8)))?;
        let (headers, rest) = rest.split_at_checked(usize::try_from(u32_at(head, 4)).ok()?)?;
        let (payload, rest) = rest.split_at_checked(usize::try_from(u32_at(head, 0)).ok()?)?;
        Some((Record { kind, subject, headers, payload }, rest))
    }
}

/// The records of a batch, in order. Ends early at bytes that are not a record.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    next: u64,
    end: u64,
}

impl<'a> Records<'a> {
    /// The `count` records in `bytes`, the first of which has the sequence `first`.
    pub(crate) fn new(bytes: &'a [u8], first: u64, count: u32) -> Records<'a> {
        Records { bytes, next: first, end: first + u64::from(count) }
    }

    /// Whether all records are complete, followed only by zeros.
    pub(crate) fn are_whole(mut self) -> bool {
        while self.next < self.end {
            if self.next().is_none() {
                return false;
            }
        }
        super::is_blank(self.bytes)
    }

    pub(crate) fn skip_to(mut self, sequence: u64) -> Records<'a> {
        while self.next < sequence && self.next().is_some() {}
        self
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = (u64, Record<'a>);

    fn next(&mut self) -> Option<(u64, Record<'a>)> {
        if self.next >= self.end {
            return None;
        }
        let (record, rest) = Record::read(self.bytes)?;
        let sequence = self.next;
        self.next += 1;
        self.bytes = rest;
        Some((sequence, record))
    }
}
