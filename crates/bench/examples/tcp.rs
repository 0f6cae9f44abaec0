//! The TCP generator as a program: prints a report as JSON, or holds connections until its standard input ends.
//!
//! ```sh
//! cargo run --release -p stilling-bench --example tcp -- exchange 127.0.0.1:4000 --connections 200 --seconds 5
//! ```
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::error::Error;
use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{Parser, Subcommand};
use stilling_bench::tcp::{self, ExchangePlan, HeldConnections, TcpReport};

/// Loads a plain TCP server and checks every byte.
#[derive(Parser)]
struct TcpCli {
    #[command(subcommand)]
    load: TcpLoad,
    /// Address of the server
    #[arg(global = true, default_value = "127.0.0.1:4000")]
    to: SocketAddr,
    /// Bytes of a message
    #[arg(long, global = true, default_value_t = 32)]
    size: usize,
    /// Connections at a time
    #[arg(long, global = true, default_value_t = 1)]
    connections: usize,
    /// Seconds of load
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Seconds for a connection and for an answer
    #[arg(long, global = true, default_value_t = 30.0)]
    timeout: f64,
}

#[derive(Subcommand)]
enum TcpLoad {
    /// Messages that the server sends back
    Exchange {
        /// A connection for each message
        #[arg(long)]
        close: bool,
        /// Number of messages
        #[arg(long)]
        count: Option<u64>,
    },
    /// Bulk data to the server, which answers with the number of bytes
    Send,
    /// Bulk data from the server
    Receive,
    /// Connects without data, one after another
    Connect,
    /// Idle connections: prints `holding N`, then `answered N` for each line of standard input
    Hold {
        /// Source address
        #[arg(long, default_value = "127.0.0.1")]
        source: Ipv4Addr,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    let TcpCli { load, to, size, connections, seconds, timeout } = TcpCli::parse();
    let timeout = Duration::from_secs_f64(timeout);
    let span = seconds.map(Duration::from_secs_f64);
    let bulk_span = span.unwrap_or(Duration::from_secs(10));
    let report = match load {
        TcpLoad::Exchange { close, count } => {
            tcp::run(&ExchangePlan { to, connections, size, close, count, span, timeout })?
        }
        TcpLoad::Send => tcp::send(to, bulk_span, timeout)?,
        TcpLoad::Receive => tcp::receive(to, bulk_span, timeout)?,
        TcpLoad::Connect => tcp::connect(to, bulk_span, timeout),
        TcpLoad::Hold { source } => {
            return hold(HeldConnections::open(to, source, connections, size, timeout)?, connections);
        }
    };
    print_report(&report)
}

fn print_report(report: &TcpReport) -> Result<(), Box<dyn Error>> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

fn hold(mut held: HeldConnections, count: usize) -> Result<(), Box<dyn Error>> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "holding {count}")?;
    stdout.flush()?;
    for line in std::io::stdin().lock().lines() {
        line?;
        writeln!(stdout, "answered {}", held.exchange()?)?;
        stdout.flush()?;
    }
    Ok(())
}
