//! What other machines can reach without credentials, and where publications by HTTP are answered.
//!
//! One set of rules for `stilling check`, which knows the configured addresses, and for a running server, which also
//! knows those that its parent process passed.

use std::net::SocketAddr;

use crate::config::{Admin, ServeConfig};
use crate::http::auction_filters;
use crate::listeners::{ListenerProtocol, Listeners};
use crate::settings::{PROTOCOLS, SourceRange};
use crate::syslog::SyslogTransport;

/// Something that other machines can reach without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The responsible option.
    pub option: &'static str,
    /// The address, what can be reached there, and the remedy.
    pub reason: String,
}

/// An address and what is answered there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListeningAddress {
    pub(crate) protocol: ListenerProtocol,
    /// It is the separate listener of `admin`.
    pub(crate) is_admin: bool,
    pub(crate) address: SocketAddr,
}

/// The network addresses of open listeners.
pub(crate) fn endpoints(open: &Listeners) -> Vec<ListeningAddress> {
    let of = |(&protocol, &address)| ListeningAddress { protocol, is_admin: false, address };
    let admin = open.admin.map(|address| ListeningAddress {
        protocol: ListenerProtocol::Http,
        is_admin: true,
        address,
    });
    open.protocols.iter().zip(&open.addresses).map(of).chain(admin).collect()
}

impl ServeConfig {
    /// Everything that other machines can reach without credentials, by the configured addresses.
    #[must_use]
    pub fn exposures(&self) -> Vec<Exposure> {
        let hub = &self.hub;
        let of = |protocol, is_admin| move |address| ListeningAddress { protocol, is_admin, address };
        let http = self.listen.iter().copied().map(of(ListenerProtocol::Http, false));
        let admin = self.admin.address().map(of(ListenerProtocol::Http, true));
        let nats = hub.nats.iter().copied().map(of(ListenerProtocol::Nats, false));
        let udp =
            hub.syslog_udp.iter().copied().map(of(ListenerProtocol::Syslog(SyslogTransport::Udp), false));
        let tcp =
            hub.syslog_tcp.iter().copied().map(of(ListenerProtocol::Syslog(SyslogTransport::Tcp), false));
        let coap = self.coap.iter().copied().map(of(ListenerProtocol::Coap, false));
        let protocols = self.protocols.iter().map(|listener| listener.address);
        let protocols = protocols.map(of(ListenerProtocol::Custom(0), false));
        self.exposures_of(http.chain(admin).chain(nats).chain(udp).chain(tcp).chain(coap).chain(protocols))
    }

    /// Whether `POST /publish/*` is answered at an HTTP listener with this address. With users it requires
    /// credentials everywhere; without users it is limited to loopback, unless the configuration opens it.
    #[must_use]
    pub fn publishes_at(&self, address: SocketAddr) -> bool {
        self.hub.has_listeners() && (!self.hub.users.is_empty() || self.open_publish || is_loopback(address))
    }

    /// Whether `/subscribe/*` is answered at an HTTP listener with this address. With users it requires credentials
    /// everywhere; without users it is limited to loopback.
    #[must_use]
    pub fn subscribes_at(&self, address: SocketAddr) -> bool {
        self.has_hub() && (!self.hub.users.is_empty() || is_loopback(address))
    }

    /// Whether `/nats` is answered at an HTTP listener with this address: where `/publish/*` and `/subscribe/*` are.
    #[must_use]
    pub fn serves_nats_at(&self, address: SocketAddr) -> bool {
        self.publishes_at(address) && self.subscribes_at(address)
    }

    /// Whether the page `/auction` is answered at an HTTP listener with this address: where `/subscribe/*` is, if a
    /// stream has the gate `auction`.
    #[must_use]
    pub fn has_auction_page_at(&self, address: SocketAddr) -> bool {
        self.subscribes_at(address) && !auction_filters(&self.hub.streams).is_empty()
    }

