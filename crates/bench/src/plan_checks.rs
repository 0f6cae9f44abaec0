//! Checks that the plans of several generators share. Errors are texts for the user.

use std::time::Duration;

use stilling_wire::nats::{Subject, SubjectLimits};

pub(crate) fn within(name: &str, value: u64, min: u64, max: u64) -> Result<(), String> {
    let error = || format!("{value} {name}: it must be {min} to {max}");
    (min..=max).contains(&value).then_some(()).ok_or_else(error)
}

/// A run ends after a number of messages, after a time, or after the earlier of both.
pub(crate) fn check_end(messages: Option<u64>, span: Option<Duration>) -> Result<(), String> {
    if messages == Some(0) || span.is_some_and(|span| span.is_zero()) {
        return Err("no messages at all".to_owned());
    }
    match (messages, span) {
        (None, None) => Err("a run ends after a number of messages or a span of time".to_owned()),
        _ => Ok(()),
    }
}

pub(crate) fn check_timeout(timeout: Duration) -> Result<(), String> {
    if timeout.is_zero() { Err("a timeout must be above 0".to_owned()) } else { Ok(()) }
}

pub(crate) fn check_subject(subject: &str) -> Result<(), String> {
    match Subject::parse(subject.as_bytes(), &SubjectLimits::default()) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("`{subject}` is not a subject to publish to")),
    }
}

/// Messages of one of `clients` that share `messages`; without a number, as many as it can.
pub(crate) fn share(messages: Option<u64>, client: u16, clients: u16) -> u64 {
    let clients = u64::from(clients);
    messages.map_or(u64::MAX, |all| all / clients + u64::from(u64::from(client) < all % clients))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_the_messages() {
        assert_eq!([0, 1, 2, 3].map(|client| share(Some(10), client, 4)), [3, 3, 2, 2]);
        assert_eq!(share(None, 0, 4), u64::MAX);
    }
}
