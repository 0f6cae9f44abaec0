//! What can go wrong, how often, and how often it did.
//!
//! Every kind of trouble has a rate: chances in a thousand, drawn where the trouble would strike. All zero is a kind
//! network. A world draws its rates from its seed, leaving about half of the kinds out altogether: bugs often need one
//! kind to be frequent and another to be absent.

use crate::SplitMix64;

/// One kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum NetworkFault {
    /// A receive gets only some of the bytes that are there. Drawn per receive.
    SplitReceive,
    /// A send takes only some of the bytes there is room for. Drawn per send.
    ShortSend,
    /// A send takes nothing although there is room. Drawn per send.
    BlockedSend,
    /// The network resets a connection for both ends, at a random moment. Drawn per connection.
    Reset,
    /// The dialling end's direction is ended at a random moment. Drawn per connection.
    HalfClose,
    /// A reset takes with it what had arrived but was not read. Drawn per reset.
    DiscardingReset,
    /// A datagram disappears. Drawn per datagram.
    DatagramLost,
    /// A datagram arrives twice. Drawn per datagram.
    DatagramTwice,
    /// A receive finds no buffer although some are free, and waits. Drawn per receive.
    NoBuffer,
    /// The completion queue overflows: the turn's news comes over several turns. Drawn per turn.
    Overflow,
    /// One piece of news is held back for a while. Drawn per event.
    Late,
    /// A completion for a closed source turns up after its slot may have been given away. Drawn per close.
    Stale,
    /// A connection comes while the process is out of descriptors (`EMFILE`). Drawn per accept.
    NoDescriptor,
    /// A connection is gone before it is accepted (`ECONNABORTED`). Drawn per accept.
    AbortedAccept,
    /// The shard is woken for nothing. Drawn per turn.
    SpuriousWake,
    /// The system cannot accept for a while (`ENOMEM`). Drawn per accept.
    AcceptFails,
    /// The driver cannot take a socket, which is lost. Drawn per attach of a stream.
    AttachFails,
    /// There is no socket to connect. Drawn per connect of a shard.
    ConnectFails,
}

/// How many kinds there are.
pub const FAULT_KINDS: usize = 18;

/// The highest rate that [`FaultRates::draw`] picks, in chances per thousand.
pub const DRAWN_RATE_MAX: u16 = 150;

impl NetworkFault {
    /// Every kind, in order.
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

/// How often each kind of trouble strikes: chances in a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    rates: [u16; FAULT_KINDS],
}

impl FaultRates {
    /// A kind network.
    pub const NONE: FaultRates = FaultRates { rates: [0; FAULT_KINDS] };

    /// Rates from a seed: each kind is absent or has a rate up to [`DRAWN_RATE_MAX`], half and half.
    #[must_use]
    pub fn draw(random: &mut SplitMix64) -> Self {
        let mut faults = FaultRates::NONE;
        for rate in &mut faults.rates {
            let (strikes, often) = (random.chance(500), random.between(1, u64::from(DRAWN_RATE_MAX)));
            *rate = if strikes { often as u16 } else { 0 };
        }
        faults
    }

    /// The same with one kind striking `rate` times in a thousand.
    #[must_use]
    pub const fn with(mut self, fault: NetworkFault, rate: u16) -> Self {
        self.rates[fault as usize] = rate;
        self
    }

    /// Chances in a thousand of one kind.
    #[must_use]
    pub const fn rate(&self, fault: NetworkFault) -> u16 {
        self.rates[fault as usize]
    }
}

/// How often each kind of trouble struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts([u64; FAULT_KINDS]);

impl FaultCounts {
    /// Times that `fault` struck.
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
    fn every_kind_has_a_place_of_its_own() {
        for (place, fault) in NetworkFault::ALL.into_iter().enumerate() {
            let faults = FaultRates::NONE.with(fault, 7);
            assert_eq!(fault as usize, place);
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
