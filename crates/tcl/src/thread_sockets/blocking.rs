//! Waits for one socket, while a script reads or writes a blocking channel.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{ShardSocket, ThreadSockets};
use crate::poll_policy::SOCKET_WAIT;
use crate::tcl::Interest;

impl ThreadSockets {
    /// Waits until a socket is ready for one of these directions, without running scripts. May return early.
    ///
    /// # Errors
    /// `NotConnected`: the socket is not in its shard any more. Else the system's error.
    pub(crate) fn wait_for_socket(&self, socket: ShardSocket, directions: Interest) -> io::Result<()> {
        let waited = self.with_descriptor(socket, |descriptor| wait_for_descriptor(descriptor, directions));
        match waited {
            Err(error) if lacks_descriptors(&error) => {
                // A direct descriptor cannot be waited for without an ordinary one, so the shard reports its readiness.
                // The report may come in the turn before the wait, which is short for that reason.
                self.with_shard(socket, |shard| shard.await_ready(socket.token(), directions));
                self.turn_until_done();
                self.poll_waitables(Some(&Timespec { tv_sec: 0, tv_nsec: SOCKET_WAIT.as_nanos() as _ }));
                Ok(())
            }
            waited => waited?,
        }
    }
}

fn wait_for_descriptor(descriptor: BorrowedFd<'_>, directions: Interest) -> io::Result<()> {
    let mut events = PollFlags::empty();
    events.set(PollFlags::IN, directions.has(Interest::READABLE));
    events.set(PollFlags::OUT, directions.has(Interest::WRITABLE));
    match poll(&mut [PollFd::new(&descriptor, events)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the process or the system has no free descriptor.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