    pub(crate) fn exposures_of(&self, endpoints: impl Iterator<Item = ListeningAddress>) -> Vec<Exposure> {
        let mut exposures = Vec::new();
        for ListeningAddress { protocol, is_admin, address } in
            endpoints.filter(|at| !is_loopback(at.address))
        {
            match protocol {
                ListenerProtocol::Http => self.http_exposures(address, is_admin, &mut exposures),
                ListenerProtocol::Nats if self.hub.users.is_empty() => exposures.push(Exposure {
                    option: "nats",
                    reason: format!(
                        "{address} is reachable from other machines, and without users every NATS client there may \
                         publish and subscribe to everything; add a [[user]], or listen on 127.0.0.1"
                    ),
                }),
                // Without users the latter refuses clients at such an address.
                ListenerProtocol::Nats | ListenerProtocol::NatsWebSocket => {}
                ListenerProtocol::Syslog(transport) => exposures.extend(self.syslog_exposure(address, transport)),
                ListenerProtocol::Coap => self.coap_exposures(address, &mut exposures),
                ListenerProtocol::Custom(_) => exposures.push(Exposure {
                    option: PROTOCOLS,
                    reason: format!(
                        "{address} is reachable from other machines, and only the protocol there can authenticate \
                         clients; let it authenticate them, or listen on 127.0.0.1"
                    ),
                }),
            }
        }
        exposures
    }

    fn http_exposures(&self, address: SocketAddr, is_admin: bool, exposures: &mut Vec<Exposure>) {
        let mut add = |option, reason| exposures.push(Exposure { option, reason });
        if is_admin {
            return add(
                "admin",
                format!(
                    "{address} is reachable from other machines, and /status and /metrics there need no credentials; \
                     use 127.0.0.1 or an internal address"
                ),
            );
        }
        if self.hub.users.is_empty() && self.publishes_at(address) {
            add(
                "open-publish",
                format!(
                    "{address} is reachable from other machines, and without users every HTTP client there may publish \
                     to everything (/publish/*); add a [[user]], or leave out open-publish"
                ),
            );
        }
        if self.admin == Admin::Everywhere {
            add(
                "listen",
                format!(
                    "{address} is reachable from other machines, and /status and /metrics there need no credentials; \
                     move them with admin = \"127.0.0.1:9001\", or turn them off with admin = \"off\""
                ),
            );
        }
        if self.demo {
            add(
                "demo",
                format!(
                    "{address} is reachable from other machines, and every client there may occupy the workers with \
                     /test/slow; leave out demo"
                ),
            );
        }
    }

    fn coap_exposures(&self, address: SocketAddr, exposures: &mut Vec<Exposure>) {
        if self.demo {
            exposures.push(Exposure {
                option: "coap",
                reason: format!(
                    "{address} is reachable from other machines, and every CoAP client there may use and change the demo \
                     resources; leave out demo"
                ),
            });
        }
        if let Some(range) = self.coap_sources.iter().find(|range| !range.is_loopback() && self.has_hub()) {
            exposures.push(Exposure {
                option: "coap-source",
                reason: format!(
                    "{address} is reachable from other machines, and without credentials every CoAP client of {range} \
                     may publish and subscribe to everything; name only networks that you trust"
                ),
            });
        }
    }

    fn syslog_exposure(&self, address: SocketAddr, transport: SyslogTransport) -> Option<Exposure> {
        let option = match transport {
            SyslogTransport::Udp => "syslog-udp",
            SyslogTransport::Tcp => "syslog-tcp",
            SyslogTransport::Unix => return None,
        };
        let is_open = self.hub.syslog_sources.iter().any(SourceRange::is_everything);
        is_open.then(|| Exposure {
            option,
            reason: format!(
                "{address} is reachable from other machines, and syslog-source lets every address send; name the networks \
                 of the senders, such as 10.0.0.0/8"
            ),
        })
    }
}

