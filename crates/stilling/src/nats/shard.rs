//! State that the NATS sessions of one shard share.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use stilling_engine::Token;
use stilling_wire::nats::Info;

use super::limits::UNDECODED_SHARD_MAX;
use crate::hub::{HubHandle, HubHandleCounters};
use crate::lifecycle::Lifecycle;

#[derive(Debug, Default)]
pub(crate) struct NatsShard {
    /// The fields of INFO; its texts are overwritten for each connection.
    info: Info<'static>,
    /// The address of each listener for INFO; may be shorter than the list of listeners.
    addresses: Vec<SocketAddr>,
    /// Bytes of incomplete long messages.
    pub(super) assembled_bytes: usize,
    /// The connection with a long message that may exceed `ASSEMBLY_MAX`.
    pub(super) over_limit: Option<Token>,
    pub(super) undecoded: UndecodedBudget,
    /// Memory for the payload of a frame.
    pub(super) unmasked: Vec<u8>,
    /// Memory for short texts.
    scratch: Vec<u8>,
}

impl NatsShard {
    pub(crate) fn new(info: Info<'static>) -> NatsShard {
        NatsShard { info, ..NatsShard::default() }
    }

    /// Sets the destination of the shard's figures.
    pub(crate) fn with_counters(mut self, counters: Arc<HubHandleCounters>) -> NatsShard {
        self.undecoded.counters = counters;
        self
    }

    pub(crate) fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
    }

    /// The INFO line for the client `token`, which connected from `peer` at `listener`. `ldm`: the server is about to
    /// stop.
    pub(super) fn encode_info(
        &mut self,
        ldm: bool,
        token: Token,
        (listener, peer): (u16, Option<IpAddr>),
    ) -> &[u8] {
        let NatsShard { info, addresses, scratch, .. } = self;
        scratch.clear();
        // Overwrites the texts of the last connection: a connection costs no allocation.
        (info.ldm, info.client_id) = (ldm, Some(token.bits()));
        match peer {
            Some(peer) => overwrite(info.client_ip.get_or_insert_default(), peer),
            None => info.client_ip = None,
        }
        if let Some(address) = addresses.get(usize::from(listener)) {
            overwrite(&mut info.host, address.ip());
            info.port = address.port();
        }
        info.encode(scratch);
        scratch
    }
}

/// Bytes of memory for undecoded input of the clients over WebSocket.
#[derive(Debug)]
pub(super) struct UndecodedBudget {
    pub(super) used: usize,
    pub(super) max: usize,
    counters: Arc<HubHandleCounters>,
}

impl Default for UndecodedBudget {
    fn default() -> Self {
        UndecodedBudget { used: 0, max: UNDECODED_SHARD_MAX, counters: Arc::default() }
    }
}

impl UndecodedBudget {
    /// Replaces `before` used bytes by `after`.
    pub(super) fn replace(&mut self, before: usize, after: usize) {
        self.used = self.used - before + after;
        self.counters.nats_undecoded.set(self.used as u64);
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.used > self.max
    }
}

/// Replaces a text, in the same memory if its capacity suffices.
fn overwrite(text: &mut Cow<'static, str>, by: impl Display) {
    let text = text.to_mut();
    text.clear();
    // Writing to a string does not fail.
    let _ = write!(text, "{by}");
}

/// The parts of its shard that a NATS session uses.
pub(crate) struct NatsContext<'a> {
    pub(crate) nats: &'a mut NatsShard,
    /// The hub; `None` when a successor has it.
    pub(crate) hub: Option<&'a mut HubHandle>,
    pub(crate) lifecycle: &'a Lifecycle,
}
