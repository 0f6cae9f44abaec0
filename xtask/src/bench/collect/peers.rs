//! The servers that take messages, each as its users run it, on a port and with a folder of its own.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use super::Place;
use crate::Outcome;
use crate::bench::figures::BARE;
use crate::bench::frame::Named;
use crate::bench::server::{Driver, Server};

/// The stream, and the subject of which it takes everything.
const STREAM: &str = "events";

/// What becomes of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeps {
    /// They go to a stream on disk.
    Disk,
    /// They go to a stream in memory.
    Memory,
    /// They go to whoever listens.
    Nothing,
}

/// A server that has been started.
pub(in crate::bench) struct Running {
    pub(in crate::bench) server: Server,
    /// Where it tells its own figures over HTTP, if it does.
    pub(super) monitor: Option<SocketAddr>,
}

/// A server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    StillingUring,
    StillingPoll,
    JetStream,
    JetStreamAlways,
    NatsCore,
    RedisEverySecond,
    RedisAlways,
    Rsyslog,
    Bare,
}

impl Named for Peer {
    fn name(&self) -> &'static str {
        Peer::name(*self)
    }
}

/// All of them, in the order of the tables.
pub(super) const ALL: [Peer; 9] = [
    Peer::StillingUring,
    Peer::StillingPoll,
    Peer::JetStream,
    Peer::JetStreamAlways,
    Peer::NatsCore,
    Peer::RedisEverySecond,
    Peer::RedisAlways,
    Peer::Rsyslog,
    Peer::Bare,
];

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::StillingUring => Driver::Uring.name(),
            Peer::StillingPoll => Driver::Poll.name(),
            Peer::JetStream => "JetStream",
            Peer::JetStreamAlways => "JetStream, synced",
            Peer::NatsCore => "nats-server",
            Peer::RedisEverySecond => "Redis, every second",
            Peer::RedisAlways => "Redis, synced",
            Peer::Rsyslog => "rsyslog",
            Peer::Bare => BARE,
        }
    }

    /// How it is run, and what its acknowledgement means.
    pub(in crate::bench) fn words(self) -> &'static str {
        match self {
            Peer::StillingUring | Peer::StillingPoll => {
                "`stilling serve --nats … --data … --stream events=events.>:disk`, acknowledges what is synced"
            }
            Peer::JetStream => {
                "nats-server with a file stream, acknowledges what it has written, syncs every 2 minutes"
            }
            Peer::JetStreamAlways => "the same with `sync_interval: always`, acknowledges what is synced",
            Peer::NatsCore => "nats-server without streams",
            Peer::RedisEverySecond => "`XADD`, `appendfsync everysec`, acknowledges what it has written",
            Peer::RedisAlways => "`XADD`, `appendfsync always`, acknowledges what is synced",
            Peer::Rsyslog => "imptcp (with a backlog of 4,096 instead of 5) to omfile, acknowledges nothing",
            Peer::Bare => {
                "`stilling-peer-bare durable`, or `relay` without a stream on disk: the I/O and nothing else, \
                 acknowledges what is synced"
            }
        }
    }

    /// Whether it can be run here.
    pub(crate) fn is_able(self, place: &Place) -> bool {
        match self {
            Peer::StillingUring | Peer::StillingPoll => place.collects,
            Peer::JetStreamAlways => place.syncs_always,
            _ => true,
        }
    }

    /// What the generator has to be told about it.
    pub(super) fn generator_options(self, folder: &Path, keeps: Keeps) -> Vec<String> {
        let option = |text: &str| vec![text.to_owned()];
        match (self, keeps) {
            (Peer::JetStream | Peer::JetStreamAlways, Keeps::Disk) => option("--make-stream=file"),
            (Peer::JetStream | Peer::JetStreamAlways, Keeps::Memory) => option("--make-stream=memory"),
            (Peer::RedisEverySecond | Peer::RedisAlways, _) => option("--protocol=redis"),
            (Peer::Rsyslog, _) => vec![
                "--protocol=syslog".to_owned(),
                format!("--arrives-in={}", folder.join("messages").display()),
            ],
            _ => Vec::new(),
        }
    }

    /// Its command, for an address and a folder.
    ///
    /// # Errors
    /// If a file of its configuration cannot be written.
    pub(crate) fn command(
        self,
        place: &Place,
        address: SocketAddr,
        folder: &Path,
        keeps: Keeps,
    ) -> Outcome<Vec<String>> {
        let data = folder.join("kept").display().to_string();
        let port = address.port().to_string();
        Ok(match self {
            Peer::StillingUring => stilling_command(place, Driver::Uring, address, &data, keeps),
            Peer::StillingPoll => stilling_command(place, Driver::Poll, address, &data, keeps),
            Peer::JetStream | Peer::JetStreamAlways | Peer::NatsCore => {
                let file = folder.join("nats.conf");
                fs::write(&file, nats_config(self, address, &data))?;
                text(&[&place.nats_server.display().to_string(), "-c", &file.display().to_string()])
            }
            Peer::RedisEverySecond | Peer::RedisAlways => {
                fs::create_dir_all(&data)?;
                let syncs = if self == Peer::RedisAlways { "always" } else { "everysec" };
                let mut words =
                    text(&["redis-server", "--bind", "127.0.0.1", "--port", &port, "--dir", &data]);
                words.extend(text(&["--save", "", "--appendonly", "yes", "--appendfsync", syncs]));
                // Rewriting its file in the middle of a round would be measured in some rounds and not in others.
                words.extend(text(&["--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]));
                words
            }
            Peer::Rsyslog => {
                fs::create_dir_all(&data)?;
                let file = folder.join("rsyslog.conf");
                fs::write(&file, rsyslog_config(&port, folder, &data))?;
                let pid = folder.join("rsyslog.pid").display().to_string();
                text(&["/usr/sbin/rsyslogd", "-n", "-f", &file.display().to_string(), "-i", &pid])
            }
            Peer::Bare => {
                let (program, address) = (place.bare.display().to_string(), address.to_string());
                match keeps {
                    Keeps::Disk => text(&[&program, "durable", &address, &data]),
                    Keeps::Memory | Keeps::Nothing => text(&[&program, "relay", &address]),
                }
            }
        })
    }

    /// Starts it; it has the folder for itself.
    ///
    /// # Errors
    /// If it does not listen.
    pub(in crate::bench) fn start(self, place: &Place, folder: &Path, keeps: Keeps) -> Outcome<Running> {
        // Not all of them can say which port they took.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let words = self.command(place, address, folder, keeps)?;
        let log = fs::File::create(folder.join("log"))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(log.try_clone()?).stderr(Stdio::from(log));
        let tells = matches!(self, Peer::StillingUring | Peer::StillingPoll);
        let monitor = if tells { Some(TcpListener::bind("127.0.0.1:0")?.local_addr()?) } else { None };
        command.args(monitor.iter().flat_map(|monitor| ["--listen".to_owned(), monitor.to_string()]));
        let server = Server::told_where(self.name(), words.join(" "), address, command).map_err(|error| {
            let said = fs::read_to_string(folder.join("log")).unwrap_or_default();
            format!("{error}; it said: {said}")
        })?;
        Ok(Running { server, monitor })
    }
}

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn stilling_command(
    place: &Place,
    driver: Driver,
    address: SocketAddr,
    data: &str,
    keeps: Keeps,
) -> Vec<String> {
    let program = place.stilling.display().to_string();
    let mut words = text(&[&program, "serve", "--nats", &address.to_string()]);
    words.extend(text(&["--driver", driver.option()]));
    let kind = match keeps {
        Keeps::Disk => "disk",
        Keeps::Memory => "memory",
        Keeps::Nothing => return words,
    };
    words.extend(text(&["--data", data, "--stream", &format!("{STREAM}={STREAM}.>:{kind}")]));
    words
}

fn nats_config(peer: Peer, address: SocketAddr, data: &str) -> String {
    let sync = if peer == Peer::JetStreamAlways { ", sync_interval: always" } else { "" };
    let streams = match peer {
        Peer::NatsCore => String::new(),
        _ => format!("jetstream {{ store_dir: \"{data}\"{sync} }}\n"),
    };
    format!("listen: \"{address}\"\n{streams}")
}

/// One line per message, nothing but its text; messages longer than the default of 8 KiB are cut, so none is.
fn rsyslog_config(port: &str, folder: &Path, data: &str) -> String {
    let file = folder.join("messages");
    format!(
        "global(workDirectory=\"{data}\" maxMessageSize=\"1m\")\nmodule(load=\"imptcp\")\n\
         input(type=\"imptcp\" address=\"127.0.0.1\" port=\"{port}\" socketBacklog=\"4096\")\n\
         template(name=\"text\" type=\"string\" string=\"%msg%\\n\")\n\
         action(type=\"omfile\" file=\"{}\" template=\"text\")\n",
        file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_peer_that_is_to_sync_is_told_so() {
        let address = SocketAddr::from(([127, 0, 0, 1], 81));
        let config = |peer| nats_config(peer, address, "d");
        assert_eq!(config(Peer::NatsCore), "listen: \"127.0.0.1:81\"\n");
        assert!(config(Peer::JetStream).ends_with("jetstream { store_dir: \"d\" }\n"));
        assert!(config(Peer::JetStreamAlways).ends_with("\"d\", sync_interval: always }\n"));
    }

    #[test]
    fn names_tell_all_peers_apart() {
        let mut names: Vec<_> = ALL.iter().copied().map(Peer::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
