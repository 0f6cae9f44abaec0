//! Fault kinds, their rates and their counts.
//!
//! Each kind has a rate in chances per thousand, drawn at each opportunity. A world draws its rates from its seed and
//! leaves out about half of the kinds, because bugs often need one frequent kind and the absence of another.

use crate::SplitMix64;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum NetworkFault {
    /// A receive returns only part of the available bytes. Drawn per receive.
    SplitReceive,
    /// A send accepts only part of the bytes that fit. Drawn per send.
    ShortSend,
    /// A send accepts nothing although there is room. Drawn per send.
    BlockedSend,
    /// The network resets a connection for both ends, at a random time. Drawn per connection.
    Reset,
    /// The dialling end's direction ends at a random time. Drawn per connection.
    HalfClose,
    /// A reset discards bytes that arrived but were not read. Drawn per reset.
    DiscardingReset,
    /// A datagram is lost. Drawn per datagram.
    DatagramLost,
    /// A datagram arrives twice. Drawn per datagram.
    DatagramTwice,
    /// A receive finds no buffer although some are free, and waits. Drawn per receive.
    NoBuffer,
    /// The completion queue overflows: a turn's events are spread over several turns. Drawn per turn.
    Overflow,
    /// An event is delayed. Drawn per event.
    Late,
    /// A completion for a closed source appears, possibly after its slot was reused. Drawn per close.
    Stale,
    /// A connection arrives while the process is out of descriptors (`EMFILE`). Drawn per accept.
    NoDescriptor,
    /// A connection is gone before it is accepted (`ECONNABORTED`). Drawn per accept.
    AbortedAccept,
    /// The shard is woken without an event. Drawn per turn.
    SpuriousWake,
    /// Accepting fails for a while (`ENOMEM`). Drawn per accept.
    AcceptFails,
    /// The driver fails to attach a socket, which is lost. Drawn per attach of a stream.
    AttachFails,
    /// No socket is available for connecting. Drawn per connect of a shard.
    ConnectFails,
}

/// Number of fault kinds.
pub const FAULT_KINDS: usize = 18;

/// Highest rate that [`FaultRates::draw`] picks, in chances per thousand.
pub const DRAWN_RATE_MAX: u16 = 150;

impl NetworkFault {
    /// All kinds in order.
    pub const ALL: [NetworkFault; FAULT_KINDS] = [
        NetworkFault::SplitReceive,
        NetworkFault::ShortSend,
        NetworkFault::BlockedSend,
        NetworkFault::Reset,
        NetworkFault::HalfClose,
        NetworkFault::DiscardingReset,
        NetworkFault::DatagramLost,
        NetworkFault::DatagramTwice,
        NetworkFault::NoBuffer,
        NetworkFault::Overflow,
        NetworkFault::Late,
        NetworkFault::Stale,
        NetworkFault::NoDescriptor,
        NetworkFault::AbortedAccept,
        NetworkFault::SpuriousWake,
        NetworkFault::AcceptFails,
        NetworkFault::AttachFails,
        NetworkFault::ConnectFails,
    ];
}

/// Rate of each kind of fault, in chances per thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    rates: [u16; FAULT_KINDS],
}

impl FaultRates {
    /// No faults.
    pub const NONE: FaultRates = FaultRates { rates: [0; FAULT_KINDS] };

    /// Draws rates: with even odds, each kind is absent or has a rate up to [`DRAWN_RATE_MAX`].
    #[must_use]
    pub fn draw(random: &mut SplitMix64) -> Self {
        let mut faults = FaultRates::NONE;
        for rate in &mut faults.rates {
            let (injects, often) = (random.chance(500), random.between(1, u64::from(DRAWN_RATE_MAX)));
            *rate = if injects { often as u16 } else { 0 };
        }
        faults
    }

    /// Returns the rates with `fault` set to `rate` per thousand.
    #[must_use]
    pub const fn with(mut self, fault: NetworkFault, rate: u16) -> Self {
        self.rates[fault as usize] = rate;
        self
    }

    /// Rate of one kind, in chances per thousand.
    #[must_use]
    pub const fn rate(&self, fault: NetworkFault) -> u16 {
        self.rates[fault as usize]
    }
}

/// Number of times each kind of fault struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FAULT_KINDS]);

impl FaultCounts {
    /// Number of times `fault` struck.
    #[must_use]
    pub const fn of(&self, fault: NetworkFault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &FaultCounts) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }

    pub(crate) fn count(&mut self, fault: NetworkFault) {
        self.0[fault as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_index() {
        for (number, fault) in NetworkFault::ALL.into_iter().enumerate() {
            let faults = FaultRates::NONE.with(fault, 7);
            assert_eq!(fault as usize, number);
            assert_eq!(NetworkFault::ALL.map(|kind| faults.rate(kind)).iter().sum::<u16>(), 7);
        }
    }

    #[test]
    fn drawn_rates_leave_kinds_out_and_respect_the_maximum() {
        let rates: Vec<u16> = (0..100)
            .flat_map(|seed| {
                let faults = FaultRates::draw(&mut SplitMix64::new(seed));
                NetworkFault::ALL.map(|fault| faults.rate(fault))
            })
            .collect();
        let absent = rates.iter().filter(|&&rate| rate == 0).count();
        assert!((720..1080).contains(&absent), "{absent} of 1800 absent");
        assert!(rates.iter().all(|&rate| rate <= DRAWN_RATE_MAX));
    }
}
