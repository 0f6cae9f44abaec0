//! `stilling check`: what `serve` would open, what is wrong with that, and what is not wise. Nothing is opened.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use stilling::settings::{Credential, Durability, HubConfig, SourceRange, StreamConfig, UserConfig};
use stilling::{Admin, ServeConfig};

use crate::serve::{Arguments, Settled};
use crate::settings::units::{write_bytes, write_seconds};
use crate::settings::{Complaint, Complaints, Sources};

/// Looks at everything and says it.
///
/// # Errors
/// What no server can be made with.
pub(crate) fn run(arguments: Arguments, sources: Sources) -> Result<(), Box<dyn Error>> {
    let settled = arguments.settle(sources)?;
    let Settled { config, sources, warnings } = &settled;
    config.check(false)?;
    let mut said = settings(sources);
    http(config, sources, &mut said);
    let mut warnings = warnings.clone();
    let mut wrong = Vec::new();
    let origin = sources.origin("data");
    messages(&config.hub, sources, &mut said);
    let data = Data::of(&config.hub.data);
    let on_disk = config.hub.streams.iter().filter(|stream| stream.durability == Durability::Disk);
    let wanted = on_disk.clone().map(|stream| stream.retention.bytes).fold(0, u64::saturating_add);
    if on_disk.count() > 0 {
        match data {
            Ok(data) => {
                let _ =
                    writeln!(said, "data       {} ({origin}): {}", config.hub.data.display(), data.words());
                if data.free < wanted {
                    let (wanted, free) = (write_bytes(wanted), write_bytes(data.free));
                    let reason = format!("the streams may come to keep {wanted}, and there are {free} free");
                    warnings.push(Complaint::new(&origin, reason));
                }
            }
            Err(reason) => wrong.push(Complaint::new(&origin, reason)),
        }
    }
    warnings.extend(unwise(&config.hub, sources));
    for warning in &warnings {
        let _ = writeln!(said, "warning: {warning}");
    }
    for name in &sources.unknown_variables {
        let _ = writeln!(said, "warning: {name}: there is no such setting; it is not read");
    }
    if wrong.is_empty() {
        said += "nothing is wrong\n";
    }
    std::io::stdout().write_all(said.as_bytes())?;
    if wrong.is_empty() { Ok(()) } else { Err(Box::new(Complaints(wrong))) }
}

/// Where settings come from.
fn settings(sources: &Sources) -> String {
    match &sources.file {
        Some(path) => format!("settings   {}\n", path.display()),
        None => "settings   no file\n".to_owned(),
    }
}

fn http(config: &ServeConfig, sources: &Sources, said: &mut String) {
    let origin = [sources.origin("port"), sources.origin("listen")].into_iter().max().expect("there are two");
    for address in &config.listen {
        let _ = writeln!(said, "http       {address} ({origin})");
    }
    if let Admin::At(address) = config.admin {
        let _ = writeln!(said, "admin      {address} ({})", sources.origin("admin"));
    }
    if let Some(take_over) = &config.take_over {
        let _ = writeln!(said, "control    {} ({})", take_over.path.display(), sources.origin("take-over"));
    }
    if let Some(app) = &config.app {
        let processes = app.processes.processes;
        let _ = writeln!(said, "app        {processes} × {} ({})", app.command, sources.origin("app"));
    }
}

fn messages(config: &HubConfig, sources: &Sources, said: &mut String) {
    let network =
        [("nats", &config.nats), ("syslog-udp", &config.syslog_udp), ("syslog-tcp", &config.syslog_tcp)];
    for (name, addresses) in network {
        for address in addresses {
            let _ = writeln!(said, "{name:<10} {address} ({})", sources.origin(name));
        }
    }
    for path in &config.syslog_unix {
        let _ = writeln!(said, "syslog     {} ({})", path.display(), sources.origin("syslog-unix"));
    }
    for stream in &config.streams {
        let _ = writeln!(said, "stream     {}", stream_words(stream));
    }
    for user in &config.users {
        let _ = writeln!(said, "user       {}", user_words(user));
    }
}

