//! Accepted and rejected input, as tables through one [`check`], and as properties over generated input.

mod accepted;
mod encoded;
mod json;
mod properties;
mod rejected;
mod server_operations;
mod subjects;

use super::check::{self, NatsObservation};
use super::{NatsLimits, SubjectLimits};

/// Small enough for a table's rows to reach.
const LIMITS: NatsLimits = NatsLimits {
    control_line_size_max: 160,
    payload_size_max: 100,
    whole_size_max: 64,
    subject: SubjectLimits { size_max: 40, tokens_max: 8 },
};

/// One line per event: `PING`, `[a _ None 0 5] hello`, `stay Invalid Subject Filter @4`, `wait 3`.
fn describe(seen: &[NatsObservation]) -> String {
    let lines: Vec<String> = seen
        .iter()
        .filter_map(|seen| match seen {
            NatsObservation::Command(text) => Some(text.clone()),
            NatsObservation::Message(line, body) => Some(format!("[{line}] {}", body.escape_ascii())),
            NatsObservation::Incomplete(line, body) => {
                Some(format!("begun [{line}] {}", body.escape_ascii()))
            }
            NatsObservation::Rejected(error) => {
                Some(format!("stay {} {:?} @{}", error.text(), error.fault(), error.offset()))
            }
            NatsObservation::Error(error) => {
                Some(format!("close {} {:?} @{}", error.text(), error.fault(), error.offset()))
            }
            NatsObservation::Waiting(0) => None,
            NatsObservation::Waiting(bytes) => Some(format!("wait {bytes}")),
        })
        .collect();
    lines.join("; ")
}

/// Checks that client input decodes to `expected`, also byte by byte and with every single split, and that the naive
/// decoder agrees.
#[track_caller]
fn check(bytes: impl AsRef<[u8]>, expected: &str) {
    let bytes = bytes.as_ref();
    assert_eq!(describe(&check::client(&LIMITS, bytes, &[]).0), expected, "input {}", bytes.escape_ascii());
    let each: Vec<usize> = (0..bytes.len()).collect();
    check::client_splits(&LIMITS, bytes, &each);
    for &cut in &each {
        check::client_splits(&LIMITS, bytes, &[cut]);
    }
    check::client_oracle(&LIMITS, bytes);
}

#[track_caller]
fn check_all(table: &[(&str, &str)]) {
    for (bytes, expected) in table {
        check(bytes, expected);
    }
}

/// Like [`check`], for server input.
#[track_caller]
fn check_served(bytes: impl AsRef<[u8]>, expected: &str) {
    let bytes = bytes.as_ref();
    assert_eq!(describe(&check::server(&LIMITS, bytes, &[]).0), expected, "input {}", bytes.escape_ascii());
    let each: Vec<usize> = (0..bytes.len()).collect();
    check::server_splits(&LIMITS, bytes, &each);
    for &cut in &each {
        check::server_splits(&LIMITS, bytes, &[cut]);
    }
}
