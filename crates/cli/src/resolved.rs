//! Resolved settings of a server: its configuration and the origin of each part.

use std::net::SocketAddr;

use stilling::ServeConfig;

use crate::hub::NATS_DEFAULT;
use crate::settings::{Diagnostic, SettingSources};

/// The HTTP listener when no listener is named.
const HTTP_DEFAULT: ([u8; 4], u16) = ([127, 0, 0, 1], 9000);
/// The CoAP listener when no listener is named.
pub(crate) const COAP_DEFAULT: ([u8; 4], u16) = ([127, 0, 0, 1], 5683);

pub(crate) struct ResolvedSettings {
    pub(crate) config: ServeConfig,
    pub(crate) sources: SettingSources,
    /// The same settings in the format of the settings file.
    pub(crate) toml: String,
    pub(crate) warnings: Vec<Diagnostic>,
    /// The default listeners open, or the parent process passes listeners: no default is reported as not opened.
    pub(crate) opens_defaults: bool,
}

impl ResolvedSettings {
    /// Lines for protocols without a listener: one named listener closes all default ones.
    pub(crate) fn not_opened(&self) -> Vec<String> {
        let ServeConfig { listen, coap, hub, .. } = &self.config;
        let defaults = [
            ("http", listen, "listen", HTTP_DEFAULT),
            ("nats", &hub.nats, "nats", NATS_DEFAULT),
            ("coap", coap, "coap", COAP_DEFAULT),
        ];
        defaults
            .iter()
            .filter(|(_, addresses, ..)| !self.opens_defaults && addresses.is_empty())
            .map(|(protocol, _, option, address)| {
                format!("{protocol:<10} not opened: add --{option} {}", SocketAddr::from(*address))
            })
            .collect()
    }
}
