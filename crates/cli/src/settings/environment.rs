//! Settings from the environment. An empty variable counts as not set.
//!
//! An unknown variable with the prefix `STILLING_` is a warning, not an error: scripts use such names for their own
//! purposes, and Kubernetes sets some of them (service links).

use std::ffi::OsString;

use super::definitions::{PREFIX, SettingDefinition, ValueCount};
use super::nearest::nearest;
use super::{Diagnostic, SettingEntry, SettingOrigin};

/// Reads the settings of the environment. Errors go to `wrong`, unknown variables to `warnings`.
pub(super) fn read(
    variables: &[(OsString, OsString)],
    definitions: &[SettingDefinition<'_>],
    wrong: &mut Vec<Diagnostic>,
    warnings: &mut Vec<Diagnostic>,
) -> Vec<SettingEntry> {
    let (mut entries, mut unknown, mut service_links) = (Vec::new(), Vec::new(), Vec::new());
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let origin = SettingOrigin::Variable(name.to_owned());
        if is_service_link(name, value.to_str().unwrap_or_default()) {
            service_links.push(name);
            continue;
        }
        let Some(definition) = definitions.iter().find(|definition| definition.variable == name) else {
            let known = definitions.iter().filter_map(|definition| definition.variable.strip_prefix(PREFIX));
            let reason = match nearest(&name[PREFIX.len()..], known) {
                Some(meant) => format!("no such setting, not read; did you mean {PREFIX}{meant}?"),
                None => "no such setting, not read".to_owned(),
            };
            unknown.push(Diagnostic::new(&origin, reason));
            continue;
        };
        let Some(value) = value.to_str() else {
            wrong.push(Diagnostic::new(&origin, "its value is not UTF-8"));
            continue;
        };
        if value.is_empty() {
            continue;
        }
        let values = match definition.kind {
            ValueCount::List => split(definition, value),
            ValueCount::Switch | ValueCount::One => vec![value.to_owned()],
        };
        for value in &values {
            if let Err(reason) = definition.accepts(value) {
                wrong.push(Diagnostic::new(&origin, format!("`{value}` is refused: {reason}")));
            }
        }
        entries.push(SettingEntry { name: definition.name.to_owned(), values, origin });
    }
    unknown.sort_by(|one, other| one.origin.cmp(&other.origin));
    warnings.append(&mut unknown);
    service_links.sort_unstable();
    if let Some((first, others)) = service_links.split_first() {
        let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        let reason = format!(
            "set by Kubernetes for a service of this name{more}, not read; enableServiceLinks: false removes it"
        );
        warnings.push(Diagnostic::new(&SettingOrigin::Variable((*first).to_owned()), reason));
    }
    entries
}

/// Returns whether a variable has the form of a Kubernetes service link: `X_SERVICE_HOST`, `X_SERVICE_PORT[_NAME]`,
/// `X_PORT=tcp://…` or `X_PORT_80_TCP[_PROTO|_PORT|_ADDR]` (Kubernetes documentation, "Accessing the Service",
/// environment variables). Each container gets them for each service of the namespace; those of a service with a name
/// that is or begins with `stilling` have the prefix of settings.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let has_port = || {
        let (_, rest) = name.split_once("_PORT_")?;
        let (number, protocol) = rest.split_once('_')?;
        let protocol = protocol.split('_').next()?;
        Some(number.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].contains(&protocol))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && is_url)
        || has_port().unwrap_or(false)
}

/// Splits a list at white space, and at commas unless its items contain commas.
fn split(definition: &SettingDefinition<'_>, value: &str) -> Vec<String> {
    let has_commas = super::ARGUMENT_TABLES.contains(&definition.name);
    let is_between = |letter: char| letter.is_whitespace() || (letter == ',' && !has_commas);
    value.split(is_between).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}
