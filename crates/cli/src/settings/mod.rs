//! Settings from four sources in increasing precedence: defaults, a file, the environment, the command line.
//!
//! The options of the command line define all settings. Values of the file and the environment become additional
//! arguments for the same parser, so every range, conflict and default is defined once. This module adds the origin of
//! each setting, for messages.
//!
//! ```text
//!   stilling.toml ─► file ────────┐
//!   STILLING_…    ─► environment ─┼─► additional arguments ─► clap ─► serve::ServeArguments
//!   --…           ────────────────┘         └─► SettingSources: origin of each setting
//! ```
//!
//! A list comes whole from the source with the highest precedence that has it. `[[stream]]` and `[[user]]` are lists,
//! too.

mod command_line;
mod definitions;
mod environment;
mod file;
pub(crate) mod nearest;
mod origin;
mod page;
pub(crate) mod render;
pub(crate) mod tables;
pub(crate) mod units;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::StillingArguments;
use command_line::CommandLine;
use definitions::definitions;
use origin::SourceRank;
pub(crate) use origin::{Diagnostic, Diagnostics, SettingOrigin};
pub(crate) use page::page;
pub(crate) use tables::SettingTable;

/// Settings file that is read by default, if it exists.
const FILE: &str = "stilling.toml";

const COMMANDS: [&str; 2] = ["serve", "check"];

/// Tables of the file.
const TABLES: [&str; 3] = ["app", "stream", "user"];

/// Those that are an argument each elsewhere.
const ARGUMENT_TABLES: [&str; 2] = ["stream", "user"];

/// Options that replace each other: the source with the higher precedence wins.
const MUTUALLY_EXCLUSIVE: [[&str; 2]; 1] = [["port", "listen"]];

/// A setting as it appears in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingEntry {
    name: String,
    values: Vec<String>,
    origin: SettingOrigin,
}

impl SettingEntry {
    fn one(&self) -> Result<&str, String> {
        match self.values.as_slice() {
            [value] => Ok(value),
            _ => Err("it takes one value, not a list".to_owned()),
        }
    }

    fn switch(&self) -> Result<bool, String> {
        definitions::switch(self.one()?)
    }

    fn number<N: TryFrom<u64>>(&self) -> Result<N, String> {
        let text = self.one()?;
        let most = [u64::MAX, u32::MAX.into()]
            .into_iter()
            .find(|most| N::try_from(*most).is_ok())
            .unwrap_or_default();
        let wrong = || format!("`{text}` is not a whole number from 0 to {most}");
        text.parse().ok().and_then(|number: u64| N::try_from(number).ok()).ok_or_else(wrong)
    }
}

#[derive(Default)]
pub(crate) struct SettingSources {
    pub(crate) file: Option<PathBuf>,
    /// Variables that look like settings but are unknown.
    pub(crate) warnings: Vec<Diagnostic>,
    /// Refused settings. The rest is read without them, so that all errors are reported at once.
    pub(crate) wrong: Vec<Diagnostic>,
    /// All options that have a value.
    pub(crate) effective: Vec<render::EffectiveOption>,
    /// The tables of the file, unless a source with higher precedence replaces them.
    tables: Vec<(&'static str, SettingTable)>,
    origins: HashMap<String, SettingOrigin>,
}

impl SettingSources {
    pub(crate) fn origin(&self, name: &str) -> SettingOrigin {
        self.origins.get(name).cloned().unwrap_or(SettingOrigin::Default)
    }

    /// The origin of the HTTP addresses: two options set them.
    pub(crate) fn listen_origin(&self) -> SettingOrigin {
        self.origin("listen").max(self.origin("port"))
    }

    fn all_origins(&self) -> impl Iterator<Item = (&str, &SettingOrigin)> {
        let tables = self.tables.iter().map(|(name, table)| (*name, &table.origin));
        self.origins.iter().map(|(name, origin)| (name.as_str(), origin)).chain(tables)
    }

