//! Socket options that no safe wrapper in use offers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `TCP_DEFER_ACCEPT` of tcp(7): connections are handed over when their first bytes are there, or
/// after about `seconds`.
pub(crate) fn set_defer_accept(listener: &impl AsFd, seconds: u32) -> io::Result<()> {
    let seconds = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
    // SAFETY: the option takes one int, whose address and size are given; the descriptor is open
    // because it is borrowed.
    let outcome = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
