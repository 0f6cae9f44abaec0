//! The local address of a received or outgoing datagram, as a control message: `IP_PKTINFO` of ip(7), `IPV6_PKTINFO` of
//! ipv6(7).
//!
//! ```text
//!  0        8       12     16        28     36
//!  │ length │ level │ type │ interface │ local address        │ address in the header │      IPv4
//!  │ length │ level │ type │ address, 16 bytes                │ interface │ padding   │      IPv6
//! ```
//!
//! A dual-stack socket requests both: a broadcast can only be answered from the address in the IPv4 message. A socket
//! bound to one address needs neither. Unix sockets get no room for control messages, because a sender could pass
//! descriptors in it.

use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};

/// Offset of the payload of a control message.
const HEADER_SIZE: usize = size_of::<libc::cmsghdr>();

/// Alignment of control messages: their lengths are rounded up to it.
const ALIGN: usize = align_of::<libc::cmsghdr>();

/// Bytes of a control message with `payload` bytes.
const fn message_size(payload: usize) -> usize {
    HEADER_SIZE + payload.next_multiple_of(ALIGN)
}

/// Bytes of both messages: a dual-stack socket receives both with an IPv4 datagram.
pub(super) const CONTROL_SIZE: usize =
    message_size(size_of::<libc::in_pktinfo>()) + message_size(size_of::<libc::in6_pktinfo>());

/// Room for both control messages, with the alignment that the system requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct ControlBuffer([u8; CONTROL_SIZE]);

const _: () = assert!(align_of::<ControlBuffer>() >= ALIGN && size_of::<ControlBuffer>() == CONTROL_SIZE);

impl ControlBuffer {
    pub(super) const EMPTY: ControlBuffer = ControlBuffer([0; CONTROL_SIZE]);

    /// Writes the message for a datagram from `from` to `to` and returns its length; `None` if the two are of different
    /// families.
    pub(super) fn set_source(&mut self, from: IpAddr, to: SocketAddr) -> Option<usize> {
        match (to, from.to_canonical()) {
            (SocketAddr::V4(_), IpAddr::V4(from)) => {
                let mut info = [0; size_of::<libc::in_pktinfo>()];
                info[offset_of!(libc::in_pktinfo, ipi_spec_dst)..][..4].copy_from_slice(&from.octets());
                Some(self.set(libc::IPPROTO_IP, libc::IP_PKTINFO, &info))
            }
            (SocketAddr::V4(_), IpAddr::V6(_)) => None,
            // A mapped destination needs a mapped source, others a source of their own family.
            (SocketAddr::V6(to), from) if to.ip().to_ipv4_mapped().is_some() != from.is_ipv4() => None,
            (SocketAddr::V6(to), from) => {
                let from = match from {
                    IpAddr::V4(from) => from.to_ipv6_mapped(),
                    IpAddr::V6(from) => from,
                };
                // A link-local address needs its interface.
                let interface = if from.is_unicast_link_local() { to.scope_id() } else { 0 };
                let mut info = [0; size_of::<libc::in6_pktinfo>()];
                info[..16].copy_from_slice(&from.octets());
                info[offset_of!(libc::in6_pktinfo, ipi6_ifindex)..][..4]
                    .copy_from_slice(&interface.to_ne_bytes());
                Some(self.set(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info))
            }
        }
    }

    fn set(&mut self, level: libc::c_int, kind: libc::c_int, info: &[u8]) -> usize {
        let len = HEADER_SIZE + info.len();
        self.0 = [0; CONTROL_SIZE];
        self.0[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        self.0[offset_of!(libc::cmsghdr, cmsg_level)..][..4].copy_from_slice(&level.to_ne_bytes());
        self.0[offset_of!(libc::cmsghdr, cmsg_type)..][..4].copy_from_slice(&kind.to_ne_bytes());
        self.0[HEADER_SIZE..len].copy_from_slice(info);
        message_size(info.len())
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The local address in the first `len` bytes, which the system has written.
    pub(super) fn local_address(&self, len: usize) -> Option<IpAddr> {
        local_address(&self.0[..len.min(CONTROL_SIZE)])
    }
}

/// The local address from the control messages of a received datagram: one that can be answered from, so never a
/// multicast group. `None` for a datagram that was queued before its socket reported addresses.
pub(super) fn local_address(mut messages: &[u8]) -> Option<IpAddr> {
    let mut v6 = None;
    while let Some((level, kind, info)) = first_message(messages) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let octets: [u8; 4] = field(info, offset_of!(libc::in_pktinfo, ipi_spec_dst))?;
                return Some(IpAddr::from(octets)).filter(|address| !address.is_unspecified());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let address = IpAddr::from(field::<16>(info, 0)?);
                v6 = Some(address).filter(|address| !address.to_canonical().is_multicast());
            }
            _ => {}
        }
        messages = messages.get(message_size(info.len())..).unwrap_or(&[]);
    }
    v6
}

