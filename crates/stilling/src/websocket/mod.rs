//! WebSocket connections (RFC 6455): subscribers that may publish, and the echo. The HTTP session answers the opening
//! handshake and hands the connection over.
//!
//! ```text
//!   frames ─▶ decoder ─▶ message ─┬─▶ subscriber: {"publish": …} ═▶ hub ═▶ {"ack": …}, {"error": …}
//!                                 └─▶ echo: the same message
//!   frames ◀─ messages and notices of the subscription ◀═ hub
//! ```

mod assembly;
mod client_message;
mod echo;
pub(crate) mod limits;
mod session;
mod subscriber;

pub(crate) use session::{WebSocketContext, WebSocketSession, WebSocketShard, frame_len};

use crate::hub::SubscribeRequest;
use crate::users::UserAccess;

/// What a connection is for.
#[derive(Debug)]
pub(crate) enum WebSocketPurpose {
    /// A subscription. `may_publish`: its listener accepts publications.
    Subscriber {
        request: SubscribeRequest,
        access: UserAccess,
        may_publish: bool,
    },
    Echo,
}

#[cfg(test)]
mod tests;
