//! First pass over the command line: the options that it sets, and all its errors. The parser stops at the first error,
//! so each refused option is removed and the rest is parsed again.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Id};

use super::definitions::SettingDefinition;
use super::nearest::nearest;
use super::{Diagnostic, SettingOrigin, SettingsError};

pub(super) struct CommandLine {
    /// The command line without the refused options.
    pub(super) arguments: Vec<OsString>,
    pub(super) names: HashSet<String>,
    pub(super) config: Option<PathBuf>,
}

/// Reads the command line of a command and adds each refused option to `wrong`. Conflicts between options depend on all
/// sources, so they are not checked here.
///
/// # Errors
/// Help, or a parser error that belongs to no single option.
pub(super) fn read(
    root: &Command,
    name: &str,
    mut arguments: Vec<OsString>,
    definitions: &[SettingDefinition<'_>],
    wrong: &mut Vec<Diagnostic>,
) -> Result<CommandLine, SettingsError> {
    let none = || Resettable::<Id>::Reset;
    let lenient = root
        .clone()
        .mut_subcommand(name, |command| command.mut_args(|arg| arg.requires(none()).conflicts_with(none())));
    loop {
        match lenient.clone().try_get_matches_from(&arguments) {
            Ok(matches) => {
                let (_, matches) = matches.subcommand().expect("the command is there");
                let is_typed = |matches: &ArgMatches, id: &str| {
                    matches.value_source(id) == Some(ValueSource::CommandLine)
                };
                let names = definitions.iter().filter(|definition| is_typed(matches, definition.id()));
                let names = names.map(|definition| definition.name.to_owned()).collect();
                let config = matches.get_one::<PathBuf>("config").cloned();
                return Ok(CommandLine { arguments, names, config });
            }
            Err(error) => match refusal(&error, &arguments, definitions) {
                Some(RefusedOption { diagnostic, first, count }) => {
                    wrong.push(diagnostic);
                    arguments.drain(first..first + count);
                }
                None => return Err(SettingsError::Usage(Box::new(error), String::new())),
            },
        }
    }
}

struct RefusedOption {
    diagnostic: Diagnostic,
    first: usize,
    count: usize,
}

/// Finds the words that cause a parser error; `None` if the error is about no option or is a request for help.
fn refusal(
    error: &clap::Error,
    arguments: &[OsString],
    definitions: &[SettingDefinition<'_>],
) -> Option<RefusedOption> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    let shown = text(ContextKind::InvalidArg)?;
    // The parser shows the option with its value name: "--worker-threads <N>".
    let option = shown.split(' ').next()?;
    // The program and the command.
    let known = 2;
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let is_it = |word: &str| {
                word == option || word.strip_prefix(option).is_some_and(|rest| rest.starts_with('='))
            };
            let first = position(arguments, known, is_it)?;
            let has_value = option.starts_with('-')
                && !arguments[first].to_string_lossy().contains('=')
                && arguments.get(first + 1).is_some_and(|next| !next.to_string_lossy().starts_with('-'));
            let names = definitions.iter().filter(|one| !one.is_hidden()).map(|one| one.name);
            let suggestion = option.strip_prefix("--").and_then(|name| nearest(name, names));
            let reason = match suggestion {
                Some(name) => format!("`{option}`: no such option; did you mean `--{name}`?"),
                None if option.starts_with('-') => format!("`{option}`: no such option"),
                None => format!("`{option}`: not expected here"),
            };
            let diagnostic = Diagnostic::new(&SettingOrigin::Default, reason);
            Some(RefusedOption { diagnostic, first, count: 1 + usize::from(has_value) })
        }
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let value = text(ContextKind::InvalidValue)?;
            let definition =
                definitions.iter().find(|definition| option == format!("--{}", definition.name))?;
            let (first, count) = assignment(definition, value, arguments, known)?;
            let origin = SettingOrigin::Flag(definition.name.to_owned());
            let reason = match (value.is_empty(), definition.accepts(value)) {
                (true, _) => "it needs a value".to_owned(),
                (false, Err(reason)) => format!("`{value}` is refused: {reason}"),
                (false, Ok(())) => format!("`{value}` is refused"),
            };
            Some(RefusedOption { diagnostic: Diagnostic::new(&origin, reason), first, count })
        }
        _ => None,
    }
}

/// Finds the words that set an option to a value: `--name value`, `--name=value`, `-n value`, `-nvalue`, `-n=value`, or
/// a bare `--name` for an empty value. Returns the first word and the number of words.
fn assignment(
    definition: &SettingDefinition<'_>,
    value: &str,
    arguments: &[OsString],
    from: usize,
) -> Option<(usize, usize)> {
    let long = format!("--{}", definition.name);
    let short = definition.short().map(|letter| format!("-{letter}"));
    let is_name = |word: &str| word == long || short.as_deref() == Some(word);
    let joined: Vec<String> = [format!("{long}={value}")]
        .into_iter()
        .chain(short.iter().flat_map(|short| [format!("{short}{value}"), format!("{short}={value}")]))
        .collect();
    let separate =
        arguments.windows(2).enumerate().skip(from).find_map(|(at, pair)| {
            (is_name(pair[0].to_str()?) && pair[1].to_str()? == value).then_some((at, 2))
        });
    separate
        .or_else(|| Some((position(arguments, from, |word| joined.iter().any(|one| one == word))?, 1)))
        .or_else(|| Some((position(arguments, from, |word| value.is_empty() && is_name(word))?, 1)))
}

fn position(arguments: &[OsString], from: usize, is_it: impl Fn(&str) -> bool) -> Option<usize> {
    arguments
        .iter()
        .enumerate()
        .skip(from)
        .find(|(_, word)| word.to_str().is_some_and(&is_it))
        .map(|(at, _)| at)
}