/// Whether only this machine reaches an address.
pub(crate) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::unopened_listener;
    use crate::settings::{Credential, Secret, UserConfig};

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn exposures(change: impl FnOnce(&mut ServeConfig)) -> Vec<(&'static str, String)> {
        let mut config = ServeConfig { listen: Vec::new(), ..ServeConfig::default() };
        change(&mut config);
        config.exposures().into_iter().map(|exposure| (exposure.option, exposure.reason)).collect()
    }

    #[track_caller]
    fn assert_exposures(exposures: &[(&str, String)], expected: &[(&str, &str)]) {
        assert_eq!(exposures.len(), expected.len(), "{exposures:?}");
        for ((option, reason), (expected_option, part)) in exposures.iter().zip(expected) {
            assert!(option == expected_option && reason.contains(part), "{option}: {reason}");
        }
    }

    #[test]
    fn loopback_addresses_expose_nothing() {
        let all = ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "127.8.8.8:1"].map(at);
        let exposures = exposures(|config| {
            config.listen = all.to_vec();
            config.admin = Admin::At(all[0]);
            (config.demo, config.open_publish) = (true, true);
            let hub = &mut config.hub;
            (hub.nats, hub.syslog_udp, hub.syslog_tcp) = (all.to_vec(), all.to_vec(), all.to_vec());
            config.coap = all.to_vec();
            config.protocols = all.map(unopened_listener).to_vec();
        });
        assert_exposures(&exposures, &[]);
    }

    #[test]
    fn each_exposed_address_is_reported_once() {
        let open = |config: &mut ServeConfig| {
            config.listen = vec![at("0.0.0.0:80")];
            (config.demo, config.open_publish) = (true, true);
            config.hub.nats = vec![at("[::]:4222")];
            (config.hub.syslog_udp, config.hub.syslog_tcp) =
                (vec![at("10.0.0.1:514")], vec![at("10.0.0.1:601")]);
            config.hub.syslog_sources = vec!["::/0".parse().expect("a range")];
            config.coap = vec![at("0.0.0.0:5683")];
            config.coap_sources =
                ["127.0.0.1", "10.0.0.0/8"].map(|range| range.parse().expect("a range")).to_vec();
            config.protocols = vec![unopened_listener(at("0.0.0.0:7"))];
        };
        let [publish, pages, demo, nats, udp, tcp, coap, source, custom] = [
            ("open-publish", "/publish/*"),
            ("listen", "0.0.0.0:80 is reachable from other machines, and /status"),
            ("demo", "/test/slow"),
            ("nats", "[::]:4222 is reachable from other machines, and without users"),
            ("syslog-udp", "lets every address send"),
            ("syslog-tcp", "10.0.0.1:601"),
            ("coap", "0.0.0.0:5683 is reachable from other machines, and every CoAP client"),
            ("coap-source", "every CoAP client of 10.0.0.0/8 may publish"),
            ("protocols", "0.0.0.0:7 is reachable from other machines, and only the protocol there"),
        ];
        assert_exposures(&exposures(open), &[publish, pages, demo, nats, udp, tcp, coap, source, custom]);
        let with_users = |config: &mut ServeConfig| {
            open(config);
            config.hub.users = vec![UserConfig::new("ann", Credential::Password(Secret::new("x")))];
            config.admin = Admin::At(at("10.0.0.1:9001"));
            config.demo = false;
            config.hub.syslog_sources = vec!["10.0.0.0/8".parse().expect("a range")];
        };
        // Whether a custom protocol authenticates clients is not known.
        assert_exposures(&exposures(with_users), &[("admin", "10.0.0.1:9001"), source, custom]);
    }

    #[test]
    fn without_users_http_publishing_is_limited_to_loopback() {
        let config = |change: fn(&mut ServeConfig)| {
            let mut config = ServeConfig::default();
            config.hub.nats = vec![at("127.0.0.1:4222")];
            change(&mut config);
            ["127.0.0.1:80", "0.0.0.0:80", "192.0.2.1:80"].map(|address| config.publishes_at(at(address)))
        };
        assert_eq!(config(|_| ()), [true, false, false]);
        assert_eq!(config(|config| config.open_publish = true), [true; 3]);
        assert_eq!(config(|config| config.hub.nats.clear()), [false; 3], "there is no hub");
        let ann = |config: &mut ServeConfig| {
            config.hub.users = vec![UserConfig::new("ann", Credential::Password(Secret::new("x")))];
        };
        assert_eq!(config(ann), [true; 3]);
    }

    /// Invariant 13: nothing that reads messages is reachable from elsewhere without credentials.
    #[test]
    fn without_users_subscriptions_are_for_this_machine() {
        let config = |change: fn(&mut ServeConfig)| {
            let mut config = ServeConfig { open_publish: true, ..ServeConfig::default() };
            config.hub.nats = vec![at("127.0.0.1:4222")];
            change(&mut config);
            ["127.0.0.1:80", "0.0.0.0:80", "192.0.2.1:80"].map(|address| {
                let (subscribes, nats) =
                    (config.subscribes_at(at(address)), config.serves_nats_at(at(address)));
                assert_eq!(nats, subscribes, "{address}");
                subscribes
            })
        };
        assert_eq!(config(|_| ()), [true, false, false]);
        assert_eq!(config(|config| config.hub.nats.clear()), [false; 3], "there is no hub");
        let ann = |config: &mut ServeConfig| {
            config.hub.users = vec![UserConfig::new("ann", Credential::Password(Secret::new("x")))];
        };
        assert_eq!(config(ann), [true; 3]);
    }
}
