//! The driver of all shards of this process.
//!
//! `STILLING_TCL_DRIVER` selects it: `poll` (the default), `uring`, `direct` (io_uring with its own descriptor table:
//! more sockets than the limit of open files). Scripts mostly wait for one event per socket and read it at once, for
//! which `poll` needs no system call per wait.

use std::io;
use std::sync::OnceLock;

use stilling_engine::driver::choice::{DriverChoice, DriverKind};

use crate::system_errors::lacks_descriptors;

const VARIABLE: &str = "STILLING_TCL_DRIVER";

/// The selected driver; selected once. A failure may be temporary, such as a lack of descriptors.
pub(crate) fn selected() -> io::Result<DriverKind> {
    static SELECTED: OnceLock<DriverKind> = OnceLock::new();
    if let Some(&selected) = SELECTED.get() {
        return Ok(selected);
    }
    let name = std::env::var_os(VARIABLE).unwrap_or_default();
    let name = name.to_string_lossy();
    let selected = match &*name {
        "" | "poll" => Ok(DriverKind::Poll),
        "uring" => uring(),
        "direct" => uring().and_then(|_| direct()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "must be poll, uring or direct")),
    };
    let selected = selected.map_err(|error| explain(error, &format!("cannot use {VARIABLE}={name}")))?;
    Ok(*SELECTED.get_or_init(|| selected))
}

fn uring() -> io::Result<DriverKind> {
    let resolved = DriverChoice::Uring.resolve().map(|driver| driver.kind);
    resolved.map_err(|error| explain(error, "io_uring is not available here"))
}

fn direct() -> io::Result<DriverKind> {
    let resolved = DriverChoice::Uring.resolve_direct().map(|driver| driver.kind);
    resolved.map_err(|error| explain(error, "direct descriptors of io_uring are not available here"))
}

/// Puts what failed before an error, unless it is a lack of descriptors, which scripts know by its number.
fn explain(error: io::Error, what: &str) -> io::Error {
    if lacks_descriptors(&error) {
        return error;
    }
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
