//! Pull requests, and the statuses that end them.
//!
//! Each status contains the numbers of requested messages and bytes that were not delivered; clients use them for their
//! next requests.

use crate::publication_batch::ClientId;
use crate::time::SteadyNanos;

#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) client: ClientId,
    pub(crate) reply: Vec<u8>,
    pub(crate) messages_left: u32,
    pub(crate) bytes_left: Option<usize>,
    pub(crate) no_wait: bool,
    pub(crate) expires_ns: Option<SteadyNanos>,
    pub(crate) heartbeat_ns: Option<u64>,
    pub(crate) last_sent_ns: SteadyNanos,
}

/// Reason why a pull request ends before it is satisfied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PullEnd {
    /// It does not wait, and there are no further messages.
    NoMessages,
    Timeout,
    /// The next message exceeds its remaining bytes.
    TooLarge,
    Deleted,
    /// There is no room for a further request.
    TooMany,
    Shutdown,
}

impl PullEnd {
    const fn status(self) -> &'static str {
        match self {
            PullEnd::NoMessages => "404 No Messages",
            PullEnd::Timeout => "408 Request Timeout",
            PullEnd::TooLarge => "409 Message Size Exceeds MaxBytes",
            PullEnd::Deleted => "409 Consumer Deleted",
            PullEnd::TooMany => "409 Exceeded MaxWaiting",
            PullEnd::Shutdown => "409 Server Shutdown",
        }
    }
}

/// An ended pull request: reply subject and status.
#[derive(Debug)]
pub(crate) struct EndedPull {
    reply: Vec<u8>,
    why: PullEnd,
    /// Messages and bytes requested but not delivered.
    messages: u32,
    bytes: usize,
}

impl EndedPull {
    pub(crate) fn new(pull: Pull, why: PullEnd) -> EndedPull {
        EndedPull {
            reply: pull.reply,
            why,
            messages: pull.messages_left,
            bytes: pull.bytes_left.unwrap_or(0),
        }
    }

    pub(crate) fn reply(&self) -> &[u8] {
        &self.reply
    }

    pub(crate) fn headers(&self) -> Vec<u8> {
        let EndedPull { why, messages, bytes, .. } = self;
        let status = why.status();
        format!(
            "NATS/1.0 {status}\r\nNats-Pending-Messages: {messages}\r\nNats-Pending-Bytes: {bytes}\r\n\r\n"
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_contains_what_is_left_of_the_request() {
        let pull = Pull {
            client: ClientId { shard: 0, token: 1 },
            reply: b"inbox.1".to_vec(),
            messages_left: 3,
            bytes_left: Some(77),
            no_wait: true,
            expires_ns: None,
            heartbeat_ns: None,
            last_sent_ns: SteadyNanos::START,
        };
        let ended = EndedPull::new(pull, PullEnd::NoMessages);
        assert_eq!(ended.reply(), b"inbox.1");
        let expected =
            "NATS/1.0 404 No Messages\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 77\r\n\r\n";
        assert_eq!(ended.headers(), expected.as_bytes());
    }
}
