//! A flood of SYNs from sources that never answer, and the network that contains it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::XtaskResult;

/// Address of the server: on one end of a pair of virtual interfaces.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Gateway to the sources of the flood: a neighbour that does not exist.
const NEIGHBOUR: &str = "10.99.0.2";

/// SYNs per burst and the pause between two: some 5,000 per second.
const PER_BURST: u64 = 50;
const PAUSE: Duration = Duration::from_millis(10);

const SYNS_MAX: u64 = 1_000_000;

/// IPPROTO_RAW (raw(7)): the sender writes the IP header.
const RAW: i32 = 255;

/// Bytes of an IP header and of a TCP header without options.
const IP: usize = 20;
const TCP: usize = 20;

/// The network of the flood, in this process's own namespace.
pub(super) struct SynNetwork(());

pub(super) struct SynCounters {
    pub(super) cookies: u64,
}

impl SynNetwork {
    /// Creates the interfaces and routes; they are removed with the namespace.
    pub(super) fn set_up() -> XtaskResult<SynNetwork> {
        for line in [
            "link add flood0 type veth peer name flood1".to_owned(),
            format!("addr add {SERVER}/24 dev flood0"),
            "link set flood0 up".to_owned(),
            "link set flood1 up".to_owned(),
            format!("neigh add {NEIGHBOUR} lladdr 02:00:00:00:00:02 dev flood0 nud permanent"),
            format!("route add 198.18.0.0/15 via {NEIGHBOUR}"),
        ] {
            let status = Command::new("ip").args(line.split_whitespace()).status()?;
            if !status.success() {
                return Err(format!("`ip {line}` failed in the network namespace").into());
            }
        }
        // The flood arrives over loopback and its responses leave elsewhere: no reverse-path check.
        for name in ["all", "lo", "flood0"] {
            fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0")?;
        }
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "1")?;
        Ok(SynNetwork(()))
    }

    pub(super) fn counters(&self) -> XtaskResult<SynCounters> {
        let table = fs::read_to_string("/proc/self/net/netstat")?;
        let cookies = counter(&table, "SyncookiesSent").ok_or("the kernel does not count SYN cookies")?;
        Ok(SynCounters { cookies })
    }

    /// Sends SYNs until `over`; returns their number.
    pub(super) fn flood(&self, to: SocketAddr, over: &AtomicBool) -> XtaskResult<u64> {
        let SocketAddr::V4(to) = to else { return Err("the SYN flood needs an IPv4 address".into()) };
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))?;
        let address = SockAddr::from(to);
        let mut sent = 0;
        while !over.load(Relaxed) && sent < SYNS_MAX {
            for _ in 0..PER_BURST {
                // A full device queue drops one; the flood continues.
                let _ = socket.send_to(&syn(sent, to), &address);
                sent += 1;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(sent)
    }
}

/// A counter of the section TcpExt: names in one line, values in the next.
fn counter(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter(|line| line.starts_with("TcpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|found| found == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

/// The SYN of that number (RFC 9293 §3.1), each from another source; the kernel fills in the IP checksum.
fn syn(number: u64, to: SocketAddrV4) -> [u8; IP + TCP] {
    let [_, _, high, low] = (number as u32 % 65_000 + 1).to_be_bytes();
    let source = [198, 18, high, low];
    let port = (1024 + number % 60_000) as u16;
    let mut packet = [0; IP + TCP];
    let (ip, tcp) = packet.split_at_mut(IP);
    // Version 4 with five words, a time to live of 64, TCP.
    (ip[0], ip[8], ip[9]) = (0x45, 64, 6);
    ip[2..4].copy_from_slice(&((IP + TCP) as u16).to_be_bytes());
    ip[12..16].copy_from_slice(&source);
    ip[16..20].copy_from_slice(&to.ip().octets());
    tcp[0..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&(number as u32).to_be_bytes());
    // Five words, SYN, a window.
    (tcp[12], tcp[13]) = (0x50, 0x02);
    tcp[14..16].copy_from_slice(&64_240_u16.to_be_bytes());
    let sum = checksum(&source, &to.ip().octets(), tcp);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Checksum of a TCP segment with its pseudo-header (RFC 9293 §3.1, RFC 1071).
fn checksum(source: &[u8; 4], destination: &[u8; 4], segment: &[u8]) -> u16 {
    let length = segment.len() as u16;
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], *two.get(1).unwrap_or(&0)]))).sum()
    };
    let mut sum = words(source) + words(destination) + 6 + u32::from(length) + words(segment);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_sums_up_and_every_source_is_another() {
        let to = SocketAddrV4::new(SERVER, 9000);
        let packet = syn(7, to);
        let source: [u8; 4] = packet[12..16].try_into().expect("four bytes");
        // A correct segment including its checksum sums up to zero.
        assert_eq!(checksum(&source, &to.ip().octets(), &packet[IP..]), 0);
        assert_eq!((packet[IP + 13], packet.len()), (0x02, 40));
        assert_ne!(syn(8, to)[12..16], source);
        assert!((0..200_000).step_by(997).all(|number| syn(number, to)[12..14] == [198, 18]));
    }

    #[test]
    fn a_counter_is_found_below_its_name() {
        let table = "TcpExt: SyncookiesSent SyncookiesRecv\nTcpExt: 12 3\nIpExt: InNoRoutes\nIpExt: 0\n";
        assert_eq!(counter(table, "SyncookiesRecv"), Some(3));
        assert_eq!(counter(table, "InNoRoutes"), None);
    }
}
