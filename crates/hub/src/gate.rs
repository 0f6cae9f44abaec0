//! Gates: logic that decides what enters a stream, with a state that the stream's records alone produce.
//!
//! ```text
//!   message ─▶ judge(&self) ─┬─▶ reject: the reason goes to the publisher, after the sync that covers the state
//!                            └─▶ record(s) ─▶ open batch ─▶ apply(&mut self)
//!
//!   start:  snapshot ─▶ restore ─▶ apply each record behind it
//! ```
//!
//! The hub calls a gate from its one thread, after de-duplication and conditions. A rejected message changes nothing.

mod auction;
mod recovery;
mod registry;
mod stream_gate;
mod verdict;

use crate::time::UnixNanos;

pub use self::auction::AuctionGate;
pub use self::registry::GateRegistry;
pub use self::stream_gate::StreamGate;
pub use self::verdict::{GateRecords, RejectReason, Verdict};

/// A message before it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateMessage<'a> {
    /// Checked subject.
    pub subject: &'a str,
    /// NATS header block; empty if there is none.
    pub headers: &'a [u8],
    /// Payload of the message.
    pub payload: &'a [u8],
}

/// A stored record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateRecord<'a> {
    /// Sequence in the stream.
    pub sequence: u64,
    /// Time of the record, the same after a restart.
    pub time: UnixNanos,
    /// Subject of the record.
    pub subject: &'a str,
    /// NATS header block; empty if there is none.
    pub headers: &'a [u8],
    /// Payload of the record.
    pub payload: &'a [u8],
}

/// Decides what enters a stream.
///
/// The state must depend only on the calls of [`apply`](Gate::apply) and [`restore`](Gate::restore): no clock, no
/// randomness, no input from elsewhere. After a restart it is restored from a snapshot and the records behind it.
///
/// ```
/// use stilling_hub::{Gate, GateMessage, GateRecord, UnixNanos, Verdict};
///
/// /// Stores numbers that are larger than the one before.
/// #[derive(Default)]
/// struct Rising(u64);
///
/// impl Gate for Rising {
///     fn judge(&self, message: &GateMessage<'_>, _: UnixNanos) -> Verdict {
///         match number(message.payload) {
///             Some(number) if number > self.0 => Verdict::Accept,
///             Some(_) => Verdict::reject(format_args!("the number is not larger than {}", self.0)),
///             None => Verdict::reject("the payload is not a number"),
///         }
///     }
///
///     fn apply(&mut self, record: &GateRecord<'_>) {
///         self.0 = number(record.payload).unwrap_or(self.0);
///     }
///
///     fn snapshot(&self, into: &mut Vec<u8>) {
///         into.extend_from_slice(&self.0.to_le_bytes());
///     }
///
///     fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
///         let bytes = snapshot.try_into().map_err(|_| "a snapshot has 8 bytes".to_owned())?;
///         self.0 = u64::from_le_bytes(bytes);
///         Ok(())
///     }
/// }
///
/// fn number(payload: &[u8]) -> Option<u64> {
///     std::str::from_utf8(payload).ok()?.parse().ok()
/// }
///
/// let mut gate = Rising::default();
/// let message = |payload| GateMessage { subject: "n", headers: b"", payload };
/// assert_eq!(gate.judge(&message(b"7"), UnixNanos::EPOCH), Verdict::Accept);
/// let record =
///     GateRecord { sequence: 1, time: UnixNanos::EPOCH, subject: "n", headers: b"", payload: b"7" };
/// gate.apply(&record);
/// let refused = gate.judge(&message(b"7"), UnixNanos::EPOCH);
/// assert_eq!(refused, Verdict::reject("the number is not larger than 7"));
/// ```
pub trait Gate: Send {
    /// Decides about a message on the state that all earlier records have produced. Called again if the message has to
    /// wait for the disk. A panic rejects the message.
    fn judge(&self, message: &GateMessage<'_>, now: UnixNanos) -> Verdict;

    /// Changes the state by a stored record. Records from before the gate was configured were not judged. A panic
    /// freezes the stream, because the state is unknown then.
    fn apply(&mut self, record: &GateRecord<'_>);

    /// Appends the complete state. Equal states yield equal bytes.
    fn snapshot(&self, into: &mut Vec<u8>);

    /// Replaces the initial state by that of a [snapshot](Gate::snapshot).
    ///
    /// # Errors
    /// The reason why the snapshot cannot be used. The records of the whole stream are applied instead, if they still
    /// exist; else the stream is frozen.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;

    /// Returns whether the gate has a state. Without one there are no snapshots and no replay, records are not applied,
    /// and retention keeps nothing for the gate. Must not change.
    fn has_state(&self) -> bool {
        true
    }
}

/// A gate without a state: a function that checks messages.
///
/// ```
/// use stilling_hub::{GateRegistry, StatelessGate, Verdict};
///
/// let mut gates = GateRegistry::default();
/// gates.register("short", || {
///     StatelessGate(|message, _| match message.payload.len() {
///         0..=80 => Verdict::Accept,
///         size => Verdict::reject(format_args!("{size} bytes exceed 80")),
///     })
/// });
/// assert!(gates.contains("short"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StatelessGate<F>(pub F)
where
    F: Fn(&GateMessage<'_>, UnixNanos) -> Verdict + Send;

impl<F> Gate for StatelessGate<F>
where
    F: Fn(&GateMessage<'_>, UnixNanos) -> Verdict + Send,
{
    fn judge(&self, message: &GateMessage<'_>, now: UnixNanos) -> Verdict {
        (self.0)(message, now)
    }

    fn apply(&mut self, _: &GateRecord<'_>) {}

    fn snapshot(&self, _: &mut Vec<u8>) {}

    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn has_state(&self) -> bool {
        false
    }
}
