//! The packet log: every datagram that the server's UDP sockets receive and send, as pcapng files.
//!
//! ```text
//!   shard 0   PacketCapture ─ filled buffers ─▶ ┐
//!                           ◀─ empty buffers ── ├─ PacketWriter, a thread ─▶ packets-TIME-PID.pcapng, …
//!   shard N   PacketCapture ─ filled buffers ─▶ ┘
//! ```
//!
//! A shard has a fixed number of buffers and never waits for the disk: without an empty buffer it drops the datagram
//! from the log and counts it. The thread rotates the files, and after an error it counts what it discards until a new
//! file can be written.

mod capture;
mod counters;
mod files;
pub(crate) mod limits;
mod writer;

use std::path::PathBuf;

pub use counters::{CaptureCounters, PacketLogCounters};

pub(crate) use capture::PacketCapture;
pub(crate) use writer::{PacketLog, PacketLogThread};

/// Configuration of the packet log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketLogConfig {
    /// The directory of the files, created if it is missing. The files have mode 0600.
    pub directory: PathBuf,
    /// Bytes of a file at most; then the next one begins. Default: 64 MiB.
    pub file_size_max: u64,
    /// Files in the directory at most, those of earlier servers included; the oldest are removed. Default: 16.
    pub files_max: usize,
}

impl PacketLogConfig {
    /// A log in this directory, with the defaults.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> PacketLogConfig {
        PacketLogConfig { directory: directory.into(), file_size_max: 64 * 1024 * 1024, files_max: 16 }
    }
}
