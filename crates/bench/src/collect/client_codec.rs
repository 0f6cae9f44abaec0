//! Common interface of the protocols for a publisher: encoding of messages, decoding of answers.

use super::ack_window::Ack;
use super::buffer::ReceiveBuffer;
use super::tally::MessageFailure;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum CodecEvent {
    /// An acknowledgement that names the right stream.
    Ack(Ack),
    /// An answer that settles its message with a failure; without a counter, the oldest message.
    Failed {
        counter: Option<u64>,
        failure: MessageFailure,
        detail: String,
    },
    /// A failure that belongs to no message; the connection continues.
    Unmatched {
        failure: MessageFailure,
        detail: String,
    },
    Ping,
    /// The server has processed everything before the barrier.
    Pong,
    /// A greeting or any other item without consequence.
    Ignored,
    /// The connection cannot continue.
    ProtocolError(String),
}

/// The protocol state of one client. It outlives a connection: `begin` starts the next one.
pub(super) trait ClientCodec: Send {
    fn begin(&mut self, out: &mut Vec<u8>);

    /// Encodes a message; `counter` rises by one from call to call.
    fn publish(&mut self, counter: u64, out: &mut Vec<u8>);

    /// Encodes a request that is answered once all earlier input is processed; returns false if the protocol has none.
    fn barrier(&mut self, out: &mut Vec<u8>) -> bool;

    fn pong(&mut self, out: &mut Vec<u8>);

    fn next(&mut self, input: &mut ReceiveBuffer) -> Option<CodecEvent>;

    /// Returns whether the server sends a greeting on each connection. It must be read before closing: closing with
    /// unread bytes resets the connection, and the reset overtakes the message.
    fn expects_greeting(&self) -> bool;
}
