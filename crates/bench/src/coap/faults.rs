//! Injected loss, duplication and reordering.

use stilling_ring::SplitMix64;

use super::datagrams::Outbox;
use super::plan::CoapFaults;

/// Parts of a percentage.
const SCALE: f64 = 100.0;

#[derive(Debug)]
pub(super) struct FaultInjector {
    faults: CoapFaults,
    random: SplitMix64,
    /// Datagrams dropped so far, in both directions.
    pub(super) lost: u64,
    /// Datagrams sent twice so far.
    pub(super) duplicated: u64,
    /// Datagrams sent after a later one so far.
    pub(super) reordered: u64,
    /// A datagram that waits for a later one, with the endpoint that sends it.
    held: Option<(u16, Vec<u8>)>,
}

impl FaultInjector {
    pub(super) fn new(faults: CoapFaults, seed: u64) -> FaultInjector {
        let random = SplitMix64::new(seed);
        FaultInjector { faults, random, lost: 0, duplicated: 0, reordered: 0, held: None }
    }

    fn happens(&mut self, percent: f64) -> bool {
        // 53 bits are the exact range of a double.
        percent > 0.0 && (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64 * SCALE < percent
    }

    /// Passes a datagram of an endpoint to its outbox.
    pub(super) fn send(&mut self, endpoint: u16, datagram: &[u8], outbox: &mut Outbox) {
        if self.faults.is_empty() {
            return outbox.push(datagram);
        }
        if self.happens(self.faults.loss) {
            self.lost += 1;
        } else if self.held.is_none() && self.happens(self.faults.reordering) {
            self.reordered += 1;
            self.held = Some((endpoint, datagram.to_vec()));
            return;
        } else {
            outbox.push(datagram);
            if self.happens(self.faults.duplication) {
                self.duplicated += 1;
                outbox.push(datagram);
            }
        }
        if let Some((_, held)) = self.held.take_if(|(of, _)| *of == endpoint) {
            outbox.push(&held);
        }
    }

    /// Whether a received datagram is dropped.
    pub(super) fn drops_received(&mut self) -> bool {
        let drops = self.happens(self.faults.loss);
        self.lost += u64::from(drops);
        drops
    }
}
