//! The driver of all shards of this process.
//!
//! `STILLING_TCL_DRIVER` selects it: `poll` (the default), `uring`, `direct` (io_uring with its own descriptor table:
//! more sockets than the limit of open files). Scripts mostly wait for one event per socket and read it at once, for
//! which `poll` needs no system call per wait.

use std::io;
use std::sync::OnceLock;

use stilling_engine::driver::choice::{DriverChoice, DriverKind};

use crate::thread_sockets::lacks_descriptors;

const VARIABLE: &str = "STILLING_TCL_DRIVER";

/// The selected driver; selected once. A failure may be temporary, such as a lack of descriptors.
pub(crate) fn selected() -> io::Result<DriverKind> {
    static SELECTED: OnceLock<DriverKind> = OnceLock::new();
    if let Some(&selected) = SELECTED.get() {
        return Ok(selected);
    }
    let name = std::env::var_os(VARIABLE).unwrap_or_default();
    let name = name.to_string_lossy();
    let (resolved, failed_part) = match &*name {
        "" | "poll" => (DriverChoice::Poll.resolve(), ""),
        "uring" => (DriverChoice::Uring.resolve(), "io_uring is not available here: "),
        "direct" => {
            (DriverChoice::Uring.resolve_direct(), "direct descriptors of io_uring are not available here: ")
        }
        _ => (Err(io::Error::new(io::ErrorKind::InvalidInput, "must be poll, uring or direct")), ""),
    };
    let selected = resolved.map(|driver| driver.kind).map_err(|error| {
        if lacks_descriptors(&error) {
            return error;
        }
        io::Error::new(error.kind(), format!("cannot use {VARIABLE}={name}: {failed_part}{error}"))
    })?;
    Ok(*SELECTED.get_or_init(|| selected))
}
