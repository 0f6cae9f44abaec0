//! Settings from four sources, each stronger than the one before: what is built in, a file, the environment, the command
//! line.
//!
//! There is one table of what can be chosen: the options of the command line. What a file or the environment says becomes
//! options that were not typed, and goes through the same parser; so no range, conflict or default is known twice. What this
//! adds is where a setting was said, for whoever has to change it.
//!
//! ```text
//!   stilling.toml ─► file ────────┐
//!   STILLING_…    ─► environment ─┼─► what was not typed ─► clap ─► serve::Arguments
//!   --…           ────────────────┘         └─► Sources: where each was said
//! ```
//!
//! A list is taken whole from the strongest source that has it. `[[stream]]` and `[[user]]` are lists, too.

mod choices;
mod environment;
mod file;
pub(crate) mod nearest;
mod origin;
mod page;
pub(crate) mod render;
pub(crate) mod tables;
mod typed;
pub(crate) mod units;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::Cli;
use choices::choices;
use origin::Rank;
pub(crate) use origin::{Complaint, Complaints, Origin};
pub(crate) use page::page;
pub(crate) use tables::Table;
use typed::Typed;

/// The file that is read unless another is named, if it exists.
const FILE: &str = "stilling.toml";

/// Commands that take settings.
const COMMANDS: [&str; 2] = ["serve", "check"];

/// What there may be several of, each a table in the file and a word elsewhere.
const TABLES: [&str; 2] = ["stream", "user"];

/// Options of which each takes the place of the other: the stronger source has its way.
const SAME: [[&str; 2]; 1] = [["port", "listen"]];

/// One setting as it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    name: String,
    values: Vec<String>,
    origin: Origin,
}

