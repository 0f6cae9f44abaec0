//! The ways into the hub beside NATS, met from outside: servers in this process, raw connections and the programs that
//! people have, both drivers.
//!
//! A check is a function of the driver; [`on_both_drivers`] makes two tests of it. Nothing waits for a span of time that is
//! not the thing promised, and every server ends with a look at what is left of it: [`support::HubTestServer::finish`].
#![cfg(target_os = "linux")]

/// Makes of each check one test per driver. A check that is left out is dead code, hence an error.
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
mod isolation;
mod metrics;
mod publish;
mod support;
mod syslog;
