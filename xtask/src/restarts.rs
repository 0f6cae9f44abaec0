//! `cargo xtask restarts`: real hot restarts under load, with exact accounting.
//!
//! Each driver's servers succeed each other while clients publish over NATS, HTTP and syslog: every acknowledged message has
//! to be stored once, every datagram too, and no request may fail. It is the end-to-end test of the same name, for longer.

use clap::Args;

use crate::Outcome;
use crate::steps::{Steps, cargo};

/// The test that does it.
const TEST: &str = "published_messages_are_stored_once_and_no_datagram_is_lost";

/// Its modules, one for each driver.
const DRIVERS: [&str; 3] = ["on_uring", "on_uring_direct", "on_poll"];

#[derive(Args)]
pub(crate) struct Arguments {
    /// Hot restarts in all, shared out over the drivers
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    count: u32,
}

impl Arguments {
    pub(crate) fn run(self) -> Outcome {
        let each = self.count.div_ceil(DRIVERS.len() as u32);
        Steps::through(|steps| {
            for driver in DRIVERS {
                let name = format!("hand_over::streams::{driver}::{TEST}");
                let mut command = cargo(["test", "-p", "stilling-cli", "--test", "serve", "--", "--exact"]);
                command.arg(name).env("STILLING_RESTARTS", each.to_string());
                steps.command(&format!("{each} restarts {driver}"), &mut command)?;
            }
            Ok(())
        })
    }
}
