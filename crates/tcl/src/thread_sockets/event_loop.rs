//! The sockets of a thread as a source of events of its event loop.

use std::rc::Rc;
use std::time::Duration;

use stilling_engine::driver::Wait;

use super::entries::{ChannelEvent, SocketChannel};
use super::{CURRENT, ThreadSockets};
use crate::poll_policy::{BUSY_POLL, SOCKET_WAIT};
use crate::slab::SlabKey;
use crate::special_pool::SPECIAL_POOL;
use crate::stages::{self, Stage};
use crate::tcl::{self, EventFlags, EventSource};
use crate::waiter::WaitRegistration;

/// Interval between turns when the waiter cannot be used.
const FALLBACK_INTERVAL: Duration = Duration::from_millis(5);

impl ThreadSockets {
    /// Requests what scripts wait for, and queues events.
    fn collect_events(&self) {
        self.arm_changed();
        self.turn_until_event();
        if self.leave_crowded_shard() {
            // The new shard must begin to accept before the thread waits.
            self.turn_until_event();
        }
    }

    /// Waits a short time for events of sockets alone.
    fn wait_for_sockets(&self) {
        if self.poll_policy.may_busy_poll() {
            let until = self.clock.now().after(BUSY_POLL);
            while self.queued.get() == 0 && self.clock.now() < until {
                self.turn();
            }
            let has_event = self.queued.get() > 0;
            self.poll_policy.busy_poll_ended(has_event);
            if has_event {
                return;
            }
        }
        let _stage = stages::enter(Stage::Wait);
        if let [entry] = &mut self.shards.borrow_mut()[..] {
            // As in `turn`: sockets report a failure when they are used.
            let _ = entry.shard.turn_within(SOCKET_WAIT);
        }
        self.dispatch_events(0);
        if self.queued.get() == 0 {
            self.poll_policy.wait_timed_out();
            // Requests of its events, such as the next attempt of a connect.
            self.turn_until_event();
        }
    }

    /// Requests the events that scripts wait for.
    fn arm_changed(&self) {
        let changed = self.changed.take();
        for &key in &changed {
            match self.channel(key) {
                Some(SocketChannel::Stream(stream)) => {
                    if let Some((socket, directions)) = stream.next_interest() {
                        self.with_shard(socket, |shard| shard.await_ready(socket.token(), directions));
                    }
                }
                Some(SocketChannel::Datagram(channel)) => {
                    if let Some((socket, directions)) = channel.next_interest() {
                        self.with_shard(socket, |shard| shard.await_ready(socket.token(), directions));
                    }
                }
                Some(SocketChannel::Listener(listener)) => listener.queue_event(),
                Some(SocketChannel::Lookup(_)) | None => {}
            }
        }
        let mut emptied = changed;
        emptied.clear();
        emptied.append(&mut self.changed.borrow_mut());
        self.changed.replace(emptied);
    }
}

impl EventSource for ThreadSockets {
    fn prepare(&self, permitted: EventFlags) {
        if !permitted.permit_channels() {
            return;
        }
        let now = self.clock.now();
        self.poll_policy.begin_cycle(now);
        let mut earliest = self.delayed.resume(now, &mut self.changed.borrow_mut());
        self.collect_events();
        if self.queued.get() == 0 && permitted.permit_wait() && self.poll_policy.may_wait_for_sockets() {
            self.wait_for_sockets();
        }
        let return_in = SPECIAL_POOL.return_memory(&self.clock);
        stages::begin_wait();
        if self.queued.get() > 0 {
            return self.poll_policy.end_wait(self.clock.now());
        }
        earliest = earliest.into_iter().chain(return_in).min();
        let mut shards = self.shards.borrow_mut();
        for entry in shards.iter_mut() {
            let span = match entry.shard.prepare_to_wait() {
                Wait::No => Some(Duration::ZERO),
                Wait::Until(at) => Some(at.since(self.clock.now())),
                Wait::Forever => None,
            };
            earliest = earliest.into_iter().chain(span).min();
            let armed = entry.wait.as_ref().map(WaitRegistration::arm);
            if !matches!(armed, Some(Ok(()))) {
                // Without the waiter the thread asks for events itself, every few milliseconds.
                earliest = Some(earliest.unwrap_or(FALLBACK_INTERVAL).min(FALLBACK_INTERVAL));
            }
        }
        if let Some(span) = earliest {
            tcl::limit_wait(span);
        }
    }

    fn check(&self, permitted: EventFlags) {
        if permitted.permit_channels() {
            stages::end_wait();
            self.poll_policy.wait_ended();
            if self.queued.get() > 0 {
                return;
            }
            let is_woken = {
                let shards = self.shards.borrow();
                shards.iter().any(|entry| entry.wait.as_ref().is_none_or(|wait| !wait.is_armed()))
            };
            if is_woken {
                self.turn();
            }
        }
    }

    fn handle(&self, target: u64, permitted: EventFlags) -> bool {
        if !permitted.permit_channels() {
            return false;
        }
        let key = SlabKey::from_bits(target);
        self.queued.set(self.queued.get().saturating_sub(1));
        self.poll_policy.socket_event();
        let Some(channel) = self.channel(key) else { return true };
        let event = channel.next_event();
        // A script may pass the channel to another thread, so no reference may stay here.
        drop(channel);
        let stage = event.as_ref().map(|_| stages::enter(Stage::Script));
        // Between two connections of a listener other sources have their turn.
        let is_accept = matches!(event, Some(ChannelEvent::Accepted(_)));
        match event {
            Some(ChannelEvent::Ready(channel, ready)) => channel.notify(ready),
            Some(ChannelEvent::Accepted(accepted)) => accepted.run_script(),
            Some(ChannelEvent::LookedUp(lookup)) => {
                self.remove(key);
                lookup.run_script();
            }
            None => {}
        }
        if let Some(channel) = self.channel(key) {
            channel.interest_changed();
        }
        drop(stage);
        if !is_accept
            && self.queued.get() == 0
            && !self.is_ending()
            && self.poll_policy.may_stay_in_cycle(self.clock.now())
        {
            self.collect_events();
        }
        true
    }

    fn current() -> Option<Rc<Self>> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }
}