impl Said {
    fn one(&self) -> Result<&str, String> {
        match self.values.as_slice() {
            [value] => Ok(value),
            _ => Err("it takes one value, not a list".to_owned()),
        }
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

/// Where everything was said.
#[derive(Default)]
pub(crate) struct Sources {
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Variables that look like settings and are not read.
    pub(crate) warnings: Vec<Complaint>,
    /// Settings that were refused; the rest was read without them, so that all errors are reported at once.
    pub(crate) wrong: Vec<Complaint>,
    /// All options that have a value.
    pub(crate) effective: Vec<render::Effective>,
    /// The tables of the file, if nothing stronger takes their place.
    tables: Vec<(&'static str, Table)>,
    origins: HashMap<String, Origin>,
}

impl Sources {
    /// Where an option was said.
    pub(crate) fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or(Origin::Default)
    }

    /// Where the addresses of HTTP were said: there are two options for them.
    pub(crate) fn listen_origin(&self) -> Origin {
        self.origin("listen").max(self.origin("port"))
    }

    /// What was said, in the file or elsewhere, with where.
    fn said(&self) -> impl Iterator<Item = (&str, &Origin)> {
        let tables = self.tables.iter().map(|(name, table)| (*name, &table.origin));
        self.origins.iter().map(|(name, origin)| (name.as_str(), origin)).chain(tables)
    }

    /// The tables of one name in the file, unless a stronger source has taken their place.
    pub(crate) fn take_tables(&mut self, name: &str) -> Vec<Table> {
        self.tables.extract_if(.., |(known, _)| *known == name).map(|(_, table)| table).collect()
    }
}

/// Why there is nothing to run.
pub(crate) enum Stop {
    /// What was typed is wrong, or help was asked for; with notes about what was said elsewhere.
    Usage(Box<clap::Error>, String),
    /// What a file or the environment says is wrong.
    Settings(Complaints),
}

/// Reads the command line, and for commands that have settings what else there is.
pub(crate) fn gather(
    words: Vec<OsString>,
    variables: &[(OsString, OsString)],
) -> Result<(Cli, Sources), Stop> {
    let name = words.get(1).and_then(|word| word.to_str()).unwrap_or_default().to_owned();
    let name = name.as_str();
    let root = Cli::command();
    let Some(command) = root.find_subcommand(name).filter(|_| COMMANDS.contains(&name)) else {
        return Ok((parse(words, &Sources::default())?.0, Sources::default()));
    };
    let choices = choices(command);
    let mut sources = Sources::default();
    let mut wrong = Vec::new();
    let typed = typed::read(&root, name, words, &choices, &mut wrong)?;
    let mut said = environment::read(variables, &choices, &mut wrong, &mut sources.warnings);
    if let Some((path, origin)) = path(&typed, &said) {
        let content =
            file::text(&path).map_err(|reason| vec![Complaint::new(&origin, reason)]).and_then(|text| {
                file::read(&path, &text, &choices, &mut wrong).map_err(|Complaints(wrong)| wrong)
            });
        match content {
            Ok(content) => {
                said.extend(content.said);
                sources.tables = content.tables;
                sources.file = Some(path);
            }
            Err(mut errors) => wrong.append(&mut errors),
        }
    }
    said.retain(|said| !wrong.iter().any(|wrong| wrong.origin == said.origin));

    let untyped = strongest(said, &typed);
    sources.origins = typed.names.iter().map(|name| (name.clone(), Origin::Flag(name.clone()))).collect();
    let mut all = typed.words;
    let mut at = 2;
    for Said { name, values, origin } in untyped {
        let choice = choices.iter().find(|choice| choice.name == name).expect("only what is known was taken");
        for word in values.iter().filter_map(|value| choice.said(value)) {
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
            return Err(Stop::Settings(Complaints::sorted(wrong)));
        }
    };
    sources.effective = render::effective(&matches, &choices);
    sources.wrong = wrong;
    Ok((cli, sources))
}

/// The options that exclude each other, as one line. An option that needs a refused one is not reported: it will fit when
/// the refused one is corrected.
fn conflict(stop: &Stop) -> Option<Complaint> {
    let Stop::Usage(error, _) = stop else { return None };
    let text = error.render().to_string();
    let line = text.lines().next()?.strip_prefix("error: ")?;
    (error.kind() == ErrorKind::ArgumentConflict).then(|| Complaint::new(&Origin::Default, line))
}

/// The file to read, and who named it.
fn path(typed: &Typed, said: &[Said]) -> Option<(PathBuf, Origin)> {
    if let Some(path) = &typed.config {
        return Some((path.clone(), Origin::Flag("config".to_owned())));
    }
    if let Some(said) = said.iter().find(|said| said.name == "config") {
        return Some((PathBuf::from(said.values.first()?), said.origin.clone()));
    }
    let path = PathBuf::from(FILE);
    path.exists().then_some((path, Origin::Default))
}

/// Of everything that was said outside the command line, what no stronger source says otherwise.
fn strongest(said: Vec<Said>, typed: &Typed) -> Vec<Said> {
    let rank = |said: &[Said], name: &str| {
        let typed = typed.names.contains(name).then_some(Rank::Typed);
        let elsewhere = said.iter().filter(|said| said.name == name).map(|said| said.origin.rank());
        elsewhere.chain(typed).max()
    };
    let is_strongest = |one: &Said| {
        let name = one.name.as_str();
        let rivals = SAME.iter().filter(|same| same.contains(&name)).flatten().copied().chain([name]);
        rivals.filter_map(|name| rank(&said, name)).max() == Some(one.origin.rank())
    };
    said.iter().filter(|one| is_strongest(one)).cloned().collect()
}

/// Parses a command line to which nothing is added any more.
fn parse(words: Vec<OsString>, sources: &Sources) -> Result<(Cli, ArgMatches), Stop> {
    let parsed = Cli::command().try_get_matches_from(words).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
        Ok((cli, matches))
    });
    parsed.map_err(|error| {
        let rendered = error.render().to_string();
        let mut notes: Vec<String> = sources
            .said()
            .filter(|(name, origin)| !matches!(origin, Origin::Flag(_)) && is_named(&rendered, name))
            .map(|(name, origin)| format!("note: --{name} is what {origin} says\n"))
            .collect();
        notes.sort_unstable();
        Stop::Usage(Box::new(error), notes.concat())
    })
}

/// Whether a text names an option, and not a longer one that begins with it.
fn is_named(text: &str, name: &str) -> bool {
    let option = format!("--{name}");
    text.match_indices(&option).any(|(at, _)| {
        let after = text[at + option.len()..].chars().next();
        !after.is_some_and(|letter| letter.is_alphanumeric() || letter == '-')
    })
}

#[cfg(test)]
mod tests;
