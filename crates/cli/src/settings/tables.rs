//! `[[stream]]`, `[[user]]` and `[[app]]`: repeatable settings with keys of their own. On the command line and in the
//! environment a stream or user is one word with the same keys between colons:
//!
//! ```text
//!   --stream 'orders=orders.>,returns.*:memory:retention-bytes=1GiB'
//!   --user 'ann:password-env=ANN_PASSWORD:publish=orders.>'
//! ```

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use stilling::settings::limits::SECRET_SIZE_MAX;
use stilling::settings::{
    Credential, Durability, Retention, Secret, SlowSubscribers, StreamConfig, UserConfig,
};

mod app;

pub(super) use app::APP_KEYS;
pub(crate) use app::apps;

use super::nearest::nearest;
use super::units::{read_bytes, read_duration};
use super::{Diagnostic, SettingEntry, SettingOrigin, file};

/// A table before its keys are interpreted.
#[derive(Debug)]
pub(crate) struct SettingTable {
    pub(crate) origin: SettingOrigin,
    pub(crate) entries: Vec<SettingEntry>,
}

impl SettingTable {
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.entries.iter().map(|entry| (entry.name.as_str(), entry.values.as_slice()))
    }
}

/// The table of a default stream, with the keys that every stream has.
pub(crate) fn default_stream_table(stream: &StreamConfig) -> SettingTable {
    let entry =
        |name: &str, values| SettingEntry { name: name.to_owned(), values, origin: SettingOrigin::Default };
    let entries = vec![entry("name", vec![stream.name.clone()]), entry("subjects", stream.subjects.clone())];
    SettingTable { origin: SettingOrigin::Default, entries }
}

/// Returns whether a key of a table takes a list.
pub(super) fn is_list(key: &str) -> bool {
    matches!(key, "subjects" | "publish" | "subscribe")
}

/// Interpreted tables, with the origin of each key.
pub(crate) struct ParsedTables<T> {
    pub(crate) items: Vec<T>,
    origins: Vec<(SettingOrigin, Vec<(String, SettingOrigin)>)>,
    pub(crate) warnings: Vec<Diagnostic>,
}

/// A key of a table: the single definition of its name, meaning and parser.
pub(super) struct TableKey<D> {
    pub(super) name: &'static str,
    pub(super) value: &'static str,
    pub(super) default: &'static str,
    pub(super) description: &'static str,
    set: fn(&mut D, &SettingEntry) -> Result<(), String>,
}

#[derive(Default)]
pub(super) struct StreamDraft {
    name: String,
    subjects: Vec<String>,
    durability: Durability,
    retention_bytes: Option<u64>,
    retention_records: Option<u64>,
    retention_age: Option<Duration>,
    dedup_time: Option<Duration>,
    message_size_max: Option<u32>,
    pending_max: Option<u32>,
    gate: Option<String>,
    slow_subscribers: SlowSubscribers,
    catch_up_time: Option<Duration>,
}

