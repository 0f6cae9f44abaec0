//! Runs the checks of `contract` with servers: the fake one of the tests and, with its address in
//! `STILLING_CLIENT_SERVER`, any other that has the stream `events` of the subjects `events.>`.

mod contract;

use stilling_probe::nats::FakeNatsServer;

fn run_check(check: fn(&str)) {
    check(&FakeNatsServer::start().url());
    if let Ok(address) = std::env::var("STILLING_CLIENT_SERVER") {
        check(&address);
    }
}

macro_rules! contract_tests {
    ($($(#[$doc:meta])* $check:ident),* $(,)?) => {
        $($(#[$doc])* #[test]
        fn $check() {
            run_check(contract::$check);
        })*
    };
}

contract_tests! {
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
