//! The contract of the client crate with any server, checked with this server.

#[path = "../../../../client/tests/contract/mod.rs"]
mod any_server;

use super::NatsServerFixture;
use crate::support::DriverUnderTest;

macro_rules! kept {
    ($($(#[$doc:meta])* $promise:ident),* $(,)?) => {
        on_both_drivers!($($promise),*);
        $($(#[$doc])*
        fn $promise(driver: DriverUnderTest) {
            let fixture = NatsServerFixture::start(driver, "");
            any_server::$promise(&format!("nats://{}", fixture.nats()));
            fixture.server.finish();
        })*
    };
}

kept! {
    confirmed_messages_are_in_the_stream_in_order,
    /// Row 0.32.
    many_messages_on_their_way_all_arrive_once,
    /// Row 0.18.
    messages_sent_without_waiting_arrive,
    /// Row 0.3.
    one_way_messages_reach_a_listener,
    a_stream_is_followed_from_any_place,
    a_large_message_arrives_whole,
    a_subject_without_a_stream_is_named,
    a_request_gets_its_reply_or_no_responders,
    what_a_publisher_leaves_in_its_directory_the_next_one_delivers,
}