pub(super) const STREAM_KEYS: [TableKey<StreamDraft>; 12] = [
    TableKey {
        name: "name",
        value: "NAME",
        default: "",
        description: "Its name, and that of its directory: letters, digits, - and _",
        set: |stream, entry| entry.one().map(|name| stream.name = name.to_owned()),
    },
    TableKey {
        name: "subjects",
        value: "FILTERS",
        default: "",
        description: "Its subjects, or filters with * for one token and > for all that follow. A subject belongs to one stream",
        set: |stream, entry| {
            stream.subjects.clone_from(&entry.values);
            Ok(())
        },
    },
    TableKey {
        name: "durability",
        value: "disk|memory|none",
        default: "disk",
        description: "When a message is acknowledged: disk: when it is on disk; memory: when it is in memory; none: when it is numbered and sent to subscribers; it is not stored",
        set: |stream, entry| entry.one()?.parse().map(|durability| stream.durability = durability),
    },
    TableKey {
        name: "retention-bytes",
        value: "BYTES",
        default: "10GiB, in memory 64MiB",
        description: "Maximum bytes, with precedence over the other bounds; the oldest records are removed first",
        set: |stream, entry| read_bytes(entry.one()?).map(|bytes| stream.retention_bytes = Some(bytes)),
    },
    TableKey {
        name: "retention-records",
        value: "N",
        default: "none",
        description: "Minimum records to keep: older ones may be removed",
        set: |stream, entry| entry.number().map(|records| stream.retention_records = Some(records)),
    },
    TableKey {
        name: "retention-age",
        value: "TIME",
        default: "none",
        description: "Minimum time to keep a record: older ones may be removed",
        set: |stream, entry| read_duration(entry.one()?).map(|age| stream.retention_age = Some(age)),
    },
    TableKey {
        name: "dedup-time",
        value: "TIME",
        default: "2m",
        description: "How long a message id (Nats-Msg-Id) is recognised, so that a message sent twice is stored once; at most 1,000,000 ids of 32 bytes each; after a restart only ids of records that retention has kept, and the time without a server does not count; 0: never",
        set: |stream, entry| read_duration(entry.one()?).map(|time| stream.dedup_time = Some(time)),
    },
    TableKey {
        name: "max-message-size",
        value: "BYTES",
        default: "1MiB",
        description: "Maximum bytes of a message with its headers; longer ones are rejected",
        set: |stream, entry| {
            let bytes = read_bytes(entry.one()?)?;
            // A size above every limit, which the check of the limit reports.
            stream.message_size_max = Some(u32::try_from(bytes).unwrap_or(u32::MAX));
            Ok(())
        },
    },
    TableKey {
        name: "max-pending",
        value: "N",
        default: "262144",
        description: "Maximum messages that wait for the disk; then publishers to the stream are not read until it has written",
        set: |stream, entry| entry.number().map(|messages| stream.pending_max = Some(messages)),
    },
    TableKey {
        name: "gate",
        value: "accept-all|auction",
        default: "none",
        description: "Logic that decides what enters the stream; a rejected message is answered with the reason",
        set: |stream, entry| {
            stream.gate = Some(entry.one()?.to_owned());
            Ok(())
        },
    },
    TableKey {
        name: "slow-subscribers",
        value: "catch-up|skip|disconnect",
        default: "catch-up",
        description: "What happens to subscribers over WebSocket and SSE that read too slowly: catch-up: they continue with the message that follows; skip: with the newest one, after a notice of the gap; disconnect: they are disconnected",
        set: |stream, entry| entry.one()?.parse().map(|policy| stream.slow_subscribers = policy),
    },
    TableKey {
        name: "catch-up-time",
        value: "TIME",
        default: "none",
        description: "Slow subscribers catch up whatever the policy; one that reads for this time without gaining on the newest message is disconnected or skips, as slow-subscribers says (catch-up: skips)",
        set: |stream, entry| read_duration(entry.one()?).map(|time| stream.catch_up_time = Some(time)),
    },
];

#[derive(Default)]
pub(super) struct UserDraft {
    name: String,
    credentials: Vec<(String, Credential)>,
    publish: Option<Vec<String>>,
    subscribe: Option<Vec<String>>,
    warnings: Vec<Diagnostic>,
}

impl UserDraft {
    fn add_credential(&mut self, entry: &SettingEntry, credential: Credential) {
        self.credentials.push((entry.name.clone(), credential));
    }

    /// A secret that is part of the settings.
    fn inline_secret(&mut self, entry: &SettingEntry) -> Result<Secret, String> {
        match &entry.origin {
            SettingOrigin::Flag(_) => self.warnings.push(Diagnostic::new(
                &entry.origin,
                format!(
                    "every user of this machine can read a {0} on a command line; use {0}-env or {0}-file",
                    entry.name
                ),
            )),
            SettingOrigin::File(path, _) => self.warn_of_readers(path, entry),
            SettingOrigin::Default | SettingOrigin::Variable(_) => {}
        }
        let text = entry.one()?;
        Ok(match &entry.origin {
            SettingOrigin::Variable(variable) => Secret::from_variable(variable, text),
            SettingOrigin::Flag(_) | SettingOrigin::File(..) | SettingOrigin::Default => Secret::new(text),
        })
    }

