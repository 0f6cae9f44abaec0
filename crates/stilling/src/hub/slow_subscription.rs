//! Subscriptions over WebSocket and SSE whose clients read too slowly.
//!
//! ```text
//!   live ──more than SLOW_OUTPUT_SIZE waits──▶ behind: ignores live records ──all output sent──▶ catches up ──▶ live
//! ```
//!
//! A slow client thus holds a bounded part of the output memory, and the rest stays in the stream. Messages that no
//! stream stores are sent in any case.

use std::num::NonZeroU64;

use stilling_engine::Io;
use stilling_hub::SlowSubscribers;
use stilling_hub::limits::ENCODED_MESSAGE_SIZE_MAX;

use super::HubHandle;
use super::limits::SLOW_OUTPUT_SIZE;

/// An idle client has room for each message.
const _: () = assert!(ENCODED_MESSAGE_SIZE_MAX < crate::sse::limits::PENDING_MAX);
const _: () = assert!(ENCODED_MESSAGE_SIZE_MAX < crate::websocket::limits::PENDING_MAX);

/// Whether the subscription of a connection is behind its stream.
#[derive(Debug, Default)]
pub(crate) struct SlowSubscription {
    /// The sequence to continue with when the output has been sent.
    next: Option<NonZeroU64>,
}

const _: () = assert!(size_of::<SlowSubscription>() == 8);

impl SlowSubscription {
    /// Applies the stream's policy if too much output waits for the client. Called after each delivery.
    #[inline]
    pub(crate) fn check(&mut self, io: &mut Io<'_>, hub: &mut HubHandle) {
        // Without a share of the output memory, a client is slow at once: else it, or another one, would be disconnected.
        let is_slow = || io.unsent() > SLOW_OUTPUT_SIZE || io.spare_room() == 0;
        if io.is_output_blocked() && is_slow() && !io.is_finishing() {
            self.apply_policy(io, hub);
        }
    }

    fn apply_policy(&mut self, io: &mut Io<'_>, hub: &mut HubHandle) {
        let Some(stream) = hub.port.stream_of(io.token()) else { return };
        match hub.streams.slow_policy(stream) {
            SlowSubscribers::Disconnect if io.unsent() > SLOW_OUTPUT_SIZE => io.end_slow_consumer(),
            SlowSubscribers::Disconnect => {}
            SlowSubscribers::CatchUp | SlowSubscribers::Skip => {
                if let Some(next) = hub.port.fall_behind(io.token()) {
                    // Sequences begin at 1.
                    self.next = NonZeroU64::new(next);
                }
            }
        }
    }

    /// Continues the subscription. Called when the client has read everything.
    pub(crate) fn resume(&mut self, io: &Io<'_>, hub: &mut HubHandle) {
        if let Some(next) = self.next.take() {
            hub.port.catch_up_behind(io.token(), next.get());
        }
    }
}
