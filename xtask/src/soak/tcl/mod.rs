//! `cargo xtask soak tcl`: a Tcl server on `socket2` through many connections, and under clients that send faster than
//! it reads (rows 3.12, 3.15, 3.23 and 3.24).

mod cycles;
mod firehose;
mod firehose_verdicts;

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::page::SoakSection;
use super::{SoakVerdict, conclude, verdict_table};
use crate::XtaskResult;
use crate::bench::figures::{mebibytes, thousands};
use crate::bench::isolation;
use crate::bench::tcl::{self, TclPeer, TclPrograms};
use crate::tcl::TclVersion;
use firehose::{CLIENTS, MODES, READ_INTERVAL_MS, READ_SIZE};

/// Least connections: fewer do not show a leak of 16 bytes each.
const CONNECTIONS_MIN: u64 = 20_000;

#[derive(Args)]
pub(super) struct TclSoak {
    /// Minutes in which clients send, divided among the receive modes; 0.2 is a quick run
    #[arg(long, value_name = "M", default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Connections that are opened and closed
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(CONNECTIONS_MIN..))]
    connections: u64,
    /// Driver of the extension
    #[arg(long, value_enum, default_value_t = ExtensionDriver::Uring)]
    driver: ExtensionDriver,
    /// Write the verdicts into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// A driver of the extension, named as in `STILLING_TCL_DRIVER`.
#[derive(Clone, Copy, ValueEnum)]
enum ExtensionDriver {
    Uring,
    Poll,
    Direct,
}

impl ExtensionDriver {
    fn peer(self) -> TclPeer {
        match self {
            ExtensionDriver::Uring => TclPeer::Uring,
            ExtensionDriver::Poll => TclPeer::Poll,
            ExtensionDriver::Direct => TclPeer::Direct,
        }
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "a number".to_owned())?;
    if (0.1..=100_000.0).contains(&minutes) { Ok(minutes) } else { Err("0.1 to 100,000 minutes".to_owned()) }
}

impl TclSoak {
    pub(super) fn prepare() -> XtaskResult {
        tcl::prepare(TclVersion::V8)
    }

    pub(super) fn soak(&self) -> XtaskResult {
        let (_guard, programs) = TclPrograms::find(TclVersion::V8)?;
        println!("TCP congestion control {}", isolation::congestion());
        let peer = self.driver.peer();
        let mut verdicts = cycles::run(&programs, peer, self.connections)?.verdicts();
        print!("{}", verdict_table(&verdicts));
        let span = Duration::from_secs_f64(self.minutes * 60.0 / MODES.len() as f64);
        for mode in MODES {
            println!("{}: {CLIENTS} clients send for {:.0} s", mode.option, span.as_secs_f64());
            verdicts.extend(firehose::run(&programs, peer, mode, span)?.verdicts());
        }
        print!("{}", verdict_table(&verdicts));
        if self.write {
            self.write_section(&programs.patch_level, &verdicts)?;
        }
        conclude(&verdicts)
    }

    fn write_section(&self, patch_level: &str, verdicts: &[SoakVerdict]) -> XtaskResult {
        let TclSoak { minutes, connections, .. } = self;
        let driver = self.driver.peer().driver().expect("the extension has drivers");
        SoakSection {
            title: format!("Tcl extension, {driver}"),
            command: format!(
                "cargo xtask soak tcl --minutes {minutes} --connections {connections} --driver {driver} --write"
            ),
            description: self.description(patch_level),
        }
        .write(verdicts)
    }

    fn description(&self, patch_level: &str) -> String {
        let seconds = self.minutes * 60.0 / MODES.len() as f64;
        format!(
            "Rows 3.12, 3.15, 3.23 and 3.24, with Tcl {patch_level}. {} connections to `xtask/src/bench/tcl/echo.tcl socket2` are \
             opened, carry one exchange of 32 bytes and are closed (`{}`); a leak shows in the growth after the first tenth. Then {CLIENTS} \
             clients send for {seconds:.0} s in each receive mode to `xtask/src/soak/tcl/firehose.tcl`, which reads and compares {READ_SIZE} \
             bytes of each connection every {READ_INTERVAL_MS} ms; when they stop, it reads all the rest. The limit of resident \
             memory is that of all idle connections, the bytes that may be received ahead (`bufcap` × 4096, or `-buffersize`, \
             × connections) and {}; afterwards, {} above that of idle connections, which the allocator and Tcl keep for reuse. Resident \
             memory includes the program.",
            thousands(self.connections as f64),
            cycles::command(self.connections),
            mebibytes(firehose_verdicts::OVERHEAD_MAX),
            mebibytes(firehose_verdicts::KEPT_MAX),
        )
    }
}
