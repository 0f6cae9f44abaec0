//! The gate of auctions: a bid must beat the price of an open auction.
//!
//! | subject | payload | effect |
//! |---|---|---|
//! | `<name>.<auction>.open` | `{"price":N,"title":"…"}` | opens the auction at that price |
//! | `<name>.<auction>.bid` | `{"price":N,"bidder":"…"}` | sets the price, if it is higher |
//! | `<name>.<auction>.close` | `{}` | closes the auction; stored as `{"price":N,"bidder":"…","bids":N}` |
//!
//! Prices are integers in minor units, at most [`AUCTION_PRICE_MAX`]. The name of an auction cannot be used again while
//! the gate knows it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use stilling_wire::message_object::is_json;

use super::{Gate, GateMessage, GateRecord, GateRecords, Verdict};
use crate::limits::{
    AUCTION_BIDDER_SIZE_MAX, AUCTION_BODY_SIZE_MAX, AUCTION_NAME_SIZE_MAX, AUCTION_PRICE_MAX, AUCTIONS_MAX,
};
use crate::time::UnixNanos;

/// First byte of a snapshot.
const SNAPSHOT_VERSION: u8 = 1;

/// Auctions with their prices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuctionGate {
    auctions: BTreeMap<Box<str>, Auction>,
    /// Names of the closed auctions by the sequences of the records that closed them.
    closed: BTreeMap<u64, Box<str>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Auction {
    price: u64,
    bids: u64,
    /// Highest bidder; empty before the first bid.
    bidder: Box<str>,
    /// Sequence of the record that closed it; 0: it is open.
    closed_at: u64,
}

/// A command of a message, with the name of its auction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Command {
    Open,
    Bid,
    Close,
}

#[derive(Deserialize)]
struct OpenBody<'a> {
    #[serde(borrow)]
    price: &'a RawValue,
}

#[derive(Deserialize)]
struct BidBody<'a> {
    #[serde(borrow)]
    price: &'a RawValue,
    #[serde(borrow)]
    bidder: Cow<'a, str>,
}

/// Payload of the record of a close.
#[derive(Serialize)]
struct ClosedBody<'a> {
    price: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    bidder: &'a str,
    bids: u64,
}

/// Why a message cannot be a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CommandError {
    Subject,
    Name,
    Size,
    OpenBody,
    BidBody,
    Bidder,
    Negative,
    Fraction,
    TooHigh,
    NoNumber,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::Subject => f.write_str("the subject is not NAME.AUCTION.open, .bid or .close"),
            CommandError::Name => {
                write!(f, "the name of the auction is longer than {AUCTION_NAME_SIZE_MAX} bytes")
            }
            CommandError::Size => write!(f, "the message is longer than {AUCTION_BODY_SIZE_MAX} bytes"),
            CommandError::OpenBody => f.write_str(r#"an auction is opened with {"price":100,"title":"..."}"#),
            CommandError::BidBody => f.write_str(r#"a bid is {"price":100,"bidder":"..."}"#),
            CommandError::Bidder => {
                write!(f, "the bidder has no name, or one of more than {AUCTION_BIDDER_SIZE_MAX} bytes")
            }
            CommandError::Negative => f.write_str("the price is negative"),
            CommandError::Fraction => f.write_str("the price is not a whole number of the smallest unit"),
            CommandError::TooHigh => write!(f, "the price is higher than {AUCTION_PRICE_MAX}"),
            CommandError::NoNumber => f.write_str("the price is not a number"),
        }
    }
}

impl AuctionGate {
    /// Creates a gate without auctions.
    #[must_use]
    pub fn new() -> AuctionGate {
        AuctionGate::default()
    }

    fn judge_open(&self, name: &str, payload: &[u8]) -> Result<Verdict, CommandError> {
        parse_open(payload)?;
        Ok(match self.auctions.get(name) {
            Some(Auction { closed_at: 0, price, .. }) => {
                Verdict::reject(format_args!("{name} is already open; its price is {price}"))
            }
            Some(Auction { price, .. }) => {
                Verdict::reject(format_args!("{name} was closed at {price}; open another auction"))
            }
            None if self.auctions.len() >= AUCTIONS_MAX && self.closed.is_empty() => {
                Verdict::reject(format_args!("{AUCTIONS_MAX} auctions are open; close one first"))
            }
            None => Verdict::Accept,
        })
    }

