//! One message of the client until its response: retransmission with exponential backoff (RFC 7252 §4.2).
//!
//! ```text
//!   Transmitting ── empty acknowledgement ──► Acknowledged
//!    │ 2–3 s, 4–6 s, 8–12 s, … between transmissions
//!    └─ MAX_RETRANSMIT retransmissions and their waits ──► expired
//! ```

use std::time::{Duration, Instant};

use stilling_wire::coap::{CoapMessage, MessageId, MessageType, Token};

use super::limits::{ACK_RANDOM_PERCENT, MAX_RETRANSMIT};
use crate::backoff::JitterRng;

#[derive(Debug)]
enum TransmissionState {
    /// A confirmable message without an answer.
    Transmitting { retransmissions: u32, wait: Duration, next: Instant },
    /// The server has received the message, or it is not confirmable: only the response is awaited.
    Acknowledged,
}

/// What a due timer requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerOutcome {
    Idle,
    Retransmit,
    Expired { transmissions: u32 },
}

#[derive(Debug)]
pub(crate) struct MessageExchange {
    id: MessageId,
    token: Token,
    is_confirmable: bool,
    datagram: Vec<u8>,
    state: TransmissionState,
}

impl MessageExchange {
    /// An exchange whose message is sent now. `ack_timeout` is the least first wait.
    pub(crate) fn new(
        datagram: Vec<u8>,
        (id, token): (MessageId, Token),
        is_confirmable: bool,
        ack_timeout: Duration,
        random: &mut JitterRng,
        now: Instant,
    ) -> MessageExchange {
        let state = if is_confirmable {
            // A jittered wait lies between its half and the whole of it.
            let spread = ack_timeout * (ACK_RANDOM_PERCENT - 100) / 100;
            let wait = ack_timeout + (random.jitter(spread * 2) - spread);
            TransmissionState::Transmitting { retransmissions: 0, wait, next: now + wait }
        } else {
            TransmissionState::Acknowledged
        };
        MessageExchange { id, token, is_confirmable, datagram, state }
    }

    pub(crate) fn datagram(&self) -> &[u8] {
        &self.datagram
    }

    /// Whether an acknowledgement or reset belongs to this message.
    pub(crate) fn has_id(&self, id: MessageId) -> bool {
        self.id == id
    }

    /// Whether a response belongs to this request: by its token, and in an acknowledgement also by its id
    /// (RFC 7252 §5.3.2).
    pub(crate) fn is_answered_by(&self, message: &CoapMessage<'_>) -> bool {
        self.token == message.token
            && (message.kind != MessageType::Acknowledgement
                || (self.is_confirmable && self.id == message.id))
    }

    /// Ends retransmission.
    pub(crate) fn acknowledge(&mut self) {
        self.state = TransmissionState::Acknowledged;
    }

    /// Whether the server has acknowledged the message without a response.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.is_confirmable && matches!(self.state, TransmissionState::Acknowledged)
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        match self.state {
            TransmissionState::Transmitting { next, .. } => Some(next),
            TransmissionState::Acknowledged => None,
        }
    }

    /// Advances the timer.
    pub(crate) fn handle_timer(&mut self, now: Instant) -> TimerOutcome {
        let TransmissionState::Transmitting { retransmissions, wait, next } = &mut self.state else {
            return TimerOutcome::Idle;
        };
        if now < *next {
            return TimerOutcome::Idle;
        }
        if *retransmissions == MAX_RETRANSMIT {
            return TimerOutcome::Expired { transmissions: MAX_RETRANSMIT + 1 };
        }
        *retransmissions += 1;
        *wait *= 2;
        *next = now + *wait;
        TimerOutcome::Retransmit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coap::limits::ACK_TIMEOUT;

    #[test]
    fn a_message_is_sent_five_times_with_doubling_waits() {
        for seed in 0..100 {
            let start = Instant::now();
            let mut random = JitterRng::new(seed);
            let mut exchange =
                MessageExchange::new(vec![1], (1, Token::EMPTY), true, ACK_TIMEOUT, &mut random, start);
            let (mut now, mut waits) = (start, Vec::new());
            loop {
                let next = exchange.next_timer().expect("it is not acknowledged");
                assert_eq!(exchange.handle_timer(next - Duration::from_nanos(1)), TimerOutcome::Idle);
                waits.push(next - now);
                now = next;
                if exchange.handle_timer(now) != TimerOutcome::Retransmit {
                    break;
                }
            }
            assert_eq!(waits.len(), 5);
            assert!((ACK_TIMEOUT..=ACK_TIMEOUT * 3 / 2).contains(&waits[0]), "{waits:?}");
            assert!(waits.windows(2).all(|pair| pair[1] == pair[0] * 2), "{waits:?}");
            // MAX_TRANSMIT_WAIT of RFC 7252 §4.8.2.
            assert!(now - start <= Duration::from_secs(93), "{waits:?}");
        }
    }

    #[test]
    fn an_acknowledged_message_is_not_sent_again() {
        let start = Instant::now();
        let mut random = JitterRng::new(1);
        let mut exchange =
            MessageExchange::new(vec![1], (1, Token::EMPTY), true, ACK_TIMEOUT, &mut random, start);
        exchange.acknowledge();
        assert_eq!(exchange.next_timer(), None);
        assert_eq!(exchange.handle_timer(start + ACK_TIMEOUT * 100), TimerOutcome::Idle);
    }
}
