//! What all clients of the worlds of streams have in common: they connect, exchange something in each step, wait, and
//! connect again after the end of a connection.

use std::fmt;
use std::time::Duration;

use stilling_ring::Time;

use super::wire::{ClientWire, WireError};
use crate::SplitMix64;
use crate::network::{Address, Network, PeerKey};

/// Longest pause before a client connects again to a server that serves, in microseconds.
const RECONNECT_PAUSE_MAX: u64 = 50_000;

/// The world as seen by one client during a step.
pub(super) trait ClientContext {
    fn network(&self) -> &Network;
    fn now(&self) -> Time;
    fn random(&mut self) -> &mut SplitMix64;
    /// Increases when a server starts and when it is requested to end.
    fn server_generation(&self) -> u32;
    /// A server accepts and has not been requested to end.
    fn is_served(&self) -> bool;
}

/// What a client does with its connection.
pub(super) trait ClientRole<C>: fmt::Debug {
    /// Longest pause before it connects again while no server serves, in microseconds.
    const UNSERVED_PAUSE_MAX: u64;

    /// The address that it connects to.
    fn address(&self, context: &C) -> Address;

    /// Begins on a new connection, which may not be established yet.
    fn dialled(&mut self, wire: &mut ClientWire, context: &mut C);

    /// Receives what has arrived and sends what may be sent.
    fn exchange(&mut self, wire: &mut ClientWire, context: &mut C) -> Result<StepEnd, WireError>;

    /// Whether the connection may end so, apart from network faults and a server that starts or ends.
    fn may_end(&self, why: &str, context: &C) -> bool;

    /// Handles the end of its connection.
    fn disconnected(&mut self, context: &mut C);

    /// Counts a connection that ended without its doing.
    fn count_end(&mut self, _: &mut C) {}
}

/// What a client does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepEnd {
    /// Stays connected, and continues at this time at the latest.
    Continue(Option<Time>),
    /// Leaves, and connects again within so many microseconds.
    Leave(u64),
    Done,
}

/// A client with its connection.
#[derive(Debug)]
pub(super) struct SteppedClient<R> {
    pub(super) role: R,
    wire: ClientWire,
    wake_at: Option<Time>,
    /// Server generation of the last connection.
    server_generation: u32,
    is_done: bool,
}

impl<R> SteppedClient<R> {
    pub(super) fn new(role: R, start: Time) -> SteppedClient<R> {
        SteppedClient {
            role,
            wire: ClientWire::default(),
            wake_at: Some(start),
            server_generation: 0,
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

    /// Ends it with its connection.
    pub(super) fn finish<C>(&mut self, context: &mut C)
    where
        R: ClientRole<C>,
    {
        self.disconnect(context);
        self.is_done = true;
    }

    /// Ends it with its connection; its role is not concerned.
    pub(super) fn stop(&mut self) {
        (self.is_done, self.wake_at) = (true, None);
        self.wire.hang_up();
    }

    pub(super) fn step<C: ClientContext>(&mut self, context: &mut C) -> Result<(), String>
    where
        R: ClientRole<C>,
    {
        if self.is_done {
            return Ok(());
        }
        let is_due = self.wake_at.is_some_and(|at| at <= context.now());
        if is_due {
            self.wake_at = None;
        }
        if !self.wire.is_open() {
            if !is_due {
                return Ok(());
            }
            self.dial(context);
        }
        match self.exchange(context) {
            Ok(()) => Ok(()),
            Err(WireError::Wrong(why)) => Err(self.failure_message(&why)),
            Err(WireError::Ended(why)) => self.ended(&why, context),
        }
    }

    fn dial<C: ClientContext>(&mut self, context: &mut C)
    where
        R: ClientRole<C>,
    {
        let to = self.role.address(context);
        self.wire.dial(context.network(), &to);
        self.server_generation = context.server_generation();
        self.role.dialled(&mut self.wire, context);
    }

    fn exchange<C: ClientContext>(&mut self, context: &mut C) -> Result<(), WireError>
    where
        R: ClientRole<C>,
    {
        match self.role.exchange(&mut self.wire, context)? {
            StepEnd::Continue(next) => {
                self.wake_at = self.wake_at.into_iter().chain(next).min();
                return self.wire.flush(context.random());
            }
            StepEnd::Leave(pause_max) => self.pause(pause_max, context),
            StepEnd::Done => self.finish(context),
        }
        Ok(())
    }

    /// Handles the end of the connection: acceptable after a network fault, when a server starts or ends, and where the
    /// role allows it.
    fn ended<C: ClientContext>(&mut self, why: &str, context: &mut C) -> Result<(), String>
    where
        R: ClientRole<C>,
    {
        let is_expected = self.wire.is_damaged()
            || context.server_generation() != self.server_generation
            || !context.is_served();
        if !is_expected && !self.role.may_end(why, context) {
            return Err(self.failure_message(why));
        }
        self.role.count_end(context);
        let pause_max = if context.is_served() { RECONNECT_PAUSE_MAX } else { R::UNSERVED_PAUSE_MAX };
        self.pause(pause_max, context);
        Ok(())
    }

    /// Disconnects, and connects again within so many microseconds.
    fn pause<C: ClientContext>(&mut self, most: u64, context: &mut C)
    where
        R: ClientRole<C>,
    {
        self.disconnect(context);
        let span = Duration::from_micros(context.random().between(1, most));
        self.wake_at = Some(context.now().after(span));
    }

    fn disconnect<C>(&mut self, context: &mut C)
    where
        R: ClientRole<C>,
    {
        self.wire.hang_up();
        self.wake_at = None;
        self.role.disconnected(context);
    }
}

impl<R: fmt::Debug> SteppedClient<R> {
    pub(super) fn failure_message(&self, what: &str) -> String {
        format!("{:?}: {what}\n  {}", self.role, self.wire.describe())
    }
}
