//! The test files that use sockets, and the tests of each that do.

/// One file of Tcl's tests.
pub(super) struct SuiteFile {
    /// Name without `.test`.
    pub(super) name: &'static str,
    /// Patterns of the tests that use sockets; all if empty.
    pub(super) tests: &'static [&'static str],
}

const fn whole(name: &'static str) -> SuiteFile {
    SuiteFile { name, tests: &[] }
}

const fn part(name: &'static str, tests: &'static [&'static str]) -> SuiteFile {
    SuiteFile { name, tests }
}

/// All files; a version of Tcl may lack some. `httpProxy` needs the Internet and a proxy.
pub(super) const ALL: [SuiteFile; 11] = [
    whole("socket"),
    part(
        "io",
        &[
            "io-29.34",
            "io-29.35*",
            "io-29.36*",
            "io-39.1[89]",
            "io-39.2[0-4]",
            "io-51.1",
            "io-53.5",
            "io-53.10",
            "io-54.*",
            "io-57.*",
        ],
    ),
    part(
        "chanio",
        &[
            "chan-io-28.7",
            "chan-io-29.34",
            "chan-io-29.35",
            "chan-io-39.1[89]",
            "chan-io-39.2[0-4]",
            "chan-io-51.1",
            "chan-io-53.5",
            "chan-io-53.10",
            "chan-io-54.*",
            "chan-io-57.*",
        ],
    ),
    part("ioCmd", &["iocmd-8.15.*", "iocmd-8.16", "iocmd-8.17"]),
    // A transformation stacked on sockets.
    part("zlib", &["zlib-8.3", "zlib-9.*", "zlib-10.*"]),
    part("chan", &["chan-16.9"]),
    part("event", &["event-11.5"]),
    // A socket as standard input of a child process.
    part("unixInit", &["unixInit-1.2"]),
    whole("http"),
    whole("http11"),
    // Only 8.6.
    whole("httpold"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_listed_twice() {
        let mut names: Vec<_> = ALL.iter().map(|file| file.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
