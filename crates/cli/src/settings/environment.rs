//! Settings from the environment. A variable that is empty says nothing, as is usual.
//!
//! What is not known is not ours to judge: a supervisor may set `STILLING_SERVICE_HOST`. Only a name that looks like a slip
//! of the finger is refused; the others are told by `stilling check`.

use std::ffi::OsString;

use super::choices::{Choice, Kind, PREFIX};
use super::nearest::nearest;
use super::{Complaint, Origin, Said};

/// What variables say, and the names of those that say nothing that is known.
pub(super) fn read(
    variables: &[(OsString, OsString)],
    choices: &[Choice<'_>],
    wrong: &mut Vec<Complaint>,
) -> (Vec<Said>, Vec<String>) {
    let (mut said, mut unknown) = (Vec::new(), Vec::new());
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let origin = Origin::Variable(name.to_owned());
        let Some(choice) = choices.iter().find(|choice| choice.variable == name) else {
            let known = choices.iter().filter_map(|choice| choice.variable.strip_prefix(PREFIX));
            match nearest(&name[PREFIX.len()..], known) {
                Some(meant) => {
                    let reason = format!("there is no such setting; did you mean {PREFIX}{meant}?");
                    wrong.push(Complaint::new(&origin, reason));
                }
                None => unknown.push(name.to_owned()),
            }
            continue;
        };
        let Some(value) = value.to_str() else {
            wrong.push(Complaint::new(&origin, "its value is not UTF-8"));
            continue;
        };
        if value.is_empty() {
            continue;
        }
        let values = match choice.kind {
            Kind::List => split(choice, value),
            Kind::Switch | Kind::One => vec![value.to_owned()],
        };
        for value in &values {
            if let Err(reason) = choice.accepts(value) {
                wrong.push(Complaint::new(&origin, explained(value, &reason)));
            }
        }
        said.push(Said { name: choice.name.to_owned(), values, origin });
    }
    unknown.sort_unstable();
    (said, unknown)
}

/// The items of a list: between blanks, and between commas where an item has none.
fn split(choice: &Choice<'_>, value: &str) -> Vec<String> {
    let has_commas = super::TABLES.contains(&choice.name);
    let is_between = |letter: char| letter.is_whitespace() || (letter == ',' && !has_commas);
    value.split(is_between).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn explained(value: &str, reason: &str) -> String {
    let by_kubernetes = " (Kubernetes sets this variable where there is a service of the name `stilling`; enableServiceLinks: false keeps it from that)";
    let hint = if value.starts_with("tcp://") { by_kubernetes } else { "" };
    format!("`{value}` is refused: {reason}{hint}")
}
