//! A listener or datagram socket of a shard, and how far its life has come.

/// What becomes of those who wait at a listener that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BacklogPolicy {
    /// They are another process's, or are reset by the system.
    Leave,
    /// They are accepted.
    Accept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerState {
    /// Connections come.
    Accepting,
    /// All slots are taken, or an accept failed a moment ago.
    Paused,
    /// It is no listener: datagrams come.
    Datagrams,
    /// It is no listener: receiving is being stopped, for good.
    StoppingDatagrams,
    /// Accepting is being stopped, for good.
    Stopping(BacklogPolicy),
    /// The driver closes the listener.
    Closing,
    Closed,
}

#[derive(Debug)]
pub(super) struct ShardListener {
    pub(super) state: ListenerState,
    /// The driver still has an accept armed.
    pub(super) armed: bool,
    pub(super) defers: bool,
    /// Who waits there is not accepted for the sake of the end.
    pub(super) leaves_backlog: bool,
    /// Datagrams that the system had dropped there when it was last asked, modulo 2^32.
    pub(super) dropped: u32,
    /// It is a datagram socket.
    pub(super) is_datagrams: bool,
}

impl ShardListener {
    /// Whether it is a datagram socket by which something may be sent.
    pub(super) fn takes_datagrams(&self) -> bool {
        matches!(self.state, ListenerState::Datagrams | ListenerState::StoppingDatagrams)
    }
}