fn stream_words(stream: &StreamConfig) -> String {
    let StreamConfig { name, subjects, durability, retention, .. } = stream;
    let mut words =
        format!("{name}: {}; {durability}; keeps {}", subjects.join(", "), write_bytes(retention.bytes));
    if let Some(records) = retention.records {
        let _ = write!(words, ", {records} records");
    }
    if let Some(age) = retention.age {
        let _ = write!(words, ", {}", write_seconds(age));
    }
    words
}

fn user_words(user: &UserConfig) -> String {
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

/// What is allowed and not wise.
fn unwise(config: &HubConfig, sources: &Sources) -> Vec<Complaint> {
    let mut warnings = Vec::new();
    if config.users.is_empty() {
        for address in config.nats.iter().filter(|address| !address.ip().is_loopback()) {
            let reason = format!(
                "{address} can be reached from other machines, and without a user whoever reaches it may publish and subscribe to everything; add a [[user]], or listen on 127.0.0.1"
            );
            warnings.push(Complaint::new(&sources.origin("nats"), reason));
        }
    }
    let only_loopback = config.syslog_sources.iter().all(SourceRange::is_loopback);
    for (name, addresses) in [("syslog-udp", &config.syslog_udp), ("syslog-tcp", &config.syslog_tcp)] {
        for address in addresses.iter().filter(|address| only_loopback && !address.ip().is_loopback()) {
            let reason = format!(
                "{address} can be reached from other machines, and what they send is refused; syslog-source says who may send"
            );
            warnings.push(Complaint::new(&sources.origin(name), reason));
        }
    }
    let hears_syslog =
        !(config.syslog_udp.is_empty() && config.syslog_tcp.is_empty() && config.syslog_unix.is_empty());
    if hears_syslog && !config.keeps_syslog() {
        let reason = format!(
            "no stream keeps `{}`: syslog reaches only those who listen right then",
            config.syslog_subject
        );
        warnings.push(Complaint::new(&sources.origin("syslog-subject"), reason));
    }
    warnings
}

/// The folder of streams, or the one in which it will be made.
struct Data {
    /// What is there already.
    existing: PathBuf,
    is_there: bool,
    /// Bytes for whoever runs the server.
    free: u64,
}

impl Data {
    fn of(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        // A relative path ends in nothing, which is the current folder.
        let here =
            |part: &Path| if part.as_os_str().is_empty() { PathBuf::from(".") } else { part.to_owned() };
        let existing = path.ancestors().map(here).find(|part| part.symlink_metadata().is_ok());
        let existing = existing.ok_or_else(|| format!("`{shown}` is nowhere"))?;
        let beside = existing.display();
        if !existing.is_dir() {
            return Err(format!("`{beside}` is no folder, so nothing can be kept in `{shown}`"));
        }
        if access(&existing, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            return Err(format!(
                "this user may not write to `{beside}`, so nothing can be kept in `{shown}`"
            ));
        }
        let system = statvfs(&existing).map_err(|error| format!("cannot look at `{beside}`: {error}"))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        Ok(Data { is_there: existing == here(path), existing, free })
    }

    fn words(&self) -> String {
        let mebibytes = self.free >> 20;
        if self.is_there {
            format!("is there, {mebibytes} MiB free")
        } else {
            format!("made at the first durable publish, {mebibytes} MiB free in {}", self.existing.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_streams_is_looked_at_and_not_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let there = Data::of(folder.path()).expect("it is there");
        assert!(there.is_there && there.free > 0, "{}", there.words());
        let path = folder.path().join("a/b/c");
        let later = Data::of(&path).expect("it can be made");
        assert_eq!((later.is_there, later.existing.as_path()), (false, folder.path()));
        assert!(!folder.path().join("a").exists());
        std::fs::write(folder.path().join("a"), "").expect("it can be written");
        let refused = Data::of(&path).err().expect("a file is in the way");
        assert!(refused.contains("a` is no folder, so nothing can be kept in"), "{refused}");
        assert!(Data::of(Path::new("not/there")).is_ok_and(|data| data.existing == Path::new(".")));
    }
}
