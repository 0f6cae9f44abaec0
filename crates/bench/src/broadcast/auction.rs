//! Bids on the wire: NATS messages of the `auction` gate.

use super::codec::{ReceivedItem, line, shown};
use super::nats::control;

const PRICE: &[u8] = b"{\"price\":";
const BIDDER: &[u8] = b",\"bidder\":\"c";
const BID_END: &[u8] = b"\"}";
const CRLF: &[u8] = b"\r\n";

/// Bytes after a head in which its line must end: a reply subject, in the record of the end, and a size.
const LINE_REST_MAX: usize = 256;

/// The wire form of one auction.
pub(super) struct AuctionWire {
    /// `PUB <subject> `
    publication: Vec<u8>,
    /// `MSG <subject> 1 ` of a bid and of the end.
    bid: Vec<u8>,
    close: Vec<u8>,
}

/// The first item of a client's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuctionItem {
    /// An accepted bid.
    Bid {
        size: usize,
        price: u64,
        bidder: u32,
    },
    /// The end of the auction, with its last price.
    Close {
        size: usize,
        price: u64,
    },
    Control {
        size: usize,
        answer: &'static [u8],
    },
    Incomplete,
}

impl AuctionWire {
    /// The subjects of an auction are `<name>.open`, `<name>.bid` and `<name>.close`.
    pub(super) fn new(name: &str) -> AuctionWire {
        AuctionWire {
            publication: format!("PUB {name}.bid ").into_bytes(),
            bid: format!("MSG {name}.bid 1 ").into_bytes(),
            close: format!("MSG {name}.close 1 ").into_bytes(),
        }
    }

    pub(super) fn push_bid(&self, price: u64, bidder: u32, out: &mut Vec<u8>) {
        let (mut price_digits, mut bidder_digits) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (price, bidder) = (price_digits.format(price), bidder_digits.format(bidder));
        let size = PRICE.len() + price.len() + BIDDER.len() + bidder.len() + BID_END.len();
        out.extend_from_slice(&self.publication);
        out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
        for piece in [CRLF, PRICE, price.as_bytes(), BIDDER, bidder.as_bytes(), BID_END, CRLF] {
            out.extend_from_slice(piece);
        }
    }

    /// Decodes the first item of a client's input; every byte of it must be right.
    pub(super) fn next_item(&self, input: &[u8]) -> Result<AuctionItem, String> {
        let is_bid = input.starts_with(&self.bid);
        if !is_bid && !input.starts_with(&self.close) {
            if self.bid.starts_with(input) || self.close.starts_with(input) {
                return Ok(AuctionItem::Incomplete);
            }
            return Ok(match control(input)? {
                ReceivedItem::Control { size, answer } => AuctionItem::Control { size, answer },
                _ => AuctionItem::Incomplete,
            });
        }
        let head = if is_bid { &self.bid } else { &self.close };
        let wrong = || shown(input);
        let Some((rest, line_size)) = line(&input[head.len()..]) else {
            let is_short = input.len() <= head.len() + LINE_REST_MAX;
            return if is_short { Ok(AuctionItem::Incomplete) } else { Err(wrong()) };
        };
        // The end was published with a reply subject.
        let digits = if is_bid { rest } else { rest.rsplit(|byte| *byte == b' ').next().unwrap_or_default() };
        let payload_size = number(digits).filter(|size| *size < 65_536).ok_or_else(wrong)? as usize;
        let start = head.len() + line_size;
        let end = start + payload_size;
        let size = end + CRLF.len();
        if input.len() < size {
            return Ok(AuctionItem::Incomplete);
        }
        let payload = &input[start..end];
        if input[end..size] != *CRLF {
            return Err(wrong());
        }
        if !is_bid {
            let price = closing_price(payload).ok_or_else(wrong)?;
            return Ok(AuctionItem::Close { size, price });
        }
        let (price, bidder) = parse_bid(payload).ok_or_else(wrong)?;
        Ok(AuctionItem::Bid { size, price, bidder })
    }
}

/// Parses a bid as [`AuctionWire::push_bid`] encodes it.
fn parse_bid(payload: &[u8]) -> Option<(u64, u32)> {
    let rest = payload.strip_prefix(PRICE)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let bidder = rest[digits..].strip_prefix(BIDDER)?.strip_suffix(BID_END)?;
    Some((number(&rest[..digits])?, number(bidder)?.try_into().ok()?))
}

/// The last price in the record of the end.
fn closing_price(payload: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(payload).ok()?["price"].as_u64()
}

/// Parses up to 18 decimal digits without leading zeros.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 || (digits.len() > 1 && digits[0] == b'0') {
        return None;
    }
    digits.iter().try_fold(0, |number: u64, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bid_is_decoded_as_it_was_encoded_and_every_other_byte_is_noticed() {
        let wire = AuctionWire::new("auction.1");
        let mut out = Vec::new();
        wire.push_bid(1234, 17, &mut out);
        let text = "PUB auction.1.bid 31\r\n{\"price\":1234,\"bidder\":\"c17\"}\r\n";
        let size = text.len() - "PUB auction.1.bid 31\r\n\r\n".len();
        assert_eq!(String::from_utf8_lossy(&out), text.replace("31", &size.to_string()));
        let delivery = format!("MSG auction.1.bid 1 {size}\r\n{{\"price\":1234,\"bidder\":\"c17\"}}\r\n");
        let whole = AuctionItem::Bid { size: delivery.len(), price: 1234, bidder: 17 };
        assert_eq!(wire.next_item(delivery.repeat(2).as_bytes()), Ok(whole));
        for size in 0..delivery.len() {
            let item = wire.next_item(&delivery.as_bytes()[..size]);
            assert_eq!(item, Ok(AuctionItem::Incomplete), "{size} bytes");
        }
        for at in 0..delivery.len() {
            let mut wrong = delivery.clone().into_bytes();
            wrong[at] ^= 0x80;
            assert_ne!(wire.next_item(&wrong), Ok(whole), "byte {at}");
        }
    }

    #[test]
    fn the_end_names_the_last_price() {
        let wire = AuctionWire::new("auction.1");
        let payload = r#"{"price":7,"bidder":"c1","bids":7}"#;
        for reply in ["", "_INBOX.1 "] {
            let input = format!("MSG auction.1.close 1 {reply}{}\r\n{payload}\r\nPING\r\n", payload.len());
            let size = input.len() - "PING\r\n".len();
            assert_eq!(wire.next_item(input.as_bytes()), Ok(AuctionItem::Close { size, price: 7 }));
        }
        assert!(wire.next_item(&[&wire.close[..], &[b'1'; 300]].concat()).is_err());
        let ping = wire.next_item(b"PING\r\n");
        assert!(matches!(ping, Ok(AuctionItem::Control { size: 6, answer: b"PONG\r\n" })));
        assert!(wire.next_item(b"-ERR 'x'\r\n").is_err());
    }
}
