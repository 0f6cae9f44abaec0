//! Bidding clients: each answers every accepted bid of another one with a bid that is higher by 1.
//!
//! Every bid is higher by 1 than an accepted one, so the prices of accepted bids rise by exactly 1, whatever the order in
//! which bids arrive: each client must receive 1, 2, 3 … without a gap. At the end the auction is closed; the record of
//! the end names the last price, which every client must have received.

use std::collections::VecDeque;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use stilling_engine::net::raise_descriptor_limit;
use stilling_wire::nats::{PING, encode_sub};

use super::auction::{AuctionItem, AuctionWire};
use super::connection::{OutputBuffer, open, wait_for_server, would_block};
use super::error::BroadcastError;
use super::limits::{CONTROL_SIZE_MAX, POLL_SPAN, READ_SIZE, UNSENT_BIDS_SIZE_MAX};
use super::nats::opening_size;
use super::plan::ThrashPlan;
use super::poller::{Interest, Poller};
use super::report::{BidCounts, CpuTimes, ThrashReport};
use super::run::CpuMeasurement;
use super::tally::{BroadcastTally, DeliveryFailure};
use crate::collect::{JetStreamApi, encode_nats_connect};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Executes a plan.
///
/// # Errors
/// The plan contradicts itself, the server is unreachable, or it does not open the auction. Later failures are in the
/// report.
pub fn run(plan: &ThrashPlan) -> Result<ThrashReport, BroadcastError> {
    run_until(plan, &Arc::default())
}

/// Executes a plan. When `stop` is set, no more bids are sent, and the report covers the bids so far.
///
/// # Errors
/// As [`run`].
pub fn run_until(plan: &ThrashPlan, stop: &Arc<AtomicBool>) -> Result<ThrashReport, BroadcastError> {
    plan.check()?;
    raise_descriptor_limit();
    wait_for_server(plan.to, plan.wait, plan.timeout, stop)?;
    // The gate remembers names of auctions.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let lot = format!("thrash{:x}{:x}", std::process::id(), since.as_nanos());
    let auction = format!("{}.{lot}", plan.subject);
    let failed = |error: crate::collect::CollectError| BroadcastError::Server(error.to_string());
    let mut api = JetStreamApi::connect(plan.to, plan.timeout).map_err(failed)?;
    let opening = json!({"price": 0, "title": "Thrash test"});
    api.request(&format!("{auction}.open"), &opening).map_err(failed)?;
    let mut run = ThrashRun::open(plan, &auction)?;
    let measure = CpuMeasurement::start(plan.server_pid);
    run.bid(stop)?;
    let cpu = measure.end();
    run.await_pongs()?;
    if let Err(error) = api.request(&format!("{auction}.close"), &json!({})) {
        run.tally.fail(DeliveryFailure::Protocol, 1, || error.to_string());
    } else {
        run.await_close()?;
    }
    Ok(run.report(auction, cpu))
}

/// A bid of a client that was not accepted yet.
struct SentBid {
    price: u64,
    written_ns: u64,
}

struct Bidder {
    number: u32,
    stream: TcpStream,
    output: OutputBuffer,
    unfinished: Vec<u8>,
    interest: Interest,
    /// Price of the next accepted bid.
    next: u64,
    /// Bids from this price on, in order.
    sent: VecDeque<SentBid>,
    has_pong: bool,
    closing_price: Option<u64>,
    is_open: bool,
}

struct ThrashRun<'p> {
    plan: &'p ThrashPlan,
    wire: AuctionWire,
    bidders: Vec<Bidder>,
    tally: BroadcastTally,
    counts: BidCounts,
    poller: Poller,
    ready: Vec<usize>,
    buffer: Vec<u8>,
    start: Instant,
    is_bidding: bool,
}

impl Bidder {
    fn open(plan: &ThrashPlan, auction: &str, number: u32) -> Result<Bidder, BroadcastError> {
        let mut opening = Vec::new();
        encode_nats_connect(&mut opening);
        encode_sub(&mut opening, format!("{auction}.*").as_bytes(), None, b"1");
        opening.extend_from_slice(PING);
        let (stream, unfinished) = open(plan.to, plan.timeout, &opening, opening_size)?;
        Ok(Bidder {
            number,
            stream,
            output: OutputBuffer::default(),
            unfinished,
            interest: Interest::Read,
            next: 1,
            sent: VecDeque::new(),
            has_pong: false,
            closing_price: None,
            is_open: true,
        })
    }

