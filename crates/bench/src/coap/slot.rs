//! A place for one request in flight, and the token that names it.

use std::time::Duration;

use stilling_wire::coap::{BlockSize, MessageId, Token};

use super::limits::{ACK_TIMEOUT, MAX_RETRANSMIT};

/// Longest ETag in bytes.
const ETAG_SIZE_MAX: usize = 8;

/// The request and message that an answer belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RequestToken {
    pub(super) endpoint: u16,
    pub(super) slot: u16,
    pub(super) generation: u32,
}

impl RequestToken {
    pub(super) fn encode(self) -> Token {
        let all = u64::from(self.endpoint) << 48 | u64::from(self.slot) << 32 | u64::from(self.generation);
        Token::new(&all.to_be_bytes()).unwrap_or_default()
    }

    pub(super) fn decode(token: &Token) -> Option<RequestToken> {
        let all = u64::from_be_bytes(token.as_bytes().try_into().ok()?);
        Some(RequestToken { endpoint: (all >> 48) as u16, slot: (all >> 32) as u16, generation: all as u32 })
    }
}

/// The validator of a body's first block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ETag {
    bytes: [u8; ETAG_SIZE_MAX],
    size: u8,
}

impl ETag {
    pub(super) fn new(value: &[u8]) -> ETag {
        let mut etag = ETag { size: value.len() as u8, ..ETag::default() };
        let size = value.len().min(ETAG_SIZE_MAX);
        etag.bytes[..size].copy_from_slice(&value[..size]);
        etag
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    pub(super) is_busy: bool,
    /// Number of the current or last message, from the run's first number on.
    pub(super) generation: u32,
    pub(super) id: MessageId,
    /// Number of the variant, or of the request if executions are counted.
    pub(super) variant: u32,
    /// Intended start in nanoseconds of the run.
    pub(super) intended_ns: u64,
    deadline_ns: u64,
    /// Received bytes of the body, and the size of their blocks.
    pub(super) block: Option<(usize, BlockSize)>,
    pub(super) etag: ETag,
    retransmission: Option<Retransmission>,
}

#[derive(Clone, Copy, Debug)]
struct Retransmission {
    count: u32,
    wait: Duration,
    next_ns: u64,
}

/// What a due timer requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotTimer {
    Idle,
    Retransmit,
    /// No acknowledgement after all retransmissions.
    Unacknowledged,
    Expired,
}

impl Slot {
    /// A free slot.
    pub(super) fn new(generation: u32) -> Slot {
        Slot { generation, ..Slot::default() }
    }

    pub(super) fn start(&mut self, variant: u32, intended_ns: u64, deadline_ns: u64) {
        let generation = self.generation;
        *self = Slot { is_busy: true, generation, variant, intended_ns, deadline_ns, ..Slot::default() };
    }

    /// Begins the next message.
    pub(super) fn begin_message(&mut self, id: MessageId, is_confirmable: bool, now_ns: u64) {
        self.generation = self.generation.wrapping_add(1);
        self.id = id;
        self.retransmission = is_confirmable.then(|| Retransmission {
            count: 0,
            wait: ACK_TIMEOUT,
            next_ns: now_ns + ACK_TIMEOUT.as_nanos() as u64,
        });
    }

    /// Ends retransmission of the current message.
    pub(super) fn acknowledge(&mut self) {
        self.retransmission = None;
    }

    pub(super) fn handle_timer(&mut self, now_ns: u64) -> SlotTimer {
        if now_ns >= self.deadline_ns {
            return SlotTimer::Expired;
        }
        let Some(retransmission) = self.retransmission.as_mut().filter(|of| now_ns >= of.next_ns) else {
            return SlotTimer::Idle;
        };
        if retransmission.count == MAX_RETRANSMIT {
            return SlotTimer::Unacknowledged;
        }
        retransmission.count += 1;
        retransmission.wait *= 2;
        retransmission.next_ns = now_ns + retransmission.wait.as_nanos() as u64;
        SlotTimer::Retransmit
    }
}
