//! Deliveries for the shard: events for clients, commands for the connections to the processes.

use std::collections::VecDeque;

use stilling_engine::{Recipient, Token};

use super::message::{ClientMessage, UpstreamEvent};
use super::request_table::RequestId;

/// A command of the pool to a connection to a process.
#[derive(Debug)]
pub(crate) enum ConnectionCommand {
    /// The pool has assigned a request to the connection.
    Begin,
    /// A message from the client of the connection's request.
    Client(RequestId, ClientMessage),
    /// The client of this request has left.
    Abandon(RequestId),
    /// The client of this request still waits: the request fails if the process's timeout has passed.
    CheckTimeout(RequestId),
    /// The connection is not needed. Ignored while it has a request.
    Close,
}

/// An event or a command, with its recipient.
#[derive(Debug)]
pub(crate) enum UpstreamDelivery {
    Event(Recipient, RequestId, UpstreamEvent),
    Command(Token, ConnectionCommand),
}

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
