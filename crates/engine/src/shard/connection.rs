//! A connection's slot: what the engine knows of it, beside the session's own state.

use std::time::Duration;

use stilling_ring::Time;

use crate::close_reason::CloseReason;
use crate::limits::{SEND_MAX, WRITE_RATE_MIN};
use crate::store::{Stash, StashStore};

/// No point in time: an absent deadline.
pub(super) const NEVER: Time = Time::from_nanos(u64::MAX);

/// No item in this turn's output.
pub(super) const NO_ITEM: u32 = u32::MAX;

/// The end of a message in held output is not known.
pub(super) const UNKNOWN_REST: u32 = u32::MAX;

/// The life of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// Nobody lives here.
    Free,
    /// A connect is under way.
    Connecting,
    /// The session is in charge.
    Open,
    /// Our side is shut down; input is discarded until the peer closes, so that a reset does not
    /// overtake our last answer (RFC 9112 §9.6).
    Lingering,
    /// The driver closes it; waiting for `Closed`.
    Closing,
    /// The driver gives its socket back; waiting for `Detached`.
    Detaching,
}

/// How a connection that has said everything is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseIntent {
    /// Not at all.
    No,
    /// Close when all output is sent.
    Close,
    /// Shut down when all output is sent, then linger.
    Linger,
    /// Let go of the open socket when all output is sent.
    Detach,
    /// Close now, whatever is unsent.
    Abort,
    /// Disconnect it as a slow consumer.
    SlowConsumer,
}

/// What is armed for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Nothing.
    Nothing,
    /// A receive.
    Receive,
    /// A receive that is being taken back, to be followed by a wait for readability.
    Parking,
    /// A wait for readability: the connection is parked.
    Parked,
}

/// Whether the session is owed a call of `received`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingCall {
    /// No: it has been shown everything, and has done all it wanted with it.
    Nothing,
    /// Yes: there is input that it has not been shown, or it was held up and may have something left to do
    /// with what it has seen.
    Received,
    /// Yes, when this turn's output has gone.
    AfterOutput,
    /// It has offered bytes, and is told how many of them were taken when that is known.
    Taken,
}

/// What is known of the peer's sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    Sending,
    /// It has finished.
    Ended,
    /// It has finished, and the session knows.
    EndReported,
}

/// What is known of our own sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    Open,
    /// It ends when all output is sent.
    Ending,
    Ended,
}

/// What the engine itself does for a connection when a point in time has come. It is cleared by whoever
/// acts on it, so that none gets lost while something else is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionTimer {
    Never,
    /// Park it: its receive has waited in vain.
    Park(Time),
    /// Give its peer up, which takes none of the held-up output.
    Write(Time),
    /// End its lingering.
    Linger(Time),
    /// Give its connect up.
    Connect(Time),
}

impl ConnectionTimer {
    /// The point in time.
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
    /// The engine's own.
    pub(super) timer: ConnectionTimer,
    /// The turn in which a receive last emptied the socket.
    pub(super) emptied_turn: Option<u32>,
    /// Bytes that may be unsent.
    pub(super) send_max: u32,
    /// Bytes at the start of held output that end a message of which the system has the beginning, or [`UNKNOWN_REST`].
    pub(super) message_rest: u32,
    /// Bytes discarded while lingering.
    pub(super) lingered: u32,
    /// While an offer goes out: bytes offered, at the end of the item. When it is over: those taken.
    pub(super) offered: u16,
    pub(super) state: ConnectionState,
    pub(super) finish: CloseIntent,
    pub(super) reading: ReadState,
    pub(super) reason: CloseReason,
    /// The session does not want input now.
    pub(super) paused: bool,
    /// Output is held in the store until the connection is writable.
    pub(super) blocked: bool,
    pub(super) pending_call: PendingCall,
    pub(super) peer: PeerState,
    pub(super) sending: SendState,
    /// Held-up output has gone since the session was last told.
    pub(super) flushed: bool,
    /// We have made it.
    pub(super) outgoing: bool,
    /// The session wants to know whether the peer is still there.
    pub(super) checks_peer: bool,
    /// It is shown input also while output is held up.
    pub(super) reads_while_blocked: bool,
    /// Its deadline is reported also while output is held up.
    pub(super) keeps_deadline: bool,
    /// It stands in the list of those that wait for others' output to go.
    pub(super) is_in_input_blocked: bool,
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
            is_in_input_blocked: false,
        }
    }

    /// The session is to be called again, not before a moment that was agreed on already.
    pub(super) fn schedule_received(&mut self) {
        if self.pending_call == PendingCall::Nothing {
            self.pending_call = PendingCall::Received;
        }
    }

    /// Whether input has to wait until held-up output has gone, or some of it, or some of others' in the store.
    pub(super) fn is_input_blocked(&self, store: &StashStore) -> bool {
        self.blocked && !(self.may_read_while_blocked() && self.output.has_ample_room(store))
    }

    /// Whether input has to wait for others only, until some of their output has gone.
    pub(super) fn waits_for_other_output(&self, store: &StashStore) -> bool {
        self.blocked && self.may_read_while_blocked() && !self.output.has_ample_room(store)
    }

    /// Whether the session's deadline counts now.
    pub(super) fn has_deadline_reported(&self) -> bool {
        !self.blocked || self.reads_while_blocked || self.keeps_deadline
    }

    fn may_read_while_blocked(&self) -> bool {
        self.reads_while_blocked && self.output.len() < self.send_max as usize / 2
    }

    /// Gives the peer more time, since it has taken `sent` bytes of what is held up, or since something is held up from now on.
    pub(super) fn extend_write(&mut self, was_blocked: bool, sent: u32, now: Time, write_timeout: Duration) {
        let until = now.after(write_timeout);
        self.timer = match self.timer {
            // Its time is bounded: only the last message is left.
            ConnectionTimer::Write(timer) if self.reason == CloseReason::SlowConsumer => {
                ConnectionTimer::Write(timer)
            }
            ConnectionTimer::Write(timer) if was_blocked => {
                let earned = Duration::from_nanos(u64::from(sent) * 1_000_000_000 / WRITE_RATE_MIN);
                ConnectionTimer::Write(until.min(timer.after(earned)))
            }
            _ => ConnectionTimer::Write(until),
        };
    }

    /// Whether it is being disconnected as a slow consumer: its session can send nothing more.
    pub(super) fn is_slow_consumer(&self) -> bool {
        self.finish == CloseIntent::SlowConsumer || self.reason == CloseReason::SlowConsumer
    }

    /// Why the connection ends; that of a slow consumer does not change any more.
    pub(super) fn set_reason(&mut self, reason: CloseReason) {
        if self.reason != CloseReason::SlowConsumer {
            self.reason = reason;
        }
    }

    /// Whether it is known how much of an offer was taken.
    pub(super) fn is_offer_finished(&self) -> bool {
        self.pending_call == PendingCall::Taken && !self.has_output()
    }

    /// An offer is over, with its number of bytes taken. What came meanwhile may be shown.
    pub(super) fn finish_offer(&mut self) -> usize {
        self.pending_call = PendingCall::Received;
        std::mem::take(&mut self.offered).into()
    }

    /// Whether output of this turn or of earlier ones is still to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.blocked || self.link != NO_ITEM
    }
}
