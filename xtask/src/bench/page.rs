//! docs/benchmarks.md has more than one writer: `bench http` writes it anew and keeps the sections that other
//! commands wrote and the one that is written by hand; each of those commands replaces its own section and nothing else.

use super::{app, collect, fairness, idle_consumers, journal};
use crate::soak;

/// The page.
pub(crate) const PAGE: &str = "docs/benchmarks.md";

/// The section with the results of long proofs, which is written by hand.
const PROOFS: &str = "Kills, restarts and simulated worlds";

/// Whether `bench http` keeps a section: another command writes it, or it is written by hand.
fn is_kept(title: &str) -> bool {
    let titles = [
        app::TITLE,
        collect::TITLE,
        fairness::TITLE,
        idle_consumers::TITLE,
        journal::TITLE,
        soak::page::TITLE,
        PROOFS,
    ];
    titles.contains(&title) || title.ends_with(" sockets")
}

/// The page with a section's `text` in the place of the one with its title, or at the end.
pub(crate) fn with_section(page: &str, title: &str, text: &str) -> String {
    let mut page = page.to_owned();
    if let Some(old) = section_of(&page, title).map(str::to_owned) {
        page = page.replace(&old, "");
    }
    format!("{}\n\n{text}", page.trim_end())
}

/// The sections of a page that is about to be written anew which `bench http` does not write.
pub(super) fn kept_sections(page: &str) -> String {
    let titles = page.lines().filter_map(|line| line.strip_prefix("## ")).filter(|title| is_kept(title));
    titles
        .filter_map(|title| section_of(page, title))
        .map(|section| format!("\n{}\n", section.trim_end()))
        .collect()
}

/// A section with all of its parts, from its heading to the next one of the same rank.
pub(crate) fn section_of<'a>(page: &'a str, title: &str) -> Option<&'a str> {
    let heading = format!("## {title}\n");
    let start = if page.starts_with(&heading) { 0 } else { page.find(&format!("\n{heading}"))? + 1 };
    let rest = &page[start + heading.len()..];
    let end = rest.find("\n## ").map_or(page.len(), |at| start + heading.len() + at + 1);
    Some(&page[start..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    #[test]
    fn a_section_replaces_its_predecessor_and_no_other() {
        let page = "# Page\n\n## 60 sockets\n\nold\n\n### A part\n\nold\n\n## Other\n\nkept\n";
        let new = "## 60 sockets\n\nnew\n";
        let written = with_section(page, "60 sockets", new);
        assert!(!written.contains("old") && written.contains("## Other\n\nkept\n"), "{written}");
        assert_eq!(written.matches("## 60 sockets").count(), 1);
        assert_eq!(with_section(&written, "60 sockets", new), written);
        assert!(with_section(page, "61 sockets", "## 61 sockets\n").contains("old"));
    }

    #[test]
    fn a_page_written_anew_keeps_the_sections_of_other_commands() {
        let app = format!("## {}\n\nthird\n\n### A part\n\nfourth\n", app::TITLE);
        let idle = format!("## {}\n\nfifth\n", idle_consumers::TITLE);
        let soaks = format!("## {}\n\n### A soak\n\nsixth\n", soak::page::TITLE);
        let page = format!(
            "# Page\n\n## 60 sockets\n\nfirst\n\n## Other\n\nlost\n\n## 1,000 sockets\n\nsecond\n\n{soaks}\n{app}\n{idle}"
        );
        let kept = kept_sections(&page);
        assert_eq!(
            kept,
            format!("\n## 60 sockets\n\nfirst\n\n## 1,000 sockets\n\nsecond\n\n{soaks}\n{app}\n{idle}")
        );
        assert_eq!(kept_sections("# Page\n\n## Other\n"), "");
    }

    /// Under another heading, the next `bench http` would remove the section.
    #[test]
    fn the_page_has_the_section_that_is_written_by_hand_and_keeps_it() {
        let page = std::fs::read_to_string(tree::root().join(PAGE)).expect("the page is there");
        let proofs = section_of(&page, PROOFS).expect("its heading is that of the constant");
        assert!(proofs.lines().count() > 2, "{proofs}");
        assert!(kept_sections(&page).contains(proofs.trim_end()));
    }
}
