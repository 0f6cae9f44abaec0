//! `[[app]]`: pools of worker processes. Only the file has these tables; `--app` is one pool for all paths.

use stilling::upstream::{AppConfig, AppProtocol};

use super::{ParsedTables, SettingTable, TableKey, fill};
use crate::settings::Diagnostic;
use crate::settings::units::{read_bytes, read_duration};

pub(in crate::settings) struct AppDraft(AppConfig);

impl Default for AppDraft {
    fn default() -> AppDraft {
        AppDraft(AppConfig { name: String::new(), ..AppConfig::new("") })
    }
}

pub(in crate::settings) const APP_KEYS: [TableKey<AppDraft>; 16] = [
    TableKey {
        name: "name",
        value: "NAME",
        default: "",
        description: "Its name in the log, the metrics and on the pages: at most 32 letters, digits, - and _",
        set: |AppDraft(app), entry| entry.one().map(|name| app.name = name.to_owned()),
    },
    TableKey {
        name: "match",
        value: "PATH",
        default: "/*",
        description: "The paths that it answers: /shop/* for all below /shop/, /shop for this one; the longest pattern has precedence. Paths are compared as sent, without decoding",
        set: |AppDraft(app), entry| entry.one()?.parse().map(|paths| app.paths = paths),
    },
    TableKey {
        name: "command",
        value: "COMMAND",
        default: "",
        description: "The program, as in --app",
        set: |AppDraft(app), entry| entry.one().map(|command| app.command = command.to_owned()),
    },
    TableKey {
        name: "speaks",
        value: "http|frames",
        default: "http",
        description: "As --app-speaks",
        set: |AppDraft(app), entry| {
            app.speaks = match entry.one()? {
                "http" => AppProtocol::Http,
                "frames" => AppProtocol::Frames,
                other => return Err(format!("`{other}` is not http or frames")),
            };
            Ok(())
        },
    },
    TableKey {
        name: "processes",
        value: "N",
        default: "1",
        description: "Number of processes, 1 to 1024",
        set: |AppDraft(app), entry| {
            entry.number::<u32>().map(|number| app.processes.processes = number as usize)
        },
    },
    TableKey {
        name: "concurrency",
        value: "N",
        default: "1",
        description: "Maximum concurrent requests per process, 1 to 1024; more wait in the pool's queue",
        set: |AppDraft(app), entry| entry.number::<u32>().map(|number| app.processes.slots = number as usize),
    },
    TableKey {
        name: "requests-max",
        value: "N",
        default: "0",
        description: "Requests after which a process is replaced; 0: never",
        set: |AppDraft(app), entry| entry.number().map(|number| app.processes.requests_max = number),
    },
    TableKey {
        name: "memory-max",
        value: "BYTES",
        default: "0",
        description: "As --app-memory-max",
        set: |AppDraft(app), entry| read_bytes(entry.one()?).map(|bytes| app.processes.memory_max = bytes),
    },
    TableKey {
        name: "timeout",
        value: "TIME",
        default: "60s",
        description: "As --app-timeout",
        set: |AppDraft(app), entry| read_duration(entry.one()?).map(|time| app.timeout = time),
    },
    TableKey {
        name: "affinity",
        value: "true or false",
        default: "false",
        description: "As --app-affinity",
        set: |AppDraft(app), entry| entry.switch().map(|affinity| app.affinity = affinity),
    },
    TableKey {
        name: "affinity-idle",
        value: "TIME",
        default: "60s",
        description: "As --app-affinity-idle",
        set: |AppDraft(app), entry| read_duration(entry.one()?).map(|time| app.affinity_idle = time),
    },
    TableKey {
        name: "sessions",
        value: "N",
        default: "10000",
        description: "As --app-sessions, 0 to 1000000",
        set: |AppDraft(app), entry| entry.number::<u32>().map(|number| app.sessions_max = number as usize),
    },
    TableKey {
        name: "session-idle",
        value: "TIME",
        default: "30m",
        description: "As --app-session-idle",
        set: |AppDraft(app), entry| read_duration(entry.one()?).map(|time| app.session_idle = time),
    },
    TableKey {
        name: "start-timeout",
        value: "TIME",
        default: "30s",
        description: "As --app-start-timeout",
        set: |AppDraft(app), entry| {
            read_duration(entry.one()?).map(|time| app.processes.start_timeout = time)
        },
    },
    TableKey {
        name: "drain-timeout",
        value: "TIME",
        default: "30s",
        description: "As --app-drain-timeout",
        set: |AppDraft(app), entry| {
            read_duration(entry.one()?).map(|time| app.processes.drain_timeout = time)
        },
    },
    TableKey {
        name: "stop-timeout",
        value: "TIME",
        default: "10s",
        description: "As --app-stop-timeout",
        set: |AppDraft(app), entry| read_duration(entry.one()?).map(|time| app.processes.stop_timeout = time),
    },
];

pub(crate) fn apps(tables: &[SettingTable], wrong: &mut Vec<Diagnostic>) -> ParsedTables<AppConfig> {
    let mut apps = ParsedTables::empty();
    for table in tables {
        let Some(AppDraft(app)) = fill(table, "an app", &APP_KEYS, wrong) else { continue };
        let missing = [("name", "\"shop\"", &app.name), ("command", "\"node server.js\"", &app.command)];
        let missing = missing.iter().find(|(.., value)| value.is_empty());
        if let Some((key, example, _)) = missing {
            let reason = format!("this app has no {key}, such as {key} = {example}");
            wrong.push(Diagnostic::new(&table.origin, reason));
            continue;
        }
        apps.push(table, app);
    }
    apps
}
