//! Subscriptions over WebSocket and SSE, and the streams that their filters concern.

use stilling_hub::{MessageFormat, SlowSubscribers, StartFrom, StreamConfig, filters_overlap};

/// A checked request for a subscription: its connection has exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubscribeRequest {
    pub(crate) filter: Box<[u8]>,
    pub(crate) format: MessageFormat,
    /// The stream and the start position in it, if the filter concerns exactly one stream.
    pub(crate) start: Option<(u32, StartFrom)>,
}

/// The streams that have subjects of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterStreams {
    None,
    One(u32),
    Several,
}

/// The streams by number, as far as sessions need to know them.
#[derive(Debug, Default)]
pub(crate) struct StreamDirectory(Vec<StreamEntry>);

#[derive(Debug)]
struct StreamEntry {
    name: String,
    subjects: Vec<String>,
    slow_policy: SlowSubscribers,
}

impl StreamDirectory {
    pub(crate) fn new(streams: &[StreamConfig]) -> StreamDirectory {
        let entry = |stream: &StreamConfig| StreamEntry {
            name: stream.name.clone(),
            subjects: stream.subjects.clone(),
            slow_policy: stream.first_slow_policy(),
        };
        StreamDirectory(streams.iter().map(entry).collect())
    }

    pub(crate) fn name(&self, stream: u32) -> &str {
        self.0.get(stream as usize).map_or("", |entry| &entry.name)
    }

    /// What happens to a slow subscription to a stream.
    pub(crate) fn slow_policy(&self, stream: u32) -> SlowSubscribers {
        self.0.get(stream as usize).map_or_else(Default::default, |entry| entry.slow_policy)
    }

    /// The streams that have subjects of a checked filter.
    pub(crate) fn find(&self, filter: &[u8]) -> FilterStreams {
        let has_any = |(_, entry): &(u32, &StreamEntry)| {
            entry.subjects.iter().any(|own| filters_overlap(own.as_bytes(), filter))
        };
        let mut found = (0..).zip(&self.0).filter(has_any).map(|(number, _)| number);
        match (found.next(), found.next()) {
            (None, _) => FilterStreams::None,
            (Some(number), None) => FilterStreams::One(number),
            (Some(_), Some(_)) => FilterStreams::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use stilling_engine::Token;
    use stilling_hub::Now;
    use stilling_hub::limits::{PUBLICATION_BATCH_SIZE, PUBLICATION_BATCHES};

    use super::super::testing::hub_of_one_shard;
    use super::*;

    /// While a successor waits for its streams, subscriptions use a bounded amount of memory.
    #[test]
    fn without_room_subscriptions_fill_one_more_batch() {
        let (mut port, mut runner, _) = hub_of_one_shard();
        port.set_gathering(true);
        let filter = "f".repeat(200);
        let request = SubscribeRequest {
            filter: filter.as_bytes().into(),
            format: MessageFormat::SseJson,
            start: Some((0, StartFrom::New)),
        };
        let mut accepted = 0;
        while port.may_subscribe() {
            port.subscribe_to(Token::from_bits(accepted), &request).expect("there is room");
            accepted += 1;
            let bytes = accepted as usize * filter.len();
            assert!(bytes <= (PUBLICATION_BATCHES + 1) * PUBLICATION_BATCH_SIZE, "{accepted} are accepted");
        }
        assert!(accepted > 1000, "{accepted}");
        port.set_gathering(false);
        port.flush();
        for _ in 0..2 {
            runner.turn(Now::simulated(0));
            port.flush();
        }
        assert!(port.may_subscribe(), "the hub has processed them");
    }

    #[test]
    fn a_filter_concerns_the_streams_that_have_one_of_its_subjects() {
        let streams =
            [StreamConfig::new("bids", ["auction.*.bid", "late"]), StreamConfig::new("lots", ["lots.>"])];
        let directory = StreamDirectory::new(&streams);
        for (filter, expected) in [
            ("auction.>", FilterStreams::One(0)),
            ("*", FilterStreams::One(0)),
            ("lots.7", FilterStreams::One(1)),
            ("lots", FilterStreams::None),
            (">", FilterStreams::Several),
        ] {
            assert_eq!(directory.find(filter.as_bytes()), expected, "{filter}");
        }
        assert_eq!([0, 1, 2].map(|number| directory.name(number)), ["bids", "lots", ""]);
    }
}
