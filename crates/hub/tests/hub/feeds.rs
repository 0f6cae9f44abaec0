//! Messages to subscriptions that share a feed.

use crate::fixture::feed_simulation::simulate_feeds;

/// Design, section 4: answers follow the messages of the feed that the hub sent before them.
#[test]
fn shared_messages_and_answers_arrive_in_the_order_of_the_hub() {
    for seed in 0..1000 {
        simulate_feeds(seed).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}
