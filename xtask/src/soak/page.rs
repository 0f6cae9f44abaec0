//! The section of docs/benchmarks.md that `cargo xtask soak … --write` writes: one part per soak, each replaced
//! separately.

use super::{SoakVerdict, verdict_table};
use crate::XtaskResult;
use crate::bench::machine;
use crate::bench::page::{PAGE, section_of, with_section};
use crate::tree;

pub(crate) const TITLE: &str = "Soaks";

const INTRODUCTION: &str = "Long loads, after which resources must be back at their earlier level. Servers and generators share the machine's \
                     cores. Each part comes from the command it names and has every criterion of that run with its \
                     limit; a run with a missed criterion is written too.";

pub(super) struct SoakSection {
    pub(super) title: String,
    pub(super) command: String,
    /// Description of the load and of the server's options.
    pub(super) description: String,
}

impl SoakSection {
    fn text(&self, verdicts: &[SoakVerdict]) -> String {
        let missed = verdicts.iter().filter(|verdict| !verdict.holds).count();
        let lines = machine::listed([]);
        format!(
            "### {}\n\n{}\n\n- Command: `{}`\n{lines}\n{} criteria, {missed} missed.\n{}",
            self.title,
            self.description,
            self.command,
            verdicts.len(),
            verdict_table(verdicts)
        )
    }

    /// Writes the part in place of the part with the same title.
    ///
    /// # Errors
    /// If the page cannot be read or written.
    pub(super) fn write(&self, verdicts: &[SoakVerdict]) -> XtaskResult {
        let page = std::fs::read_to_string(tree::root().join(PAGE))?;
        tree::write(PAGE, &with_part(&page, &self.title, &self.text(verdicts)))
    }
}

/// The page with `text` in place of the part with this title, or at the end of the section.
fn with_part(page: &str, title: &str, text: &str) -> String {
    let section =
        section_of(page, TITLE).map_or_else(|| format!("## {TITLE}\n\n{INTRODUCTION}\n"), str::to_owned);
    let heading = format!("\n### {title}\n");
    let mut section = section;
    if let Some(start) = section.find(&heading).map(|at| at + 1) {
        let rest = &section[start..];
        let end = rest.find("\n### ").map_or(section.len(), |at| start + at + 1);
        section.replace_range(start..end, "");
    }
    with_section(page, TITLE, &format!("{}\n\n{text}", section.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_replaces_its_predecessor_and_no_other() {
        let page = "# Page\n\n## Other\n\nkept\n";
        let page = with_part(page, "One", "### One\n\nold\n");
        let page = with_part(&page, "Two", "### Two\n\nsecond\n");
        let page = with_part(&page, "One", "### One\n\nnew\n");
        assert!(page.starts_with("# Page\n\n## Other\n\nkept\n\n## Soaks\n"), "{page}");
        assert!(page.ends_with("### Two\n\nsecond\n\n### One\n\nnew\n"), "{page}");
        assert!(!page.contains("old"), "{page}");
        assert_eq!((page.matches("## Soaks").count(), page.matches(INTRODUCTION).count()), (1, 1));
    }

    #[test]
    fn a_part_has_every_criterion_with_its_limit() {
        let verdict = |holds| SoakVerdict {
            what: "rate".to_owned(),
            limit: "≥ 5/s".to_owned(),
            holds,
            measured: "4/s".to_owned(),
        };
        let part = SoakSection {
            title: "One".to_owned(),
            command: "run".to_owned(),
            description: "load".to_owned(),
        };
        let text = part.text(&[verdict(true), verdict(false)]);
        assert!(text.contains("2 criteria, 1 missed."), "{text}");
        assert!(
            text.contains("| rate | ≥ 5/s | 4/s | met |\n| rate | ≥ 5/s | 4/s | **missed** |\n"),
            "{text}"
        );
        assert!(text.contains("- Command: `run`") && text.contains("- Machine: "), "{text}");
    }
}
