//! Control frames of a WebSocket server (RFC 6455 §5.5), for the sessions of every protocol over WebSocket.

use stilling_engine::Io;
use stilling_wire::websocket::limits::CONTROL_SIZE_MAX;
use stilling_wire::websocket::{CloseCode, MaskedPayload, Opcode, WebSocketFrameHeader, encode_close};

/// Bytes of the longest control frame of a server.
const CONTROL_FRAME_SIZE_MAX: usize = 2 + CONTROL_SIZE_MAX;

/// Sends a ping without a payload; omitted without room for a control frame.
pub(crate) fn send_ping(io: &mut Io<'_>) {
    if io.room() >= CONTROL_FRAME_SIZE_MAX {
        let header = WebSocketFrameHeader { opcode: Opcode::Ping, is_final: true, length: 0, mask: None };
        let _ = io.send_with(|out| header.encode(out));
    }
}

/// Answers a ping; omitted while earlier output is blocked, so that a client that does not read cannot make the server
/// hold pongs.
pub(crate) fn send_pong(payload: MaskedPayload<'_>, io: &mut Io<'_>) {
    let length = payload.len() as u64;
    let header = WebSocketFrameHeader { opcode: Opcode::Pong, is_final: true, length, mask: None };
    if !io.is_output_blocked() && io.room() >= CONTROL_FRAME_SIZE_MAX {
        let _ = io.send_with(|out| {
            header.encode(out);
            payload.append_to(out);
        });
    }
}

/// Sends a close frame; omitted without room for a control frame.
pub(crate) fn send_close(code: Option<CloseCode>, text: &str, io: &mut Io<'_>) {
    if io.room() >= CONTROL_FRAME_SIZE_MAX {
        let _ = io.send_with(|out| encode_close(out, code, text, None));
    }
}
