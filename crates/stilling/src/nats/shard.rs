//! What the NATS sessions of one shard share.

use std::net::SocketAddr;

use stilling_engine::Token;
use stilling_wire::nats::Info;

use crate::hub::HubHandle;
use crate::lifecycle::Lifecycle;

/// What the NATS sessions of one shard share.
#[derive(Debug, Default)]
pub(crate) struct NatsShard {
    /// What the server says of itself; its texts are written over for each connection.
    pub(super) info: Info<'static>,
    /// The address of each listener, as INFO names it; it may be shorter than the list of listeners.
    addresses: Vec<SocketAddr>,
    /// Bytes for long messages whose ends have not come.
    pub(super) assembled: usize,
    /// The connection whose long message goes on although there is no room for it.
    pub(super) beyond: Option<Token>,
    /// Memory for short texts.
    pub(super) scratch: Vec<u8>,
}

impl NatsShard {
    pub(crate) fn new(info: Info<'static>) -> NatsShard {
        NatsShard { info, addresses: Vec::new(), assembled: 0, beyond: None, scratch: Vec::new() }
    }

    /// Sets the addresses of all listeners of the shard, in their order.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
    }

    /// The address of a listener, if it is known.
    pub(super) fn listener_address(&self, listener: u16) -> Option<SocketAddr> {
        self.addresses.get(usize::from(listener)).copied()
    }
}

/// What a NATS session sees of its shard.
pub(crate) struct NatsContext<'a> {
    /// The state that NATS sessions share.
    pub(crate) nats: &'a mut NatsShard,
    /// The hub; absent when a successor has it.
    pub(crate) hub: Option<&'a mut HubHandle>,
    /// The life of the process.
    pub(crate) lifecycle: &'a Lifecycle,
}
