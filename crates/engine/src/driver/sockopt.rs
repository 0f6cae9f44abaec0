//! Socket options without a safe wrapper in the libraries used.
#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockRef;

/// `TCP_DEFER_ACCEPT` of tcp(7): connections are reported when their first bytes have arrived, or after about
/// `seconds`.
pub(crate) fn set_defer_accept(listener: &impl AsFd, seconds: u32) -> io::Result<()> {
    let seconds = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
    set_int(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds)
}

/// Makes each datagram report its local address if the socket is bound to the unspecified address; else returns false.
pub(crate) fn report_local_addresses_if_any(socket: &impl AsFd) -> io::Result<bool> {
    let Some(address) = SockRef::from(socket).local_addr()?.as_socket() else { return Ok(false) };
    let is_unspecified = address.ip().is_unspecified();
    if is_unspecified {
        report_local_addresses(socket, address)?;
    }
    Ok(is_unspecified)
}

pub(crate) fn report_local_addresses(socket: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
    }
    // An IPv6 socket may receive IPv4 as well.
    set_int(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
}

/// `SO_RCVBUFFORCE` of socket(7): a receive buffer beyond `net.core.rmem_max`; fails without `CAP_NET_ADMIN`.
pub(crate) fn force_receive_buffer(socket: &impl AsFd, size: usize) -> io::Result<()> {
    // The system doubles the value.
    let size = libc::c_int::try_from(size).unwrap_or(libc::c_int::MAX).min(libc::c_int::MAX / 2);
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size)
}

fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the option takes one int; its address and size are given; the descriptor is open because it is borrowed.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Entries of `SO_MEMINFO`, and the index of the drops (linux/sock_diag.h, SK_MEMINFO_DROPS).
const MEMINFO_ENTRIES: usize = 9;
const MEMINFO_DROPS: usize = 8;

/// Datagrams that the system has dropped at a socket since its creation, modulo 2^32 (the same count as `SO_RXQ_OVFL`
/// attaches to the next datagram); of a TCP listener, connection requests and connections. `None`: the system does not
/// report it.
pub(crate) fn dropped_by_socket(socket: &impl AsFd) -> Option<u32> {
    let mut info = [0_u32; MEMINFO_ENTRIES];
    let mut size = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the option fills at most the given size, which is that of the array; the descriptor is open because it is
    // borrowed.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    // An older system fills less.
    (outcome == 0 && size as usize == size_of_val(&info)).then_some(info[MEMINFO_DROPS])
}

/// First words of `struct tcp_info` (linux/tcp.h), as far as they concern a listener: the lowest byte is the state,
/// `tcpi_unacked` and `tcpi_sacked` are the length and the maximum of its accept queue.
const TCP_INFO_WORDS: usize = 8;
const TCP_INFO_UNACKED: usize = 6;
const TCP_INFO_SACKED: usize = 7;
/// `TCP_LISTEN` of net/tcp_states.h.
const TCP_LISTEN: u8 = 10;

/// Length and maximum of a TCP listener's accept queue; `None` if the socket does not listen.
#[cfg(target_os = "linux")]
pub(crate) fn accept_queue(socket: &impl AsFd) -> io::Result<Option<(u32, u32)>> {
    let mut info = [0_u32; TCP_INFO_WORDS];
    let mut size = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the option fills at most the given size, which is that of the array; the descriptor is open because it is
    // borrowed.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    let is_listening = size as usize == size_of_val(&info) && info[0].to_ne_bytes()[0] == TCP_LISTEN;
    Ok(is_listening.then_some((info[TCP_INFO_UNACKED], info[TCP_INFO_SACKED])))
}
