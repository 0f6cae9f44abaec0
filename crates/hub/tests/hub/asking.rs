//! What tests ask of the rig step by step.

use stilling_hub::{Client, Door, Publication, Request, StreamConfig};
use stilling_journal::disk::simulated::SimulatedDisk;

use crate::rig::{ABLE, Ask, Rig, Told};

impl Rig {
    /// One with room enough, on an empty disk.
    pub(crate) fn new() -> Rig {
        Rig::on(&SimulatedDisk::new(), 8, 1 << 20).0
    }

    /// The same with something changed in its streams.
    pub(crate) fn with(change: impl FnOnce(&mut Vec<StreamConfig>)) -> Rig {
        Rig::changed(&SimulatedDisk::new(), (8, 1 << 20), change).0
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, span_ns: u64) {
        self.now_ns += span_ns;
    }

    /// The same where there has to be room.
    pub(crate) fn ask_all<'a>(&mut self, from: Client, requests: &[impl Into<Ask<'a>> + Copy]) {
        assert_eq!(self.ask(from, ABLE, requests), requests.len());
    }

    /// Publications that are stored, sent or refused; those of parked connections are not.
    pub(crate) fn processed(&self) -> usize {
        self.hub.counters().messages.get() as usize
    }

    /// Connections that are parked.
    pub(crate) fn parked(&self) -> usize {
        self.hub.counters().parked.get() as usize
    }

    /// Has the hub take requests of which a stream has no room for all. Returns how many publications are processed before
    /// the connection is parked.
    pub(crate) fn ask_until_parked<'a>(
        &mut self,
        from: Client,
        requests: &[impl Into<Ask<'a>> + Copy],
    ) -> usize {
        let (processed, parked) = (self.processed(), self.parked());
        self.ask_all(from, requests);
        assert_eq!(self.parked(), parked + 1, "everything is processed");
        self.processed() - processed
    }

    pub(crate) fn subscribe(&mut self, from: Client, filter: &str, sid: &str) {
        self.ask_all(from, &[Ask::Subscribe { filter: filter.as_bytes(), queue: b"", sid: sid.as_bytes() }]);
    }

    /// What else a connection has been told.
    pub(crate) fn told(&mut self, by: Client) -> Vec<Told> {
        self.look();
        let mut all = Vec::new();
        self.told.retain(|(client, told)| {
            if *client == by {
                all.push(told.clone());
            }
            *client != by
        });
        all
    }
}

/// A publication without anything beside its payload.
pub(crate) fn publication<'a>(subject: &'a str, payload: &'a str) -> Publication<'a> {
    Publication {
        door: Door::Nats,
        subject: subject.as_bytes(),
        reply: b"",
        headers: b"",
        payload: payload.as_bytes().into(),
        ticket: None,
    }
}

pub(crate) fn publish<'a>(subject: &'a str, payload: &'a str) -> Request<'a> {
    Request::Publish(publication(subject, payload))
}

/// One that is to be answered.
pub(crate) fn publish_for<'a>(subject: &'a str, payload: &'a str, reply: &'a str) -> Request<'a> {
    Request::Publish(Publication { reply: reply.as_bytes(), ..publication(subject, payload) })
}
