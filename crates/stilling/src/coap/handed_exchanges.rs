//! Exchanges that change hands in a hot restart, so that the successor executes no request again.
//!
//! Only requests that may have changed something are handed over: for the others the successor makes the answer again.
//!
//! ```text
//!   record   size │ socket │ peer │ local │ message id │ token │ age │ reply
//! ```
//!
//! Numbers are little-endian. A socket is identified by its inode, which both processes see.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use stilling_wire::coap::{CoapMessage, Code, MessageId, Token};

use super::limits::{HANDED_EXCHANGES_SIZE_MAX, MESSAGE_SIZE_MAX};

/// An exchange as a successor needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandedExchange<'a> {
    pub(super) socket: u64,
    pub(super) peer: SocketAddr,
    pub(super) local: Option<IpAddr>,
    pub(super) id: MessageId,
    pub(super) token: Token,
    /// Time since the request.
    pub(super) age: Duration,
    /// `None`: there is none, or it is no longer stored.
    pub(super) reply: Option<&'a [u8]>,
}

/// Bytes without a reply.
const NO_REPLY: u16 = u16::MAX;
const _: () = assert!(MESSAGE_SIZE_MAX < NO_REPLY as usize);

impl HandedExchange<'_> {
    /// Appends the record.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 2]);
        out.extend(self.socket.to_le_bytes());
        write_ip(out, Some(self.peer.ip()));
        out.extend(self.peer.port().to_le_bytes());
        if let SocketAddr::V6(peer) = self.peer {
            out.extend(peer.flowinfo().to_le_bytes());
            out.extend(peer.scope_id().to_le_bytes());
        }
        write_ip(out, self.local);
        out.extend(self.id.to_le_bytes());
        out.push(self.token.size() as u8);
        out.extend(self.token.as_bytes());
        out.extend((self.age.as_millis() as u32).to_le_bytes());
        out.extend(self.reply.map_or(NO_REPLY, |reply| reply.len() as u16).to_le_bytes());
        out.extend(self.reply.unwrap_or_default());
        let size = (out.len() - start) as u16;
        out[start..start + 2].copy_from_slice(&size.to_le_bytes());
    }
}

fn write_ip(out: &mut Vec<u8>, ip: Option<IpAddr>) {
    match ip {
        None => out.push(0),
        Some(IpAddr::V4(ip)) => {
            out.push(4);
            out.extend(ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
}

/// The records of `bytes`, until one is malformed.
pub(super) fn records(mut bytes: &[u8]) -> impl Iterator<Item = HandedExchange<'_>> {
    std::iter::from_fn(move || {
        let size = usize::from(u16::from_le_bytes(*bytes.first_chunk()?));
        let (record, rest) = bytes.split_at_checked(size)?;
        bytes = rest;
        let mut fields = Fields(record.get(2..)?);
        let exchange = fields.exchange()?;
        fields.0.is_empty().then_some(exchange)
    })
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn exchange(&mut self) -> Option<HandedExchange<'a>> {
        let socket = u64::from_le_bytes(self.array()?);
        let (ip, port) = (self.ip()??, u16::from_le_bytes(self.array()?));
        let peer = match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(ip) => {
                let [flowinfo, scope] = [self.array()?, self.array()?].map(u32::from_le_bytes);
                SocketAddrV6::new(ip, port, flowinfo, scope).into()
            }
        };
        let local = self.ip()?;
        let id = u16::from_le_bytes(self.array()?);
        let [token_size] = self.array()?;
        let token = Token::new(self.bytes(token_size.into())?)?;
        let age = Duration::from_millis(u32::from_le_bytes(self.array()?).into());
        let reply = match u16::from_le_bytes(self.array()?) {
            NO_REPLY => None,
            size => Some(self.bytes(size.into())?),
        };
        Some(HandedExchange { socket, peer, local, id, token, age, reply })
    }

    fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// `Some(None)`: there is no address.
    fn ip(&mut self) -> Option<Option<IpAddr>> {
        Some(match self.array()? {
            [0] => None,
            [4] => Some(Ipv4Addr::from(self.array::<4>()?).into()),
            [6] => Some(Ipv6Addr::from(self.array::<16>()?).into()),
            _ => return None,
        })
    }
}

