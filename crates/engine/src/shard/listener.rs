//! A listener or datagram socket of a shard, and its state.

/// Handling of connections in the backlog of a listener that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BacklogPolicy {
    /// They are left to other processes, or reset by the system.
    Leave,
    Accept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerState {
    Accepting,
    /// All slots are in use, or an accept failed recently.
    Paused,
    Datagrams,
    /// A datagram socket that stops receiving for good.
    StoppingDatagrams,
    /// A datagram socket that only sends.
    SendingDatagrams,
    /// The listener stops accepting for good.
    Stopping(BacklogPolicy),
    Closing,
    Closed,
}

#[derive(Debug)]
pub(super) struct ShardListener {
    pub(super) state: ListenerState,
    /// The driver has an accept or receive armed.
    pub(super) armed: bool,
    pub(super) defer_accept: bool,
    /// Connections in its backlog are not accepted when it is closed.
    pub(super) leaves_backlog: bool,
    /// The system's count of dropped datagrams at the last read, modulo 2^32.
    pub(super) dropped: u32,
    pub(super) is_datagram_socket: bool,
    /// Its datagrams pass through the ring.
    pub(super) is_paced: bool,
    /// The datagram socket is closed when it has stopped receiving.
    pub(super) closes_when_stopped: bool,
}

impl ShardListener {
    /// Whether it is a datagram socket that can still send.
    pub(super) fn can_send_datagrams(&self) -> bool {
        self.receives_datagrams() || self.state == ListenerState::SendingDatagrams
    }

    /// Whether it is a datagram socket of which the service may still get datagrams.
    pub(super) fn receives_datagrams(&self) -> bool {
        matches!(self.state, ListenerState::Datagrams | ListenerState::StoppingDatagrams)
    }
}