    fn judge_bid(&self, name: &str, payload: &[u8]) -> Result<Verdict, CommandError> {
        let (price, _) = parse_bid(payload)?;
        Ok(match self.auctions.get(name) {
            None => Verdict::reject(format_args!("there is no auction {name}")),
            Some(Auction { closed_at, price, .. }) if *closed_at > 0 => {
                Verdict::reject(format_args!("{name} was closed at {price}"))
            }
            Some(auction) if price <= auction.price => {
                Verdict::reject(format_args!("the price is {}; {price} does not beat it", auction.price))
            }
            Some(_) => Verdict::Accept,
        })
    }

    fn judge_close(&self, subject: &str, name: &str) -> Verdict {
        match self.auctions.get(name) {
            None => Verdict::reject(format_args!("there is no auction {name}")),
            Some(Auction { closed_at, price, .. }) if *closed_at > 0 => {
                Verdict::reject(format_args!("{name} was already closed at {price}"))
            }
            Some(Auction { price, bids, bidder, .. }) => {
                let body = ClosedBody { price: *price, bidder, bids: *bids };
                match serde_json::to_vec(&body) {
                    Ok(body) => Verdict::AcceptAs(GateRecords::new().with(subject, &body)),
                    Err(error) => Verdict::reject(error),
                }
            }
        }
    }

    fn open(&mut self, name: &str, price: u64) {
        if self.auctions.contains_key(name) {
            return;
        }
        if self.auctions.len() >= AUCTIONS_MAX {
            let Some((_, oldest)) = self.closed.pop_first() else { return };
            self.auctions.remove(&oldest);
        }
        let auction = Auction { price, bids: 0, bidder: "".into(), closed_at: 0 };
        self.auctions.insert(name.into(), auction);
    }
}

impl Gate for AuctionGate {
    fn judge(&self, message: &GateMessage<'_>, _: UnixNanos) -> Verdict {
        let &GateMessage { subject, payload, .. } = message;
        let verdict = parse_command(subject, payload).and_then(|(name, command)| match command {
            Command::Open => self.judge_open(name, payload),
            Command::Bid => self.judge_bid(name, payload),
            Command::Close => Ok(self.judge_close(subject, name)),
        });
        verdict.unwrap_or_else(Verdict::reject)
    }

    fn apply(&mut self, record: &GateRecord<'_>) {
        let &GateRecord { sequence, subject, payload, .. } = record;
        // Records that are no commands are older than the gate.
        let Ok((name, command)) = parse_command(subject, payload) else { return };
        match command {
            Command::Open => {
                if let Ok(price) = parse_open(payload) {
                    self.open(name, price);
                }
            }
            Command::Bid => {
                let Ok((price, bidder)) = parse_bid(payload) else { return };
                let auction = self.auctions.get_mut(name);
                if let Some(auction) =
                    auction.filter(|auction| auction.closed_at == 0 && price > auction.price)
                {
                    (auction.price, auction.bids) = (price, auction.bids + 1);
                    if *auction.bidder != *bidder {
                        auction.bidder = bidder.into();
                    }
                }
            }
            Command::Close => {
                let auction = self.auctions.get_mut(name);
                if let Some(auction) = auction.filter(|auction| auction.closed_at == 0) {
                    auction.closed_at = sequence;
                    self.closed.insert(sequence, name.into());
                }
            }
        }
    }

