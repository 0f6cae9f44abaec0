//! docs/benchmarks.md and its sections: each command replaces only its own section.

pub(crate) const PAGE: &str = "docs/benchmarks.md";

/// The page with `text` in place of the section with this title, or at the end.
pub(crate) fn with_section(page: &str, title: &str, text: &str) -> String {
    let mut page = page.to_owned();
    if let Some(old) = section_of(&page, title).map(str::to_owned) {
        page = page.replace(&old, "");
    }
    format!("{}\n\n{text}", page.trim_end())
}

/// A section with all of its parts, from its heading to the next one of the same level.
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
}
