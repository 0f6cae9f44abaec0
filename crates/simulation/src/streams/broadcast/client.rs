//! A client: a publisher or a subscriber with its connection.

use std::time::Duration;

use stilling_ring::Time;

use super::publisher::BroadcastPublisher;
use super::subscriber::BroadcastSubscriber;
use super::world::BroadcastContext;
use crate::network::PeerKey;
use crate::streams::wire::{ClientWire, WireError};

/// Longest pause between two connections of a flapping subscriber, in microseconds.
const PAUSE_MAX: u64 = 200_000;

#[derive(Debug)]
pub(super) struct BroadcastClient {
    pub(super) role: BroadcastRole,
    wire: ClientWire,
    wake_at: Option<Time>,
    /// Server generation of the last connection.
    generation: u32,
    /// Run of the server to which it is connected.
    run: Option<u32>,
    is_done: bool,
}

#[derive(Debug)]
pub(super) enum BroadcastRole {
    Publisher(BroadcastPublisher),
    Subscriber(BroadcastSubscriber),
}

impl BroadcastClient {
    pub(super) fn new(role: BroadcastRole, start: Time) -> BroadcastClient {
        BroadcastClient {
            role,
            wire: ClientWire::default(),
            wake_at: Some(start),
            generation: 0,
            run: None,
            is_done: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    pub(super) fn key(&self) -> Option<PeerKey> {
        self.wire.key()
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wake_at.filter(|_| !self.is_done)
    }

    /// Wakes it at once.
    pub(super) fn wake(&mut self, now: Time) {
        self.wake_at = Some(now);
    }

    pub(super) fn finish(&mut self, context: &mut BroadcastContext<'_>) {
        self.disconnect(context);
        self.is_done = true;
    }

    /// Whether it is a subscriber that has received everything known.
    pub(super) fn is_up_to_date(&self, context: &BroadcastContext<'_>) -> bool {
        match &self.role {
            BroadcastRole::Publisher(_) => true,
            BroadcastRole::Subscriber(subscriber) => {
                self.run.is_some_and(|run| subscriber.is_up_to_date(run, context))
            }
        }
    }

    pub(super) fn step(&mut self, context: &mut BroadcastContext<'_>) -> Result<(), String> {
        if self.is_done {
            return Ok(());
        }
        let is_due = self.wake_at.is_some_and(|at| at <= context.now);
        if is_due {
            self.wake_at = None;
        }
        if !self.wire.is_open() {
            if !is_due {
                return Ok(());
            }
            self.dial(context);
        }
        if self.run.is_none() && self.wire.is_connected() {
            self.run = Some(context.run);
        }
        match self.exchange(context) {
            Ok(()) => Ok(()),
            Err(WireError::Wrong(why)) => Err(self.failure_message(&why)),
            Err(WireError::Ended(why)) => self.ended(&why, context),
        }
    }

    fn dial(&mut self, context: &mut BroadcastContext<'_>) {
        let is_on_nats = match &self.role {
            BroadcastRole::Publisher(publisher) => publisher.is_on_nats(),
            BroadcastRole::Subscriber(subscriber) => subscriber.is_on_nats(),
        };
        self.wire.dial(context.network, if is_on_nats { context.nats } else { context.http });
        (self.generation, self.run) = (context.generation, None);
        context.totals.connections += 1;
        match &mut self.role {
            BroadcastRole::Publisher(publisher) => publisher.dialled(&mut self.wire),
            BroadcastRole::Subscriber(subscriber) => subscriber.dialled(&mut self.wire, context),
        }
    }

    fn exchange(&mut self, context: &mut BroadcastContext<'_>) -> Result<(), WireError> {
        let budget = match &mut self.role {
            BroadcastRole::Publisher(_) => usize::MAX,
            BroadcastRole::Subscriber(subscriber) => subscriber.budget(context),
        };
        let before = self.wire.received().len();
        let has_ended = self.wire.fill_at_most(budget)?;
        let len = self.wire.received().len() - before;
        let (wire, run) = (&mut self.wire, self.run.unwrap_or(context.run));
        let next = match &mut self.role {
            BroadcastRole::Publisher(publisher) => {
                publisher.receive(wire, run, context)?;
                if has_ended {
                    return Err(WireError::Ended("the end came".to_owned()));
                }
                let (next, is_done) = publisher.send_more(wire, context)?;
                self.is_done = is_done;
                next
            }
            BroadcastRole::Subscriber(subscriber) => {
                subscriber.note_read(len, budget);
                subscriber.receive(wire, run, context)?;
                if has_ended {
                    return Err(WireError::Ended("the end came".to_owned()));
                }
                if subscriber.leaves(context) {
                    context.totals.departures += 1;
                    self.pause(PAUSE_MAX, context);
                    return Ok(());
                }
                subscriber.next_step(context.now)
            }
        };
        if self.is_done {
            self.disconnect(context);
            return Ok(());
        }
        if let Some(at) = next {
            self.wake_at = Some(self.wake_at.map_or(at, |other| other.min(at)));
        }
        self.wire.flush(context.random)
    }

    /// Handles the end of the connection: acceptable after a network fault, when a server starts or ends, and for a
    /// subscriber that does not keep up.
    fn ended(&mut self, why: &str, context: &mut BroadcastContext<'_>) -> Result<(), String> {
        let is_expected = self.wire.is_damaged()
            || context.generation != self.generation
            || !context.is_served
            || context.may_close_anyone;
        let is_allowed = match &self.role {
            BroadcastRole::Publisher(_) => why == "the server closes",
            BroadcastRole::Subscriber(subscriber) => subscriber.is_slow(),
        };
        if !is_expected && !is_allowed {
            return Err(self.failure_message(why));
        }
        context.totals.ends += 1;
        self.pause(if context.is_served { 50_000 } else { 300_000 }, context);
        Ok(())
    }

    /// Disconnects, and connects again within so many microseconds.
    fn pause(&mut self, most: u64, context: &mut BroadcastContext<'_>) {
        self.disconnect(context);
        self.wake_at = Some(context.now.after(Duration::from_micros(context.random.between(1, most))));
    }

    fn disconnect(&mut self, context: &mut BroadcastContext<'_>) {
        self.wire.hang_up();
        self.wake_at = None;
        let run = self.run.take();
        match (&mut self.role, run) {
            (BroadcastRole::Publisher(publisher), _) => publisher.lost(),
            (BroadcastRole::Subscriber(subscriber), Some(run)) => subscriber.left(run, context),
            (BroadcastRole::Subscriber(_), None) => {}
        }
    }

    pub(super) fn failure_message(&self, what: &str) -> String {
        format!("{:?}: {what}\n  {}", self.role, self.wire.describe())
    }
}
