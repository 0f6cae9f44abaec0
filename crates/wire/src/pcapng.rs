//! Datagrams as a pcapng capture (draft-ietf-opsawg-pcapng), for Wireshark and tshark.
//!
//! The link type is raw IP: each packet is an IPv4 or IPv6 header and a UDP header, made from the addresses, and the
//! payload. Timestamps are nanoseconds.
//!
//! ```text
//!  section header │ interface: raw IP, ns │ packet: time, lengths, IP, UDP, payload, comment │ packet …
//! ```
//!
//! ```
//! use std::net::SocketAddr;
//! use stilling_wire::pcapng::{self, CapturedDatagram, Direction};
//!
//! let mut capture = Vec::new();
//! pcapng::write_file_header(&mut capture);
//! let datagram = CapturedDatagram {
//!     unix_ns: 1_764_000_000_000_000_000,
//!     from: SocketAddr::from(([192, 0, 2, 1], 40_000)),
//!     to: SocketAddr::from(([192, 0, 2, 2], 5683)),
//!     direction: Direction::Inbound,
//!     payload: b"\x40\x01\x00\x01",
//!     truncated: false,
//! };
//! pcapng::write_datagram(&mut capture, &datagram);
//! assert_eq!(capture.len(), pcapng::FILE_HEADER_SIZE + pcapng::datagram_size(&datagram));
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the section header and the interface description at the start of a file.
pub const FILE_HEADER_SIZE: usize = SECTION_SIZE + INTERFACE_SIZE;

/// Bytes that [`write_datagram`] adds to a payload, at most.
pub const DATAGRAM_OVERHEAD_MAX: usize = PACKET_HEADER_SIZE
    + IPV6_HEADER_SIZE
    + UDP_HEADER_SIZE
    + 3
    + FLAGS_SIZE
    + COMMENT_SIZE
    + OPTIONS_END_SIZE
    + PACKET_TRAILER_SIZE;

const SECTION_SIZE: usize = 28;
const INTERFACE_SIZE: usize = 32;
/// Type, length, interface, two halves of the time, captured and original length.
const PACKET_HEADER_SIZE: usize = 28;
const PACKET_TRAILER_SIZE: usize = 4;
const IPV4_HEADER_SIZE: usize = 20;
const IPV6_HEADER_SIZE: usize = 40;
const UDP_HEADER_SIZE: usize = 8;
const FLAGS_SIZE: usize = 8;
const COMMENT: &[u8] = b"payload was cut off";
const COMMENT_SIZE: usize = 4 + COMMENT.len().next_multiple_of(4);
const OPTIONS_END_SIZE: usize = 4;

const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
const INTERFACE_BLOCK: u32 = 1;
const ENHANCED_PACKET_BLOCK: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// LINKTYPE_RAW: the packet begins with an IPv4 or IPv6 header.
const LINK_TYPE_RAW: u16 = 101;
const OPTION_COMMENT: u16 = 1;
const OPTION_FLAGS: u16 = 2;
const OPTION_RESOLUTION: u16 = 9;
/// Timestamps in units of 10^-9 s.
const NANOSECONDS: u8 = 9;

const UDP: u8 = 17;
const TIME_TO_LIVE: u8 = 64;

/// Whether a datagram was received or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

/// A datagram with all that a capture records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedDatagram<'a> {
    /// Nanoseconds since the Unix epoch.
    pub unix_ns: u64,
    /// The sender.
    pub from: SocketAddr,
    /// The destination. If one address is IPv4 and the other one IPv6, both are written as IPv6.
    pub to: SocketAddr,
    /// Received or sent.
    pub direction: Direction,
    /// The payload, at most 65,507 bytes; more are cut off.
    pub payload: &'a [u8],
    /// The payload was cut off on receipt; its original length is unknown. The packet gets a comment.
    pub truncated: bool,
}

/// Longest payload of a UDP datagram over IPv4.
const PAYLOAD_MAX: usize = 65_507;

enum AddressPair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl CapturedDatagram<'_> {
    /// A dual-stack socket reports IPv4 addresses as mapped ones.
    fn addresses(&self) -> AddressPair {
        let mapped = |ip| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        match (self.from.ip().to_canonical(), self.to.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => AddressPair::V4(from, to),
            (from, to) => AddressPair::V6(mapped(from), mapped(to)),
        }
    }

    fn payload(&self) -> &[u8] {
        &self.payload[..self.payload.len().min(PAYLOAD_MAX)]
    }

    /// Bytes of the packet: IP header, UDP header and payload.
    fn packet_size(&self) -> usize {
        let header = match self.addresses() {
            AddressPair::V4(..) => IPV4_HEADER_SIZE,
            AddressPair::V6(..) => IPV6_HEADER_SIZE,
        };
        header + UDP_HEADER_SIZE + self.payload().len()
    }
}

/// Bytes that [`write_datagram`] appends for this datagram.
pub fn datagram_size(datagram: &CapturedDatagram<'_>) -> usize {
    let comment = if datagram.truncated { COMMENT_SIZE } else { 0 };
    PACKET_HEADER_SIZE
        + datagram.packet_size().next_multiple_of(4)
        + FLAGS_SIZE
        + comment
        + OPTIONS_END_SIZE
        + PACKET_TRAILER_SIZE
}

