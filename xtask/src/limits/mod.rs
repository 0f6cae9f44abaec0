//! `cargo xtask limits`: all named limits, read from the sources, as `docs/limits.md`. The page is always generated;
//! `style` fails when it differs from the sources.

mod source;

use clap::Args;

use crate::XtaskResult;
use crate::tree;
use source::{ConstantLimit, FieldLimit, FlagLimit};

const PAGE: &str = "docs/limits.md";

/// Files with the options of `stilling serve`.
const OPTIONS: [&str; 2] = ["crates/cli/src/hub.rs", "crates/cli/src/serve.rs"];

/// Crates that are not part of the server.
const NOT_SHIPPED: [&str; 3] = ["crates/bench/", "crates/probe/", "crates/simulation/"];

const INTRODUCTION: &str = "\
# Limits

Every queue, pool and table has a maximum, and this page lists them with what happens when one is reached. It is
generated from the sources by `cargo xtask limits --write`; a test fails when it differs from them.

A connection that a handler gives to a worker (`Response::delegate`) holds that worker for as long as it lasts, so there
are at most as many of them as worker threads; further ones wait in the queue, within its limits, and then get 503.
";

#[derive(Args)]
pub(crate) struct LimitsArguments {
    /// Write docs/limits.md instead of printing it
    #[arg(long)]
    write: bool,
}

impl LimitsArguments {
    pub(crate) fn run(self) -> XtaskResult {
        let page = page()?;
        if self.write {
            tree::write(PAGE, &page)
        } else {
            print!("{page}");
            Ok(())
        }
    }
}

/// House rule "every queue has a maximum": checks that the page matches the sources.
///
/// # Errors
/// If it does not, with the command that updates it; if a limit has no description.
pub(crate) fn check() -> XtaskResult {
    let expected = page()?;
    let current = std::fs::read_to_string(tree::root().join(PAGE)).unwrap_or_default();
    if expected == current {
        return Ok(());
    }
    let line =
        expected.lines().zip(current.lines()).take_while(|(expected, current)| expected == current).count();
    let of = |text: &str| text.lines().nth(line).unwrap_or("the end").to_owned();
    let (expected, current) = (of(&expected), of(&current));
    Err(format!(
        "{PAGE}:{}: expected from the sources\n    {expected}\nfound\n    {current}\nrun `cargo xtask limits --write`",
        line + 1
    )
    .into())
}

fn page() -> XtaskResult<String> {
    let texts = tree::texts("crates")?;
    let shipped = texts.iter().filter(|text| {
        text.path.ends_with(".rs")
            && text.path.contains("/src/")
            && !text.path.contains("/tests/")
            && !text.path.ends_with("/tests.rs")
            && !NOT_SHIPPED.iter().any(|crate_| text.path.starts_with(crate_))
    });
    let (mut constants, mut structures, mut flags) = (String::new(), String::new(), Vec::new());
    let mut last = None;
    for file in shipped {
        if OPTIONS.contains(&file.path.as_str()) {
            flags.extend(source::flags(&file.text));
        }
        let parsed = source::constants(&file.text, file.path.ends_with("/limits.rs"));
        if !parsed.is_empty() {
            let crate_ = file.path.split('/').nth(1);
            if last != crate_ {
                last = crate_;
                constants += &format!("\n### {}\n\n", crate_.unwrap_or_default());
                constants +=
                    "| constant | value | what it bounds, and what then | where |\n|---|---|---|---|\n";
            }
            for constant in parsed {
                constants += &constant_row(&constant, &file.path)?;
            }
        }
        for (name, fields) in source::structures(&file.text) {
            structures += &format!("\n### `{name}` in `{}`\n\n", file.path);
            structures += "| field | default | what it bounds, and what then |\n|---|---|---|\n";
            for field in fields {
                structures += &field_row(&field, &name, &file.path)?;
            }
        }
    }
    if flags.is_empty() {
        return Err(format!("{} have no options", OPTIONS.join(" and ")).into());
    }
    let flags: String = flags.iter().map(flag_row).collect();
    Ok(format!(
        "{INTRODUCTION}\n## Options of `stilling serve`\n\n| option | default | range | what it is |\n|---|---|---|---|\n\
         {flags}\n## Defaults that an embedder can set\n{structures}\n## Constants\n{constants}"
    ))
}

fn constant_row(constant: &ConstantLimit, path: &str) -> XtaskResult<String> {
    let ConstantLimit { name, kind, value, description } = constant;
    require_text(description, name, path)?;
    let computed = source::product(value).filter(|_| value.contains('*'));
    let computed = computed.map(|product| format!(" = {product}")).unwrap_or_default();
    Ok(format!("| `{name}` | `{value}`{computed} ({kind}) | {} | `{path}` |\n", cell(description)))
}

fn field_row(field: &FieldLimit, structure: &str, path: &str) -> XtaskResult<String> {
    let FieldLimit { name, default, description } = field;
    require_text(description, &format!("{structure}::{name}"), path)?;
    Ok(format!("| `{name}` | `{default}` | {} |\n", cell(description)))
}

fn flag_row(flag: &FlagLimit) -> String {
    let FlagLimit { name, default, range, description } = flag;
    format!("| `--{name}` | {} | {} | {} |\n", cell(default), cell(range), cell(description))
}

/// Rejects a limit without a description: readers must learn what happens when it is reached.
fn require_text(description: &str, name: &str, path: &str) -> XtaskResult {
    if description.is_empty() {
        Err(format!("{path}: `{name}` has no doc comment that says what it limits").into())
    } else {
        Ok(())
    }
}

/// Text for a table cell: bars escaped, intra-doc links replaced by plain code names.
fn cell(text: &str) -> String {
    let text = text.replace('|', "\\|");
    let mut parts = text.split("[`");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("`]").unwrap_or((part, ""));
        let rest = match rest.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((target, behind)) if !target.contains(char::is_whitespace) => behind,
            _ => rest,
        };
        let end = if part.contains("`]") { "`" } else { "" };
        plain += &format!("`{name}{end}{rest}");
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant 4 of the design: the page lists every maximum.
    #[test]
    fn the_page_of_limits_matches_the_sources() {
        if let Err(error) = check() {
            panic!("{error}");
        }
    }

    #[test]
    fn links_become_code_names() {
        assert_eq!(
            cell("See [`A`](crate::a::A) and [`B`], (too) | [`c`] (d)."),
            "See `A` and `B`, (too) \\| `c` (d)."
        );
        assert_eq!(
            cell("Bytes of [`Self::x`](Self::x), `y`, [1] and [`z"),
            "Bytes of `Self::x`, `y`, [1] and `z"
        );
    }

    #[test]
    fn a_maximum_without_a_description_is_an_error() {
        let constant = |description: &str| ConstantLimit {
            name: "A_MAX".to_owned(),
            kind: "usize".to_owned(),
            value: "4 * 1024".to_owned(),
            description: description.to_owned(),
        };
        assert!(constant_row(&constant(""), "a.rs").is_err());
        let row = constant_row(&constant("Bytes | of [`A`]."), "a.rs").expect("it has a description");
        assert_eq!(row, "| `A_MAX` | `4 * 1024` = 4096 (usize) | Bytes \\| of `A`. | `a.rs` |\n");
    }
}
