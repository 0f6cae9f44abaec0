//! Errors of the system, as Tcl has them.

use std::io;

/// The number of a system error; other errors are said to be `EINVAL`.
pub(crate) fn system_error(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::QuotaExceeded => libc::EMFILE,
        _ => error.raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// Whether the process or the system has no free descriptor.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
