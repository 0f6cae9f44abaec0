//! The servers, each with a configuration that drops no message for a subscriber within the window.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::XtaskResult;
use crate::bench::collect::{CollectPrograms, tools};
use crate::bench::figures::BARE;
use crate::bench::harness::NamedServer;
use crate::bench::server::{BenchDriver, BenchServer};

/// The stream of Stilling that stores the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BroadcastStream {
    /// No stream: subjects alone.
    None,
    /// The messages of all loads but the auctions, in memory.
    BenchInMemory,
    /// The auctions, in memory.
    AuctionInMemory,
    /// The auctions, on disk.
    AuctionOnDisk,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BroadcastPeer {
    StillingUring,
    StillingPoll,
    NatsServer,
    Redis,
    Mosquitto,
    Centrifugo,
    Bare,
}

/// A started server.
pub(super) struct RunningPeer {
    /// At its address for publishers.
    pub(super) server: BenchServer,
    /// Its address for WebSocket and SSE, if that is another one.
    pub(super) web: SocketAddr,
}

/// All servers that distribute messages to NATS, Redis or MQTT clients, in the order of the tables.
pub(super) const ALL: [BroadcastPeer; 6] = [
    BroadcastPeer::StillingUring,
    BroadcastPeer::StillingPoll,
    BroadcastPeer::NatsServer,
    BroadcastPeer::Redis,
    BroadcastPeer::Mosquitto,
    BroadcastPeer::Bare,
];

impl NamedServer for BroadcastPeer {
    fn name(&self) -> &'static str {
        BroadcastPeer::name(*self)
    }
}

