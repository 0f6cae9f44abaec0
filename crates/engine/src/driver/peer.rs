//! Credentials of the peer of a Unix socket, and the state of a connection's peer.
//!
//! A process of another pid namespace that is not visible from here has the id 0.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Whether a connection is dead: reset, or ended in both directions. Unread bytes or an unread end do not matter.
pub(super) fn has_hung_up(socket: &impl AsFd) -> bool {
    let mut poll_fds = [PollFd::new(socket, PollFlags::empty())];
    // Reported without being requested (poll(2)).
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut poll_fds, Some(&Timespec::default())).is_ok() && poll_fds[0].revents().intersects(gone)
}

/// Whether there is something to receive, an end or a failure. Consumes nothing.
pub(super) fn is_readable(socket: &impl AsFd) -> bool {
    let mut poll_fds = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    poll(&mut poll_fds, Some(&Timespec::default())) != Ok(0)
}

pub(super) fn has_no_unread_bytes(socket: &impl AsFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(recv(socket, &mut [0; 1], flags), Err(Errno::AGAIN))
}

/// The peer process, as it was when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id, if it is visible from here.
    pub pid: Option<NonZeroU32>,
    /// Its effective user.
    pub uid: u32,
}

/// Reads the credentials from the kernel (`SO_PEERCRED`, unix(7)).
///
/// # Errors
/// System errors: the socket is of another family. An unconnected socket has no process.
pub fn peer_credentials(socket: &impl AsFd) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option fills a `ucred`, three plain integers; its address and size are given and it lives until after
    // the call; the descriptor is open because it is borrowed.
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
    let pid = u32::try_from(credentials.pid).ok().and_then(NonZeroU32::new);
    Ok(PeerCredentials { pid, uid: credentials.uid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    /// Row 4.37: the peer is identified, and a peer without a visible process id is not process 0.
    #[test]
    fn a_peer_is_identified_by_process_and_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(
            peer_credentials(&one).unwrap(),
            PeerCredentials { pid: NonZeroU32::new(std::process::id()), uid }
        );
        let alone = UnixDatagram::unbound().unwrap();
        assert_eq!(peer_credentials(&alone).unwrap().pid, None);
    }
}
