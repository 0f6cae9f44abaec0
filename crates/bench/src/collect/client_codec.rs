//! What the protocols have in common for a publisher: how a message is said, and how an answer is heard.

use super::ack_window::Ack;
use super::buffer::ReceiveBuffer;
use super::tally::MessageFailure;

/// Something that a server said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CodecEvent {
    /// An acknowledgement that names the right stream.
    Ack(Ack),
    /// An answer that settles its message, but not well; without a counter, the oldest one.
    Bad { counter: Option<u64>, failure: MessageFailure, detail: String },
    /// Something that belongs to no message; the connection goes on.
    Stray { failure: MessageFailure, detail: String },
    /// It wants to know whether this side lives.
    Ping,
    /// It has processed all that was said before the barrier.
    Pong,
    /// Its description of itself, or anything else without consequence.
    Nothing,
    /// The connection cannot go on.
    Fault(String),
}

/// One connection's side of a conversation. It outlives the connection: `begin` starts the next one.
pub(super) trait ClientCodec: Send {
    /// The first words of a connection.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// A message; `counter` rises by one from call to call.
    fn publish(&mut self, counter: u64, out: &mut Vec<u8>);

    /// A question that is answered when all before it has been processed; false where there is none.
    fn barrier(&mut self, out: &mut Vec<u8>) -> bool;

    /// The answer to a ping.
    fn pong(&mut self, out: &mut Vec<u8>);

    /// The next thing that is complete in what came.
    fn next(&mut self, input: &mut ReceiveBuffer) -> Option<CodecEvent>;

    /// Whether the server says something of itself on each connection: it has to be read before closing, since closing
    /// with bytes unread resets the connection, and the reset overtakes the message.
    fn expects_greeting(&self) -> bool;
}