impl BroadcastPeer {
    pub(super) fn name(self) -> &'static str {
        match self {
            BroadcastPeer::StillingUring => BenchDriver::Uring.name(),
            BroadcastPeer::StillingPoll => BenchDriver::Poll.name(),
            BroadcastPeer::NatsServer => "nats-server",
            BroadcastPeer::Redis => "Redis",
            BroadcastPeer::Mosquitto => "mosquitto",
            BroadcastPeer::Centrifugo => "Centrifugo",
            BroadcastPeer::Bare => BARE,
        }
    }

    /// Its command, as a reader sees it.
    pub(super) fn words(self) -> &'static str {
        match self {
            BroadcastPeer::StillingUring | BroadcastPeer::StillingPoll => "`stilling serve --nats …`",
            BroadcastPeer::NatsServer => "nats-server without streams",
            BroadcastPeer::Redis => "`PUBLISH` and `SUBSCRIBE`, without a limit of a subscriber's output",
            BroadcastPeer::Mosquitto => "MQTT 3.1.1 at QoS 0, without a limit of queued messages",
            BroadcastPeer::Centrifugo => {
                "JSON over WebSocket, published in batches over its HTTP API, which is its fastest way that adds nothing to the deliveries"
            }
            BroadcastPeer::Bare => {
                "`stilling-peer-bare broadcast`: a shared log of ready lines, one send per subscriber with everything new"
            }
        }
    }

    pub(super) fn is_stilling(self) -> bool {
        matches!(self, BroadcastPeer::StillingUring | BroadcastPeer::StillingPoll)
    }

    /// The generator's protocol.
    pub(super) fn protocol(self) -> &'static str {
        match self {
            BroadcastPeer::Redis => "redis",
            BroadcastPeer::Mosquitto => "mqtt",
            BroadcastPeer::Centrifugo => "centrifugo",
            _ => "nats",
        }
    }

    /// Starts it with a folder of its own.
    ///
    /// # Errors
    /// If it does not listen.
    pub(super) fn start(
        self,
        programs: &CollectPrograms,
        folder: &Path,
        stream: BroadcastStream,
        options: &[&str],
    ) -> XtaskResult<RunningPeer> {
        // Not all servers can report the port they took. Both are bound at once, so that they differ.
        let (first, second) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let (address, web) = (first.local_addr()?, second.local_addr()?);
        drop((first, second));
        let mut words = self.command(programs, (address, web), folder, stream)?;
        words.extend(text(options));
        let log = fs::File::create(folder.join("log"))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(log.try_clone()?).stderr(Stdio::from(log));
        let server = BenchServer::with_address(self.name(), words.join(" "), address, command);
        let server = server.map_err(|error| {
            let output = fs::read_to_string(folder.join("log")).unwrap_or_default();
            format!("{error}; its output: {output}")
        })?;
        Ok(RunningPeer { server, web })
    }

    fn command(
        self,
        programs: &CollectPrograms,
        (address, web): (SocketAddr, SocketAddr),
        folder: &Path,
        stream: BroadcastStream,
    ) -> XtaskResult<Vec<String>> {
        let port = address.port().to_string();
        let address = address.to_string();
        let stilling = |driver| {
            let mut words = stilling_command(programs, driver, &address, folder, stream);
            words.extend(text(&["--listen", &web.to_string()]));
            words
        };
        Ok(match self {
            BroadcastPeer::StillingUring => stilling(BenchDriver::Uring),
            BroadcastPeer::StillingPoll => stilling(BenchDriver::Poll),
            BroadcastPeer::NatsServer => {
                let file = folder.join("nats.conf");
                let websocket = format!("websocket {{ listen: \"{web}\", no_tls: true }}\n");
                fs::write(&file, format!("listen: \"{address}\"\n{websocket}"))?;
                text(&[&programs.nats_server.display().to_string(), "-c", &file.display().to_string()])
            }
            BroadcastPeer::Redis => {
                let dir = folder.display().to_string();
                let mut words =
                    text(&["redis-server", "--bind", "127.0.0.1", "--port", &port, "--dir", &dir]);
                words.extend(text(&["--save", "", "--daemonize", "no", "--maxclients", "20000"]));
                words.extend(text(&["--client-output-buffer-limit", "pubsub 0 0 0"]));
                words
            }
            BroadcastPeer::Mosquitto => {
                let file = folder.join("mosquitto.conf");
                fs::write(&file, mosquitto_config(&port))?;
                text(&["/usr/sbin/mosquitto", "-c", &file.display().to_string()])
            }
            BroadcastPeer::Centrifugo => {
                let file = folder.join("centrifugo.json");
                fs::write(&file, centrifugo_config(&port))?;
                let program = tools::CENTRIFUGO.path().display().to_string();
                text(&[&program, "--config", &file.display().to_string()])
            }
            BroadcastPeer::Bare => text(&[&programs.bare.display().to_string(), "broadcast", &address]),
        })
    }
}

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn stilling_command(
    programs: &CollectPrograms,
    driver: BenchDriver,
    address: &str,
    folder: &Path,
    stream: BroadcastStream,
) -> Vec<String> {
    let program = programs.stilling.display().to_string();
    let mut words = text(&[&program, "serve", "--nats", address, "--driver", driver.option()]);
    let storage = match stream {
        BroadcastStream::None => return words,
        BroadcastStream::BenchInMemory => {
            words.extend(text(&["--stream", "bench=bench:memory"]));
            return words;
        }
        BroadcastStream::AuctionInMemory => "memory",
        BroadcastStream::AuctionOnDisk => "disk",
    };
    let data = folder.join("kept").display().to_string();
    let auction = format!("auction=auction.>:{storage}:gate=auction");
    words.extend(text(&["--data", &data, "--stream", &auction]));
    words
}

/// Without these lines mosquitto drops messages for a subscriber from its thousandth queued one on.
fn mosquitto_config(port: &str) -> String {
    format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\n\
         max_queued_messages 0\nmax_queued_bytes 0\n"
    )
}

/// Without this length of a client's queue Centrifugo disconnects a client from its second megabyte on.
fn centrifugo_config(port: &str) -> String {
    serde_json::json!({
        "http_server": {"address": "127.0.0.1", "port": port},
        "client": {"insecure": true, "queue_max_size": CENTRIFUGO_QUEUE_SIZE},
        "http_api": {"insecure": true},
        "log": {"level": "error"},
    })
    .to_string()
}

/// Bytes of messages that Centrifugo holds for one client.
const CENTRIFUGO_QUEUE_SIZE: u32 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_all_peers_apart() {
        let all = ALL.iter().copied().chain([BroadcastPeer::Centrifugo]);
        let mut names: Vec<_> = all.map(BroadcastPeer::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len() + 1);
    }

    #[test]
    fn a_queue_of_mosquitto_has_no_limit() {
        let config = mosquitto_config("81");
        assert!(config.starts_with("listener 81 127.0.0.1\n"), "{config}");
        assert!(config.contains("\nmax_queued_messages 0\n"), "{config}");
    }
}