    /// Checks an accepted bid, and returns the time when it was written if it is this client's own.
    fn accept(&mut self, price: u64, bidder: u32, tally: &mut BroadcastTally) -> Option<u64> {
        let (number, next) = (self.number, self.next);
        let detail = || format!("client {number}: price {price} of client {bidder} instead of {next}");
        if price < next {
            tally.fail(DeliveryFailure::Repeated, 1, detail);
            return None;
        }
        if price > next {
            tally.fail(DeliveryFailure::Undelivered, price - next, detail);
        }
        self.next = price + 1;
        tally.deliveries += 1;
        while self.sent.front().is_some_and(|bid| bid.price < price) {
            self.sent.pop_front();
        }
        let own = self.sent.front().filter(|bid| bidder == number && bid.price == price);
        let written_ns = own.map(|bid| bid.written_ns);
        if bidder == number && written_ns.is_none() {
            tally.fail(DeliveryFailure::NeverSent, 1, detail);
        }
        written_ns
    }

    /// What the socket must be ready for: a client with many unsent bids does not read.
    fn wanted_interest(&self) -> Interest {
        match self.output.len() {
            0 => Interest::Read,
            size if size < UNSENT_BIDS_SIZE_MAX => Interest::ReadOrWrite,
            _ => Interest::Write,
        }
    }
}

