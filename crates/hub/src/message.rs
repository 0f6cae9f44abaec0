//! Messages to subscriptions.

use crate::payload::Payload;
use crate::time::UnixNanos;

/// Position of a record in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordPosition {
    pub(crate) stream: u32,
    /// Identifies the stream's incarnation: the sequences of another epoch are unrelated.
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) time_ns: UnixNanos,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutboundMessage<'a> {
    pub(crate) subject: &'a [u8],
    pub(crate) reply: &'a [u8],
    pub(crate) headers: &'a [u8],
    pub(crate) payload: Payload<'a>,
    /// Its position if it is the record of a stream.
    pub(crate) position: Option<RecordPosition>,
}
