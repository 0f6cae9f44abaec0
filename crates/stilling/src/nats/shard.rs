//! What the NATS sessions of one shard share.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::net::{IpAddr, SocketAddr};

use stilling_engine::Token;
use stilling_wire::nats::Info;

use crate::hub::HubHandle;
use crate::lifecycle::Lifecycle;

/// What the NATS sessions of one shard share.
#[derive(Debug, Default)]
pub(crate) struct NatsShard {
    /// What the server says of itself; its texts are written over for each connection.
    info: Info<'static>,
    /// The address of each listener, as INFO names it; it may be shorter than the list of listeners.
    addresses: Vec<SocketAddr>,
    /// Bytes for long messages whose ends have not come.
    pub(super) assembled_bytes: usize,
    /// The connection whose long message goes on although there is no room for it.
    pub(super) over_limit: Option<Token>,
    /// Memory for short texts.
    scratch: Vec<u8>,
}

impl NatsShard {
    pub(crate) fn new(info: Info<'static>) -> NatsShard {
        NatsShard { info, addresses: Vec::new(), assembled_bytes: 0, over_limit: None, scratch: Vec::new() }
    }

    /// Sets the addresses of all listeners of the shard, in their order.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.addresses = addresses;
    }

    /// The line that describes the server to the client `token`, which came by `listener` from `peer`. `ldm`: the
    /// server is about to stop.
    pub(super) fn encode_info(
        &mut self,
        ldm: bool,
        token: Token,
        (listener, peer): (u16, Option<IpAddr>),
    ) -> &[u8] {
        let NatsShard { info, addresses, scratch, .. } = self;
        scratch.clear();
        // The texts of the connection before are written over: a connection costs no allocation.
        (info.ldm, info.client_id) = (ldm, Some(token.bits()));
        match peer {
            Some(peer) => write_over(info.client_ip.get_or_insert_default(), peer),
            None => info.client_ip = None,
        }
        if let Some(address) = addresses.get(usize::from(listener)) {
            write_over(&mut info.host, address.ip());
            info.port = address.port();
        }
        info.encode(scratch);
        scratch
    }
}

/// Replaces a text, in the same memory if there is enough of it.
fn write_over(text: &mut Cow<'static, str>, by: impl Display) {
    let text = text.to_mut();
    text.clear();
    // A string takes everything.
    let _ = write!(text, "{by}");
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
