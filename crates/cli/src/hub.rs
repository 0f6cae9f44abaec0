//! The options of the hub: where NATS clients and syslog come in, where streams are kept, which there are, who may use them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use stilling::settings::{
    HubConfig, SYSLOG_SUBJECT, Setting, SettingError, SourceRange, StreamConfig, SubjectTemplate, UserConfig,
    WriteMethodChoice,
};

use crate::settings::tables::{self, Tabled};
use crate::settings::units::address;
use crate::settings::{Complaint, Origin, Sources, Table, render};

/// The NATS listener when no listener is named.
pub(crate) const NATS_DEFAULT: ([u8; 4], u16) = ([127, 0, 0, 1], 4222);

/// The options of the hub.
#[derive(Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Hub {
    /// Listen for NATS clients on this address; repeatable [default: 127.0.0.1:4222, if no listener is named]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    nats: Vec<SocketAddr>,
    /// Where the hub runs, which all messages pass; auto gives it a thread of its own where there are more than two cores
    #[arg(long, value_enum, default_value_t = HubThread::Auto)]
    hub_thread: HubThread,
    /// Receive syslog datagrams on this address; repeatable [default: nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    syslog_udp: Vec<SocketAddr>,
    /// Listen for syslog connections on this address; repeatable [default: nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    syslog_tcp: Vec<SocketAddr>,
    /// Receive syslog datagrams on a Unix socket with this path, as /dev/log is one; repeatable [default: nowhere]
    #[arg(long, value_name = "PATH")]
    syslog_unix: Vec<PathBuf>,
    /// Who may send syslog over the network, such as 10.0.0.0/8; repeatable [default: loopback addresses]
    #[arg(long, value_name = "RANGE")]
    syslog_source: Vec<SourceRange>,
    /// The subject of a syslog message; {facility}, {severity}, {host} and {app} stand for what it says
    #[arg(long, value_name = "SUBJECT", default_value = SYSLOG_SUBJECT)]
    syslog_subject: SubjectTemplate,
    /// The folder of streams on disk; it appears at the first durable publish
    #[arg(long, value_name = "FOLDER", default_value = "./stilling-data")]
    data: PathBuf,
    /// How streams are written: auto goes past the page cache (O_DIRECT) where the volume allows it, buffered never does
    #[arg(long, value_enum, default_value_t = WriteMethod::Auto)]
    write_method: WriteMethod,
    /// Keep what is published to these subjects: NAME=FILTERS[:disk|memory|none][:key=value]…; repeatable [default:
    /// events=events.>:disk]
    #[arg(long, value_name = "NAME=FILTERS")]
    stream: Vec<String>,
    /// Let nobody in but users: NAME:password-env=VARIABLE[:publish=FILTERS][:subscribe=FILTERS]; repeatable [default:
    /// everybody who reaches a listener]
    #[arg(long, value_name = "NAME:KEY=VALUE")]
    user: Vec<String>,
}

/// How streams are written to disk.
#[derive(Clone, Copy, ValueEnum)]
enum WriteMethod {
    /// O_DIRECT with RWF_DSYNC where the volume allows it, else buffered
    Auto,
    /// Through the page cache with fdatasync
    Buffered,
}

/// Where the hub runs.
#[derive(Clone, Copy, ValueEnum)]
enum HubThread {
    /// On a thread of its own where there are more than two cores, else in the first accept thread
    Auto,
    /// In the first accept thread
    Shard,
    /// On a thread of its own
    Own,
}

/// What the options come to.
pub(crate) struct Chosen {
    /// For the server.
    pub(crate) config: HubConfig,
    /// Where the hub runs.
    pub(crate) thread: stilling::HubThread,
    /// What is allowed and not wise.
    pub(crate) warnings: Vec<Complaint>,
    /// Streams and users as a file would have them.
    pub(crate) tables: String,
    streams: Tabled<StreamConfig>,
    users: Tabled<UserConfig>,
}

impl Hub {
    /// Whether one of its listeners is named.
    pub(crate) fn names_a_listener(&self) -> bool {
        !(self.nats.is_empty()
            && self.syslog_udp.is_empty()
            && self.syslog_tcp.is_empty()
            && self.syslog_unix.is_empty())
    }

    /// What the options come to. `listens_by_default`: no listener is named anywhere.
    pub(crate) fn chosen(
        self,
        listens_by_default: bool,
        sources: &mut Sources,
        wrong: &mut Vec<Complaint>,
    ) -> Chosen {
        let streams = read(&self.stream, "stream", tables::stream_word, sources, wrong);
        let users = read(&self.user, "user", tables::user_word, sources, wrong);
        let of = |kind: &'static str| move |table: &Table| render::table(kind, table);
        let shown: String = streams.iter().map(of("stream")).chain(users.iter().map(of("user"))).collect();
        let default_streams = HubConfig::default().streams;
        let shown = match streams.is_empty() {
            true => default_streams.iter().map(tables::of_stream).map(|table| of("stream")(&table)).collect(),
            false => String::new(),
        } + &shown;
        let mut streams = tables::streams(&streams, wrong);
        let mut users = tables::users(&users, wrong);
        let defaults = HubConfig::default();
        let mut config = HubConfig {
            nats: self.nats,
            syslog_udp: self.syslog_udp,
            syslog_tcp: self.syslog_tcp,
            syslog_unix: self.syslog_unix,
            syslog_sources: self.syslog_source,
            syslog_subject: self.syslog_subject,
            // A server in the background changes its folder.
            data: std::path::absolute(&self.data).unwrap_or(self.data),
            write_method: match self.write_method {
                WriteMethod::Auto => WriteMethodChoice::Auto,
                WriteMethod::Buffered => WriteMethodChoice::Buffered,
            },
            streams: streams.items.clone(),
            users: users.items.clone(),
        };
        if listens_by_default {
            config.nats = vec![NATS_DEFAULT.into()];
        }
        if config.syslog_sources.is_empty() {
            config.syslog_sources = defaults.syslog_sources;
        }
        if config.streams.is_empty() {
            config.streams = defaults.streams;
        }
        let mut warnings = std::mem::take(&mut streams.warnings);
        warnings.append(&mut users.warnings);
        let thread = match self.hub_thread {
            HubThread::Auto => stilling::HubThread::Auto,
            HubThread::Shard => stilling::HubThread::Shard,
            HubThread::Own => stilling::HubThread::Own,
        };
        Chosen { config, thread, warnings, tables: shown, streams, users }
    }
}

impl Chosen {
    /// A problem with where it was said.
    pub(crate) fn complaint(&self, problem: SettingError, sources: &Sources) -> Complaint {
        let origin = match problem.setting {
            Setting::Option("listen") => sources.listen_origin(),
            Setting::Option(name) => sources.origin(name),
            Setting::Stream { index, key } => self.streams.place(index, key),
            Setting::User { index, key } => self.users.place(index, key),
        };
        // Nobody can see from a reason alone what a default belongs to.
        let reason = if origin == Origin::Default { problem.to_string() } else { problem.reason };
        Complaint { origin, reason }
    }
}

/// The tables of a name: words, or else those of the file.
fn read(
    words: &[String],
    name: &'static str,
    take_apart: fn(&str, &Origin) -> Result<Table, Complaint>,
    sources: &mut Sources,
    wrong: &mut Vec<Complaint>,
) -> Vec<Table> {
    if words.is_empty() {
        return sources.take_tables(name);
    }
    let origin = sources.origin(name);
    let tables = words.iter().map(|word| take_apart(word, &origin));
    tables.filter_map(|table| table.map_err(|complaint| wrong.push(complaint)).ok()).collect()
}
