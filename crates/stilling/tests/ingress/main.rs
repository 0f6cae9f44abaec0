//! Tests of the hub's ingress protocols beside NATS, from outside: servers in this process, raw connections and
//! installed programs, on both drivers.
//!
//! A check is a function of the driver; [`on_both_drivers`] makes two tests of it. A test waits for a span of time
//! only if it tests that span, and every server ends with a check for leaks: [`support::HubTestServer::finish`].
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

mod custom;
mod draining;
mod gates;
mod isolation;
mod metrics;
mod nats_websocket;
mod publish;
mod sse;
mod support;
mod syslog;
mod websocket;
mod websocket_shedding;
