//! Configuration of the hub: its listeners, streams, users, and data folder.
//!
//! Plain values, filled in from a command line or a file. [`MessagingConfig::problems`] returns every error that
//! prevents the start, each with its [`SettingKey`], so that the parser of a file can add the line.
//!
//! ```
//! use stilling::settings::{MessagingConfig, StreamConfig};
//!
//! let mut hub = MessagingConfig::default();
//! hub.streams.push(StreamConfig::new("orders", ["orders.>"]));
//! assert!(hub.problems(&[]).is_empty());
//!
//! hub.streams.push(StreamConfig::new("eu", ["orders.eu"]));
//! assert_eq!(
//!     hub.problems(&[])[0].to_string(),
//!     "stream 3, subjects: `orders.eu` of the stream `eu` overlaps `orders.>` of the stream `orders`; \
//!      a subject belongs to one stream"
//! );
//! ```

mod error;
mod filters;
pub mod limits;
mod sources;
mod stream;
mod template;
mod user;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use error::{SettingError, SettingKey};
pub use sources::SourceRange;
pub use stilling_hub::{Durability, GateRegistry, Retention, SlowSubscribers, StreamConfig};
pub use template::{SYSLOG_SUBJECT, SubjectTemplate, TemplateValues};
pub use user::{Credential, Secret, UserConfig};

use crate::addresses::overlap;
use limits::{HUB_LISTENERS_MAX, SOCKET_PATH_SIZE_MAX, SYSLOG_SOURCES_MAX};

/// Configuration of the hub.
#[derive(Clone, Debug)]
pub struct MessagingConfig {
    /// Addresses to listen on for NATS clients; port 0 takes a free port. Default: none.
    pub nats: Vec<SocketAddr>,
    /// Addresses to listen on for NATS clients over WebSocket, beside `/nats` of the HTTP listeners. Default: none.
    pub nats_websocket: Vec<SocketAddr>,
    /// Addresses for syslog datagrams. Default: none.
    pub syslog_udp: Vec<SocketAddr>,
    /// Addresses to listen on for syslog connections. Default: none.
    pub syslog_tcp: Vec<SocketAddr>,
    /// Paths of Unix datagram sockets for syslog, like /dev/log. Default: none.
    pub syslog_unix: Vec<PathBuf>,
    /// Address ranges that may send syslog over UDP and TCP. Default: loopback addresses.
    pub syslog_sources: Vec<SourceRange>,
    /// The subject to which a syslog message is published. Default: [`SYSLOG_SUBJECT`].
    pub syslog_subject: SubjectTemplate,
    /// The directory of streams on disk, created by the first durable publish. Default: `stilling-data`.
    pub data: PathBuf,
    /// How streams are written to disk. Default: as directly as the volume allows.
    pub write_method: WriteMethodChoice,
    /// The streams. Default: `events`, bound to `events.>`.
    pub streams: Vec<StreamConfig>,
    /// The gates that streams may name. Default: those that are built in.
    pub gates: GateRegistry,
    /// Users that may connect. Default: none, and every client that reaches a listener may connect.
    pub users: Vec<UserConfig>,
}

impl Default for MessagingConfig {
    fn default() -> Self {
        MessagingConfig {
            nats: Vec::new(),
            nats_websocket: Vec::new(),
            syslog_udp: Vec::new(),
            syslog_tcp: Vec::new(),
            syslog_unix: Vec::new(),
            syslog_sources: SourceRange::loopback(),
            syslog_subject: SubjectTemplate::default(),
            data: PathBuf::from("stilling-data"),
            write_method: WriteMethodChoice::Auto,
            streams: vec![StreamConfig::default()],
            gates: GateRegistry::default(),
            users: Vec::new(),
        }
    }
}

/// How streams are written to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMethodChoice {
    /// Bypasses the page cache (O_DIRECT, RWF_DSYNC) if a probe of the volume shows that this works, else buffered.
    #[default]
    Auto,
    /// Through the page cache, with fdatasync.
    Buffered,
}

/// Addresses of different transports do not conflict.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

/// The option with the addresses of custom protocols.
pub(crate) const PROTOCOLS: &str = "protocols";

impl MessagingConfig {
    /// Whether the hub has listeners.
    #[must_use]
    pub fn has_listeners(&self) -> bool {
        !(self.nats.is_empty()
            && self.nats_websocket.is_empty()
            && self.syslog_udp.is_empty()
            && self.syslog_tcp.is_empty()
            && self.syslog_unix.is_empty())
    }