/// Whether a reply is that of a request that changed nothing: only GET and FETCH are answered 2.05 and 2.03.
pub(super) fn is_reply_to_safe(reply: &[u8]) -> bool {
    CoapMessage::parse(reply).is_ok_and(|message| [Code::CONTENT, Code::VALID].contains(&message.code))
}

/// Records on their way from the shards to the successor, and from the predecessor to the shards.
#[derive(Debug, Default)]
pub(crate) struct ExchangeHandover {
    outgoing: Mutex<Vec<u8>>,
    incoming: OnceLock<Vec<u8>>,
    /// A shard has restored the incoming records.
    is_restored: AtomicBool,
}

impl ExchangeHandover {
    /// Adds the records of a shard that has stopped receiving; each shard calls it once, so the lock is free.
    pub(crate) fn add_outgoing(&self, records: &[u8]) {
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        if outgoing.len() + records.len() <= HANDED_EXCHANGES_SIZE_MAX {
            outgoing.extend_from_slice(records);
        }
    }

    /// Takes the records of all shards. Those of a predecessor whose sockets were never used are passed on.
    pub(crate) fn take_outgoing(&self) -> Vec<u8> {
        let outgoing = std::mem::take(&mut *self.outgoing.lock().unwrap_or_else(PoisonError::into_inner));
        match self.incoming.get() {
            Some(incoming) if outgoing.is_empty() && !self.is_restored.load(Ordering::Acquire) => {
                incoming.clone()
            }
            _ => outgoing,
        }
    }

    /// Sets the predecessor's records, before any shard receives from its sockets.
    pub(crate) fn set_incoming(&self, records: Vec<u8>) {
        // A predecessor sends them once.
        let _ = self.incoming.set(records);
    }

    /// The predecessor's records, for a shard that restores them.
    pub(crate) fn incoming(&self) -> &[u8] {
        self.is_restored.store(true, Ordering::Release);
        self.incoming.get().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exchange<'a>(
        peer: &str,
        local: Option<&str>,
        token: &[u8],
        reply: Option<&'a [u8]>,
    ) -> HandedExchange<'a> {
        HandedExchange {
            socket: 0x0123_4567_89ab,
            peer: peer.parse().expect("an address"),
            local: local.map(|ip| ip.parse().expect("an address")),
            id: 0xfffe,
            token: Token::new(token).expect("a short token"),
            age: Duration::from_millis(246_999),
            reply,
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let long = vec![7; MESSAGE_SIZE_MAX];
        let all = [
            exchange("192.0.2.1:5683", None, b"", None),
            exchange("192.0.2.1:1", Some("127.0.0.2"), b"12345678", Some(b"")),
            exchange("[2001:db8::1]:65535", Some("::1"), b"t", Some(&long)),
            exchange("[fe80::1%3]:9", None, b"t", Some(b"reply")),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|exchange| exchange.write(&mut bytes));
        assert_eq!(records(&bytes).collect::<Vec<_>>(), all);
        for len in 0..bytes.len() {
            assert!(records(&bytes[..len]).count() < all.len(), "{len}");
        }
    }

    #[test]
    fn the_records_of_all_shards_are_bounded() {
        let handover = ExchangeHandover::default();
        handover.add_outgoing(&[1; 10]);
        handover.add_outgoing(&vec![2; HANDED_EXCHANGES_SIZE_MAX]);
        handover.add_outgoing(&[3; 10]);
        assert_eq!(handover.take_outgoing(), [[1; 10], [3; 10]].concat());
        assert!(handover.take_outgoing().is_empty());
    }

    #[test]
    fn records_that_no_shard_has_restored_are_passed_on() {
        let handover = ExchangeHandover::default();
        handover.set_incoming(vec![4]);
        assert_eq!(handover.take_outgoing(), [4]);
        assert_eq!(handover.incoming(), [4]);
        assert!(handover.take_outgoing().is_empty());
    }

    proptest! {
        /// A process of the same user may send anything.
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(records(&bytes).count() <= bytes.len() / 2);
        }
    }
}
