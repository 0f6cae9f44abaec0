//! `stilling check`: prints what `serve` would open, with errors and warnings. Opens nothing.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;

use stilling::settings::{Credential, MessagingConfig, SlowSubscribers, StreamConfig, UserConfig};
use stilling::upstream::PathPattern;
use stilling::{Admin, DataDirectory, PacketLogConfig, ServeConfig};

use crate::resolved::ResolvedSettings;
use crate::serve::ServeArguments;
use crate::settings::units::{write_bytes, write_seconds};
use crate::settings::{Diagnostic, Diagnostics, SettingSources};
use crate::warnings::warnings;

/// Prints what `serve` would open, with errors and warnings.
///
/// # Errors
/// Anything that prevents a server from starting or from storing messages.
pub(crate) fn run(arguments: ServeArguments, sources: SettingSources) -> Result<(), Box<dyn Error>> {
    let resolved = arguments.resolve(sources)?;
    let ResolvedSettings { config, sources, .. } = &resolved;
    config.check(false)?;
    let mut out = settings(sources);
    http(config, sources, &mut out);
    messages(&config.hub, sources, &mut out);
    for line in resolved.not_opened() {
        let _ = writeln!(out, "{line}");
    }
    let mut wrong = Vec::new();
    let origin = sources.origin("data");
    match DataDirectory::inspect(&config.hub) {
        Ok(Some(data)) => {
            let shown = config.hub.data.display();
            let _ = writeln!(out, "data       {shown} ({origin}): {}", describe_data(&data));
            wrong.extend(data.shortage().map(|reason| Diagnostic::new(&origin, reason)));
        }
        Ok(None) => {}
        Err(reason) => wrong.push(Diagnostic::new(&origin, reason)),
    }
    for warning in warnings(&resolved, &config.exposures()).into_iter().chain(in_use(&resolved)) {
        let _ = writeln!(out, "warning: {warning}");
    }
    if wrong.is_empty() {
        out += "no errors\n";
    }
    std::io::stdout().write_all(out.as_bytes())?;
    // A plain error without the exit status of `Diagnostics`: the settings are valid, the machine does not meet them.
    if wrong.is_empty() { Ok(()) } else { Err(Diagnostics(wrong).to_string().into()) }
}

/// A warning if a running server holds the streams; the settings are valid.
fn in_use(ResolvedSettings { config, sources, .. }: &ResolvedSettings) -> Option<Diagnostic> {
    let data = DataDirectory::inspect(&config.hub).ok().flatten()?;
    let (stream, process) = data.holder()?;
    let reason = format!(
        "process {process} uses the stream {stream} now; stop it before `serve`, or take over from it (--take-over)"
    );
    Some(Diagnostic::new(&sources.origin("data"), reason))
}

fn settings(sources: &SettingSources) -> String {
    match &sources.file {
        Some(path) => format!("settings   {}\n", path.display()),
        None => "settings   no file\n".to_owned(),
    }
}

fn http(config: &ServeConfig, sources: &SettingSources, output: &mut String) {
    let origin = sources.listen_origin();
    for address in &config.listen {
        let _ = writeln!(output, "http       {address} ({origin})");
        if !config.apps.is_empty() && config.publishes_at(*address) {
            let _ = writeln!(output, "publish    http://{address}/publish/* (answered here, not by the app)");
        }
        if !config.apps.is_empty() && config.subscribes_at(*address) {
            let _ =
                writeln!(output, "subscribe  http://{address}/subscribe/* (answered here, not by the app)");
        }
        if !config.apps.is_empty() && config.serves_nats_at(*address) {
            let _ = writeln!(output, "nats       ws://{address}/nats (answered here, not by the app)");
        }
        if config.has_auction_page_at(*address) {
            let _ = writeln!(output, "auction    http://{address}/auction (a page for bidders)");
        }
    }
    for address in &config.coap {
        let _ = writeln!(output, "coap       {address} ({})", sources.origin("coap"));
    }
    if let Admin::At(address) = config.admin {
        let _ = writeln!(output, "admin      {address} ({})", sources.origin("admin"));
    }
    if let Some(take_over) = &config.take_over {
        let _ = writeln!(output, "control    {} ({})", take_over.path.display(), sources.origin("take-over"));
    }
    if let Some(PacketLogConfig { directory, file_size_max, files_max }) = &config.packet_log {
        let (origin, size) = (sources.origin("packet-log"), write_bytes(*file_size_max));
        let _ =
            writeln!(output, "packets    {} ({origin}): {files_max} files of {size}", directory.display());
    }
    for app in &config.apps {
        let processes = app.processes.processes;
        let pool = match app.paths {
            PathPattern::Everything => String::new(),
            PathPattern::Below(_) | PathPattern::Exactly(_) => format!("{} at {}: ", app.name, app.paths),
        };
        let _ =
            writeln!(output, "app        {pool}{processes} × {} ({})", app.command, sources.origin("app"));
    }
}

fn messages(config: &MessagingConfig, sources: &SettingSources, output: &mut String) {
    let network = [
        ("nats", &config.nats),
        ("nats-websocket", &config.nats_websocket),
        ("syslog-udp", &config.syslog_udp),
        ("syslog-tcp", &config.syslog_tcp),
    ];
    for (name, addresses) in network {
        for address in addresses {
            let _ = writeln!(output, "{name:<10} {address} ({})", sources.origin(name));
        }
    }
    for path in &config.syslog_unix {
        let _ = writeln!(output, "syslog     {} ({})", path.display(), sources.origin("syslog-unix"));
    }
    for stream in &config.streams {
        let _ = writeln!(output, "stream     {}", describe_stream(stream));
    }
    for user in &config.users {
        let _ = writeln!(output, "user       {}", describe_user(user));
    }
}

fn describe_stream(stream: &StreamConfig) -> String {
    let StreamConfig { name, subjects, durability, retention, slow_subscribers, catch_up_time, .. } = stream;
    let mut description =
        format!("{name}: {}; {durability}; keeps {}", subjects.join(", "), write_bytes(retention.bytes));
    if let Some(records) = retention.records {
        let _ = write!(description, ", {records} records");
    }
    if let Some(age) = retention.age {
        let _ = write!(description, ", {}", write_seconds(age));
    }
    if let Some(gate) = &stream.gate {
        let _ = write!(description, "; gate {gate}");
    }
    let policy = match slow_subscribers {
        SlowSubscribers::CatchUp | SlowSubscribers::Skip => "skip",
        SlowSubscribers::Disconnect => "are disconnected",
    };
    match (slow_subscribers, catch_up_time) {
        (SlowSubscribers::CatchUp, None) => {}
        (_, None) => {
            let _ = write!(description, "; slow subscribers {policy}");
        }
        (_, Some(time)) => {
            let time = write_seconds(*time);
            let _ = write!(description, "; slow subscribers catch up, or {policy} after {time}");
        }
    }
    description
}

fn describe_user(user: &UserConfig) -> String {
    let secret = match user.credential {
        Credential::Password(_) => "password",
        Credential::Token(_) => "token",
    };
    let list =
        |filters: &[String]| if filters.is_empty() { "nothing".to_owned() } else { filters.join(", ") };
    format!(
        "{}: {secret}; publishes {}; subscribes {}",
        user.name,
        list(&user.publish),
        list(&user.subscribe)
    )
}

fn describe_data(data: &DataDirectory) -> String {
    let mebibytes = data.free() >> 20;
    if data.exists() {
        format!("exists, {mebibytes} MiB free")
    } else {
        format!("created at the first durable publish, {mebibytes} MiB free in {}", data.existing().display())
    }
}
