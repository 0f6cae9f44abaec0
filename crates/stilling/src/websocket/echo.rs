//! The echo: returns every message, as test suites and benchmarks of WebSockets expect.

use stilling_engine::Io;
use stilling_wire::websocket::{MessageKind, Opcode, WebSocketFrameHeader};

use super::limits::ECHO_BYTES_MAX;

/// A message whose rest waits for the client to read.
#[derive(Debug, Default)]
pub(super) struct Echo {
    unsent: Vec<u8>,
    sent: usize,
}

impl Echo {
    /// Whether a message waits: the connection is not read.
    pub(super) fn is_busy(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns a message. What exceeds the connection's share of the output store stays here and counts in `held`, the
    /// bytes of the shard. Returns false without room for it.
    pub(super) fn send(
        &mut self,
        kind: MessageKind,
        message: &[u8],
        held: &mut usize,
        io: &mut Io<'_>,
    ) -> bool {
        let opcode = match kind {
            MessageKind::Text => Opcode::Text,
            MessageKind::Binary => Opcode::Binary,
        };
        let length = message.len() as u64;
        let header = WebSocketFrameHeader { opcode, is_final: true, length, mask: None };
        if message.len() + header.size() <= io.spare_room() {
            let _ = io.send_with(|out| {
                header.encode(out);
                out.extend_from_slice(message);
            });
            return true;
        }
        let size = header.size() + message.len();
        if *held + size > ECHO_BYTES_MAX {
            return false;
        }
        *held += size;
        let mut unsent = Vec::with_capacity(size);
        header.encode(&mut unsent);
        unsent.extend_from_slice(message);
        *self = Echo { unsent, sent: 0 };
        io.offer(&self.unsent);
        true
    }

    /// Handles that `count` offered bytes were sent.
    pub(super) fn offer_sent(&mut self, count: usize, held: &mut usize, io: &mut Io<'_>) {
        self.sent += count;
        match self.unsent.get(self.sent..).filter(|rest| !rest.is_empty()) {
            Some(rest) => io.offer(rest),
            None => {
                self.discard(held);
                io.call_again();
            }
        }
    }

    /// Frees the waiting message.
    pub(super) fn discard(&mut self, held: &mut usize) {
        *held -= std::mem::take(self).unsent.len();
    }
}