    fn secret_from_file(&mut self, entry: &SettingEntry) -> Result<Secret, String> {
        let path = Path::new(entry.one()?);
        let text = file::text(path)?;
        self.warn_of_readers(path, entry);
        // An editor ends the line; a password has no line end.
        let secret = text.strip_suffix('\n').unwrap_or(&text);
        let secret = secret.strip_suffix('\r').unwrap_or(secret);
        if secret.len() > SECRET_SIZE_MAX || secret.contains('\n') {
            return Err(format!(
                "`{}` has to hold one line of at most {SECRET_SIZE_MAX} bytes",
                path.display()
            ));
        }
        Ok(Secret::new(secret))
    }

    fn warn_of_readers(&mut self, path: &Path, entry: &SettingEntry) {
        // A missing or unreadable file is reported elsewhere.
        let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o004 != 0 {
            let shown = path.display();
            let reason = format!(
                "every user of this machine can read `{shown}`, which contains a secret; chmod o-r {shown}"
            );
            let warning = Diagnostic::new(&entry.origin, reason);
            self.warnings.push(warning);
        }
    }
}

fn secret_from_variable(entry: &SettingEntry) -> Result<Secret, String> {
    let name = entry.one()?;
    let value = std::env::var(name).map_err(|error| format!("cannot read the variable `{name}`: {error}"))?;
    Ok(Secret::from_variable(name, value))
}

pub(super) const USER_KEYS: [TableKey<UserDraft>; 9] = [
    TableKey {
        name: "name",
        value: "NAME",
        default: "",
        description: "The name to sign in with; with a token it is only a label",
        set: |user, entry| entry.one().map(|name| user.name = name.to_owned()),
    },
    TableKey {
        name: "password",
        value: "TEXT",
        default: "",
        description: "The password in plain text; each user has exactly one of these six keys",
        set: |user, entry| {
            let secret = user.inline_secret(entry)?;
            user.add_credential(entry, Credential::Password(secret));
            Ok(())
        },
    },
    TableKey {
        name: "password-env",
        value: "VARIABLE",
        default: "",
        description: "The variable of the environment that holds the password",
        set: |user, entry| {
            user.add_credential(entry, Credential::Password(secret_from_variable(entry)?));
            Ok(())
        },
    },
    TableKey {
        name: "password-file",
        value: "PATH",
        default: "",
        description: "The file that holds the password on its only line",
        set: |user, entry| {
            let secret = user.secret_from_file(entry)?;
            user.add_credential(entry, Credential::Password(secret));
            Ok(())
        },
    },
    TableKey {
        name: "token",
        value: "TEXT",
        default: "",
        description: "A token in plain text, which signs in without a name",
        set: |user, entry| {
            let secret = user.inline_secret(entry)?;
            user.add_credential(entry, Credential::Token(secret));
            Ok(())
        },
    },
    TableKey {
        name: "token-env",
        value: "VARIABLE",
        default: "",
        description: "The variable of the environment that holds the token",
        set: |user, entry| {
            user.add_credential(entry, Credential::Token(secret_from_variable(entry)?));
            Ok(())
        },
    },
    TableKey {
        name: "token-file",
        value: "PATH",
        default: "",
        description: "The file that holds the token on its only line",
        set: |user, entry| {
            let secret = user.secret_from_file(entry)?;
            user.add_credential(entry, Credential::Token(secret));
            Ok(())
        },
    },
    TableKey {
        name: "publish",
        value: "FILTERS",
        default: ">",
        description: "Subjects that the user may publish to; an empty list: none",
        set: |user, entry| {
            user.publish = Some(entry.values.clone());
            Ok(())
        },
    },
    TableKey {
        name: "subscribe",
        value: "FILTERS",
        default: ">",
        description: "Subjects that the user may subscribe to; an empty list: none",
        set: |user, entry| {
            user.subscribe = Some(entry.values.clone());
            Ok(())
        },
    },
];

