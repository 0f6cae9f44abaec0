//! Warnings of `cargo xtask style` about prose and names: rules with exceptions that only a reader can judge.

use std::collections::BTreeMap;
use std::process::Command;

use crate::tree::{self, TextFile};

/// Words for people. In a comment the subject is a thing: the shard, the client, a full queue.
const PERSON_WORDS: [&str; 6] = ["who", "whoever", "nobody", "somebody", "anybody", "everybody"];

/// Comment lines that may have such a word, each a fragment of the line and the reason.
const PERSON_WORD_EXCEPTIONS: [(&str, &str); 1] =
    [("the user who starts the server", "a person, in the sense of the operating system")];

/// Definitions of a type name in the workspace.
const TYPE_DEFINITIONS_MAX: usize = 2;

/// Type names that may be defined more often, each with the reason.
const TYPE_NAME_EXCEPTIONS: [(&str, &str); 0] = [];

/// Characters of a commit's subject.
const SUBJECT_CHARACTERS_MAX: usize = 72;

/// Commits whose subjects are checked, from the newest.
const COMMITS_CHECKED: usize = 100;

pub(crate) fn warnings(texts: &[TextFile]) -> Vec<String> {
    let sources = || texts.iter().filter(|file| file.path.ends_with(".rs"));
    let mut warnings: Vec<String> = sources().flat_map(person_words).collect();
    warnings.extend(repeated_type_names(sources()));
    warnings.extend(long_subjects(&commit_subjects()));
    warnings
}

fn person_words(TextFile { path, text }: &TextFile) -> Vec<String> {
    let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
    comments
        .filter_map(|(at, line)| {
            let lower = line.to_lowercase();
            let mut words = lower.split(|c: char| !c.is_alphanumeric());
            let word = words.find(|word| PERSON_WORDS.contains(word))?;
            let is_exception = PERSON_WORD_EXCEPTIONS.iter().any(|(fragment, _)| line.contains(fragment));
            (!is_exception).then(|| format!("{path}:{}: `{word}` in a comment", at + 1))
        })
        .collect()
}

fn repeated_type_names<'a>(sources: impl Iterator<Item = &'a TextFile>) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for TextFile { path, text } in sources {
        for name in text.lines().filter_map(defined_type) {
            places.entry(name).or_default().push(path);
        }
    }
    let is_repeated = |name: &str, count: usize| {
        count > TYPE_DEFINITIONS_MAX && !TYPE_NAME_EXCEPTIONS.iter().any(|(exception, _)| *exception == name)
    };
    places
        .into_iter()
        .filter(|(name, paths)| is_repeated(name, paths.len()))
        .map(|(name, paths)| {
            format!("{name}: a type name with {} definitions: {}", paths.len(), paths.join(", "))
        })
        .collect()
}

/// The name of the type that a line defines. Associated types are indented and do not count.
fn defined_type(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => item,
    };
    let (keyword, rest) = item.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "union"].contains(&keyword)
        || keyword == "type" && !line.starts_with(' ');
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

fn long_subjects(subjects: &[String]) -> Vec<String> {
    let long = subjects.iter().filter(|subject| subject.chars().count() > SUBJECT_CHARACTERS_MAX);
    long.map(|subject| format!("commit subject over {SUBJECT_CHARACTERS_MAX} characters: {subject}"))
        .collect()
}

fn commit_subjects() -> Vec<String> {
    let count = format!("-{COMMITS_CHECKED}");
    let output = Command::new("git").current_dir(tree::root()).args(["log", &count, "--format=%s"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn person_words_in_comments_are_reported() {
        let text = "//! The whole crowd.\n// Nobody waits.\nlet who = 1;\n/// Run by the user who starts the server.\n";
        assert_eq!(person_words(&file("a.rs", text)), ["a.rs:2: `nobody` in a comment"]);
    }

    #[test]
    fn a_type_name_with_three_definitions_is_found() {
        let files = [
            file("a.rs", "pub struct Twice;\npub(crate) enum Thrice {}\n"),
            file(
                "b.rs",
                "struct Twice<T>(T);\n    struct Thrice;\nimpl X for Y {\n    type Thrice = u8;\n}\n",
            ),
            file("c.rs", "type Thrice = u8;\n"),
        ];
        assert_eq!(
            repeated_type_names(files.iter()),
            ["Thrice: a type name with 3 definitions: a.rs, b.rs, c.rs"]
        );
    }

    #[test]
    fn a_long_subject_is_found() {
        let subjects = ["x".repeat(SUBJECT_CHARACTERS_MAX), "y".repeat(SUBJECT_CHARACTERS_MAX + 1)];
        assert_eq!(long_subjects(&subjects).len(), 1);
    }
}
