//! Form of requests and expected responses: the version of a client, and the placeholder of a date.

/// Placeholder of a date: each `#` matches any byte; the date is then compared as a whole.
pub(super) const DATE: &str = "#############################";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestVersion {
    One,
    OneKeepAlive,
    OneOne,
    OneOneClose,
    /// `GET /path` and an empty line.
    None,
}

impl RequestVersion {
    pub(super) fn closes(self) -> bool {
        !matches!(self, RequestVersion::OneKeepAlive | RequestVersion::OneOne)
    }
}
