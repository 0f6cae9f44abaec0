//! A request copied out of the receive buffer.

use std::net::IpAddr;

use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};

use super::counters::HttpCounters;
use super::request::Request;
use super::routes::Routes;
use crate::memory::MemoryReservation;

/// A request that waits for its body or for a worker.
#[derive(Debug)]
pub(super) struct BufferedRequest {
    head: Vec<u8>,
    body: Vec<u8>,
    peer: Option<IpAddr>,
    reservation: MemoryReservation,
}

impl BufferedRequest {
    /// Copies a head from the bytes that the decoder has just consumed. Returns `None` if all buffered requests
    /// together would hold more than `held_max` bytes.
    pub(super) fn new(
        head: &[u8],
        peer: Option<IpAddr>,
        counters: &HttpCounters,
        held_max: usize,
    ) -> Option<Box<Self>> {
        let mut reservation = counters.reserve_for_request();
        reservation
            .grow(head.len(), held_max)
            .then(|| Box::new(BufferedRequest { head: head.to_vec(), body: Vec::new(), peer, reservation }))
    }

    pub(super) fn push(&mut self, piece: &[u8], held_max: usize) -> bool {
        let has_room = self.reservation.grow(piece.len(), held_max);
        if has_room {
            self.body.extend_from_slice(piece);
        }
        has_room
    }

    pub(super) fn view<'a>(&'a self, limits: &HttpLimits, routes: &'a Routes) -> Request<'a> {
        let mut decoder = RequestDecoder::default();
        let mut rest = &self.head[..];
        loop {
            let step = decoder.decode(limits, rest).expect("the head was accepted before");
            rest = &rest[step.consumed..];
            if let RequestEvent::Head(head) = step.event {
                return Request::new(head, &self.body, routes.patterns(), self.peer);
            }
        }
    }
}