impl<T> ParsedTables<T> {
    /// The origin of an item's key, or else of the item; an item without a table is a default.
    pub(crate) fn origin_of(&self, index: usize, key: &str) -> SettingOrigin {
        let Some((begin, origins)) = self.origins.get(index) else { return SettingOrigin::Default };
        let is_key =
            |name: &str| name == key || name.strip_prefix(key).is_some_and(|rest| rest.starts_with('-'));
        origins.iter().find(|(name, _)| is_key(name)).map_or(begin, |(_, origin)| origin).clone()
    }

    fn empty() -> Self {
        ParsedTables { items: Vec::new(), origins: Vec::new(), warnings: Vec::new() }
    }

    fn push(&mut self, table: &SettingTable, item: T) {
        let origins = table.entries.iter().map(|entry| (entry.name.clone(), entry.origin.clone())).collect();
        self.items.push(item);
        self.origins.push((table.origin.clone(), origins));
    }
}

pub(crate) fn streams(tables: &[SettingTable], wrong: &mut Vec<Diagnostic>) -> ParsedTables<StreamConfig> {
    let mut streams = ParsedTables::empty();
    for table in tables {
        let Some(draft) = fill(table, "a stream", &STREAM_KEYS, wrong) else { continue };
        if draft.name.is_empty() {
            wrong.push(Diagnostic::new(&table.origin, "this stream has no name, such as name = \"orders\""));
            continue;
        }
        let mut stream = StreamConfig::new(draft.name, draft.subjects);
        stream.durability = draft.durability;
        stream.retention = Retention {
            bytes: draft.retention_bytes.unwrap_or(Retention::of(draft.durability).bytes),
            records: draft.retention_records,
            age: draft.retention_age,
        };
        stream.dedup_time = draft.dedup_time.unwrap_or(stream.dedup_time);
        stream.message_size_max = draft.message_size_max.unwrap_or(stream.message_size_max);
        stream.pending_max = draft.pending_max.unwrap_or(stream.pending_max);
        stream.gate = draft.gate;
        (stream.slow_subscribers, stream.catch_up_time) = (draft.slow_subscribers, draft.catch_up_time);
        streams.push(table, stream);
    }
    streams
}

pub(crate) fn users(tables: &[SettingTable], wrong: &mut Vec<Diagnostic>) -> ParsedTables<UserConfig> {
    let mut users = ParsedTables::empty();
    for table in tables {
        let Some(mut draft) = fill(table, "a user", &USER_KEYS, wrong) else { continue };
        users.warnings.append(&mut draft.warnings);
        let name = draft.name;
        if name.is_empty() {
            wrong.push(Diagnostic::new(&table.origin, "this user has no name, such as name = \"ann\""));
            continue;
        }
        let mut credentials = draft.credentials.into_iter();
        let (first, second) = (credentials.next(), credentials.next());
        let credential = match (first, second) {
            (Some((_, credential)), None) => credential,
            (None, _) => {
                let reason = format!(
                    "the user `{name}` has no credential: give it password-env, password-file or password, or a token the same way"
                );
                wrong.push(Diagnostic::new(&table.origin, reason));
                continue;
            }
            (Some((first, _)), Some((second, _))) => {
                let reason = format!("the user `{name}` has {first} and {second}; one of them is enough");
                wrong.push(Diagnostic::new(&table.origin, reason));
                continue;
            }
        };
        let mut user = UserConfig::new(name, credential);
        user.publish = draft.publish.unwrap_or(user.publish);
        user.subscribe = draft.subscribe.unwrap_or(user.subscribe);
        users.push(table, user);
    }
    users
}