/// Appends what a file begins with.
pub fn write_file_header(out: &mut Vec<u8>) {
    let section_size = SECTION_SIZE as u32;
    for word in [SECTION_HEADER_BLOCK, section_size, BYTE_ORDER_MAGIC] {
        out.extend(word.to_le_bytes());
    }
    // Version 1.0, and a section of unknown length.
    out.extend(1_u16.to_le_bytes());
    out.extend(0_u16.to_le_bytes());
    out.extend(u64::MAX.to_le_bytes());
    out.extend(section_size.to_le_bytes());
    let interface_size = INTERFACE_SIZE as u32;
    out.extend(INTERFACE_BLOCK.to_le_bytes());
    out.extend(interface_size.to_le_bytes());
    out.extend(LINK_TYPE_RAW.to_le_bytes());
    out.extend([0; 2]);
    // No limit of the captured length.
    out.extend(0_u32.to_le_bytes());
    push_option(out, OPTION_RESOLUTION, &[NANOSECONDS]);
    out.extend([0; 4]);
    out.extend(interface_size.to_le_bytes());
}

/// Appends a datagram.
pub fn write_datagram(out: &mut Vec<u8>, datagram: &CapturedDatagram<'_>) {
    let (block_size, packet_size) = (datagram_size(datagram) as u32, datagram.packet_size());
    let (time_high, time_low) = ((datagram.unix_ns >> 32) as u32, datagram.unix_ns as u32);
    let packet_len = packet_size as u32;
    for word in [ENHANCED_PACKET_BLOCK, block_size, 0, time_high, time_low, packet_len, packet_len] {
        out.extend(word.to_le_bytes());
    }
    push_packet(out, datagram);
    out.extend(&[0; 3][..packet_size.next_multiple_of(4) - packet_size]);
    let flags: u32 = match datagram.direction {
        Direction::Inbound => 1,
        Direction::Outbound => 2,
    };
    push_option(out, OPTION_FLAGS, &flags.to_le_bytes());
    if datagram.truncated {
        push_option(out, OPTION_COMMENT, COMMENT);
    }
    out.extend([0; OPTIONS_END_SIZE]);
    out.extend(block_size.to_le_bytes());
}

fn push_option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    out.extend(&[0; 3][..value.len().next_multiple_of(4) - value.len()]);
}

/// IP header, UDP header and payload, with their checksums.
fn push_packet(out: &mut Vec<u8>, datagram: &CapturedDatagram<'_>) {
    let payload = datagram.payload();
    let udp_size = (UDP_HEADER_SIZE + payload.len()) as u16;
    let mut pseudo_header = Checksum::default();
    pseudo_header.add(&[0, UDP]);
    pseudo_header.add(&udp_size.to_be_bytes());
    match datagram.addresses() {
        AddressPair::V4(from, to) => {
            pseudo_header.add(&from.octets());
            pseudo_header.add(&to.octets());
            push_ipv4_header(out, from, to, udp_size);
        }
        AddressPair::V6(from, to) => {
            pseudo_header.add(&from.octets());
            pseudo_header.add(&to.octets());
            push_ipv6_header(out, from, to, udp_size);
        }
    }
    let mut header = [0; UDP_HEADER_SIZE];
    header[..2].copy_from_slice(&datagram.from.port().to_be_bytes());
    header[2..4].copy_from_slice(&datagram.to.port().to_be_bytes());
    header[4..6].copy_from_slice(&udp_size.to_be_bytes());
    let mut checksum = pseudo_header;
    checksum.add(&header);
    checksum.add(payload);
    // Zero means that there is none (RFC 768).
    let checksum = if checksum.complement() == 0 { u16::MAX } else { checksum.complement() };
    header[6..].copy_from_slice(&checksum.to_be_bytes());
    out.extend(header);
    out.extend(payload);
}

fn push_ipv4_header(out: &mut Vec<u8>, from: Ipv4Addr, to: Ipv4Addr, udp_size: u16) {
    let mut header = [0; IPV4_HEADER_SIZE];
    // Version 4, five words.
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(IPV4_HEADER_SIZE as u16 + udp_size).to_be_bytes());
    (header[8], header[9]) = (TIME_TO_LIVE, UDP);
    header[12..16].copy_from_slice(&from.octets());
    header[16..].copy_from_slice(&to.octets());
    let mut checksum = Checksum::default();
    checksum.add(&header);
    header[10..12].copy_from_slice(&checksum.complement().to_be_bytes());
    out.extend(header);
}

fn push_ipv6_header(out: &mut Vec<u8>, from: Ipv6Addr, to: Ipv6Addr, udp_size: u16) {
    // Version 6, no traffic class and flow label.
    out.extend([0x60, 0, 0, 0]);
    out.extend(udp_size.to_be_bytes());
    out.extend([UDP, TIME_TO_LIVE]);
    out.extend(from.octets());
    out.extend(to.octets());
}

/// The internet checksum (RFC 1071).
#[derive(Clone, Copy, Default)]
struct Checksum(u32);

impl Checksum {
    /// Adds bytes; only the last call may have an odd number.
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            self.0 += u32::from(word);
        }
    }

    fn complement(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}
