//! Settings from a file, each with its line. All errors in the file are reported, not only the first.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::definitions::{SettingDefinition, ValueCount};
use super::nearest::nearest;
use super::{Diagnostic, Diagnostics, SettingEntry, SettingOrigin, SettingTable, TABLES};

/// Maximum bytes of a settings file. A longer file is rejected.
pub(super) const FILE_SIZE_MAX: u64 = 1024 * 1024;

/// Keys and tables of a file, in the order of the file.
#[derive(Default)]
pub(super) struct FileSettings {
    pub(super) entries: Vec<SettingEntry>,
    pub(super) tables: Vec<(&'static str, SettingTable)>,
}

/// Reads a file as text.
///
/// # Errors
/// The reason why it cannot be read.
pub(super) fn text(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("there is no file `{shown}`"),
        _ => format!("cannot read `{shown}`: {error}"),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(refused)?;
    file.take(FILE_SIZE_MAX + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > FILE_SIZE_MAX {
        return Err(format!("`{shown}` has more than {FILE_SIZE_MAX} bytes; that is no file of settings"));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("`{shown}` is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

/// Reads the settings of a file.
///
/// # Errors
/// The text is no TOML. Errors of single keys are added to `wrong`.
pub(super) fn read(
    path: &Path,
    text: &str,
    definitions: &[SettingDefinition<'_>],
    wrong: &mut Vec<Diagnostic>,
) -> Result<FileSettings, Diagnostics> {
    let line_index = TomlLineIndex { path, text };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        // The parser's message may have several lines.
        let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        Diagnostics(vec![Diagnostic::new(&line_index.origin_at(at), format!("invalid TOML: {reason}"))])
    })?;
    let mut content = FileSettings::default();
    for (name, origin, value) in line_index.in_order(document.get_ref()) {
        if let Some(tables) = line_index.tables(value) {
            let Some(known) = TABLES.iter().find(|known| **known == name) else {
                wrong.push(unknown(&origin, &format!("[[{name}]]"), &name, TABLES));
                continue;
            };
            content
                .tables
                .extend(tables.into_iter().map(|(at, table)| (*known, line_index.table(table, at, wrong))));
            continue;
        }
        let keys = || definitions.iter().filter(|definition| definition.is_key());
        let outcome = match keys().find(|definition| definition.name == name) {
            Some(definition) => option_values(definition, value),
            None => {
                Err(vec![unknown(&origin, &name, &name, keys().map(|definition| definition.name)).reason])
            }
        };
        match outcome {
            Ok(values) => content.entries.push(SettingEntry { name, values, origin }),
            Err(reasons) => wrong.extend(reasons.into_iter().map(|reason| Diagnostic::new(&origin, reason))),
        }
    }
    Ok(content)
}

/// The values of an option as texts, or all errors in them.
fn option_values(
    definition: &SettingDefinition<'_>,
    value: &DeValue<'_>,
) -> Result<Vec<String>, Vec<String>> {
    let name = definition.name;
    let (values, is_list) = values(value).map_err(|kind| {
        vec![match value {
            DeValue::Table(_) if TABLES.contains(&name) => {
                format!("there may be several, so each begins with [[{name}]]")
            }
            _ => format!("{name} is {kind}, and takes a text, a number, true or false, or a list of these"),
        }]
    })?;
    if is_list && definition.kind != ValueCount::List {
        return Err(vec![format!("{name} takes one value, not a list")]);
    }
    if values.is_empty() {
        return Err(vec![format!("{name} is an empty list; leave it out")]);
    }
    let refusal = |value: &String| {
        let reason = definition.accepts(value).err()?;
        Some(format!("{name} = `{value}` is refused: {reason}"))
    };
    let refusals: Vec<_> = values.iter().filter_map(refusal).collect();
    if refusals.is_empty() { Ok(values) } else { Err(refusals) }
}

struct TomlLineIndex<'a> {
    path: &'a Path,
    text: &'a str,
}

impl TomlLineIndex<'_> {
    fn origin_at(&self, at: usize) -> SettingOrigin {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        SettingOrigin::line(self.path, before.iter().filter(|byte| **byte == b'\n').count() + 1)
    }

    /// The entries of a table in the order of the file; the parser sorts them by name.
    fn in_order<'v, 'i>(&self, table: &'v DeTable<'i>) -> Vec<(String, SettingOrigin, &'v DeValue<'i>)> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let entry = |(key, value): (&toml::Spanned<_>, &'v toml::Spanned<_>)| {
            let name: &std::borrow::Cow<'_, str> = key.get_ref();
            (name.to_string(), self.origin_at(key.span().start), value.get_ref())
        };
        entries.into_iter().map(entry).collect()
    }

    /// The tables of an array of tables, each with its origin.
    fn tables<'v, 'i>(&self, value: &'v DeValue<'i>) -> Option<Vec<(SettingOrigin, &'v DeTable<'i>)>> {
        let DeValue::Array(items) = value else { return None };
        let table = |item: &'v toml::Spanned<DeValue<'i>>| match item.get_ref() {
            DeValue::Table(table) => Some((self.origin_at(item.span().start), table)),
            _ => None,
        };
        let tables: Vec<_> = items.iter().map(table).collect::<Option<_>>()?;
        (!tables.is_empty()).then_some(tables)
    }

    fn table(&self, table: &DeTable<'_>, begin: SettingOrigin, wrong: &mut Vec<Diagnostic>) -> SettingTable {
        let mut entries = Vec::new();
        for (name, origin, value) in self.in_order(table) {
            match values(value) {
                Ok((values, _)) => entries.push(SettingEntry { name, values, origin }),
                Err(kind) => {
                    let reason = format!("{name} is {kind}, and takes a text, a number, or a list of texts");
                    wrong.push(Diagnostic::new(&origin, reason));
                }
            }
        }
        SettingTable { origin: begin, entries }
    }
}

/// The texts of a value and whether it is a list, or the name of its wrong type.
fn values(value: &DeValue<'_>) -> Result<(Vec<String>, bool), &'static str> {
    let one = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Boolean(is) => Ok(is.to_string()),
        DeValue::Datetime(_) => Err("a date"),
        DeValue::Array(_) => Err("a list of lists"),
        DeValue::Table(_) => Err("a table"),
    };
    match value {
        DeValue::Array(items) => {
            Ok((items.iter().map(|item| one(item.get_ref())).collect::<Result<_, _>>()?, true))
        }
        value => Ok((vec![one(value)?], false)),
    }
}

fn unknown<'a>(
    origin: &SettingOrigin,
    shown: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Diagnostic {
    let reason = match nearest(name, known) {
        Some(meant) => format!("there is no key `{shown}`; did you mean `{meant}`?"),
        None => format!("there is no key `{shown}`; `stilling options` lists all"),
    };
    Diagnostic::new(origin, reason)
}
