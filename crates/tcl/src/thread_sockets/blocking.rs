//! Waits for one socket, while a script reads or writes a blocking channel.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{ShardSocket, ThreadSockets};
use crate::system_errors::lacks_descriptors;
use crate::tcl::Interest;

impl ThreadSockets {
    /// Waits until a socket is ready for one of these directions, without running scripts. May return early. Sockets may
    /// have received ahead meanwhile, this one, too.
    ///
    /// # Errors
    /// `NotConnected`: the socket is not in its shard any more. Else the system's error.
    pub(crate) fn wait_for_socket(&self, socket: ShardSocket, directions: Interest) -> io::Result<()> {
        let waited = self.with_descriptor(socket, |descriptor| wait_for_descriptor(descriptor, directions));
        match waited {
            Err(error) if lacks_descriptors(&error) => {
                self.wait_for_report(socket, directions);
                Ok(())
            }
            waited => waited?,
        }
    }

    /// The same by the shard, which needs no descriptor for a direct one.
    fn wait_for_report(&self, socket: ShardSocket, directions: Interest) {
        self.with_shard(socket, |shard| shard.await_ready(socket.token(), directions));
        loop {
            self.turn_until_done();
            if !self.with_shard(socket, |shard| shard.awaits(socket.token(), directions)) {
                return;
            }
            self.wait_for_event();
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
