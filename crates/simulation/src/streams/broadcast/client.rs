//! A client of the broadcast world: a publisher or a subscriber.

use stilling_ring::Time;

use super::publisher::BroadcastPublisher;
use super::subscriber::BroadcastSubscriber;
use super::world::BroadcastContext;
use crate::SplitMix64;
use crate::network::{Address, Network};
use crate::streams::stepped_client::{ClientContext, ClientRole, StepEnd, SteppedClient};
use crate::streams::wire::{ClientWire, WireError};

/// Longest pause between two connections of a flapping subscriber, in microseconds.
const FLAPPING_PAUSE_MAX: u64 = 200_000;

pub(super) type BroadcastClient = SteppedClient<BroadcastRole>;

#[derive(Debug)]
pub(super) struct BroadcastRole {
    pub(super) task: BroadcastTask,
    /// Run of the server to which it is connected.
    run: Option<u32>,
}

#[derive(Debug)]
pub(super) enum BroadcastTask {
    Publisher(BroadcastPublisher),
    Subscriber(BroadcastSubscriber),
}

impl BroadcastRole {
    pub(super) fn new(task: BroadcastTask) -> BroadcastRole {
        BroadcastRole { task, run: None }
    }

    pub(super) fn is_publisher(&self) -> bool {
        matches!(self.task, BroadcastTask::Publisher(_))
    }

    /// Most bytes that wait for a subscriber's connection.
    pub(super) fn pending_max(&self, context: &BroadcastContext<'_>) -> usize {
        match &self.task {
            BroadcastTask::Publisher(_) => 0,
            BroadcastTask::Subscriber(subscriber) => subscriber.pending_max(context),
        }
    }

    /// Whether it is a publisher, or a subscriber that has received everything known.
    pub(super) fn is_up_to_date(&self, context: &BroadcastContext<'_>) -> bool {
        match &self.task {
            BroadcastTask::Publisher(_) => true,
            BroadcastTask::Subscriber(subscriber) => {
                self.run.is_some_and(|run| subscriber.is_up_to_date(run, context))
            }
        }
    }
}

impl ClientContext for BroadcastContext<'_> {
    fn network(&self) -> &Network {
        self.network
    }

    fn now(&self) -> Time {
        self.now
    }

    fn random(&mut self) -> &mut SplitMix64 {
        self.random
    }

    fn server_generation(&self) -> u32 {
        self.generation
    }

    fn is_served(&self) -> bool {
        self.is_served
    }
}

impl ClientRole<BroadcastContext<'_>> for BroadcastRole {
    const UNSERVED_PAUSE_MAX: u64 = 300_000;

    fn address(&self, context: &BroadcastContext<'_>) -> Address {
        let is_on_nats = match &self.task {
            BroadcastTask::Publisher(publisher) => publisher.is_on_nats(),
            BroadcastTask::Subscriber(subscriber) => subscriber.is_on_nats(),
        };
        if is_on_nats { context.nats.clone() } else { context.http.clone() }
    }

    fn dialled(&mut self, wire: &mut ClientWire, context: &mut BroadcastContext<'_>) {
        self.run = None;
        context.totals.connections += 1;
        match &mut self.task {
            BroadcastTask::Publisher(publisher) => publisher.dialled(wire),
            BroadcastTask::Subscriber(subscriber) => subscriber.dialled(wire, context),
        }
    }

    fn exchange(
        &mut self,
        wire: &mut ClientWire,
        context: &mut BroadcastContext<'_>,
    ) -> Result<StepEnd, WireError> {
        if self.run.is_none() && wire.is_connected() {
            self.run = Some(context.run);
        }
        let run = self.run.unwrap_or(context.run);
        let budget = match &mut self.task {
            BroadcastTask::Publisher(_) => usize::MAX,
            BroadcastTask::Subscriber(subscriber) => subscriber.budget(context),
        };
        let before = wire.received().len();
        let has_ended = wire.fill_at_most(budget)?;
        let len = wire.received().len() - before;
        match &mut self.task {
            BroadcastTask::Publisher(publisher) => publisher.receive(wire, run, context)?,
            BroadcastTask::Subscriber(subscriber) => {
                subscriber.note_read(len, budget);
                subscriber.receive(wire, run, context)?;
            }
        }
        if has_ended {
            return Err(WireError::Ended("the end came".to_owned()));
        }
        match &mut self.task {
            BroadcastTask::Publisher(publisher) => publisher.send_more(wire, context),
            BroadcastTask::Subscriber(subscriber) if subscriber.leaves(context) => {
                context.totals.departures += 1;
                Ok(StepEnd::Leave(FLAPPING_PAUSE_MAX))
            }
            BroadcastTask::Subscriber(subscriber) => Ok(StepEnd::Continue(subscriber.next_step(context.now))),
        }
    }

    /// A server may also end a subscriber that does not keep up.
    fn may_end(&self, why: &str, context: &BroadcastContext<'_>) -> bool {
        context.may_close_anyone
            || match &self.task {
                BroadcastTask::Publisher(_) => why == "the server closes",
                BroadcastTask::Subscriber(subscriber) => {
                    subscriber.is_slow() || subscriber.has_copies() && context.has_slow_consumers
                }
            }
    }

    fn disconnected(&mut self, context: &mut BroadcastContext<'_>) {
        let run = self.run.take();
        match (&mut self.task, run) {
            (BroadcastTask::Publisher(publisher), _) => publisher.lost(),
            (BroadcastTask::Subscriber(subscriber), Some(run)) => subscriber.left(run, context),
            (BroadcastTask::Subscriber(_), None) => {}
        }
    }

    fn count_end(&mut self, context: &mut BroadcastContext<'_>) {
        context.totals.ends += 1;
    }
}
