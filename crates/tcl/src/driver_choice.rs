//! The driver of all shards of this process.
//!
//! `STILLING_TCL_DRIVER` selects it: `poll` (the default), `uring`, `direct` (io_uring with its own descriptor table:
//! more sockets than the limit of open files). Scripts mostly wait for one event per socket and read it at once, for
//! which `poll` needs no system call per wait.

use std::io;
use std::sync::OnceLock;

use stilling_engine::driver::choice::{DriverChoice, DriverKind};

/// The selected driver; selected once. A failure may be temporary, such as a lack of descriptors.
pub(crate) fn selected() -> io::Result<DriverKind> {
    static SELECTED: OnceLock<DriverKind> = OnceLock::new();
    if let Some(&selected) = SELECTED.get() {
        return Ok(selected);
    }
    let selected = match std::env::var("STILLING_TCL_DRIVER").as_deref() {
        Err(_) | Ok("" | "poll") => DriverKind::Poll,
        Ok("uring") => DriverChoice::Uring.resolve()?.kind,
        Ok("direct") => DriverChoice::Uring.resolve_direct()?.kind,
        Ok(_) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok(*SELECTED.get_or_init(|| selected))
}
