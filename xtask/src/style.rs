//! `cargo xtask style`: the conventions that no compiler checks. Each rule checks one file and reports findings with
//! their position.

use std::path::Path;

use crate::XtaskResult;
use crate::limits;
use crate::style_warnings;
use crate::tree::{self, TextFile};

/// Most lines of a source file; a longer one holds a second idea.
const LINES_MAX: usize = 700;

/// Folders and files that may contain unsafe code. Tests are not checked here, because the compiler's lint guards them;
/// `allocations.rs` is in a library because tests of several crates share it.
const UNSAFE_PATHS: [&str; 4] =
    ["crates/ring/", "crates/engine/src/driver/", "crates/tcl/", "crates/probe/src/allocations.rs"];

/// Marks of unfinished work, hidden tests or unused code. Written in halves, so that this file passes.
const UNFINISHED: [&str; 8] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
    concat!("#[ig", "nore"),
    concat!("allow(dead", "_code"),
];

const MACHINE_PATHS: [&str; 5] = [
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/Us", "ers/"),
];

/// Checks the whole repository. Warnings are printed and are no errors.
///
/// # Errors
/// All findings, one per line.
pub(crate) fn run() -> XtaskResult {
    let texts = tree::texts("")?;
    for warning in style_warnings::warnings(&texts) {
        println!("warning: {warning}");
    }
    let mut findings: Vec<String> = texts.iter().flat_map(findings).collect();
    findings.extend(crates_without_a_page(&texts));
    findings.extend(paths_without_a_file(&texts));
    findings.extend(limits::check().err().map(|error| error.to_string()));
    if findings.is_empty() {
        println!("{} files follow the conventions", texts.len());
        Ok(())
    } else {
        Err(format!("{} findings\n{}", findings.len(), findings.join("\n")).into())
    }
}

fn findings(TextFile { path, text }: &TextFile) -> Vec<String> {
    let mut findings = Vec::new();
    let is_licence = path.starts_with("LICENSE");
    if path.ends_with(".lock") || is_licence {
        return findings;
    }
    for (at, line) in text.lines().enumerate() {
        let mut find = |what: String| findings.push(format!("{path}:{}: {what}", at + 1));
        for mark in UNFINISHED.iter().filter(|mark| line.contains(**mark) && !is_for_models(line)) {
            find(format!("`{mark}`"));
        }
        for folder in MACHINE_PATHS.iter().filter(|folder| names_folder(line, folder)) {
            find(format!("`{folder}` exists only on one machine"));
        }
        if path.ends_with(".rs") && is_shipped(path) && is_unsafe(line) && !may_be_unsafe(path) {
            find("`unsafe` is allowed only in the directories that CONTRIBUTING.md names".to_owned());
        }
    }
    if path.ends_with(".rs") {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            findings.push(format!("{path}: {lines} lines, at most {LINES_MAX}"));
        }
        if !text.starts_with("//!") {
            findings.push(format!("{path}:1: a file must start with its purpose (`//!`)"));
        }
    }
    if is_crate_root(path)
        && !may_be_unsafe(path)
        && !path.starts_with("crates/engine/")
        && !forbids_unsafe(text)
    {
        findings.push(format!("{path}: a crate without unsafe code needs `#![forbid(unsafe_code)]`"));
    }
    findings
}

/// Whether a line concerns only builds for the model checker, which use a part of the code.
fn is_for_models(line: &str) -> bool {
    line.contains("cfg_attr(loom, ")
}

/// Whether an absolute path in this line begins with the folder; a longer path or an address may contain it.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || "._-*}".contains(before))
    })
}

/// Whether the code of a line contains the keyword, outside comments and names.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    let in_text = |at: usize| code[..at].matches('"').count() % 2 == 1;
    code.match_indices("unsafe").any(|(at, word)| {
        let part =
            |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
        !part(code[..at].chars().next_back()) && !part(code[at + word.len()..].chars().next()) && !in_text(at)
    })
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE_PATHS.iter().any(|unsafe_path| path.starts_with(unsafe_path))
}

fn is_shipped(path: &str) -> bool {
    !path.split('/').any(|folder| matches!(folder, "tests" | "benches" | "examples"))
}

fn is_crate_root(path: &str) -> bool {
    let Some((_, file)) = path.rsplit_once("/src/") else { return false };
    // A package with a library has the attribute there; its binary is a few lines on top.
    let library = Path::new(path).with_file_name("lib.rs");
    file == "lib.rs" || (file == "main.rs" && !tree::root().join(library).is_file())
}

fn forbids_unsafe(text: &str) -> bool {
    text.lines().any(|line| line == "#![forbid(unsafe_code)]" || line == "#![deny(unsafe_code)]")
}

