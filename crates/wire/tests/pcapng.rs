//! Captures are read by tshark (Debian package `tshark`).

use std::net::SocketAddr;
use std::process::Command;

use stilling_wire::pcapng::{self, CapturedDatagram, Direction};

const TIME_NS: u64 = 1_764_000_000_123_456_789;

/// Fields of each packet as tshark prints them: time, source, source port, destination, destination port, payload,
/// checksum states of IPv4 and UDP (1: good), comment.
const FIELDS: [&str; 12] = [
    "frame.time_epoch",
    "ip.src",
    "ipv6.src",
    "udp.srcport",
    "ip.dst",
    "ipv6.dst",
    "udp.dstport",
    "data.data",
    "ip.checksum.status",
    "udp.checksum.status",
    "frame.packet_flags_direction",
    "frame.comment",
];

fn read_by_tshark(capture: &[u8]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("capture.pcapng");
    std::fs::write(&path, capture).expect("it is written");
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(&path).args([
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "udp.check_checksum:TRUE",
    ]);
    // The payloads are no protocol's.
    tshark.args(["-d", "udp.port==40000,data", "-T", "fields", "-E", "separator=|"]);
    FIELDS.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let output = tshark.output().expect("tshark is installed: cargo xtask packages names it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("fields are text");
    text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Row 1.13: every record has complete addresses, its time and its payload; tshark reads them as they were written.
#[test]
fn tshark_reads_every_address_and_payload() {
    let pairs = [
        ("192.0.2.1:40000", "192.0.2.2:5683"),
        ("[2001:db8::1]:40000", "[2001:db8::2]:5683"),
        ("[::ffff:192.0.2.1]:40000", "[::ffff:192.0.2.2]:5683"),
        ("192.0.2.1:40000", "[::ffff:192.0.2.2]:5683"),
    ];
    let mut capture = Vec::new();
    pcapng::write_file_header(&mut capture);
    assert_eq!(capture.len(), pcapng::FILE_HEADER_SIZE);
    let mut expected = Vec::new();
    for (at, (from, to)) in pairs.into_iter().enumerate() {
        for len in [1_usize, 2, 3, 4, 5, 1200, 3880] {
            let payload: Vec<u8> = (0..len).map(|byte| (byte * 7 + at) as u8 | 0x80).collect();
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let (direction, truncated) = match len % 2 {
                0 => (Direction::Inbound, len == 3880),
                _ => (Direction::Outbound, false),
            };
            let unix_ns = TIME_NS + expected.len() as u64;
            let datagram = CapturedDatagram { unix_ns, from, to, direction, payload: &payload, truncated };
            let before = capture.len();
            pcapng::write_datagram(&mut capture, &datagram);
            assert_eq!(capture.len() - before, pcapng::datagram_size(&datagram));
            assert!(capture.len() - before <= payload.len() + pcapng::DATAGRAM_OVERHEAD_MAX);
            let (from_ip, to_ip) = (from.ip().to_canonical().to_string(), to.ip().to_canonical().to_string());
            let (ips, ip_checksum) = match from.ip().to_canonical().is_ipv4() {
                true => ([from_ip, String::new(), to_ip, String::new()], "1"),
                false => ([String::new(), from_ip, String::new(), to_ip], ""),
            };
            let [v4_from, v6_from, v4_to, v6_to] = ips;
            expected.push(vec![
                format!("{}.{:09}", unix_ns / 1_000_000_000, unix_ns % 1_000_000_000),
                v4_from,
                v6_from,
                from.port().to_string(),
                v4_to,
                v6_to,
                to.port().to_string(),
                hex(&payload),
                ip_checksum.to_owned(),
                "1".to_owned(),
                if direction == Direction::Inbound { "0x00000001" } else { "0x00000002" }.to_owned(),
                if truncated { "payload was cut off" } else { "" }.to_owned(),
            ]);
        }
    }
    let read = read_by_tshark(&capture);
    assert_eq!(read.len(), expected.len());
    for (read, expected) in read.iter().zip(&expected) {
        assert_eq!(read, expected);
    }
}
