//! The driver of all shards of this process.
//!
//! `STILLING_TCL_DRIVER` selects it: `poll` (the default), `uring`, `direct` (io_uring with its own descriptor table:
//! more sockets than the limit of open files). Scripts mostly wait for one event per socket and read it at once, for
//! which `poll` needs no system call per wait.

use std::io;
use std::sync::OnceLock;

use stilling_engine::driver::choice::{DriverChoice, DriverKind};

/// The selected driver; selected once.
pub(crate) fn selected() -> io::Result<DriverKind> {
    static SELECTED: OnceLock<Result<DriverKind, i32>> = OnceLock::new();
    let selected = SELECTED.get_or_init(|| {
        let outcome = match std::env::var("STILLING_TCL_DRIVER").as_deref() {
            Err(_) | Ok("" | "poll") => Ok(DriverKind::Poll),
            Ok("uring") => DriverChoice::Uring.resolve().map(|selected| selected.kind),
            Ok("direct") => DriverChoice::Uring.resolve_direct().map(|selected| selected.kind),
            Ok(_) => Err(io::ErrorKind::InvalidInput.into()),
        };
        outcome.map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))
    });
    selected.map_err(io::Error::from_raw_os_error)
}
