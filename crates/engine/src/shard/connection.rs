//! The engine's state of a connection, beside the session.

use std::time::Duration;

use stilling_ring::Time;

use super::on_demand::Readiness;
use crate::close_reason::CloseReason;
use crate::limits::{SEND_MAX, WRITE_RATE_MIN};
use crate::store::{Stash, StashStore};

/// An absent deadline.
pub(super) const NEVER: Time = Time::from_nanos(u64::MAX);

/// No item in this turn's output.
pub(super) const NO_ITEM: u32 = u32::MAX;

/// A value of [`Connection::message_rest`]: unknown.
pub(super) const UNKNOWN_REST: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Free,
    Connecting,
    Open,
    /// The sending direction is shut down; input is discarded until the peer closes, so that a reset does not overtake
    /// the last response (RFC 9112 §9.6).
    Lingering,
    /// The driver closes it; waiting for `Closed`.
    Closing,
    /// The driver returns its socket; waiting for `Detached`.
    Detaching,
}

/// How the session has requested to end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseIntent {
    No,
    /// Close when all output is sent.
    Close,
    /// Shut down when all output is sent, then linger.
    Linger,
    /// Release the open socket when all output is sent.
    Detach,
    /// Close now and drop unsent output.
    Abort,
    SlowConsumer,
}

/// The operation armed for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    Nothing,
    Receive,
    /// A receive that is being cancelled, to be followed by a wait for readability.
    Parking,
    /// A wait for readability: the connection is parked.
    Parked,
}

/// Whether a call of the session is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingCall {
    Nothing,
    /// `received`: there is new input, or the session may continue with unconsumed input.
    Received,
    /// `received`, when this turn's output has been sent.
    AfterOutput,
    /// `offer_sent`, when it is known how many of the offered bytes were sent.
    OfferSent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    Sending,
    Ended,
    /// It has ended, and the session has been notified.
    EndReported,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    Open,
    /// It ends when all output is sent.
    Ending,
    Ended,
}

/// The engine's own timer of a connection. It stays set until the handler acts on it, so that no expiry is lost while
/// another operation is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionTimer {
    Never,
    /// Park it: no input has arrived during its receive.
    Park(Time),
    /// Close it: its peer receives blocked output too slowly.
    Write(Time),
    /// End its lingering.
    Linger(Time),
    /// Abandon its connect.
    Connect(Time),
}

impl ConnectionTimer {
    pub(super) fn at(self) -> Time {
        match self {
            ConnectionTimer::Never => NEVER,
            ConnectionTimer::Park(at)
            | ConnectionTimer::Write(at)
            | ConnectionTimer::Linger(at)
            | ConnectionTimer::Connect(at) => at,
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) generation: u32,
    /// While the slot is free: the next free slot. While open: its item in this turn's output.
    pub(super) link: u32,
    pub(super) input: Stash,
    pub(super) output: Stash,
    /// The session's deadline.
    pub(super) deadline: Time,
    pub(super) timer: ConnectionTimer,
    /// The turn in which a receive last emptied the socket.
    pub(super) emptied_turn: Option<u32>,
    /// Maximum of unsent bytes.
    pub(super) send_max: u32,
    /// Bytes at the start of held output that complete a partly sent message, or [`UNKNOWN_REST`].
    pub(super) message_rest: u32,
    pub(super) lingered: u32,
    /// During an offer: bytes offered, at the end of the item. After it: bytes sent.
    pub(super) offered: u16,
    pub(super) state: ConnectionState,
    pub(super) finish: CloseIntent,
    pub(super) reading: ReadState,
    pub(super) reason: CloseReason,
    pub(super) paused: bool,
    /// Output is held in the store until the connection is writable.
    pub(super) blocked: bool,
    pub(super) pending_call: PendingCall,
    pub(super) peer: PeerState,
    pub(super) sending: SendState,
    /// All blocked output was sent: a call of `flushed` is due.
    pub(super) flushed: bool,
    pub(super) outgoing: bool,
    /// The session has requested a check of the peer.
    pub(super) checks_peer: bool,
    pub(super) reads_while_blocked: bool,
    pub(super) keeps_deadline: bool,
    /// It is in `Shard::input_blocked`.
    pub(super) is_in_input_blocked_list: bool,
    pub(super) readiness: Readiness,
}

const _: () = assert!(size_of::<Connection>() <= 96, "a connection's slot has grown");

impl Connection {
    pub(super) fn free(generation: u32, next_free: u32) -> Self {
        Connection { state: ConnectionState::Free, link: next_free, ..Connection::open(generation) }
    }

