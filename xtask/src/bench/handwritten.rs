//! The sections of docs/benchmarks.md that `bench http` keeps when it rewrites the page: those of other commands, and
//! the handwritten one.

use super::page::section_of;
use super::{app, broadcast, coap, collect, fairness, idle_consumers, journal, tcl};
use crate::soak;

/// The handwritten section with the results of long proofs.
const HANDWRITTEN_SECTION: &str = "Kills, restarts and simulated worlds";

/// Whether `bench http` keeps a section: another command writes it, or it is handwritten.
fn is_preserved(title: &str) -> bool {
    let titles = [
        app::TITLE,
        broadcast::TITLE,
        coap::TITLE,
        collect::TITLE,
        fairness::TITLE,
        idle_consumers::TITLE,
        journal::TITLE,
        tcl::TITLE,
        soak::page::TITLE,
        HANDWRITTEN_SECTION,
    ];
    titles.contains(&title) || title.ends_with(" sockets")
}

/// The sections of a page that `bench http` keeps when it rewrites the page.
pub(super) fn preserved_sections(page: &str) -> String {
    let titles = page.lines().filter_map(|line| line.strip_prefix("## ")).filter(|title| is_preserved(title));
    titles
        .filter_map(|title| section_of(page, title))
        .map(|section| format!("\n{}\n", section.trim_end()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::page::PAGE;
    use super::super::{LOAD_TITLES, MEMORY_TITLE, flood, overload, refusals, slow, targets};
    use super::*;
    use crate::tree;

    #[test]
    fn a_page_written_anew_keeps_the_sections_of_other_commands() {
        let app = format!("## {}\n\nthird\n\n### A part\n\nfourth\n", app::TITLE);
        let idle = format!("## {}\n\nfifth\n", idle_consumers::TITLE);
        let soaks = format!("## {}\n\n### A soak\n\nsixth\n", soak::page::TITLE);
        let page = format!(
            "# Page\n\n## 60 sockets\n\nfirst\n\n## Other\n\nlost\n\n## 1,000 sockets\n\nsecond\n\n{soaks}\n{app}\n{idle}"
        );
        let kept = preserved_sections(&page);
        assert_eq!(
            kept,
            format!("\n## 60 sockets\n\nfirst\n\n## 1,000 sockets\n\nsecond\n\n{soaks}\n{app}\n{idle}")
        );
        assert_eq!(preserved_sections("# Page\n\n## Other\n"), "");
    }

    /// A section of a command that is not in the list would be lost with the next `bench http`.
    #[test]
    fn all_sections_but_those_of_bench_http_are_preserved() {
        let page = std::fs::read_to_string(tree::root().join(PAGE)).expect("the page is there");
        let written: Vec<&str> = std::iter::once(targets::TITLE)
            .chain(LOAD_TITLES)
            .chain([MEMORY_TITLE, slow::KNOWN_TITLE, refusals::TITLE, slow::BESIDE_FAST_TITLE])
            .chain([overload::TITLE, flood::TITLE])
            .collect();
        let titles = page.lines().filter_map(|line| line.strip_prefix("## "));
        assert_eq!(titles.filter(|title| !is_preserved(title)).collect::<Vec<_>>(), written);
    }

    /// Under another heading, the next `bench http` would remove the section.
    #[test]
    fn the_page_has_the_section_that_is_written_by_hand_and_keeps_it() {
        let page = std::fs::read_to_string(tree::root().join(PAGE)).expect("the page is there");
        let proofs = section_of(&page, HANDWRITTEN_SECTION).expect("its heading is that of the constant");
        assert!(proofs.lines().count() > 2, "{proofs}");
        assert!(preserved_sections(&page).contains(proofs.trim_end()));
    }
}
