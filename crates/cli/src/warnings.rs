//! Warnings about allowed but unwise settings of a server.

use std::net::SocketAddr;

use stilling::settings::{Durability, MessagingConfig, SourceRange};
use stilling::upstream::AppConfig;
use stilling::{Admin, DataDirectory, Exposure, ServeConfig};

use crate::resolved::ResolvedSettings;
use crate::settings::Diagnostic;
use crate::settings::SettingSources;
use crate::settings::units::write_bytes;

/// All warnings, for `check` and for a starting server.
pub(crate) fn warnings(resolved: &ResolvedSettings, exposures: &[Exposure]) -> Vec<Diagnostic> {
    let ResolvedSettings { config, sources, warnings, .. } = resolved;
    let mut all = warnings.clone();
    if let Ok(Some(data)) = DataDirectory::inspect(&config.hub) {
        let on_disk = config.hub.streams.iter().filter(|stream| stream.durability == Durability::Disk);
        let wanted = on_disk.map(|stream| stream.retention.bytes).fold(0, u64::saturating_add);
        if data.free() < wanted {
            let (wanted, free) = (write_bytes(wanted), write_bytes(data.free()));
            let reason = format!("the streams may store up to {wanted}, but only {free} are free");
            all.push(Diagnostic::new(&sources.origin("data"), reason));
        }
    }
    all.extend(exposures.iter().map(|Exposure { option, reason }| {
        let origin = if *option == "listen" { sources.listen_origin() } else { sources.origin(option) };
        Diagnostic::new(&origin, reason.clone())
    }));
    all.extend(syslog_warnings(&config.hub, sources));
    all.extend(websocket_warnings(&config.hub, sources));
    all.extend(app_warnings(config, sources));
    all.extend(packet_log_warning(config, sources));
    all.extend(sources.warnings.iter().cloned());
    all
}

/// Pools with patterns for paths that the server answers itself.
fn app_warnings(config: &ServeConfig, sources: &SettingSources) -> Vec<Diagnostic> {
    let at_any = |is_open: &dyn Fn(SocketAddr) -> bool| config.listen.iter().any(|address| is_open(*address));
    let has_pages = config.admin == Admin::Everywhere;
    let own = [
        ("/publish/*", at_any(&|address| config.publishes_at(address))),
        ("/subscribe/*", at_any(&|address| config.subscribes_at(address))),
        ("/nats", at_any(&|address| config.serves_nats_at(address))),
        ("/auction", at_any(&|address| config.has_auction_page_at(address))),
        ("/status", has_pages),
        ("/metrics", has_pages),
        ("/livez", has_pages),
        ("/readyz", has_pages),
    ];
    let of = |app: &AppConfig| {
        let is_taken = |path: &str| path.parse().is_ok_and(|own| app.paths.is_within(&own));
        let (path, _) = own.iter().find(|(path, is_open)| *is_open && is_taken(path))?;
        let reason = format!(
            "the server answers {path} itself, so the app `{}` gets no request for {}; choose another path",
            app.name, app.paths
        );
        Some(Diagnostic::new(&sources.origin("app"), reason))
    };
    config.apps.iter().filter_map(of).collect()
}

/// A packet log that cannot be written; the server starts without it.
fn packet_log_warning(config: &ServeConfig, sources: &SettingSources) -> Option<Diagnostic> {
    let directory = &config.packet_log.as_ref()?.directory;
    let existing = directory.ancestors().find(|path| path.exists())?;
    let shown = existing.display();
    let reason = || format!("`{shown}` is not a directory, so nothing is recorded; choose another path");
    (!existing.is_dir()).then(|| Diagnostic::new(&sources.origin("packet-log"), reason()))
}

/// Listeners that refuse all clients.
fn websocket_warnings(config: &MessagingConfig, sources: &SettingSources) -> Vec<Diagnostic> {
    let is_refusing =
        |address: &&SocketAddr| config.users.is_empty() && !address.ip().to_canonical().is_loopback();
    let of = |address: &SocketAddr| {
        let reason = format!(
            "{address} is reachable from other machines, and without users its clients are refused; add a [[user]], or \
             listen on 127.0.0.1"
        );
        Diagnostic::new(&sources.origin("nats-websocket"), reason)
    };
    config.nats_websocket.iter().filter(is_refusing).map(of).collect()
}

fn syslog_warnings(config: &MessagingConfig, sources: &SettingSources) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    let only_loopback = config.syslog_sources.iter().all(SourceRange::is_loopback);
    for (name, addresses) in [("syslog-udp", &config.syslog_udp), ("syslog-tcp", &config.syslog_tcp)] {
        for address in addresses.iter().filter(|address| only_loopback && !address.ip().is_loopback()) {
            let reason = format!(
                "{address} is reachable from other machines, and their messages are rejected; allow senders with syslog-source"
            );
            warnings.push(Diagnostic::new(&sources.origin(name), reason));
        }
    }
    let receives_syslog =
        !(config.syslog_udp.is_empty() && config.syslog_tcp.is_empty() && config.syslog_unix.is_empty());
    if receives_syslog && !config.stores_syslog() {
        let reason =
            format!("no stream stores `{}`: syslog reaches only current subscribers", config.syslog_subject);
        warnings.push(Diagnostic::new(&sources.origin("syslog-subject"), reason));
    }
    warnings
}
