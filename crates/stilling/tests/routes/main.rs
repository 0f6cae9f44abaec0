//! Tests of user-defined routes, from outside: servers in this process, raw connections and curl, on both drivers.
//!
//! A check is a function of the driver; [`on_both_drivers`] makes two tests of it. No test waits for a span of time,
//! and every server ends with a check for leaks: [`support::HttpTestServer::finish`].
#![cfg(target_os = "linux")]

/// Makes one test per driver of each check. An unlisted check is dead code, hence an error.
macro_rules! on_both_drivers {
    ($($check:ident),* $(,)?) => {
        mod on_uring {
            $(#[test]
            fn $check() {
                super::$check(stilling::DriverChoice::Uring);
            })*
        }
        mod on_poll {
            $(#[test]
            fn $check() {
                super::$check(stilling::DriverChoice::Poll);
            })*
        }
    };
}

mod admin;
mod answers;
mod bodies;
mod cancelled;
mod embed;
mod failing_sources;
mod files;
mod framing;
mod long_answers;
mod memory_limits;
mod slow_readers;
mod streaming_workers;
mod streams;
mod support;
