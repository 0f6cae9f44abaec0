//! Tests of `stilling serve` from outside: the shipped binary, real clients, hostile peers, both drivers.
//!
//! One test binary with a module per theme, so that all share `support` and run in parallel. A check is a function of
//! the driver; [`on_both_drivers`] makes two tests of it, [`on_every_driver`] three. Every server must end cleanly:
//! [`support::ServerUnderTest::finish`] checks its last counters.
#![cfg(target_os = "linux")]

/// Makes one test per driver of each check. An unlisted check is dead code, hence an error.
macro_rules! on_both_drivers {
    ($($check:ident),* $(,)?) => {
        mod on_uring {
            $(#[test]
            fn $check() {
                super::$check(crate::support::DriverUnderTest::Uring);
            })*
        }
        mod on_poll {
            $(#[test]
            fn $check() {
                super::$check(crate::support::DriverUnderTest::Poll);
            })*
        }
    };
}

/// The same, and once more with direct descriptors: for checks about the ends of connections.
macro_rules! on_every_driver {
    ($($check:ident),* $(,)?) => {
        on_both_drivers!($($check),*);
        mod on_uring_direct {
            $(#[test]
            fn $check() {
                super::$check(crate::support::DriverUnderTest::UringDirect);
            })*
        }
    };
}

mod accepts;
mod all_protocols;
mod answers;
mod app;
mod auction;
mod burst;
mod capacity;
mod clients;
mod coap;
mod coap_bridge;
mod coap_clients;
mod coap_workers;
mod counters;
mod deadlines;
mod direct_descriptors;
mod drain_answers;
mod elastic;
mod fallback;
mod faults;
mod hand_over;
mod lifecycle;
mod nats;
mod one_stream;
mod options;
mod outages;
mod pages;
mod refusals;
mod slow_readers;
mod slow_work;
mod split_requests;
mod subscriptions;
mod support;
mod syn_flood;
mod system_calls;