    /// Removes and returns the file's tables of one name; none if a source with higher precedence replaces them.
    pub(crate) fn take_tables(&mut self, name: &str) -> Vec<SettingTable> {
        self.tables.extract_if(.., |(known, _)| *known == name).map(|(_, table)| table).collect()
    }
}

pub(crate) enum SettingsError {
    /// The command line is wrong or requests help; with notes about settings of other sources.
    Usage(Box<clap::Error>, String),
    /// Settings of any source are wrong.
    Settings(Diagnostics),
}

/// Reads the command line, and the other sources for commands that use settings.
pub(crate) fn load_settings(
    arguments: Vec<OsString>,
    variables: &[(OsString, OsString)],
) -> Result<(StillingArguments, SettingSources), SettingsError> {
    let name = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default().to_owned();
    let name = name.as_str();
    let root = StillingArguments::command();
    let Some(command) = root.find_subcommand(name).filter(|_| COMMANDS.contains(&name)) else {
        return Ok((parse(arguments, &SettingSources::default())?.0, SettingSources::default()));
    };
    let definitions = definitions(command);
    let mut sources = SettingSources::default();
    let mut wrong = Vec::new();
    let command_line = command_line::read(&root, name, arguments, &definitions, &mut wrong)?;
    let mut entries = environment::read(variables, &definitions, &mut wrong, &mut sources.warnings);
    if let Some((path, origin)) = path(&command_line, &entries) {
        let content =
            file::text(&path).map_err(|reason| vec![Diagnostic::new(&origin, reason)]).and_then(|text| {
                file::read(&path, &text, &definitions, &mut wrong).map_err(|Diagnostics(wrong)| wrong)
            });
        match content {
            Ok(content) => {
                entries.extend(content.entries);
                sources.tables = content.tables;
                sources.file = Some(path);
            }
            Err(mut errors) => wrong.append(&mut errors),
        }
    }
    entries.retain(|entry| !wrong.iter().any(|wrong| wrong.origin == entry.origin));

    let untyped = by_precedence(entries, &command_line);
    sources.origins =
        command_line.names.iter().map(|name| (name.clone(), SettingOrigin::Flag(name.clone()))).collect();
    let mut all = command_line.arguments;
    let mut at = 2;
    for SettingEntry { name, values, origin } in untyped {
        let definition = definitions
            .iter()
            .find(|definition| definition.name == name)
            .expect("only what is known was taken");
        for word in values.iter().filter_map(|value| definition.to_argument(value)) {
            all.insert(at, word.into());
            at += 1;
        }
        sources.origins.insert(name, origin);
    }
    sources.tables.retain(|(name, _)| !sources.origins.contains_key(*name));
    let (cli, matches) = match parse(all, &sources) {
        Ok(parsed) => parsed,
        Err(stop) if wrong.is_empty() => return Err(stop),
        Err(stop) => {
            wrong.extend(conflict(&stop));
            return Err(SettingsError::Settings(Diagnostics::sorted(wrong)));
        }
    };
    sources.effective = render::effective(&matches, &definitions);
    sources.wrong = wrong;
    Ok((cli, sources))
}

/// The conflict between options as one line. An option that needs a refused one is not reported: the error disappears
/// when the refused one is corrected.
fn conflict(stop: &SettingsError) -> Option<Diagnostic> {
    let SettingsError::Usage(error, _) = stop else { return None };
    let text = error.render().to_string();
    let line = text.lines().next()?.strip_prefix("error: ")?;
    (error.kind() == ErrorKind::ArgumentConflict).then(|| Diagnostic::new(&SettingOrigin::Default, line))
}

/// The file to read and the origin of its path.
fn path(command_line: &CommandLine, entries: &[SettingEntry]) -> Option<(PathBuf, SettingOrigin)> {
    if let Some(path) = &command_line.config {
        return Some((path.clone(), SettingOrigin::Flag("config".to_owned())));
    }
    if let Some(entry) = entries.iter().find(|entry| entry.name == "config") {
        return Some((PathBuf::from(entry.values.first()?), entry.origin.clone()));
    }
    let path = PathBuf::from(FILE);
    path.exists().then_some((path, SettingOrigin::Default))
}

/// Keeps the settings that no source with higher precedence overrides.
fn by_precedence(entries: Vec<SettingEntry>, command_line: &CommandLine) -> Vec<SettingEntry> {
    let rank = |entries: &[SettingEntry], name: &str| {
        let command_line = command_line.names.contains(name).then_some(SourceRank::CommandLine);
        let elsewhere = entries.iter().filter(|entry| entry.name == name).map(|entry| entry.origin.rank());
        elsewhere.chain(command_line).max()
    };
    let is_strongest = |one: &SettingEntry| {
        let name = one.name.as_str();
        let rivals =
            MUTUALLY_EXCLUSIVE.iter().filter(|same| same.contains(&name)).flatten().copied().chain([name]);
        rivals.filter_map(|name| rank(&entries, name)).max() == Some(one.origin.rank())
    };
    entries.iter().filter(|one| is_strongest(one)).cloned().collect()
}

/// Parses the complete command line.
fn parse(
    arguments: Vec<OsString>,
    sources: &SettingSources,
) -> Result<(StillingArguments, ArgMatches), SettingsError> {
    let parsed = StillingArguments::command().try_get_matches_from(arguments).and_then(|matches| {
        let cli = StillingArguments::from_arg_matches(&matches)
            .map_err(|error| error.format(&mut StillingArguments::command()))?;
        Ok((cli, matches))
    });
    parsed.map_err(|error| {
        let rendered = error.render().to_string();
        let mut notes: Vec<String> = sources
            .all_origins()
            .filter(|(name, origin)| !matches!(origin, SettingOrigin::Flag(_)) && is_named(&rendered, name))
            .map(|(name, origin)| format!("note: --{name} is set by {origin}\n"))
            .collect();
        notes.sort_unstable();
        SettingsError::Usage(Box::new(error), notes.concat())
    })
}

/// Returns whether a text contains exactly this option, not only a longer option with this prefix.
fn is_named(text: &str, name: &str) -> bool {
    let option = format!("--{name}");
    text.match_indices(&option).any(|(at, _)| {
        let after = text[at + option.len()..].chars().next();
        !after.is_some_and(|letter| letter.is_alphanumeric() || letter == '-')
    })
}

#[cfg(test)]
mod tests;
