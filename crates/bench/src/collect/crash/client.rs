//! A publisher that outlives runs of the server. Messages that are unacknowledged at a kill are sent again under their
//! message ids before new ones.

use std::collections::{BTreeSet, VecDeque};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::super::buffer::{self, ReceiveBuffer};
use super::super::client_codec::{ClientCodec, CodecEvent};
use super::super::codec;
use super::super::collect_run::CollectRun;

/// Timeout of one read, after which the client checks whether the server is killed.
const READ_SPAN: Duration = Duration::from_millis(20);

pub(super) struct CrashClient {
    pub(super) number: u16,
    codec: Box<dyn ClientCodec>,
    /// Messages ever sent; their counters are below this.
    pub(super) sent: u64,
    unanswered: BTreeSet<u64>,
    /// Sequence of each message by its counter; 0: not found yet.
    pub(super) positions: Vec<u64>,
    pub(super) newest: Option<u64>,
    /// Acknowledgements since the last comparison: counter and sequence.
    pub(super) acknowledged: Vec<(u64, u64)>,
    pub(super) refusals: Vec<String>,
}

/// End conditions of a load.
pub(super) struct LoadControl<'a> {
    pub(super) window: u32,
    pub(super) acknowledged_count: &'a AtomicU64,
    pub(super) is_killed: &'a AtomicBool,
    /// New messages that the client may send before it waits for the answers and closes. `None`: it continues until the
    /// server is killed.
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

    /// Publishes until the connection ends, then reads the remaining answers; or until the budget is sent and answered.
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
                // The kill ends accepted connections; the flag covers a connection that was never accepted.
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
                    CodecEvent::Failed { counter, failure, detail } => {
                        self.unanswered.remove(&counter.unwrap_or(u64::MAX));
                        self.refusals.push(format!("{}: {detail}", failure.name()));
                        in_flight = in_flight.saturating_sub(1);
                    }
                    CodecEvent::Unmatched { detail, .. } => self.refusals.push(detail),
                    CodecEvent::ProtocolError(detail) => return self.refusals.push(detail),
                    CodecEvent::Ping => self.codec.pong(&mut output),
                    CodecEvent::Pong | CodecEvent::Ignored => {}
                }
            }
        }
    }

    /// Counter of a new message, if the budget permits one.
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
