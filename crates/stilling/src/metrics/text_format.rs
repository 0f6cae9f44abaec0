//! The text format of Prometheus, version 0.0.4, converted from OpenMetrics:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.
//!
//! The sample lines are the same in both formats. In this one a counter's family is named as its samples, with
//! `_total`, there are no `# UNIT` and `# EOF` lines, and quotes in help texts are not escaped.

use std::fmt::Write;

pub(super) fn from_openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        // Writing to a string does not fail.
        if let Some(family) = line.strip_prefix("# HELP ") {
            // Written with the type, which follows and determines the name.
            help = family.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let kind = if kind == "unknown" { "untyped" } else { kind };
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                let _ = writeln!(out, "# HELP {name}{suffix} {}", help.replace("\\\"", "\""));
            }
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            let _ = writeln!(out, "{line}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_counters_are_named_as_their_samples() {
        let openmetrics = "# HELP a_seconds The \\\"a\\\" of \\\\ all.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                           a_seconds_total{b=\"# TYPE\"} 1.5\n# HELP c Now.\n# TYPE c gauge\nc 2\n# TYPE d unknown\n\
                           d 3\n# EOF\n";
        assert_eq!(
            from_openmetrics(openmetrics),
            "# HELP a_seconds_total The \"a\" of \\\\ all.\n# TYPE a_seconds_total counter\na_seconds_total{b=\"# TYPE\"} 1.5\n\
             # HELP c Now.\n# TYPE c gauge\nc 2\n# TYPE d untyped\nd 3\n"
        );
    }
}