    /// Whether a stream stores syslog messages.
    #[must_use]
    pub fn stores_syslog(&self) -> bool {
        let syslog = self.syslog_subject.filter();
        let overlaps_syslog = |text: &String| {
            filters::filter(text).is_ok_and(|filter| {
                filters::filter(&syslog).is_ok_and(|syslog| filters::overlap(filter, syslog))
            })
        };
        self.streams.iter().flat_map(|stream| &stream.subjects).any(overlaps_syslog)
    }

    /// Whether a stream has a gate that is not built in, and may take any time.
    pub(crate) fn has_custom_gate(&self) -> bool {
        let mut gates = self.streams.iter().filter_map(|stream| stream.gate.as_deref());
        gates.any(|gate| !self.gates.is_built_in(gate))
    }

    /// Every error that prevents the start. `others` are further addresses to listen on, each with the name of its
    /// option.
    #[must_use]
    pub fn problems(&self, others: &[(&'static str, SocketAddr)]) -> Vec<SettingError> {
        self.problems_with_protocols(others, &[], &[])
    }

    /// The same with custom protocols and CoAP at these addresses.
    pub(crate) fn problems_with_protocols(
        &self,
        others: &[(&'static str, SocketAddr)],
        protocols: &[SocketAddr],
        coap: &[SocketAddr],
    ) -> Vec<SettingError> {
        let mut errors = Vec::new();
        self.address_problems(others, protocols, coap, &mut errors);
        self.syslog_problems(&mut errors);
        if self.data.as_os_str().is_empty() {
            errors.push(SettingError::option(
                "data",
                "the path is empty; . is the current directory".to_owned(),
            ));
        }
        stream::problems(&self.streams, &self.gates, &mut errors);
        user::problems(&self.users, &mut errors);
        errors
    }

    fn address_problems(
        &self,
        others: &[(&'static str, SocketAddr)],
        protocols: &[SocketAddr],
        coap: &[SocketAddr],
        errors: &mut Vec<SettingError>,
    ) {
        use Transport::{Tcp, Udp};
        let mut used: Vec<(&'static str, Transport, SocketAddr)> = Vec::new();
        for (name, address) in others {
            // HTTP listeners may overlap: the system gives a connection to the most specific address.
            errors.extend(duplicate_address(name, Tcp, *address, &used));
            used.push((name, Tcp, *address));
        }
        for (name, transport, addresses) in [
            ("nats", Tcp, self.nats.as_slice()),
            ("nats-websocket", Tcp, self.nats_websocket.as_slice()),
            ("syslog-tcp", Tcp, self.syslog_tcp.as_slice()),
            ("syslog-udp", Udp, self.syslog_udp.as_slice()),
            ("coap", Udp, coap),
            (PROTOCOLS, Tcp, protocols),
        ] {
            if addresses.len() > HUB_LISTENERS_MAX {
                let count = addresses.len();
                let reason = format!("{count} addresses exceed the maximum of {HUB_LISTENERS_MAX}");
                errors.push(SettingError::option(name, reason));
            }
            for address in addresses {
                // Addresses of one option may overlap, because all of them behave alike. Custom protocols differ.
                let conflict = used.iter().find(|(other, other_transport, used)| {
                    (*other != name || name == PROTOCOLS)
                        && *other_transport == transport
                        && address.port() != 0
                        && overlap(*address, *used)
                });
                if let Some((other, _, used)) = conflict {
                    let reason =
                        format!("{address} is taken: `{other}` listens on {used}; give each its own port");
                    errors.push(SettingError::option(name, reason));
                } else {
                    errors.extend(duplicate_address(name, transport, *address, &used));
                }
                used.push((name, transport, *address));
            }
        }
    }

    fn syslog_problems(&self, errors: &mut Vec<SettingError>) {
        let mut add_problem = |name, reason| errors.push(SettingError::option(name, reason));
        for (index, path) in self.syslog_unix.iter().enumerate() {
            let path_text = path.display();
            let size = path.as_os_str().len();
            if size == 0 || size > SOCKET_PATH_SIZE_MAX {
                add_problem(
                    "syslog-unix",
                    format!(
                        "`{path_text}` has {size} bytes; a socket's path has 1 to {SOCKET_PATH_SIZE_MAX}, so that a successor's fits beside it"
                    ),
                );
            }
            if self.syslog_unix[..index].contains(path) {
                add_problem("syslog-unix", format!("`{path_text}` is named twice"));
            }
        }
        if self.syslog_unix.len() > HUB_LISTENERS_MAX {
            let count = self.syslog_unix.len();
            add_problem("syslog-unix", format!("{count} paths exceed the maximum of {HUB_LISTENERS_MAX}"));
        }
        if self.syslog_sources.len() > SYSLOG_SOURCES_MAX {
            let count = self.syslog_sources.len();
            add_problem(
                "syslog-source",
                format!("{count} ranges exceed the maximum of {SYSLOG_SOURCES_MAX}"),
            );
        }
        let is_open = !self.syslog_udp.is_empty() || !self.syslog_tcp.is_empty();
        if is_open && self.syslog_sources.is_empty() {
            add_problem(
                "syslog-source",
                "no address may send syslog, although there are listeners for it".to_owned(),
            );
        }
    }
}

/// An error if an earlier option of the same transport has the same address. Port 0 takes another port each time.
fn duplicate_address(
    name: &'static str,
    transport: Transport,
    address: SocketAddr,
    used: &[(&'static str, Transport, SocketAddr)],
) -> Option<SettingError> {
    let is_same = |(_, other_transport, other): &&(&str, Transport, SocketAddr)| {
        *other_transport == transport && *other == address
    };
    let (other, ..) = used.iter().find(is_same).filter(|_| address.port() != 0)?;
    let reason = if *other == name {
        format!("{address} is named twice")
    } else {
        format!("{address} is taken: `{other}` listens there; give each its own address")
    };
    Some(SettingError::option(name, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    type MessagingConfigChange = fn(&mut MessagingConfig);

    fn problem_texts(change: MessagingConfigChange) -> Vec<String> {
        let mut hub = MessagingConfig::default();
        change(&mut hub);
        let http = [("listen", at("0.0.0.0:9000"))];
        hub.problems(&http).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn listeners_without_conflict_are_accepted() {
        for change in [
            (|_| ()) as MessagingConfigChange,
            |hub| hub.nats = vec![at("127.0.0.1:4222"), at("0.0.0.0:4222"), at("127.0.0.2:4222")],
            |hub| hub.nats = vec![at("127.0.0.1:0"); 2],
            |hub| hub.syslog_udp = vec![at("127.0.0.1:9000")],
            |hub| (hub.nats, hub.syslog_tcp) = (vec![at("127.0.0.1:0")], vec![at("127.0.0.1:0")]),
            |hub| (hub.nats, hub.syslog_tcp) = (vec![at("127.0.0.1:514")], vec![at("127.0.0.2:514")]),
            |hub| hub.syslog_sources.clear(),
        ] {
            assert_eq!(problem_texts(change), [""; 0]);
        }
    }

    #[test]
    fn syslog_is_stored_if_a_stream_matches_the_template() {
        let mut hub = MessagingConfig::default();
        assert!(hub.stores_syslog());
        hub.syslog_subject = "logs.{host}.x-{app}".parse().expect("a template");
        assert!(!hub.stores_syslog());
        hub.streams.push(StreamConfig::new("logs", ["logs.web.*"]));
        assert!(hub.stores_syslog());
        hub.streams[1].subjects = vec!["logs.*".to_owned()];
        assert!(!hub.stores_syslog());
    }

    #[test]
    fn conflicting_listeners_are_refused_with_both_names() {
        let cases: [(MessagingConfigChange, &str); 10] = [
            (|hub| hub.nats = vec![at("127.0.0.1:4222"); 2], "nats: 127.0.0.1:4222 is named twice"),
            (|hub| hub.syslog_udp = vec![at("[::1]:514"); 2], "syslog-udp: [::1]:514 is named twice"),
            (
                |hub| hub.nats = vec![at("127.0.0.1:9000")],
                "nats: 127.0.0.1:9000 is taken: `listen` listens on 0.0.0.0:9000; give each its own port",
            ),
            (
                |hub| (hub.nats, hub.syslog_tcp) = (vec![at("127.0.0.1:514")], vec![at("127.0.0.1:514")]),
                "syslog-tcp: 127.0.0.1:514 is taken: `nats` listens on",
            ),
            (|hub| hub.nats = vec![at("127.0.0.1:0"); 65], "nats: 65 addresses exceed the maximum of 64"),
            (|hub| hub.syslog_unix = vec![PathBuf::new()], "syslog-unix: `` has 0 bytes"),
            (
                |hub| hub.syslog_unix = vec!["x".repeat(103).into()],
                "has 103 bytes; a socket's path has 1 to 102, so that a successor's fits beside it",
            ),
            (|hub| hub.syslog_unix = vec!["x".into(), "x".into()], "syslog-unix: `x` is named twice"),
            (
                |hub| (hub.syslog_udp, hub.syslog_sources) = (vec![at("127.0.0.1:514")], Vec::new()),
                "syslog-source: no address may send",
            ),
            (|hub| hub.data = PathBuf::new(), "data: the path is empty"),
        ];
        for (change, expected) in cases {
            let problem_texts = problem_texts(change);
            assert_eq!(problem_texts.len(), 1, "{problem_texts:?}");
            assert!(problem_texts[0].contains(expected), "{expected}: {problem_texts:?}");
        }
    }
}
