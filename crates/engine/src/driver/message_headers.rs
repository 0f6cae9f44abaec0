//! Message headers (sendmsg(2)) for sends that send(2) cannot express: bytes in several pieces, and datagrams with a
//! given local address.
//!
//! ```text
//!  headers[i] ──► vectors[j..k] ──► the pieces of its bytes
//!             └─► controls[l]       the local address
//! ```
//!
//! The lists never grow beyond their initial capacity, so the memory that the system reads does not move before
//! [`clear`](MessageHeaders::clear).
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::SockAddr;

use super::pktinfo::ControlBuffer;
use super::{Gather, pipes};

pub(super) struct MessageHeaders {
    headers: Vec<libc::msghdr>,
    vectors: Vec<libc::iovec>,
    /// At most one for each header.
    controls: Vec<ControlBuffer>,
}

// SAFETY: only the system follows the pointers inside, in calls during which the targets are borrowed, on any thread;
// nothing here does.
unsafe impl Send for MessageHeaders {}

impl MessageHeaders {
    pub(super) fn new(sends: usize, pieces: usize) -> Self {
        MessageHeaders {
            headers: Vec::with_capacity(sends),
            vectors: Vec::with_capacity(pieces),
            controls: Vec::with_capacity(sends),
        }
    }

    pub(super) fn has_room_for(&self, bytes: Gather<'_>) -> bool {
        self.headers.len() < self.headers.capacity()
            && self.controls.len() < self.controls.capacity()
            && self.vectors.len() + bytes.count() <= self.vectors.capacity()
    }

    /// Prepares a send for which there is [room](Self::has_room_for). Its header does not move until
    /// [`clear`](Self::clear); the caller keeps the bytes until the system has read them.
    pub(super) fn push(&mut self, bytes: Gather<'_>) -> *const libc::msghdr {
        assert!(self.has_room_for(bytes), "no room for {bytes:?}");
        let start = self.vectors.len();
        self.vectors.extend(
            bytes.slices().map(|slice| libc::iovec {
                iov_base: slice.as_ptr().cast_mut().cast(),
                iov_len: slice.len(),
            }),
        );
        let vectors = &mut self.vectors[start..];
        // SAFETY: an all-zero msghdr is a valid empty one.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = vectors.len() as _;
        self.headers.push(header);
        self.headers.last().expect("just pushed")
    }

    /// Prepares a datagram to `to` with a local address, under the same conditions; `name`, the destination in the
    /// system's format, must not move either.
    pub(super) fn push_datagram(
        &mut self,
        payload: &[u8],
        name: &SockAddr,
        to: SocketAddr,
        from: IpAddr,
    ) -> *const libc::msghdr {
        self.push(Gather::One(payload));
        self.controls.push(ControlBuffer::EMPTY);
        let control = self.controls.last_mut().expect("just pushed");
        let header = self.headers.last_mut().expect("just pushed");
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len();
        if let Some(len) = control.set_source(from, to) {
            header.msg_control = control.as_mut_ptr();
            header.msg_controllen = len as _;
        }
        header
    }

    /// Drops all headers; the system must have read them.
    pub(super) fn clear(&mut self) {
        self.headers.clear();
        self.vectors.clear();
        self.controls.clear();
    }

    /// Sends the bytes on a socket with one system call; no other send may be prepared. Returns the number of bytes
    /// sent.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: Gather<'_>,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.clear();
        let header = self.push(bytes);
        // SAFETY: the header and its vectors live in `self`, and the vectors point to bytes that are borrowed for this
        // call; the system only reads all of them.
        syscall_result(unsafe { libc::sendmsg(socket.as_raw_fd(), header, flags.bits() as libc::c_int) })
    }

    /// The same for a pipe.
    pub(super) fn write(&mut self, pipe: BorrowedFd<'_>, bytes: Gather<'_>) -> Result<usize, Errno> {
        if let Some(bytes) = bytes.as_slice() {
            return pipes::write(pipe, bytes);
        }
        self.clear();
        self.push(bytes);
        let (vectors, count) = (self.vectors.as_ptr(), self.vectors.len() as libc::c_int);
        pipes::without_signal(|| {
            // SAFETY: as above.
            syscall_result(unsafe { libc::writev(pipe.as_raw_fd(), vectors, count) })
        })
    }
}

pub(super) fn syscall_result(outcome: impl TryInto<usize>) -> Result<usize, Errno> {
    outcome.try_into().map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use stilling_ring::BlockWriter;

    use super::*;
    use crate::driver::{PieceChain, PieceList};

    #[test]
    fn pieces_are_sent_with_one_call() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut reader, pipe) = io::pipe().unwrap();
        let mut writer = BlockWriter::new(7);
        writer.append(b"payload").unwrap();
        let (mut pieces, mut chain) = (PieceList::default(), PieceChain::default());
        pieces.push_private(&mut chain, 0..5);
        pieces.push_shared(&mut chain, &writer.share(), 0..7);
        pieces.push_private(&mut chain, 5..6);
        let mut messages = MessageHeaders::new(1, 3);
        for _ in 0..3 {
            let gather = pieces.gather(chain, b"head \n");
            assert_eq!(messages.send(ours.as_fd(), gather, SendFlags::DONTWAIT), Ok(13));
            let mut bytes = [0; 20];
            let count = theirs.read(&mut bytes).unwrap();
            assert_eq!(&bytes[..count], b"head payload\n");
            assert_eq!(messages.write(pipe.as_fd(), gather), Ok(13));
            let count = reader.read(&mut bytes).unwrap();
            assert_eq!(&bytes[..count], b"head payload\n");
            assert!(!messages.has_room_for(gather), "its list is full until it is cleared");
        }
        drop((theirs, reader));
        let gather = pieces.gather(chain, b"head \n");
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        assert_eq!(messages.send(ours.as_fd(), gather, flags), Err(Errno::PIPE));
        assert_eq!(messages.write(pipe.as_fd(), gather), Err(Errno::PIPE));
    }
}
