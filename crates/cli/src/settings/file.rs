//! Settings from a file, each with its line. Everything that is wrong in it is told, not only the first thing.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::choices::{Choice, Kind};
use super::nearest::nearest;
use super::{Complaint, Complaints, Origin, Said, TABLES, Table};

/// Bytes of a file of settings. A longer one is refused.
pub(super) const FILE_SIZE_MAX: u64 = 1024 * 1024;

/// What a file says: its keys, and its tables by their names, in the order of the file.
#[derive(Default)]
pub(super) struct Content {
    pub(super) said: Vec<Said>,
    pub(super) tables: Vec<(&'static str, Table)>,
}

/// Reads a file as text.
///
/// # Errors
/// Why it cannot be read.
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

/// Reads settings.
///
/// # Errors
/// If it is no TOML. What is wrong with single keys is added to `wrong`.
pub(super) fn read(
    path: &Path,
    text: &str,
    choices: &[Choice<'_>],
    wrong: &mut Vec<Complaint>,
) -> Result<Content, Complaints> {
    let origin = |at: usize| Origin::line(path, line(text, at));
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        // The parser's words may take more than one line.
        let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        Complaints(vec![Complaint::new(&origin(at), format!("this is no TOML: {reason}"))])
    })?;
    let mut content = Content::default();
    let keys = || choices.iter().filter(|choice| choice.is_key());
    for (key, value) in in_order(document.get_ref(), |at| origin(at)) {
        let Key { name, origin: at } = key;
        if let Some(tables) = tables(value, &origin) {
            match TABLES.iter().find(|known| **known == name) {
                Some(known) => content.tables.extend(
                    tables.into_iter().map(|(at, table)| (*known, self::table(table, at, &origin, wrong))),
                ),
                None => wrong.push(unknown(&at, &format!("[[{name}]]"), &name, TABLES)),
            }
            continue;
        }
        let Some(choice) = keys().find(|choice| choice.name == name) else {
            wrong.push(match value {
                DeValue::Table(_) if TABLES.contains(&name.as_str()) => {
                    Complaint::new(&at, format!("there may be several, so each begins with [[{name}]]"))
                }
                _ => unknown(&at, &name, &name, keys().map(|choice| choice.name).chain(TABLES)),
            });
            continue;
        };
        match values(value) {
            Ok((values, is_list)) => {
                if is_list && choice.kind != Kind::List {
                    wrong.push(Complaint::new(&at, format!("{name} takes one value, not a list")));
                    continue;
                }
                for value in &values {
                    if let Err(reason) = choice.accepts(value) {
                        wrong.push(Complaint::new(&at, format!("{name} = `{value}` is refused: {reason}")));
                    }
                }
                content.said.push(Said { name, values, origin: at });
            }
            Err(kind) if TABLES.contains(&name.as_str()) && kind == "a table" => {
                wrong.push(Complaint::new(
                    &at,
                    format!("there may be several, so each begins with [[{name}]]"),
                ));
            }
            Err(kind) => wrong.push(Complaint::new(
                &at,
                format!("{name} is {kind}, and takes a text, a number, true or false, or a list of these"),
            )),
        }
    }
    Ok(content)
}

struct Key {
    name: String,
    origin: Origin,
}

/// The entries of a table as they stand in the file: the parser sorts them by name.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
    origin: impl Fn(usize) -> Origin,
) -> impl Iterator<Item = (Key, &'a DeValue<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter().map(move |(key, value)| {
        let name = key.get_ref().to_string();
        (Key { name, origin: origin(key.span().start) }, value.get_ref())
    })
}

/// The tables of a list of tables, each with where it begins.
fn tables<'a, 'i>(
    value: &'a DeValue<'i>,
    origin: &impl Fn(usize) -> Origin,
) -> Option<Vec<(Origin, &'a DeTable<'i>)>> {
    let DeValue::Array(items) = value else { return None };
    let table = |item: &'a toml::Spanned<DeValue<'i>>| match item.get_ref() {
        DeValue::Table(table) => Some((origin(item.span().start), table)),
        _ => None,
    };
    if items.is_empty() {
        return None;
    }
    items.iter().map(table).collect()
}

fn table(
    table: &DeTable<'_>,
    begin: Origin,
    origin: &impl Fn(usize) -> Origin,
    wrong: &mut Vec<Complaint>,
) -> Table {
    let mut said = Vec::new();
    for (Key { name, origin: at }, value) in in_order(table, origin) {
        match values(value) {
            Ok((values, _)) => said.push(Said { name, values, origin: at }),
            Err(kind) => wrong.push(Complaint::new(
                &at,
                format!("{name} is {kind}, and takes a text, a number, or a list of texts"),
            )),
        }
    }
    Table { origin: begin, said }
}

/// The texts of a value, and whether they are a list; else what it is.
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
    origin: &Origin,
    shown: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Complaint {
    let reason = match nearest(name, known) {
        Some(meant) => format!("there is no key `{shown}`; did you mean `{meant}`?"),
        None => format!("there is no key `{shown}`; `stilling options` lists all"),
    };
    Complaint::new(origin, reason)
}

/// The line of a byte, from 1.
fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}
