//! Several datagrams per system call: `recvmmsg` and `sendmmsg` over headers that are allocated once.
//!
//! ```text
//!  headers[i] ──► sockaddrs[i]  the sender / the destination
//!             ├─► controls[i]   the local address of arrival / departure
//!             └─► slices[i]     a receive buffer / the payload to send
//! ```
//!
//! The pointers in `headers` and `slices` are rewritten before each call and invalid after it.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::buffers::{DatagramMetadata, PollBuffers};
use crate::driver::BufferId;
use crate::driver::message_headers::syscall_result;
use crate::driver::pktinfo::{CONTROL_SIZE, ControlBuffer};
use crate::limits::{DATAGRAM_SIZE_MAX, DATAGRAMS_PER_TURN};

/// Datagrams sent by one system call.
pub(super) const SEND_BATCH: usize = 32;

/// Datagrams received by one system call: few, because the headers are prepared even if only one datagram waits.
pub(super) const RECEIVE_BATCH: usize = 16;

const _: () = assert!(RECEIVE_BATCH <= SEND_BATCH && RECEIVE_BATCH <= DATAGRAMS_PER_TURN);

pub(super) struct DatagramHeaders {
    headers: Box<[libc::mmsghdr]>,
    slices: Box<[libc::iovec]>,
    sockaddrs: Box<[libc::sockaddr_storage]>,
    controls: Box<[ControlBuffer]>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct OutgoingDatagram<'a> {
    pub(super) payload: &'a [u8],
    pub(super) to: Option<SocketAddr>,
    pub(super) from: Option<IpAddr>,
}

// SAFETY: the pointers inside are only followed by system calls made here, right after they were written through `&mut
// self`; between calls they are never followed, on any thread.
unsafe impl Send for DatagramHeaders {}

impl DatagramHeaders {
    pub(super) fn new() -> Self {
        // SAFETY: these three are plain C structures for which all zeroes is a valid value.
        let (header, slice, sockaddr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        DatagramHeaders {
            headers: vec![header; SEND_BATCH].into(),
            slices: vec![slice; SEND_BATCH].into(),
            sockaddrs: vec![sockaddr; SEND_BATCH].into(),
            controls: vec![ControlBuffer::EMPTY; SEND_BATCH].into(),
        }
    }

    fn prepare(&mut self, at: usize, bytes: *mut u8, len: usize, sockaddr_len: usize, control_len: usize) {
        self.slices[at] = libc::iovec { iov_base: bytes.cast(), iov_len: len };
        let header = &mut self.headers[at].msg_hdr;
        header.msg_name = match sockaddr_len {
            0 => std::ptr::null_mut(),
            _ => (&raw mut self.sockaddrs[at]).cast(),
        };
        header.msg_namelen = sockaddr_len as libc::socklen_t;
        header.msg_iov = &raw mut self.slices[at];
        header.msg_iovlen = 1;
        header.msg_control = match control_len {
            0 => std::ptr::null_mut(),
            _ => self.controls[at].as_mut_ptr(),
        };
        header.msg_controllen = control_len as _;
        header.msg_flags = 0;
    }

    /// Receives up to `count` datagrams (at most [`RECEIVE_BATCH`] and the free buffers) without waiting, each into a
    /// buffer that is now lent and passed to `each`, in order. `reports_local`: they report their local address.
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        count: usize,
        reports_local: bool,
        buffers: &mut PollBuffers,
        mut each: impl FnMut(BufferId),
    ) -> Result<usize, Errno> {
        let mut prepared = 0;
        while prepared < count.min(RECEIVE_BATCH) {
            let Some(buffer) = buffers.upcoming(prepared) else { break };
            let bytes = buffers.bytes_mut(buffer).as_mut_ptr();
            let control_len = if reports_local { CONTROL_SIZE } else { 0 };
            self.prepare(
                prepared,
                bytes,
                DATAGRAM_SIZE_MAX,
                size_of::<libc::sockaddr_storage>(),
                control_len,
            );
            prepared += 1;
        }
        // SAFETY: the first `prepared` headers point to addresses, controls and buffers that live in `self` and
        // `buffers`, both borrowed for this call; the buffers are distinct and not lent.
        let outcome = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                prepared as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let received = syscall_result(outcome)?;
        for at in 0..received {
            let buffer = buffers.take().expect("as many were free when the headers were prepared");
            let header = &self.headers[at];
            let from =
                if header.msg_hdr.msg_namelen == 0 { None } else { read_sockaddr(&self.sockaddrs[at]) };
            let local = self.controls[at].local_address(header.msg_hdr.msg_controllen as _);
            buffers.set_datagram_metadata(
                buffer,
                DatagramMetadata {
                    from: from.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0))),
                    local,
                    len: header.msg_len,
                    truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                },
            );
            each(buffer);
        }
        Ok(received)
    }

    /// Sends up to [`SEND_BATCH`] datagrams of `batch` without waiting; returns how many were sent (at least one). An
    /// error concerns the first one.
    pub(super) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &[OutgoingDatagram<'_>],
    ) -> Result<usize, Errno> {
        let count = batch.len().min(SEND_BATCH);
        for (at, OutgoingDatagram { payload, to, from }) in batch[..count].iter().enumerate() {
            let sockaddr_len = to.map_or(0, |to| write_sockaddr(&mut self.sockaddrs[at], to));
            let source = from.zip(*to);
            let control_len = source.and_then(|(from, to)| self.controls[at].set_source(from, to));
            let bytes = payload.as_ptr().cast_mut();
            self.prepare(at, bytes, payload.len(), sockaddr_len, control_len.unwrap_or(0));
        }
        // SAFETY: the first `count` headers point to addresses and controls in `self` and to payloads borrowed for this
        // call; the system only reads the payloads, so the cast from a shared reference is harmless.
        let outcome = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        syscall_result(outcome)
    }
}

/// The internet address in `sockaddr`; `None` if it is of another family.
fn read_sockaddr(sockaddr: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let sockaddr: *const libc::sockaddr_storage = sockaddr;
    // SAFETY: `sockaddr_storage` is large enough and aligned for either structure, all of its bytes are initialised,
    // and its family says which of the two the system wrote.
    match libc::c_int::from(unsafe { (*sockaddr).ss_family }) {
        libc::AF_INET => {
            // SAFETY: as above.
            let v4 = unsafe { &*sockaddr.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*sockaddr.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn write_sockaddr(sockaddr: &mut libc::sockaddr_storage, address: SocketAddr) -> usize {
    let sockaddr: *mut libc::sockaddr_storage = sockaddr;
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is large enough and aligned for the structure.
            unsafe { sockaddr.cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { sockaddr.cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_sockaddr() {
        let check = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            // SAFETY: all zeroes is a valid value of this plain C structure.
            let mut sockaddr = unsafe { std::mem::zeroed() };
            write_sockaddr(&mut sockaddr, address);
            assert_eq!(read_sockaddr(&sockaddr), Some(address));
        };
        check("127.0.0.1:5683");
        check("[2001:db8::17]:65535");
        check("[fe80::1%3]:1");
        check("[::ffff:10.1.2.3]:514");
    }

    #[test]
    fn an_address_of_another_family_is_none() {
        // SAFETY: all zeroes is a valid value of this plain C structure.
        let mut sockaddr: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        sockaddr.ss_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(read_sockaddr(&sockaddr), None);
    }
}