/// Crates without a README or without a description in the manifest.
fn crates_without_a_page(texts: &[TextFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for TextFile { path, text } in texts {
        let Some(folder) = path.strip_suffix("/Cargo.toml").filter(|folder| *folder != "fuzz") else {
            continue;
        };
        let page = format!("{folder}/README.md");
        if !texts.iter().any(|text| text.path == page) {
            findings.push(format!("{page}: every crate needs a README and a description"));
        }
        let described = text.lines().any(|line| line.starts_with("description = \"") && line.len() > 16);
        if !described {
            findings.push(format!("{path}: no description"));
        }
    }
    findings
}

/// Source files that ARCHITECTURE.md names by the end of a path and that do not exist.
fn paths_without_a_file(texts: &[TextFile]) -> Vec<String> {
    let Some(page) = texts.iter().find(|text| text.path == "ARCHITECTURE.md") else { return Vec::new() };
    let is_there = |name: &str| {
        texts.iter().any(|TextFile { path, .. }| {
            path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
        })
    };
    let lines = (1..).zip(page.text.lines());
    let names = lines.flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |name| (at, name)));
    let missing = names.filter(|(_, name)| name.ends_with(".rs") && !is_there(name));
    missing.map(|(at, name)| format!("{}:{at}: no file has a path ending with `{name}`", page.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let reported = findings(&TextFile { path: path.to_owned(), text: text.to_owned() });
        assert_eq!(reported.len(), expected.len(), "{path} {text:?}: {reported:?}");
        for (reported, expected) in reported.iter().zip(expected) {
            assert!(reported.contains(expected), "{reported} lacks {expected}");
        }
    }

    #[test]
    fn every_rule_finds_what_it_is_for() {
        check("crates/a/src/b.rs", "//! Why.\nfn b() {}\n", &[]);
        check("crates/a/src/b.rs", "fn b() {}\n", &["b.rs:1: a file must start with"]);
        check("crates/a/src/b.rs", &"//! Long.\n".repeat(701), &["701 lines, at most 700"]);
        for mark in UNFINISHED {
            check("docs/a.md", &format!("one\n{mark}\n"), &["docs/a.md:2: `"]);
        }
        for folder in MACHINE_PATHS {
            check("docs/a.md", &format!("`{folder}x`"), &["exists only on one machine"]);
            check("docs/a.md", &format!("https://example.invalid{folder}x"), &[]);
        }
        check("Cargo.lock", UNFINISHED[0], &[]);
        check("docs/a.md", &format!("#[cfg_attr(loom, {})]", UNFINISHED[7]), &[]);
    }

    #[test]
    fn unsafe_code_is_found_where_it_does_not_belong() {
        let code = "//! Why.\nlet x = unsafe { y() };\n";
        check("crates/a/src/b.rs", code, &["b.rs:2: `unsafe`"]);
        check("crates/a/tests/b.rs", code, &[]);
        check("crates/ring/src/b.rs", code, &[]);
        check("crates/engine/src/driver/b.rs", code, &[]);
        check("crates/engine/src/b.rs", code, &["b.rs:2: `unsafe`"]);
        for harmless in ["// unsafe is not used", "#![forbid(unsafe_code)]", "let x = \"unsafe text\";"] {
            check("crates/a/src/b.rs", &format!("//! Why.\n{harmless}\n"), &[]);
        }
    }

    #[test]
    fn a_crate_forbids_unsafe_code_unless_it_is_the_place_for_it() {
        check("crates/a/src/lib.rs", "//! Why.\n", &["forbid(unsafe_code)"]);
        check("crates/a/src/lib.rs", "//! Why.\n#![forbid(unsafe_code)]\n", &[]);
        check("crates/ring/src/lib.rs", "//! Why.\n", &[]);
        check("crates/engine/src/lib.rs", "//! Why.\n", &[]);
    }

    #[test]
    fn a_crate_has_a_page_and_a_description() {
        let text = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        let whole = [text("a/Cargo.toml", "description = \"Something\"\n"), text("a/README.md", "# a\n")];
        assert_eq!(crates_without_a_page(&whole), [""; 0]);
        assert_eq!(crates_without_a_page(&[text("a/Cargo.toml", "description = \"\"\n")]).len(), 2);
    }

    #[test]
    fn files_that_the_architecture_names_are_there() {
        let text = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        let page = text("ARCHITECTURE.md", "see `a/src/b.rs` and `b.rs`\n`a/tests/b.rs` or `c.rs`, `Name`\n");
        let reported =
            paths_without_a_file(&[page, text("crates/a/src/b.rs", ""), text("crates/a/src/cc.rs", "")]);
        let expected = ["a/tests/b.rs", "c.rs"];
        let expected =
            expected.map(|name| format!("ARCHITECTURE.md:2: no file has a path ending with `{name}`"));
        assert_eq!(reported, expected);
    }
}
