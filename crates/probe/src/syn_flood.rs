//! Connection requests without clients: SYN segments with sources that no host has. For networks of a test's own only.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// Most segments of a generator.
pub const SEGMENTS_MAX: u32 = 20_000;

/// Segments of one round of [`SynGenerator::flood`], and the pause after it: 5,000 segments per second.
const ROUND_SEGMENTS: u32 = 250;
const ROUND_PAUSE: Duration = Duration::from_millis(50);

const IP_SIZE: usize = 20;
/// With the option for the maximum segment size.
const TCP_SIZE: usize = 24;
const SYN: u8 = 2;
const PORT_MIN: u32 = 1024;

/// A bounded generator of SYN segments.
#[derive(Debug)]
pub struct SynGenerator {
    socket: Socket,
    target: SocketAddrV4,
    sources: Vec<Ipv4Addr>,
    sent: u32,
}

impl SynGenerator {
    /// A generator that uses these source addresses in turn, each with many ports. Needs `CAP_NET_RAW` in the network
    /// namespace of the calling thread.
    ///
    /// # Panics
    /// The system refuses a raw socket.
    #[must_use]
    #[track_caller]
    pub fn new(target: SocketAddrV4, sources: impl IntoIterator<Item = Ipv4Addr>) -> SynGenerator {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).expect("a raw socket");
        socket.set_header_included_v4(true).expect("a raw socket takes headers");
        let sources: Vec<Ipv4Addr> = sources.into_iter().collect();
        assert!(!sources.is_empty());
        SynGenerator { socket, target, sources, sent: 0 }
    }

    /// Sends `count` further segments, each from another source address or port.
    ///
    /// # Panics
    /// The total is more than [`SEGMENTS_MAX`], or the system refuses to send.
    #[track_caller]
    pub fn send(&mut self, count: u32) {
        assert!(self.sent + count <= SEGMENTS_MAX, "a test floods its network within bounds");
        let target = SocketAddr::from(self.target).into();
        for _ in 0..count {
            let segment = self.segment();
            self.socket.send_to(&segment, &target).expect("the network is up");
            self.sent += 1;
        }
    }

    /// Sends 250 segments every 50 ms, `rounds` times.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn flood(&mut self, rounds: u32) {
        for _ in 0..rounds {
            self.send(ROUND_SEGMENTS);
            thread::sleep(ROUND_PAUSE);
        }
    }

    fn segment(&self) -> [u8; IP_SIZE + TCP_SIZE] {
        let number = self.sent;
        let source = self.sources[number as usize % self.sources.len()];
        let port = PORT_MIN + number / self.sources.len() as u32;
        let port = u16::try_from(port).expect("the number of segments is bounded");
        syn_segment(SocketAddrV4::new(source, port), self.target, number.wrapping_mul(2_654_435_761))
    }
}

/// An IPv4 packet with a SYN segment.
fn syn_segment(source: SocketAddrV4, target: SocketAddrV4, sequence: u32) -> [u8; IP_SIZE + TCP_SIZE] {
    let mut packet = [0; IP_SIZE + TCP_SIZE];
    let (ip, tcp) = packet.split_at_mut(IP_SIZE);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((IP_SIZE + TCP_SIZE) as u16).to_be_bytes());
    // Don't fragment.
    ip[6] = 0x40;
    ip[8] = 64;
    ip[9] = 6;
    ip[12..16].copy_from_slice(&source.ip().octets());
    ip[16..20].copy_from_slice(&target.ip().octets());
    let checksum = internet_checksum(ip.iter().copied());
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());

    tcp[0..2].copy_from_slice(&source.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&target.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[12] = (TCP_SIZE as u8 / 4) << 4;
    tcp[13] = SYN;
    tcp[14..16].copy_from_slice(&64_240_u16.to_be_bytes());
    tcp[20..24].copy_from_slice(&[2, 4, 5, 180]);
    let pseudo_header = [&ip[12..20], &[0, 6], &(TCP_SIZE as u16).to_be_bytes()].concat().into_iter();
    let checksum = internet_checksum(pseudo_header.chain(tcp.iter().copied()));
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// The checksum of RFC 1071 over an even number of bytes.
fn internet_checksum(bytes: impl Iterator<Item = u8>) -> u16 {
    let mut sum = 0_u32;
    for (at, byte) in bytes.enumerate() {
        sum += u32::from(byte) << if at % 2 == 0 { 8 } else { 0 };
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, section 3.
    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum(bytes.into_iter()), !0xddf2);
    }

    /// A receiver's sum over a valid header is zero.
    #[test]
    fn headers_have_valid_checksums() {
        let [source, target] = [1, 2].map(|host| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), 1000));
        let packet = syn_segment(source, target, 7);
        assert_eq!(internet_checksum(packet[..IP_SIZE].iter().copied()), 0);
        let pseudo_header = [&packet[12..20], &[0, 6, 0, TCP_SIZE as u8]].concat();
        assert_eq!(internet_checksum(pseudo_header.into_iter().chain(packet[IP_SIZE..].iter().copied())), 0);
    }
}
