//! Everything that is chosen for a server, settled: its configuration and where each part comes from.

use std::net::SocketAddr;

use stilling::ServeConfig;

use crate::hub::NATS_DEFAULT;
use crate::settings::{Diagnostic, SettingSources};

/// The HTTP listener when no listener is named.
const HTTP_DEFAULT: ([u8; 4], u16) = ([127, 0, 0, 1], 9000);

/// Everything that is chosen.
pub(crate) struct ResolvedSettings {
    /// What it comes to.
    pub(crate) config: ServeConfig,
    /// Where it was said.
    pub(crate) sources: SettingSources,
    /// What a file would have to say for the same.
    pub(crate) toml: String,
    /// What is allowed and not wise.
    pub(crate) warnings: Vec<Diagnostic>,
    /// No listener is named, so none of the defaults is closed by that.
    pub(crate) opens_defaults: bool,
}

impl ResolvedSettings {
    /// Protocols that are not served because a listener of another one is named: one named listener closes all defaults.
    pub(crate) fn not_opened(&self) -> Vec<String> {
        let ServeConfig { listen, hub, .. } = &self.config;
        let defaults = [("http", listen, "listen", HTTP_DEFAULT), ("nats", &hub.nats, "nats", NATS_DEFAULT)];
        defaults
            .iter()
            .filter(|(_, addresses, ..)| !self.opens_defaults && addresses.is_empty())
            .map(|(protocol, _, option, address)| {
                format!("{protocol:<10} not opened: add --{option} {}", SocketAddr::from(*address))
            })
            .collect()
    }
}
