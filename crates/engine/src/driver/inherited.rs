//! Descriptors that the parent process left open for this one.
//!
//! A parent that opens listeners for its child (a service supervisor, say) leaves them open over `exec` under
//! fixed numbers. A number alone is no ownership: it may also be the number of a descriptor that this process
//! has opened itself. What tells them apart is the close-on-exec flag. Whatever came over `exec` does not have
//! it, and whatever Rust opens does; so only descriptors without it are taken, and they get it when they are.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// Held while descriptors change from numbers into owned ones: nobody takes one twice.
static TAKING: Mutex<()> = Mutex::new(());

/// Takes the descriptor with that number, which the parent process left open. From now on it is closed on
/// `exec`, so a second call fails.
///
/// # Errors
/// `NotFound` if there is no such descriptor or the parent did not leave it open.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    let _alone = TAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: asks about a number; one that is no descriptor is an error, not undefined.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags == -1 || flags & libc::FD_CLOEXEC != 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: it is open and was left open over `exec`, so nobody in this process owns it: what is opened here
    // is closed on `exec` from the start. The flag is set under the lock before the number becomes an owned
    // descriptor, so no second owner is made.
    unsafe {
        if libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(number))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Row 4.37: what this process has opened itself is never mistaken for what it was given.
    #[test]
    fn only_what_was_left_open_over_exec_is_taken_and_only_once() {
        let own = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(take(own.as_raw_fd()).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(take(RawFd::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
        // SAFETY: a copy that nobody owns yet, without the flag, as `exec` leaves it.
        let given = unsafe { libc::dup(own.as_raw_fd()) };
        let taken = take(given).unwrap();
        assert_eq!(taken.as_raw_fd(), given);
        assert_eq!(take(given).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
