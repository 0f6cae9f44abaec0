//! The message servers, each with its usual options, a port and a folder.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use super::CollectPrograms;
use crate::XtaskResult;
use crate::bench::figures::BARE;
use crate::bench::harness::NamedServer;
use crate::bench::server::{BenchDriver, BenchServer};

/// The stream, and the prefix of the subjects it stores.
const STREAM: &str = "events";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StorageKind {
    Disk,
    Memory,
    /// Not stored, only sent to subscribers.
    Nothing,
}

pub(in crate::bench) struct RunningPeer {
    pub(in crate::bench) server: BenchServer,
    /// HTTP address of its metrics, if it has any.
    pub(super) monitor: Option<SocketAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollectPeer {
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

impl NamedServer for CollectPeer {
    fn name(&self) -> &'static str {
        CollectPeer::name(*self)
    }
}

/// All servers, in the order of the tables.
pub(super) const ALL: [CollectPeer; 9] = [
    CollectPeer::StillingUring,
    CollectPeer::StillingPoll,
    CollectPeer::JetStream,
    CollectPeer::JetStreamAlways,
    CollectPeer::NatsCore,
    CollectPeer::RedisEverySecond,
    CollectPeer::RedisAlways,
    CollectPeer::Rsyslog,
    CollectPeer::Bare,
];

impl CollectPeer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            CollectPeer::StillingUring => BenchDriver::Uring.name(),
            CollectPeer::StillingPoll => BenchDriver::Poll.name(),
            CollectPeer::JetStream => "JetStream",
            CollectPeer::JetStreamAlways => "JetStream, synced",
            CollectPeer::NatsCore => "nats-server",
            CollectPeer::RedisEverySecond => "Redis, every second",
            CollectPeer::RedisAlways => "Redis, synced",
            CollectPeer::Rsyslog => "rsyslog",
            CollectPeer::Bare => BARE,
        }
    }

    /// Its options, and the meaning of its acknowledgement.
    pub(in crate::bench) fn description(self) -> &'static str {
        match self {
            CollectPeer::StillingUring | CollectPeer::StillingPoll => {
                "`stilling serve --nats … --data … --stream events=events.>:disk`, acknowledges what is synced"
            }
            CollectPeer::JetStream => {
                "nats-server with a file stream, acknowledges what it has written, syncs every 2 minutes"
            }
            CollectPeer::JetStreamAlways => {
                "the same with `sync_interval: always`, acknowledges what is synced"
            }
            CollectPeer::NatsCore => "nats-server without streams",
            CollectPeer::RedisEverySecond => {
                "`XADD`, `appendfsync everysec`, acknowledges what it has written"
            }
            CollectPeer::RedisAlways => "`XADD`, `appendfsync always`, acknowledges what is synced",
            CollectPeer::Rsyslog => {
                "imptcp (with a backlog of 4,096 instead of 5) to omfile, acknowledges nothing"
            }
            CollectPeer::Bare => {
                "`stilling-peer-bare durable`, or `relay` without a stream on disk: the I/O and nothing else, \
                 acknowledges what is synced"
            }
        }
    }

    pub(crate) fn is_available(self, programs: &CollectPrograms) -> bool {
        match self {
            CollectPeer::StillingUring | CollectPeer::StillingPoll => programs.collects,
            CollectPeer::JetStreamAlways => programs.syncs_always,
            _ => true,
        }
    }

    /// Options of the generator for this server.
    pub(super) fn generator_options(self, folder: &Path, storage: StorageKind) -> Vec<String> {
        let option = |text: &str| vec![text.to_owned()];
        match (self, storage) {
            (CollectPeer::JetStream | CollectPeer::JetStreamAlways, StorageKind::Disk) => {
                option("--make-stream=file")
            }
            (CollectPeer::JetStream | CollectPeer::JetStreamAlways, StorageKind::Memory) => {
                option("--make-stream=memory")
            }
            (CollectPeer::RedisEverySecond | CollectPeer::RedisAlways, _) => option("--protocol=redis"),
            (CollectPeer::Rsyslog, _) => vec![
                "--protocol=syslog".to_owned(),
                format!("--received-file={}", folder.join("messages").display()),
            ],
            _ => Vec::new(),
        }
    }

    /// Its command, for an address and a folder.
    ///
    /// # Errors
    /// If a configuration file cannot be written.
    pub(crate) fn command(
        self,
        programs: &CollectPrograms,
        address: SocketAddr,
        folder: &Path,
        storage: StorageKind,
    ) -> XtaskResult<Vec<String>> {
        let data = folder.join("kept").display().to_string();
        let port = address.port().to_string();
        Ok(match self {
            CollectPeer::StillingUring => {
                stilling_command(programs, BenchDriver::Uring, address, &data, storage)
            }
            CollectPeer::StillingPoll => {
                stilling_command(programs, BenchDriver::Poll, address, &data, storage)
            }
            CollectPeer::JetStream | CollectPeer::JetStreamAlways | CollectPeer::NatsCore => {
                let file = folder.join("nats.conf");
                fs::write(&file, nats_config(self, address, &data))?;
                text(&[&programs.nats_server.display().to_string(), "-c", &file.display().to_string()])
            }
            CollectPeer::RedisEverySecond | CollectPeer::RedisAlways => {
                fs::create_dir_all(&data)?;
                let syncs = if self == CollectPeer::RedisAlways { "always" } else { "everysec" };
                let mut arguments =
                    text(&["redis-server", "--bind", "127.0.0.1", "--port", &port, "--dir", &data]);
                arguments.extend(text(&["--save", "", "--appendonly", "yes", "--appendfsync", syncs]));
                // A rewrite of its file in the middle of a round would distort some rounds.
                arguments.extend(text(&["--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]));
                arguments
            }
            CollectPeer::Rsyslog => {
                fs::create_dir_all(&data)?;
                let file = folder.join("rsyslog.conf");
                fs::write(&file, rsyslog_config(&port, folder, &data))?;
                let pid = folder.join("rsyslog.pid").display().to_string();
                text(&["/usr/sbin/rsyslogd", "-n", "-f", &file.display().to_string(), "-i", &pid])
            }
            CollectPeer::Bare => {
                let (program, address) = (programs.bare.display().to_string(), address.to_string());
                match storage {
                    StorageKind::Disk => text(&[&program, "durable", &address, &data]),
                    StorageKind::Memory | StorageKind::Nothing => text(&[&program, "relay", &address]),
                }
            }
        })
    }

    /// Starts it with a folder of its own.
    ///
    /// # Errors
    /// If it does not listen.
    pub(in crate::bench) fn start(
        self,
        programs: &CollectPrograms,
        folder: &Path,
        storage: StorageKind,
    ) -> XtaskResult<RunningPeer> {
        // Not all servers can report the port they took.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let arguments = self.command(programs, address, folder, storage)?;
        let log = fs::File::create(folder.join("log"))?;
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]).stdout(log.try_clone()?).stderr(Stdio::from(log));
        let tells = matches!(self, CollectPeer::StillingUring | CollectPeer::StillingPoll);
        let monitor = if tells { Some(TcpListener::bind("127.0.0.1:0")?.local_addr()?) } else { None };
        command.args(monitor.iter().flat_map(|monitor| ["--listen".to_owned(), monitor.to_string()]));
        let server = BenchServer::with_address(self.name(), arguments.join(" "), address, command).map_err(
            |error| {
                let log_text = fs::read_to_string(folder.join("log")).unwrap_or_default();
                format!("{error}; its output: {log_text}")
            },
        )?;
        Ok(RunningPeer { server, monitor })
    }
}

