//! What waits for the shard to deliver it: events for clients, commands for the connections to the processes.

use std::collections::VecDeque;

use stilling_engine::{Recipient, Token};

use super::message::{ClientMessage, UpstreamEvent};
use super::request_table::RequestId;

/// What the pool tells a connection to a process.
#[derive(Debug)]
pub(crate) enum ConnectionCommand {
    /// The pool has assigned a request to the connection.
    Begin,
    /// The client of the request that the connection has says something.
    Client(RequestId, ClientMessage),
    /// The client of this request is gone.
    Abandon(RequestId),
    /// The client of this request still waits: if the process's time is over, the request fails.
    CheckTimeout(RequestId),
    /// The connection is not needed any more, unless it has something to do.
    Close,
}

/// Something to deliver, and to whom.
#[derive(Debug)]
pub(crate) enum UpstreamDelivery {
    /// An event for the client of a request.
    Event(Recipient, RequestId, UpstreamEvent),
    /// A command for a connection to a process.
    Command(Token, ConnectionCommand),
}

/// Deliveries in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<UpstreamDelivery>);

impl Outbox {
    pub(super) fn send_event(&mut self, to: Recipient, id: RequestId, event: UpstreamEvent) {
        self.0.push_back(UpstreamDelivery::Event(to, id, event));
    }

    pub(super) fn send_command(&mut self, to: Token, command: ConnectionCommand) {
        self.0.push_back(UpstreamDelivery::Command(to, command));
    }

    pub(super) fn pop(&mut self) -> Option<UpstreamDelivery> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
