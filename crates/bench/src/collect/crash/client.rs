//! A publisher over all lives of the server. What was not acknowledged when the server died is sent again under its
//! message id, before anything new.

use std::collections::{BTreeSet, VecDeque};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::super::buffer::{self, ReceiveBuffer};
use super::super::client_codec::{ClientCodec, CodecEvent};
use super::super::codec;
use super::super::collect_run::CollectRun;

/// How long one read waits before the client checks whether the server is dead.
const READ_SPAN: Duration = Duration::from_millis(20);

pub(super) struct CrashClient {
    pub(super) number: u16,
    codec: Box<dyn ClientCodec>,
    /// Messages that were ever sent; their counters are below this.
    pub(super) sent: u64,
    /// Messages that were sent and not answered, by their counters.
    unanswered: BTreeSet<u64>,
    /// Where each message was found, by its counter; 0: not yet.
    pub(super) positions: Vec<u64>,
    /// The highest counter that was found.
    pub(super) newest: Option<u64>,
    /// Acknowledgements since the last comparison: counter and sequence.
    pub(super) acknowledged: Vec<(u64, u64)>,
    pub(super) refusals: Vec<String>,
}

/// What ends a load.
pub(super) struct LoadControl<'a> {
    pub(super) window: u32,
    /// Acknowledgements of all clients.
    pub(super) acknowledged_count: &'a AtomicU64,
    /// The server was killed.
    pub(super) is_killed: &'a AtomicBool,
    /// Messages that the client may begin; then it waits for their answers and closes. `None`: it goes on until the
    /// server is dead.
    pub(super) budget: Option<u64>,
}

impl CrashClient {
    pub(super) fn new(run: &CollectRun, number: u16) -> CrashClient {
        CrashClient {
            number,
            codec: codec::codec_for(run, number),
            sent: 0,
            unanswered: BTreeSet::new(),
            positions: Vec::new(),
            newest: None,
            acknowledged: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// Publishes until the connection ends, then reads what is left of the answers; or until the budget is used up and
    /// answered.
    pub(super) fn publish(&mut self, mut stream: TcpStream, load: &LoadControl<'_>) {
        let (mut input, mut output) = (ReceiveBuffer::default(), Vec::new());
        let mut again: VecDeque<u64> = self.unanswered.iter().copied().collect();
        let (mut in_flight, mut writes, mut left) = (0, true, load.budget);
        self.codec.begin(&mut output);
        let _ = stream.set_read_timeout(Some(READ_SPAN));
        loop {
            while writes && in_flight < load.window {
                let Some(counter) = again.pop_front().or_else(|| self.next(&mut left)) else { break };
                self.codec.publish(counter, &mut output);
                in_flight += 1;
            }
            if writes && !output.is_empty() {
                writes = stream.write_all(&output).is_ok();
                output.clear();
            }
            if in_flight == 0 && left == Some(0) {
                return;
            }
            match input.fill(&mut stream) {
                Ok(0) => return,
                Ok(_) => {}
                // A dead server's connection ends; the flag is for one that was never accepted.
                Err(error) if buffer::would_block(&error) && !load.is_killed.load(Ordering::Acquire) => {
                    continue;
                }
                Err(_) => return,
            }
            while let Some(event) = self.codec.next(&mut input) {
                match event {
                    CodecEvent::Ack(ack) => {
                        let counter = ack.counter.unwrap_or(0);
                        self.unanswered.remove(&counter);
                        self.acknowledged.push((counter, ack.position.1));
                        in_flight = in_flight.saturating_sub(1);
                        load.acknowledged_count.fetch_add(1, Ordering::AcqRel);
                    }
                    CodecEvent::Bad { counter, failure, detail } => {
                        self.unanswered.remove(&counter.unwrap_or(u64::MAX));
                        self.refusals.push(format!("{}: {detail}", failure.name()));
                        in_flight = in_flight.saturating_sub(1);
                    }
                    CodecEvent::Stray { detail, .. } => self.refusals.push(detail),
                    CodecEvent::Fault(detail) => return self.refusals.push(detail),
                    CodecEvent::Ping => self.codec.pong(&mut output),
                    CodecEvent::Pong | CodecEvent::Nothing => {}
                }
            }
        }
    }

    /// The counter of a new message, if there may be one.
    fn next(&mut self, left: &mut Option<u64>) -> Option<u64> {
        if let Some(left) = left {
            *left = left.checked_sub(1)?;
        }
        let counter = self.sent;
        self.sent += 1;
        self.positions.push(0);
        self.unanswered.insert(counter);
        Some(counter)
    }
}