    /// Writes the auctions in the order of their names: sizes as one byte, numbers as eight bytes (little endian).
    fn snapshot(&self, into: &mut Vec<u8>) {
        into.push(SNAPSHOT_VERSION);
        into.extend_from_slice(&(self.auctions.len() as u64).to_le_bytes());
        for (name, Auction { price, bids, bidder, closed_at }) in &self.auctions {
            for text in [name, bidder] {
                // Both are at most 64 bytes long.
                into.push(text.len() as u8);
                into.extend_from_slice(text.as_bytes());
            }
            for number in [price, bids, closed_at] {
                into.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        *self = read_snapshot(snapshot).ok_or("it is not a snapshot of auctions of this version")?;
        Ok(())
    }
}

fn read_snapshot(snapshot: &[u8]) -> Option<AuctionGate> {
    let (&version, mut rest) = snapshot.split_first()?;
    if version != SNAPSHOT_VERSION {
        return None;
    }
    let (mut auctions, mut closed) = (BTreeMap::new(), BTreeMap::new());
    let count = take_number(&mut rest)?;
    for _ in 0..count {
        let [name, bidder] = [take_text(&mut rest)?, take_text(&mut rest)?];
        let [price, bids, closed_at] =
            [take_number(&mut rest)?, take_number(&mut rest)?, take_number(&mut rest)?];
        if closed_at > 0 && closed.insert(closed_at, name.clone()).is_some() {
            return None;
        }
        auctions.insert(name, Auction { price, bids, bidder, closed_at });
    }
    let is_whole = rest.is_empty() && auctions.len() as u64 == count && auctions.len() <= AUCTIONS_MAX;
    is_whole.then_some(AuctionGate { auctions, closed })
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let (number, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u64::from_le_bytes(*number))
}

fn take_text(rest: &mut &[u8]) -> Option<Box<str>> {
    let (&size, behind) = rest.split_first()?;
    let (text, behind) = behind.split_at_checked(size.into())?;
    *rest = behind;
    std::str::from_utf8(text).ok().map(Into::into)
}

fn parse_command<'a>(subject: &'a str, payload: &[u8]) -> Result<(&'a str, Command), CommandError> {
    let mut tokens = subject.split('.');
    let (Some(_), Some(name), Some(verb), None) =
        (tokens.next(), tokens.next(), tokens.next(), tokens.next())
    else {
        return Err(CommandError::Subject);
    };
    let command = match verb {
        "open" => Command::Open,
        "bid" => Command::Bid,
        "close" => Command::Close,
        _ => return Err(CommandError::Subject),
    };
    if name.len() > AUCTION_NAME_SIZE_MAX {
        return Err(CommandError::Name);
    }
    if payload.len() > AUCTION_BODY_SIZE_MAX {
        return Err(CommandError::Size);
    }
    Ok((name, command))
}

/// Reads a body that subscribers receive as JSON. `serde_json` alone skips unknown members whose text is not UTF-8, and any
/// depth.
fn parse_body<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Option<T> {
    let text = std::str::from_utf8(payload).ok().filter(|text| is_json(text))?;
    serde_json::from_str(text).ok()
}

fn parse_open(payload: &[u8]) -> Result<u64, CommandError> {
    let body: OpenBody<'_> = parse_body(payload).ok_or(CommandError::OpenBody)?;
    parse_price(body.price)
}

fn parse_bid(payload: &[u8]) -> Result<(u64, Cow<'_, str>), CommandError> {
    let body: BidBody<'_> = parse_body(payload).ok_or(CommandError::BidBody)?;
    let price = parse_price(body.price)?;
    if (1..=AUCTION_BIDDER_SIZE_MAX).contains(&body.bidder.len()) {
        Ok((price, body.bidder))
    } else {
        Err(CommandError::Bidder)
    }
}

/// Reads a JSON value as a price.
fn parse_price(value: &RawValue) -> Result<u64, CommandError> {
    let text = value.get();
    if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Err(CommandError::NoNumber);
    }
    if text.starts_with('-') {
        return Err(CommandError::Negative);
    }
    if text.contains(['.', 'e', 'E']) {
        return Err(CommandError::Fraction);
    }
    // What is left has only digits, so an error is an overflow.
    let price = text.parse().ok().filter(|price| *price <= AUCTION_PRICE_MAX);
    price.ok_or(CommandError::TooHigh)
}

#[cfg(test)]
mod tests;