/// Level, kind and payload of the first control message; `None` if there is none, or if it is incomplete.
fn first_message(messages: &[u8]) -> Option<(libc::c_int, libc::c_int, &[u8])> {
    let len = usize::from_ne_bytes(field(messages, 0)?);
    let level = libc::c_int::from_ne_bytes(field(messages, offset_of!(libc::cmsghdr, cmsg_level))?);
    let kind = libc::c_int::from_ne_bytes(field(messages, offset_of!(libc::cmsghdr, cmsg_type))?);
    Some((level, kind, messages.get(HEADER_SIZE..len)?))
}

fn field<const SIZE: usize>(bytes: &[u8], at: usize) -> Option<[u8; SIZE]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The message for an outgoing address decodes like a received one.
    #[test]
    fn an_address_survives_a_control_message() {
        let cases = [
            ("10.1.2.3", "192.0.2.7:1", Some("10.1.2.3")),
            ("::ffff:10.1.2.3", "192.0.2.7:1", Some("10.1.2.3")),
            ("10.1.2.3", "[::ffff:192.0.2.7]:1", Some("::ffff:10.1.2.3")),
            ("2001:db8::1", "[2001:db8::2]:1", Some("2001:db8::1")),
            ("2001:db8::1", "192.0.2.7:1", None),
            ("2001:db8::1", "[::ffff:192.0.2.7]:1", None),
            ("10.1.2.3", "[2001:db8::2]:1", None),
        ];
        for (from, to, expected) in cases {
            let mut control = ControlBuffer::EMPTY;
            let len = control.set_source(address(from), to.parse().unwrap());
            let read = len.and_then(|len| control.local_address(len));
            assert_eq!(read, expected.map(address), "{from} {to}");
        }
    }

    #[test]
    fn a_link_local_address_is_given_with_its_interface() {
        let (mut control, to) = (ControlBuffer::EMPTY, "[fe80::2%7]:1".parse().unwrap());
        assert_eq!(control.set_source(address("fe80::1"), to), Some(HEADER_SIZE + 24));
        assert_eq!(control.0[HEADER_SIZE + 16..][..4], 7_u32.to_ne_bytes());
    }

    #[test]
    fn other_control_messages_are_skipped_and_incomplete_ones_rejected() {
        let mut control = ControlBuffer::EMPTY;
        let len = control.set_source(address("127.0.0.2"), "127.0.0.1:1".parse().unwrap()).unwrap();
        let mut other = ControlBuffer::EMPTY;
        let other_len = other.set(libc::SOL_SOCKET, 1, b"five!");
        let both = [&other.0[..other_len], &control.0[..len]].concat();
        assert_eq!(local_address(&both), Some(address("127.0.0.2")));
        for cut in 0..both.len() - 4 {
            assert_eq!(local_address(&both[..cut]), None, "{cut}");
        }
        assert_eq!(local_address(&[0; 64]), None, "a message shorter than its own header");
        let mut group = ControlBuffer::EMPTY;
        let len = group.set_source(address("ff02::1"), "[::1]:1".parse().unwrap()).unwrap();
        assert_eq!(group.local_address(len), None);
    }

    /// A dual-stack socket reports a broadcast by both messages, and only the IPv4 one has an address of this host.
    #[test]
    fn the_ipv4_message_of_a_dual_stack_socket_counts() {
        let (mut v4, mut v6) = (ControlBuffer::EMPTY, ControlBuffer::EMPTY);
        let v4_len = v4.set_source(address("192.0.2.1"), "192.0.2.7:1".parse().unwrap()).unwrap();
        let v6_len =
            v6.set_source(address("::ffff:192.0.2.255"), "[::ffff:192.0.2.7]:1".parse().unwrap()).unwrap();
        assert_eq!(v4_len + v6_len, CONTROL_SIZE);
        let (v4, v6) = (&v4.0[..v4_len], &v6.0[..v6_len]);
        for both in [[v4, v6].concat(), [v6, v4].concat()] {
            assert_eq!(local_address(&both), Some(address("192.0.2.1")));
        }
    }

    /// A datagram queued before its socket reported addresses has no address to answer from.
    #[test]
    fn an_unspecified_address_is_none() {
        let mut control = ControlBuffer::EMPTY;
        let len = control.set_source(address("0.0.0.0"), "192.0.2.7:1".parse().unwrap()).unwrap();
        assert_eq!(control.local_address(len), None);
    }
}