/// Reads all keys of a table; `None` if one of them is wrong.
fn fill<D: Default>(
    table: &SettingTable,
    kind: &str,
    keys: &[TableKey<D>],
    wrong: &mut Vec<Diagnostic>,
) -> Option<D> {
    let (mut draft, before) = (D::default(), wrong.len());
    for entry in &table.entries {
        let Some(key) = keys.iter().find(|key| key.name == entry.name) else {
            let name = &entry.name;
            let reason = match nearest(name, keys.iter().map(|key| key.name)) {
                Some(meant) => format!("{kind} has no key `{name}`; did you mean `{meant}`?"),
                None => {
                    let all: Vec<_> = keys.iter().map(|key| key.name).collect();
                    format!("{kind} has no key `{name}`; it has {}", all.join(", "))
                }
            };
            wrong.push(Diagnostic::new(&entry.origin, reason));
            continue;
        };
        if let Err(reason) = (key.set)(&mut draft, entry) {
            wrong.push(Diagnostic::new(&entry.origin, format!("{}: {reason}", entry.name)));
        }
    }
    (wrong.len() == before).then_some(draft)
}

/// Parses a stream argument: `NAME=FILTERS[:durability][:key=value]…`
pub(crate) fn parse_stream_argument(word: &str, origin: &SettingOrigin) -> Result<SettingTable, Diagnostic> {
    let entry = |name: &str, values| SettingEntry { name: name.to_owned(), values, origin: origin.clone() };
    let mut parts = word.split(':');
    let (name, filters) = parts.next().and_then(|first| first.split_once('=')).ok_or_else(|| {
        Diagnostic::new(
            origin,
            format!("`{word}` is not a stream, such as orders=orders.> or orders=orders.>,returns.*:memory"),
        )
    })?;
    let mut keys = vec![entry("name", vec![name.to_owned()]), entry("subjects", list(filters))];
    for part in parts {
        keys.push(match part.split_once('=') {
            Some((key, value)) => entry(key, vec![value.to_owned()]),
            None => entry("durability", vec![part.to_owned()]),
        });
    }
    Ok(SettingTable { origin: origin.clone(), entries: keys })
}

/// Parses a user argument: `NAME:key=value…`. Errors do not quote unknown parts, which may be secrets.
pub(crate) fn parse_user_argument(word: &str, origin: &SettingOrigin) -> Result<SettingTable, Diagnostic> {
    let entry = |name: &str, values| SettingEntry { name: name.to_owned(), values, origin: origin.clone() };
    let (name, rest) = word.split_once(':').unwrap_or((word, ""));
    let mut keys = vec![entry("name", vec![name.to_owned()])];
    for part in rest.split(':').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(|| {
            let reason = format!(
                "the text after the user `{name}` is not key=value between colons; put a secret with a colon into password-env or password-file"
            );
            Diagnostic::new(origin, reason)
        })?;
        keys.push(entry(key, if is_list(key) { list(value) } else { vec![value.to_owned()] }));
    }
    Ok(SettingTable { origin: origin.clone(), entries: keys })
}

