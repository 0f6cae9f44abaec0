//! `cargo xtask clients`: real clients of all protocols on one stream at once.
//!
//! Chromium (EventSource, WebSocket, the NATS client for browsers), `curl -N`, Python `websockets`, Node `ws` and nats-py
//! follow a stream over a hot restart and a kill of the server, and must all see its records once and in order. It runs
//! the end-to-end test named below with more messages.

use std::process::Command;

use clap::Args;

use crate::XtaskResult;
use crate::node;
use crate::packages;
use crate::python;
use crate::restarts::run_one_test;
use crate::steps::{StepRunner, cargo};

const TEST: &str = "all_clients_see_the_same_sequence_over_restarts";

/// The test that this run fails if a client loses, doubles or reorders a message.
const JUDGE_TEST: &str = "one_stream::judge::a_lost_doubled_or_reordered_message_of_any_client_is_found";

/// Modules of the test, one per driver.
const DRIVERS: [&str; 2] = ["on_uring", "on_poll"];

#[derive(Args)]
pub(crate) struct ClientsArguments {
    /// Messages in each run
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    messages: u32,
}

impl ClientsArguments {
    pub(crate) fn run(self) -> XtaskResult {
        StepRunner::run_all(|steps| {
            steps.run_step("programs", || packages::install(&packages::FOR_TESTS))?;
            steps.run_step("nats-py", || python::NATS_PY.install())?;
            steps.run_step("websockets", || python::WEBSOCKETS.install())?;
            steps.run_step("nats and ws for node", || node::NATS.install())?;
            steps.run_step("judge of the records", || run_one_test(&mut exact_test(JUDGE_TEST)))?;
            for driver in DRIVERS {
                let mut command = exact_test(&format!("one_stream::{driver}::{TEST}"));
                command.env("STILLING_CLIENTS_MESSAGES", self.messages.to_string());
                steps.run_step(&format!("{} messages {driver}", self.messages), || {
                    run_one_test(&mut command)
                })?;
            }
            Ok(())
        })
    }
}

fn exact_test(name: &str) -> Command {
    let mut command = cargo(["test", "-p", "stilling-cli", "--test", "serve", "--", "--exact"]);
    command.arg(name);
    command
}
