//! A WebSocket client that reads whole frames.

use std::net::SocketAddr;

use stilling_probe::TestPeer;

pub(crate) struct RawWebSocket {
    peer: TestPeer,
}

impl RawWebSocket {
    /// Opens a WebSocket, with further header lines.
    #[track_caller]
    pub(crate) fn open(at: SocketAddr, path: &str, fields: &str) -> RawWebSocket {
        let mut peer = TestPeer::connect(at);
        peer.send(format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{fields}\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ));
        assert_eq!(peer.head().status, 101);
        RawWebSocket { peer }
    }

    /// The first byte and the payload of the next frame.
    #[track_caller]
    pub(crate) fn frame(&mut self) -> (u8, Vec<u8>) {
        let head = self.peer.read_exactly(2);
        let size = match head[1] {
            126 => {
                let size = self.peer.read_exactly(2);
                usize::from(u16::from_be_bytes([size[0], size[1]]))
            }
            size => usize::from(size),
        };
        (head[0], self.peer.read_exactly(size))
    }

    #[track_caller]
    pub(crate) fn text(&mut self) -> String {
        let (kind, payload) = self.frame();
        let text = String::from_utf8(payload).expect("text");
        assert_eq!(kind, 0x81, "{text}");
        text
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        let head = match u8::try_from(text.len()) {
            Ok(size @ ..126) => vec![0x81, 0x80 | size],
            _ => {
                let size = u16::try_from(text.len()).expect("a short text").to_be_bytes();
                vec![0x81, 0x80 | 126, size[0], size[1]]
            }
        };
        let frame = [&head, &[0; 4][..], text.as_bytes()].concat();
        self.peer.send(frame);
    }
}