    pub(super) fn open(generation: u32) -> Self {
        Connection {
            generation,
            link: NO_ITEM,
            input: Stash::default(),
            output: Stash::default(),
            deadline: NEVER,
            timer: ConnectionTimer::Never,
            emptied_turn: None,
            send_max: SEND_MAX as u32,
            message_rest: 0,
            lingered: 0,
            offered: 0,
            state: ConnectionState::Open,
            finish: CloseIntent::No,
            reading: ReadState::Nothing,
            reason: CloseReason::Done,
            paused: false,
            blocked: false,
            pending_call: PendingCall::Nothing,
            peer: PeerState::Sending,
            sending: SendState::Open,
            flushed: false,
            outgoing: false,
            checks_peer: false,
            reads_while_blocked: false,
            keeps_deadline: false,
            is_in_input_blocked_list: false,
            readiness: Readiness::default(),
        }
    }

    /// Schedules a call of `received`, unless another call is due already.
    pub(super) fn schedule_received(&mut self) {
        if self.pending_call == PendingCall::Nothing {
            self.pending_call = PendingCall::Received;
        }
    }

    /// Whether input waits until blocked output, of this or of other connections, has been sent.
    pub(super) fn is_input_blocked(&self, store: &StashStore) -> bool {
        self.blocked && !(self.may_read_while_blocked() && self.output.has_ample_room(store))
    }

    pub(super) fn waits_for_other_output(&self, store: &StashStore) -> bool {
        self.blocked && self.may_read_while_blocked() && !self.output.has_ample_room(store)
    }

    pub(super) fn reports_deadline(&self) -> bool {
        !self.blocked || self.reads_while_blocked || self.keeps_deadline
    }

    fn may_read_while_blocked(&self) -> bool {
        self.reads_while_blocked && self.output.len() < self.send_max as usize / 2
    }

    /// Starts the write timeout when output is first blocked, and extends it when the peer received `sent` bytes of
    /// that.
    pub(super) fn extend_write(&mut self, was_blocked: bool, sent: u32, now: Time, write_timeout: Duration) {
        let until = now.after(write_timeout);
        self.timer = match self.timer {
            // The time for the last message of a slow consumer is not extended.
            ConnectionTimer::Write(timer) if self.reason == CloseReason::SlowConsumer => {
                ConnectionTimer::Write(timer)
            }
            ConnectionTimer::Write(timer) if was_blocked => {
                let extension = Duration::from_nanos(u64::from(sent) * 1_000_000_000 / WRITE_RATE_MIN);
                ConnectionTimer::Write(until.min(timer.after(extension)))
            }
            _ => ConnectionTimer::Write(until),
        };
    }

    pub(super) fn is_slow_consumer(&self) -> bool {
        self.finish == CloseIntent::SlowConsumer || self.reason == CloseReason::SlowConsumer
    }

    /// Sets the close reason; that of a slow consumer is final.
    pub(super) fn set_reason(&mut self, reason: CloseReason) {
        if self.reason != CloseReason::SlowConsumer {
            self.reason = reason;
        }
    }

    /// Whether the number of sent bytes of an offer is known.
    pub(super) fn is_offer_finished(&self) -> bool {
        self.pending_call == PendingCall::OfferSent && !self.has_output()
    }

    /// Ends an offer and returns the number of bytes sent. Input that arrived meanwhile may be shown.
    pub(super) fn finish_offer(&mut self) -> usize {
        self.pending_call = PendingCall::Received;
        std::mem::take(&mut self.offered).into()
    }

    /// Whether output of this turn or of earlier ones is still to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.blocked || self.link != NO_ITEM
    }
}
