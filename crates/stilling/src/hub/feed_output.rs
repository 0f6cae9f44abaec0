//! Sending encoded messages. Without room for all of them the connection ends as a slow consumer, before their first byte.

use stilling_engine::Io;
use stilling_hub::Payload;

/// Sends complete messages in two parts.
pub(super) fn send_bytes(first: &[u8], second: &[u8], io: &mut Io<'_>) {
    if first.len() + second.len() > io.room() {
        return io.end_slow_consumer();
    }
    // There is room.
    let _ = io.send_with(|out| {
        out.extend_from_slice(first);
        out.extend_from_slice(second);
    });
}

/// Sends complete messages from the block that other connections send them from.
pub(crate) fn send_feed(messages: Payload<'_>, io: &mut Io<'_>) {
    if messages.len() > io.room() {
        return io.end_slow_consumer();
    }
    // There is room.
    let _ = match messages.block() {
        Some((block, range)) if !io.is_output_blocked() => io.send_shared(block, range),
        // Blocked output holds a copy.
        _ => io.send(messages.bytes()),
    };
}
