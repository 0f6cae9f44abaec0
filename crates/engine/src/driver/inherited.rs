//! Descriptors inherited from the parent process, as in sd_listen_fds(3).
//!
//! This process may have opened a descriptor with the given number itself. So a number is claimed only if:
//! - the parent has announced it to this process in `LISTEN_PID` and `LISTEN_FDS`, which only unsafe code can set
//!   within a process;
//! - it is not a standard stream;
//! - it lacks the close-on-exec flag: descriptors opened by Rust have it, and a claimed descriptor gets it.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// First passed descriptor (`SD_LISTEN_FDS_START`), after the standard streams.
pub const FIRST_DESCRIPTOR: RawFd = 3;

/// Held while a number becomes an owned descriptor, so that none is claimed twice.
static CLAIM_LOCK: Mutex<()> = Mutex::new(());

/// Claims an inherited descriptor that the parent process has announced, and sets its close-on-exec flag, so that a
/// second call fails.
///
/// # Errors
/// `NotFound` if the parent has not announced it, or has not left it open.
pub fn claim(number: RawFd) -> io::Result<OwnedFd> {
    let variable = |name| std::env::var(name).ok();
    let announced =
        announced(std::process::id(), variable("LISTEN_PID").as_deref(), variable("LISTEN_FDS").as_deref());
    claim_announced(announced, number)
}

/// The numbers announced to process `own`.
fn announced(own: u32, process: Option<&str>, count: Option<&str>) -> Range<RawFd> {
    let is_addressed = process.and_then(|process| process.parse().ok()) == Some(own);
    let count: RawFd = count.filter(|_| is_addressed).and_then(|count| count.parse().ok()).unwrap_or(0);
    FIRST_DESCRIPTOR..FIRST_DESCRIPTOR.saturating_add(count)
}

fn claim_announced(announced: Range<RawFd>, number: RawFd) -> io::Result<OwnedFd> {
    if !announced.contains(&number) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let _alone = CLAIM_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: queries a number; a number without a descriptor is an error, not undefined behaviour.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags == -1 || flags & libc::FD_CLOEXEC != 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: it is open, the parent has announced it, and it was inherited over `exec`, so nothing in this process
    // owns it: descriptors opened here are closed on `exec` from the start. The flag is set under the lock before the
    // number becomes an owned descriptor, so no second owner is made.
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

    fn not_found(range: Range<RawFd>, number: RawFd) {
        assert_eq!(claim_announced(range, number).unwrap_err().kind(), io::ErrorKind::NotFound, "{number}");
    }

    /// Row 4.37: a descriptor opened by this process is never mistaken for an inherited one.
    #[test]
    fn only_descriptors_left_open_across_exec_are_adopted_and_only_once() {
        let all = FIRST_DESCRIPTOR..RawFd::MAX;
        let own = std::fs::File::open("/dev/null").unwrap();
        not_found(all.clone(), own.as_raw_fd());
        not_found(all.clone(), RawFd::MAX - 1);
        // SAFETY: a copy without an owner and without the flag, as `exec` leaves it.
        let inherited = unsafe { libc::dup(own.as_raw_fd()) };
        not_found(FIRST_DESCRIPTOR..inherited, inherited);
        let claimed = claim_announced(all.clone(), inherited).unwrap();
        assert_eq!(claimed.as_raw_fd(), inherited);
        not_found(all, inherited);
    }

    /// Row 4.37: a descriptor that is not announced to this process is not claimed, whatever its number.
    #[test]
    fn descriptors_that_are_not_announced_are_not_adopted() {
        for number in [RawFd::MIN, -1, 0, 1, 2] {
            not_found(announced(7, Some("7"), Some("9")), number);
        }
        for (process, count, expected) in [
            (Some("7"), Some("2"), 3..5),
            (Some("8"), Some("2"), 3..3),
            (None, Some("2"), 3..3),
            (Some("7"), None, 3..3),
            (Some("7"), Some("-2"), 3..3),
            (Some("7"), Some("2147483647"), 3..RawFd::MAX),
            (Some("7"), Some("x"), 3..3),
        ] {
            let range = announced(7, process, count);
            assert!(range == expected || range.is_empty() && expected.is_empty(), "{range:?} {expected:?}");
        }
    }
}
