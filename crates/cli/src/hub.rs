//! Options of the hub: NATS and syslog listeners, streams and their storage, users.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use stilling::settings::{
    MessagingConfig, SYSLOG_SUBJECT, SettingError, SettingKey, SourceRange, StreamConfig, SubjectTemplate,
    UserConfig, WriteMethodChoice,
};

use crate::settings::tables::{self, ParsedTables};
use crate::settings::units::address;
use crate::settings::{Diagnostic, SettingOrigin, SettingSources, SettingTable, render};

/// The NATS listener when no listener is named.
pub(crate) const NATS_DEFAULT: ([u8; 4], u16) = ([127, 0, 0, 1], 4222);

#[derive(Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct HubArguments {
    /// Listen for NATS clients on this address; repeatable [default: 127.0.0.1:4222, if no listener is named]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    nats: Vec<SocketAddr>,
    /// Listen for NATS clients over WebSocket on this address, beside /nats of the HTTP listeners; repeatable [default:
    /// nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    nats_websocket: Vec<SocketAddr>,
    /// Thread of the hub, which all messages pass; auto uses a dedicated thread on more than two cores
    #[arg(long, value_enum, default_value_t = HubThreadOption::Auto)]
    hub_thread: HubThreadOption,
    /// Receive syslog datagrams on this address; repeatable [default: nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    syslog_udp: Vec<SocketAddr>,
    /// Listen for syslog connections on this address; repeatable [default: nowhere]
    #[arg(long, value_name = "ADDRESS", value_parser = address())]
    syslog_tcp: Vec<SocketAddr>,
    /// Receive syslog datagrams on a Unix socket with this path, such as /dev/log; repeatable [default: nowhere]
    #[arg(long, value_name = "PATH")]
    syslog_unix: Vec<PathBuf>,
    /// Address range that may send syslog over the network, such as 10.0.0.0/8; repeatable [default: loopback
    /// addresses]
    #[arg(long, value_name = "RANGE")]
    syslog_source: Vec<SourceRange>,
    /// Subject of syslog messages; {facility}, {severity}, {host} and {app} are replaced by fields of the message
    #[arg(long, value_name = "SUBJECT", default_value = SYSLOG_SUBJECT)]
    syslog_subject: SubjectTemplate,
    /// Directory of the streams on disk; created at the first durable publish
    #[arg(long, value_name = "DIRECTORY", default_value = "./stilling-data")]
    data: PathBuf,
    /// Write method of streams: auto bypasses the page cache (O_DIRECT) where the volume allows it, buffered never does
    #[arg(long, value_enum, default_value_t = WriteMethodOption::Auto)]
    write_method: WriteMethodOption,
    /// Store what is published to these subjects: NAME=FILTERS[:disk|memory|none][:key=value]…; repeatable [default:
    /// events=events.>:disk]
    #[arg(long, value_name = "NAME=FILTERS")]
    stream: Vec<String>,
    /// Require credentials of a user: NAME:password-env=VARIABLE[:publish=FILTERS][:subscribe=FILTERS]; repeatable
    /// [default: no credentials are required]
    #[arg(long, value_name = "NAME:KEY=VALUE")]
    user: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum WriteMethodOption {
    /// O_DIRECT with RWF_DSYNC where the volume allows it, else buffered
    Auto,
    /// Through the page cache with fdatasync
    Buffered,
}

#[derive(Clone, Copy, ValueEnum)]
enum HubThreadOption {
    /// A dedicated thread on more than two cores, else the first accept thread
    Auto,
    /// The first accept thread
    Shard,
    /// A dedicated thread
    Dedicated,
}

pub(crate) struct HubSettings {
    pub(crate) config: MessagingConfig,
    pub(crate) thread: stilling::HubThread,
    pub(crate) warnings: Vec<Diagnostic>,
    /// Streams and users as tables of the settings file.
    pub(crate) tables: String,
    streams: ParsedTables<StreamConfig>,
    users: ParsedTables<UserConfig>,
}