fn list(text: &str) -> Vec<String> {
    text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> SettingOrigin {
        SettingOrigin::Flag("stream".to_owned())
    }

    fn stream(word: &str) -> Result<StreamConfig, String> {
        let table = parse_stream_argument(word, &origin()).map_err(|wrong| wrong.reason)?;
        let mut wrong = Vec::new();
        let streams = streams(&[table], &mut wrong);
        wrong.pop().map_or_else(|| Ok(streams.items[0].clone()), |wrong| Err(wrong.reason))
    }

    fn user(word: &str) -> Result<UserConfig, String> {
        let table = parse_user_argument(word, &origin()).map_err(|wrong| wrong.reason)?;
        let mut wrong = Vec::new();
        let users = users(&[table], &mut wrong);
        wrong.pop().map_or_else(|| Ok(users.items[0].clone()), |wrong| Err(wrong.reason))
    }

    #[test]
    fn a_stream_is_one_argument() {
        assert_eq!(stream("events=events.>"), Ok(StreamConfig::new("events", ["events.>"])));
        let mut all = StreamConfig::new("o", ["orders.>", "returns.*"]);
        all.durability = Durability::Memory;
        all.retention =
            Retention { bytes: 1 << 30, records: Some(10), age: Some(Duration::from_secs(172_800)) };
        (all.dedup_time, all.message_size_max, all.pending_max) = (Duration::from_secs(30), 65_536, 1000);
        all.gate = Some("auction".to_owned());
        all.catch_up_time = Some(Duration::from_secs(20));
        let word = "o=orders.>,returns.*:memory:retention-bytes=1GiB:retention-records=10:retention-age=2d:dedup-time=30s:max-message-size=64KiB:max-pending=1000:gate=auction:slow-subscribers=catch-up:catch-up-time=20s";
        assert_eq!(stream(word), Ok(all));
        let skip = stream("a=b:slow-subscribers=skip").map(|stream| stream.slow_subscribers);
        assert_eq!(skip, Ok(SlowSubscribers::Skip));
        assert_eq!(stream("a=b:none").map(|stream| stream.retention.bytes), Ok(64 << 20));
        for (word, reason) in [
            ("events", "`events` is not a stream, such as orders=orders.>"),
            ("=a", "this stream has no name"),
            ("a=b:disc", "durability: `disc` is not a durability: expected disk"),
            (
                "a=b:slow-subscribers=drop",
                "slow-subscribers: `drop` is not a policy for slow subscribers: expected",
            ),
            ("a=b:dedup-tme=1", "a stream has no key `dedup-tme`; did you mean `dedup-time`?"),
            ("a=b:colour=red", "a stream has no key `colour`; it has name, subjects, durability"),
            ("a=b:dedup-time=x", "dedup-time: `x` is not a number of seconds"),
            ("a=b:retention-bytes=1M", "retention-bytes: `1M` is not a number of bytes"),
            ("a=b:retention-age=soon", "retention-age: `soon` is not a number of seconds"),
        ] {
            let refused = stream(word).expect_err(word);
            assert!(refused.contains(reason), "{word}: {refused}");
        }
    }

    #[test]
    fn a_user_is_one_argument() {
        let ann = user("ann:password=x").expect("a user");
        assert_eq!(ann, UserConfig::new("ann", Credential::Password(Secret::new("x"))));
        let bo = user("bo:token=y:publish=:subscribe=a.>,b").expect("a user");
        assert!(matches!(bo.credential, Credential::Token(_)) && bo.publish.is_empty());
        assert_eq!(bo.subscribe, ["a.>", "b"]);
        for (word, reason) in [
            ("ann", "the user `ann` has no credential: give it password-env"),
            ("ann:password=x:token=y", "the user `ann` has password and token; one of them is enough"),
            ("ann:pasword=x", "a user has no key `pasword`; did you mean `password`?"),
            (":password=x", "this user has no name"),
            (
                "ann:password-env=NO_SUCH_VARIABLE",
                "password-env: cannot read the variable `NO_SUCH_VARIABLE`",
            ),
            ("ann:password-file=no/such/file", "password-file: there is no file `no/such/file`"),
        ] {
            let refused = user(word).expect_err(word);
            assert!(refused.contains(reason), "{word}: {refused}");
        }
        let refused = user("ann:hunter2").expect_err("no key");
        assert!(refused.contains("password-file") && !refused.contains("hunter2"), "{refused}");
    }

    #[test]
    fn a_secret_that_others_can_read_is_warned_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        for (content, mode, expected) in
            [("s3cret\n", 0o600, 0), ("s3cret", 0o644, 1), ("s3cret\r\n", 0o640, 0)]
        {
            std::fs::write(&path, content).expect("it can be written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("it is ours");
            let table = parse_user_argument(&format!("ann:password-file={}", path.display()), &origin())
                .expect("a word");
            let mut wrong = Vec::new();
            let users = users(&[table], &mut wrong);
            assert_eq!(wrong, []);
            assert_eq!(users.items[0].credential, Credential::Password(Secret::new("s3cret")));
            assert_eq!(users.warnings.len(), expected, "{mode:o}");
        }
        std::fs::write(&path, "two\nlines\n").expect("it can be written");
        let refused = user(&format!("ann:token-file={}", path.display())).expect_err("two lines");
        assert!(refused.contains("has to hold one line"), "{refused}");
    }
}
