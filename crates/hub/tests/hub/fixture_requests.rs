//! Requests of the tests to the fixture, step by step.

use stilling_hub::{ClientId, HubRequest, Ingress, Publication, StreamConfig};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::fixture::{ABLE, ConnectionOutput, HubFixture, ShardRequest};

impl HubFixture {
    pub(crate) fn new() -> HubFixture {
        HubFixture::on(&SimulatedDisk::new(), 8, 1 << 20).0
    }

    /// As [`new`](Self::new), with changed streams.
    pub(crate) fn with(change: impl FnOnce(&mut Vec<StreamConfig>)) -> HubFixture {
        HubFixture::changed(&SimulatedDisk::new(), (8, 1 << 20), change).0
    }

    pub(crate) fn advance_time(&mut self, span_ns: u64) {
        self.now_ns += span_ns;
    }

    /// As [`ask`](Self::ask), requiring room for all requests.
    pub(crate) fn ask_all<'a>(&mut self, from: ClientId, requests: &[impl Into<ShardRequest<'a>> + Copy]) {
        assert_eq!(self.ask(from, ABLE, requests), requests.len());
    }

    /// Number of publications stored, sent or refused; parked ones do not count.
    pub(crate) fn processed(&self) -> usize {
        self.hub.counters().messages.get() as usize
    }

    pub(crate) fn parked(&self) -> usize {
        self.hub.counters().parked.get() as usize
    }

    /// Processes requests until their stream is full. Returns the number of publications processed before the
    /// connection is parked.
    pub(crate) fn send_until_parked<'a>(
        &mut self,
        from: ClientId,
        requests: &[impl Into<ShardRequest<'a>> + Copy],
    ) -> usize {
        let (processed, parked) = (self.processed(), self.parked());
        self.ask_all(from, requests);
        assert_eq!(self.parked(), parked + 1, "everything is processed");
        self.processed() - processed
    }

    pub(crate) fn subscribe(&mut self, from: ClientId, filter: &str, sid: &str) {
        self.ask_all(
            from,
            &[ShardRequest::Subscribe {
                filter: filter.as_bytes(),
                queue: b"",
                sid: sid.as_bytes(),
                format: None,
            }],
        );
    }

    pub(crate) fn outputs(&mut self, by: ClientId) -> Vec<ConnectionOutput> {
        self.poll_shards();
        let mut all = Vec::new();
        self.outputs.retain(|(client, outputs)| {
            if *client == by {
                all.push(outputs.clone());
            }
            *client != by
        });
        all
    }
}

pub(crate) fn publication<'a>(subject: &'a str, payload: &'a str) -> Publication<'a> {
    Publication {
        ingress: Ingress::Nats,
        subject: subject.as_bytes(),
        reply: b"",
        headers: b"",
        payload: payload.as_bytes().into(),
        ticket: None,
    }
}

pub(crate) fn publish<'a>(subject: &'a str, payload: &'a str) -> HubRequest<'a> {
    HubRequest::Publish(publication(subject, payload))
}

pub(crate) fn publish_for<'a>(subject: &'a str, payload: &'a str, reply: &'a str) -> HubRequest<'a> {
    HubRequest::Publish(Publication { reply: reply.as_bytes(), ..publication(subject, payload) })
}
