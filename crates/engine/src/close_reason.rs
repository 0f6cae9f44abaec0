//! Close reasons: every connection ends with exactly one, counted in the metrics.

/// The reason for which a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CloseReason {
    /// The session finished: the last response was sent, or the exchange was over.
    Done,
    /// The peer ended the stream in an orderly way.
    PeerClosed,
    /// The peer reset the connection, or became unreachable during a send.
    PeerReset,
    /// The peer violated the protocol.
    ProtocolError,
    /// The first byte did not arrive in time.
    FirstByteTimeout,
    /// The head of a message was not complete in time.
    HeadTimeout,
    /// The body of a message arrived too slowly.
    BodyTimeout,
    /// The connection was idle for too long.
    IdleTimeout,
    /// The peer received no byte of the output, or too few, for too long.
    WriteTimeout,
    /// The work for the response took too long.
    WorkTimeout,
    /// The shard's input store was full, or the message too long for it.
    InputFull,
    /// The session sent more than its room.
    OutputFull,
    /// A connect failed.
    ConnectFailed,
    /// The server drains.
    Drained,
    /// The drain deadline passed while the connection was still busy.
    DrainTimeout,
    /// Another operating system error.
    SystemError,
    /// The source of a response failed after a part of the response was sent.
    ResponseAborted,
    /// The shard released the connection with its socket open.
    Detached,
    /// The peer did not authenticate, or is not authorised.
    Forbidden,
    /// A slow consumer: its unsent output exceeded its own limit, or was the largest when the unsent output of all
    /// connections exceeded the shard's limit.
    SlowConsumer,
    /// The session panicked, and the service contained the panic.
    SessionPanicked,
}

impl CloseReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [CloseReason; 21] = [
        CloseReason::Done,
        CloseReason::PeerClosed,
        CloseReason::PeerReset,
        CloseReason::ProtocolError,
        CloseReason::FirstByteTimeout,
        CloseReason::HeadTimeout,
        CloseReason::BodyTimeout,
        CloseReason::IdleTimeout,
        CloseReason::WriteTimeout,
        CloseReason::WorkTimeout,
        CloseReason::InputFull,
        CloseReason::OutputFull,
        CloseReason::ConnectFailed,
        CloseReason::Drained,
        CloseReason::DrainTimeout,
        CloseReason::SystemError,
        CloseReason::ResponseAborted,
        CloseReason::Detached,
        CloseReason::Forbidden,
        CloseReason::SlowConsumer,
        CloseReason::SessionPanicked,
    ];

    /// The name used in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            CloseReason::Done => "done",
            CloseReason::PeerClosed => "peer_closed",
            CloseReason::PeerReset => "peer_reset",
            CloseReason::ProtocolError => "protocol_error",
            CloseReason::FirstByteTimeout => "first_byte_timeout",
            CloseReason::HeadTimeout => "head_timeout",
            CloseReason::BodyTimeout => "body_timeout",
            CloseReason::IdleTimeout => "idle_timeout",
            CloseReason::WriteTimeout => "write_timeout",
            CloseReason::WorkTimeout => "work_timeout",
            CloseReason::InputFull => "input_full",
            CloseReason::OutputFull => "output_full",
            CloseReason::ConnectFailed => "connect_failed",
            CloseReason::Drained => "drained",
            CloseReason::DrainTimeout => "drain_timeout",
            CloseReason::SystemError => "system_error",
            CloseReason::ResponseAborted => "response_aborted",
            CloseReason::Detached => "detached",
            CloseReason::Forbidden => "forbidden",
            CloseReason::SlowConsumer => "slow_consumer",
            CloseReason::SessionPanicked => "session_panicked",
        }
    }

    /// The reason for a failed send or receive.
    pub fn from_error(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted | Kind::NotConnected => {
                CloseReason::PeerReset
            }
            // The kernel gave up retransmitting: the peer is unreachable.
            Kind::TimedOut | Kind::HostUnreachable | Kind::NetworkUnreachable => CloseReason::PeerReset,
            _ => CloseReason::SystemError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_index_and_a_distinct_name() {
        for (number, reason) in CloseReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        let names: std::collections::BTreeSet<_> = CloseReason::ALL.map(CloseReason::name).into();
        assert_eq!(names.len(), CloseReason::ALL.len());
    }
}