impl HubArguments {
    /// Returns whether an option names one of the hub's listeners.
    pub(crate) fn names_a_listener(&self) -> bool {
        !(self.nats.is_empty()
            && self.nats_websocket.is_empty()
            && self.syslog_udp.is_empty()
            && self.syslog_tcp.is_empty()
            && self.syslog_unix.is_empty())
    }

    /// Resolves the options. `listens_by_default`: no source names a listener, and the parent process passes none.
    pub(crate) fn resolve(
        self,
        listens_by_default: bool,
        sources: &mut SettingSources,
        wrong: &mut Vec<Diagnostic>,
    ) -> HubSettings {
        let streams = read(&self.stream, "stream", tables::parse_stream_argument, sources, wrong);
        let users = read(&self.user, "user", tables::parse_user_argument, sources, wrong);
        let of = |kind: &'static str| move |table: &SettingTable| render::table(kind, table);
        let shown: String = streams.iter().map(of("stream")).chain(users.iter().map(of("user"))).collect();
        let default_streams = MessagingConfig::default().streams;
        let shown = match streams.is_empty() {
            true => default_streams
                .iter()
                .map(tables::default_stream_table)
                .map(|table| of("stream")(&table))
                .collect(),
            false => String::new(),
        } + &shown;
        let mut streams = tables::streams(&streams, wrong);
        let mut users = tables::users(&users, wrong);
        let defaults = MessagingConfig::default();
        let mut config = MessagingConfig {
            nats: self.nats,
            nats_websocket: self.nats_websocket,
            syslog_udp: self.syslog_udp,
            syslog_tcp: self.syslog_tcp,
            syslog_unix: self.syslog_unix,
            syslog_sources: self.syslog_source,
            syslog_subject: self.syslog_subject,
            // The server changes its working directory when it daemonizes.
            data: std::path::absolute(&self.data).unwrap_or(self.data),
            write_method: match self.write_method {
                WriteMethodOption::Auto => WriteMethodChoice::Auto,
                WriteMethodOption::Buffered => WriteMethodChoice::Buffered,
            },
            streams: streams.items.clone(),
            gates: defaults.gates,
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
            HubThreadOption::Auto => stilling::HubThread::Auto,
            HubThreadOption::Shard => stilling::HubThread::Shard,
            HubThreadOption::Dedicated => stilling::HubThread::Dedicated,
        };
        HubSettings { config, thread, warnings, tables: shown, streams, users }
    }
}

impl HubSettings {
    /// Adds the origin of the setting to a problem.
    pub(crate) fn diagnostic(&self, problem: SettingError, sources: &SettingSources) -> Diagnostic {
        let origin = match problem.setting {
            SettingKey::Option("listen") => sources.listen_origin(),
            SettingKey::Option(name) => sources.origin(name),
            SettingKey::Stream { index, key } => self.streams.origin_of(index, key),
            SettingKey::User { index, key } => self.users.origin_of(index, key),
        };
        // A default has no origin to print, so the full problem names the setting.
        let reason = if origin == SettingOrigin::Default { problem.to_string() } else { problem.reason };
        Diagnostic { origin, reason }
    }
}

/// The tables of a repeatable setting: from arguments, or else from the file.
fn read(
    words: &[String],
    name: &'static str,
    parse: fn(&str, &SettingOrigin) -> Result<SettingTable, Diagnostic>,
    sources: &mut SettingSources,
    wrong: &mut Vec<Diagnostic>,
) -> Vec<SettingTable> {
    if words.is_empty() {
        return sources.take_tables(name);
    }
    let origin = sources.origin(name);
    let tables = words.iter().map(|word| parse(word, &origin));
    tables.filter_map(|table| table.map_err(|diagnostic| wrong.push(diagnostic)).ok()).collect()
}