fn text(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|word| (*word).to_owned()).collect()
}

fn stilling_command(
    programs: &CollectPrograms,
    driver: BenchDriver,
    address: SocketAddr,
    data: &str,
    storage: StorageKind,
) -> Vec<String> {
    let program = programs.stilling.display().to_string();
    let mut arguments = text(&[&program, "serve", "--nats", &address.to_string()]);
    arguments.extend(text(&["--driver", driver.option()]));
    let kind = match storage {
        StorageKind::Disk => "disk",
        StorageKind::Memory => "memory",
        StorageKind::Nothing => return arguments,
    };
    arguments.extend(text(&["--data", data, "--stream", &format!("{STREAM}={STREAM}.>:{kind}")]));
    arguments
}

fn nats_config(peer: CollectPeer, address: SocketAddr, data: &str) -> String {
    let sync = if peer == CollectPeer::JetStreamAlways { ", sync_interval: always" } else { "" };
    let streams = match peer {
        CollectPeer::NatsCore => String::new(),
        _ => format!("jetstream {{ store_dir: \"{data}\"{sync} }}\n"),
    };
    format!("listen: \"{address}\"\n{streams}")
}

/// One line per message with only its text; rsyslog truncates messages above its default of 8 KiB, so the limit is
/// raised.
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
    fn only_the_peer_that_must_sync_is_configured_to() {
        let address = SocketAddr::from(([127, 0, 0, 1], 81));
        let config = |peer| nats_config(peer, address, "d");
        assert_eq!(config(CollectPeer::NatsCore), "listen: \"127.0.0.1:81\"\n");
        assert!(config(CollectPeer::JetStream).ends_with("jetstream { store_dir: \"d\" }\n"));
        assert!(config(CollectPeer::JetStreamAlways).ends_with("\"d\", sync_interval: always }\n"));
    }

    #[test]
    fn peer_names_are_distinct() {
        let mut names: Vec<_> = ALL.iter().copied().map(CollectPeer::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
