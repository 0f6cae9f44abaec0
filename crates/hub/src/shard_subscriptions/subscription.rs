//! One subscription of a connection, and its connection.

use super::client_sids::{ClientSids, ClientSlots};
use super::feeds::{Encoding, FeedPosition};
use super::record_subscription::RecordSubscription;
use crate::short_bytes::{SHORT_MAX, ShortBytes};

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) token: u64,
    /// Index of its connection in `owners`.
    pub(super) owner: u32,
    /// Index of its registration in `registered`.
    pub(super) registered: u32,
    pub(super) age: u64,
    pub(super) sid: ShortBytes,
    pub(super) supports_headers: bool,
    /// It receives messages for which the number of processed requests is at least `from` and below `until`.
    pub(super) from: u64,
    pub(super) until: u64,
    /// Messages received. A member of a feed has received in addition, modulo 2^64, those that the feed counts.
    pub(super) delivered: u64,
    pub(super) ends_after: Option<u32>,
    pub(super) sharing: Sharing,
    /// State of a subscription over WebSocket or SSE.
    pub(super) records: Option<RecordSubscription>,
    /// Number of the last message it received from a feed that it has left.
    pub(super) received: u64,
}

/// Whether a subscription reads a feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    /// Not decided yet: it has received no message.
    New,
    /// Not yet: too few subscriptions receive the same bytes.
    Counted,
    /// Reads a feed, as the member at `index`.
    Member { feed: u32, index: u32 },
    /// Never.
    Private,
}

impl Subscription {
    /// The encodings of the feeds that it may read, the best one first.
    pub(super) fn encodings(&self) -> impl Iterator<Item = Encoding> + use<> {
        let supports_headers = self.supports_headers;
        let (first, second) = match &self.records {
            None => {
                let sid_size = self.sid.bytes().len();
                let second = Encoding::NatsOfSidSize { sid_size, supports_headers };
                let first = Encoding::Nats { sid: self.sid.clone(), supports_headers };
                (first, (sid_size <= SHORT_MAX).then_some(second))
            }
            Some(records) => (Encoding::Format { format: records.format, stream: records.stream }, None),
        };
        std::iter::once(first).chain(second)
    }

    pub(super) fn is_satisfied(&self) -> bool {
        self.ends_after.is_some_and(|after| self.delivered >= u64::from(after))
    }
}

/// A connection with subscriptions.
#[derive(Debug)]
pub(super) struct SubscriptionOwner {
    pub(super) sids: ClientSids,
    /// Tokens of all its filters; at most [`FILTER_TOKENS_PER_CLIENT_MAX`](crate::limits::FILTER_TOKENS_PER_CLIENT_MAX).
    pub(super) tokens: u32,
    pub(super) has_disconnected: bool,
    /// Its position in the open feed that it reads.
    pub(super) position: Option<FeedPosition>,
}

#[derive(Debug)]
pub(super) struct DisconnectedOwner {
    pub(super) owner: u32,
    pub(super) slots: ClientSlots,
}

// A crowd of subscribers of one filter costs little more than these, without an allocation for each.
const _: () = assert!(size_of::<Option<Subscription>>() <= 120, "a subscription has grown");
const _: () = assert!(size_of::<SubscriptionOwner>() <= 48, "a connection with subscriptions has grown");