impl<'p> ThrashRun<'p> {
    fn open(plan: &'p ThrashPlan, auction: &str) -> Result<ThrashRun<'p>, BroadcastError> {
        let poller = Poller::new()?;
        let mut bidders = Vec::with_capacity(plan.clients as usize);
        for number in 0..plan.clients {
            let bidder = Bidder::open(plan, auction, number)?;
            poller.add(&bidder.stream, number as usize)?;
            bidders.push(bidder);
        }
        Ok(ThrashRun {
            plan,
            wire: AuctionWire::new(auction),
            bidders,
            tally: BroadcastTally::new(),
            counts: BidCounts::default(),
            poller,
            ready: Vec::new(),
            buffer: vec![0; READ_SIZE + CONTROL_SIZE_MAX * 2],
            start: Instant::now(),
            is_bidding: true,
        })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Bids until the end of the run, or until nothing is accepted any more.
    fn bid(&mut self, stop: &AtomicBool) -> Result<(), BroadcastError> {
        self.start = Instant::now();
        self.send_bid(0, 1, 0);
        self.write(0)?;
        let is_over = |run: &ThrashRun<'_>| {
            let is_last = run.plan.bids.is_some_and(|bids| run.bidders[0].next > bids);
            is_last || run.start.elapsed() >= run.plan.span || stop.load(Ordering::Relaxed)
        };
        self.wait_until(is_over)?;
        self.is_bidding = false;
        self.counts.accepted = self.bidders.iter().map(|bidder| bidder.next - 1).max().unwrap_or(0);
        Ok(())
    }

    /// Waits until the server has processed all bids.
    fn await_pongs(&mut self) -> Result<(), BroadcastError> {
        for number in 0..self.bidders.len() {
            self.bidders[number].has_pong = false;
            self.bidders[number].output.bytes().extend_from_slice(PING);
            self.write(number)?;
        }
        self.wait_until(|run| run.bidders.iter().all(|bidder| bidder.has_pong || !bidder.is_open))
    }

    /// Waits until every client has received the end of the auction, and checks that it received all bids.
    fn await_close(&mut self) -> Result<(), BroadcastError> {
        self.wait_until(|run| {
            run.bidders.iter().all(|bidder| bidder.closing_price.is_some() || !bidder.is_open)
        })?;
        let last = self.bidders.iter().filter_map(|bidder| bidder.closing_price).max();
        for Bidder { number, next, closing_price, .. } in &self.bidders {
            let missing = last.map_or(1, |last| (last + 1).saturating_sub(*next));
            let missing = missing + u64::from(closing_price.is_none());
            let detail = || format!("client {number}: price {next} and later, up to {last:?}");
            self.tally.fail(DeliveryFailure::Undelivered, missing, detail);
        }
        self.counts.accepted = last.unwrap_or(self.counts.accepted);
        Ok(())
    }

    /// Handles ready sockets until `is_over`, or until nothing has been delivered for the timeout.
    fn wait_until(&mut self, is_over: impl Fn(&ThrashRun<'_>) -> bool) -> Result<(), BroadcastError> {
        let mut progress = (self.tally.deliveries, Instant::now());
        while !is_over(self) {
            if self.tally.deliveries > progress.0 {
                progress = (self.tally.deliveries, Instant::now());
            }
            if progress.1.elapsed() >= self.plan.timeout || !self.bidders.iter().any(|bidder| bidder.is_open)
            {
                let detail = || "no bid was accepted within the timeout".to_owned();
                self.tally.fail(DeliveryFailure::Protocol, 1, detail);
                return Ok(());
            }
            let mut ready = std::mem::take(&mut self.ready);
            self.poller.wait(POLL_SPAN, &mut ready)?;
            for number in ready.drain(..) {
                self.receive(number)?;
                self.write(number)?;
            }
            self.ready = ready;
        }
        Ok(())
    }

    fn send_bid(&mut self, number: usize, price: u64, now: u64) {
        let bidder = &mut self.bidders[number];
        self.wire.push_bid(price, bidder.number, bidder.output.bytes());
        bidder.sent.push_back(SentBid { price, written_ns: now });
        self.counts.sent += 1;
        self.second(now).0 += 1;
    }

    /// Sent bids and deliveries of the current second.
    fn second(&mut self, now: u64) -> &mut (u64, u64) {
        let second = (now / NANOS_PER_SECOND) as usize;
        if self.counts.seconds.len() <= second {
            self.counts.seconds.resize(second + 1, (0, 0));
        }
        &mut self.counts.seconds[second]
    }

    fn fail(&mut self, number: usize, failure: DeliveryFailure, detail: &str) -> Result<(), BroadcastError> {
        let bidder = &mut self.bidders[number];
        if std::mem::replace(&mut bidder.is_open, false) {
            self.poller.remove(&bidder.stream)?;
            self.tally.fail(failure, 1, || format!("client {number}: {detail}"));
        }
        Ok(())
    }

    fn write(&mut self, number: usize) -> Result<(), BroadcastError> {
        let bidder = &mut self.bidders[number];
        if !bidder.is_open {
            return Ok(());
        }
        if let Err(error) = bidder.output.write(&mut bidder.stream) {
            return self.fail(number, DeliveryFailure::Broken, &error.to_string());
        }
        let wanted = bidder.wanted_interest();
        if std::mem::replace(&mut bidder.interest, wanted) != wanted {
            self.poller.set_interest(&bidder.stream, number, wanted)?;
        }
        Ok(())
    }

    /// Reads once and answers every accepted bid of another client.
    fn receive(&mut self, number: usize) -> Result<(), BroadcastError> {
        let bidder = &mut self.bidders[number];
        if !bidder.is_open || bidder.interest == Interest::Write {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let kept = bidder.unfinished.len();
        buffer[..kept].copy_from_slice(&bidder.unfinished);
        let result = match bidder.stream.read(&mut buffer[kept..kept + READ_SIZE]) {
            Ok(0) => Err((DeliveryFailure::Broken, "it closed the connection".to_owned())),
            Ok(count) => self
                .decode(number, &buffer[..kept + count])
                .map_err(|detail| (DeliveryFailure::Protocol, detail)),
            Err(error) if would_block(&error) => Ok(()),
            Err(error) => Err((DeliveryFailure::Broken, error.to_string())),
        };
        self.buffer = buffer;
        match result {
            Ok(()) => Ok(()),
            Err((failure, detail)) => self.fail(number, failure, &detail),
        }
    }

    fn decode(&mut self, number: usize, input: &[u8]) -> Result<(), String> {
        let now = self.now();
        let mut start = 0;
        loop {
            start += match self.wire.next_item(&input[start..])? {
                AuctionItem::Incomplete => break,
                AuctionItem::Control { size, answer } => {
                    let bidder = &mut self.bidders[number];
                    bidder.has_pong |= input[start..].starts_with(b"PONG");
                    bidder.output.bytes().extend_from_slice(answer);
                    size
                }
                AuctionItem::Close { size, price } => {
                    self.bidders[number].closing_price = Some(price);
                    size
                }
                AuctionItem::Bid { size, price, bidder } => {
                    self.receive_bid(number, price, bidder, now);
                    size
                }
            };
        }
        let unfinished = &mut self.bidders[number].unfinished;
        unfinished.clear();
        unfinished.extend_from_slice(&input[start..]);
        Ok(())
    }

    fn receive_bid(&mut self, number: usize, price: u64, bidder: u32, now: u64) {
        let ThrashRun { bidders, tally, .. } = self;
        if let Some(written_ns) = bidders[number].accept(price, bidder, tally) {
            tally.latency.saturating_record(now.saturating_sub(written_ns));
        }
        tally.last_ns = now;
        self.second(now).1 += 1;
        if self.is_bidding && bidder != self.bidders[number].number {
            self.send_bid(number, price + 1, now);
        }
    }

    fn report(&self, auction: String, cpu: CpuTimes) -> ThrashReport {
        ThrashReport::new(self.plan, auction, &self.counts, &self.tally, cpu)
    }
}
