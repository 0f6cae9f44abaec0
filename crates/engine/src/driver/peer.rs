//! Who is at the other end of a Unix socket, and whether anybody is still at the other end of a connection.
//!
//! The kernel answers with plain numbers, and they stay plain here: a process of another process namespace that
//! cannot be seen from here has the number 0, which a type that excludes 0 must never be made of.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Whether a connection is of no use to anybody any more: reset, or ended in both directions. What it does not read or
/// end does not matter.
pub(super) fn has_hung_up(socket: &impl AsFd) -> bool {
    let mut poll_fds = [PollFd::new(socket, PollFlags::empty())];
    // These are told without being asked for (poll(2)).
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut poll_fds, Some(&Timespec::default())).is_ok() && poll_fds[0].revents().intersects(gone)
}

/// Whether nothing lies unread in a stream socket.
pub(super) fn has_nothing_unread(socket: &impl AsFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(recv(socket, &mut [0; 1], flags), Err(Errno::AGAIN))
}

/// The process at the other end, as it was when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its number, if it has one that is seen from here.
    pub process: Option<NonZeroU32>,
    /// Its effective user.
    pub user: u32,
}

/// Asks the kernel (`SO_PEERCRED`, unix(7)).
///
/// # Errors
/// What the system says: the socket is of another family. One that is not connected has no process.
pub fn of(socket: &impl AsFd) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option fills a `ucred`, three plain integers, whose address and size are given and which lives
    // until after the call; the descriptor is open because it is borrowed.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut size,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    let process = u32::try_from(credentials.pid).ok().and_then(NonZeroU32::new);
    Ok(PeerCredentials { process, user: credentials.uid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    /// Row 4.37: the one at the other end is known, and one that has no number is no process 0.
    #[test]
    fn the_other_end_is_known_by_process_and_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(of(&one).unwrap(), PeerCredentials { process: NonZeroU32::new(std::process::id()), user });
        let alone = UnixDatagram::unbound().unwrap();
        assert_eq!(of(&alone).unwrap().process, None);
    }
}
