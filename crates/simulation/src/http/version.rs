//! The form of requests and expected answers: the version a client speaks, and the stand-in for a date.

/// Twenty-nine bytes of a date, each matched by anything, then compared as a whole.
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
