//! The drain of a shard: publishing ends, a successor gets the streams and datagram sockets, connections finish.

use std::time::Duration;

use stilling_engine::{CloseReason, ShardControl};
use stilling_ring::Time;

use super::ShardService;
use crate::hub::HubHandle;
use crate::hub::limits::{DRAIN_QUIET, DRAIN_READ_MAX, RELEASE_CHECK_INTERVAL};
use crate::hub::quiet_wait::QuietWait;
use crate::lifecycle::{HandoverStage, Lifecycle, LifecyclePhase};
use crate::syslog::SyslogShard;

/// Requests that a drain waits for, beside those of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnfinishedRequests {
    /// Connections to worker processes with abandoned requests.
    pub(super) abandoned: u32,
    /// CoAP requests without an answer.
    pub(super) coap_pending: usize,
    /// The shard receives datagrams, or was to do so.
    pub(super) has_datagram_sockets: bool,
}

#[derive(Debug)]
pub(super) struct ShardDrain {
    /// Time limit of the drain.
    timeout: Duration,
    /// When the drain began, and its deadline.
    started: Option<(Time, Time)>,
    /// The remaining connections were aborted.
    has_aborted: bool,
    /// The lifecycle was notified that this shard no longer publishes.
    has_released_hub: bool,
    stops_datagram_sockets: bool,
    closes_datagram_sockets: bool,
    /// The shard has stopped receiving datagrams.
    datagrams_stopped: bool,
}

impl ShardDrain {
    pub(super) fn new(timeout: Duration) -> ShardDrain {
        ShardDrain {
            timeout,
            started: None,
            has_aborted: false,
            has_released_hub: false,
            stops_datagram_sockets: false,
            closes_datagram_sockets: false,
            datagrams_stopped: false,
        }
    }

    /// Whether the shard has stopped receiving datagrams, so that a successor may receive from its sockets.
    pub(super) fn datagrams_stopped(&self) -> bool {
        self.datagrams_stopped
    }

    /// Whether the datagram sockets receive no more, or soon.
    pub(super) fn stops_datagrams(&self) -> bool {
        self.stops_datagram_sockets
    }

    /// Continues the drain according to the lifecycle. `hub` is `None` once a successor has taken over. Returns when to
    /// call again at the latest.
    pub(super) fn turn(
        &mut self,
        hub: &mut Option<Box<HubHandle>>,
        syslog: &mut SyslogShard,
        unfinished: UnfinishedRequests,
        lifecycle: &Lifecycle,
        control: &mut ShardControl<'_, ShardService>,
    ) -> Option<Time> {
        let phase = lifecycle.phase();
        if phase == LifecyclePhase::Running {
            return None;
        }
        let Some((started, deadline)) = self.started else {
            self.started = Some((control.now, control.now.after(self.timeout)));
            if lifecycle.has_exclusive_listeners() {
                control.accept_backlogs_and_close_listeners();
            } else {
                control.close_stream_listeners();
            }
            control.drain();
            // The next turn accepts the last connections of the listeners' queues.
            return Some(control.now);
        };
        let is_late = phase == LifecyclePhase::Stopping || control.now >= deadline;
        if hub.is_none() && !self.stops_datagram_sockets {
            if is_late || !has_waiting_datagrams(started, lifecycle, control) {
                self.stops_datagram_sockets = true;
                control.stop_datagram_sockets();
            }
            return Some(control.now);
        }
        let again = self.release_hub(started, hub, syslog, lifecycle, control, is_late);
        // A predecessor may still receive from sockets that this server has not used yet.
        let is_unreleased = lifecycle.is_handed_over()
            && unfinished.has_datagram_sockets
            && !lifecycle.has_reached(HandoverStage::Released)
            && !is_late;
        if is_unreleased {
            return again.into_iter().chain([deadline]).min();
        }
        self.close_datagram_sockets(unfinished.coap_pending > 0 && !is_late, control);
        let hub_is_done = hub.as_ref().is_none_or(|hub| syslog.has_published_all() && hub.is_done());
        if control.is_empty() && (hub_is_done || phase == LifecyclePhase::Stopping) {
            control.stop();
            return None;
        }
        // No client waits for abandoned requests, so the drain does not either.
        if unfinished.abandoned > 0 && control.has_at_most(unfinished.abandoned) {
            if !std::mem::replace(&mut self.has_aborted, true) {
                control.abort_all(CloseReason::Drained);
            }
            return None;
        }
        if is_late {
            if !std::mem::replace(&mut self.has_aborted, true) {
                control.abort_all(CloseReason::DrainTimeout);
            }
            return again;
        }
        again.into_iter().chain([deadline]).min()
    }

    /// Once the sockets have stopped receiving, closes them when no answer is to be sent any more.
    fn close_datagram_sockets(&mut self, has_answers: bool, control: &mut ShardControl<'_, ShardService>) {
        if !self.stops_datagram_sockets || control.receives_datagrams() {
            return;
        }
        self.datagrams_stopped = true;
        if !has_answers && !std::mem::replace(&mut self.closes_datagram_sockets, true) {
            control.close_datagram_sockets();
        }
    }

    /// Waits until publishing has ended, then stops the datagram sockets and disconnects from the hub, so that a
    /// successor gets both long before the last response is sent. Without a successor it only stops the datagram
    /// sockets. Returns when to check again.
    fn release_hub(
        &mut self,
        started: Time,
        of_shard: &mut Option<Box<HubHandle>>,
        syslog: &mut SyslogShard,
        lifecycle: &Lifecycle,
        control: &mut ShardControl<'_, ShardService>,
        is_late: bool,
    ) -> Option<Time> {
        let now = control.now;
        let is_handed_over = lifecycle.is_handed_over();
        let hub = of_shard.as_deref_mut()?;
        let quiet_check =
            QuietWait::begin(started).next_check(now, hub.last_publish_input.max(started), false);
        let is_busy = is_handed_over && (hub.publisher_connections > 0 || hub.pending_publications > 0);
        if !is_late && is_busy {
            // Connections stop publishing in calls of their own, some of them later in this turn.
            return Some(now.after(DRAIN_QUIET));
        }
        // A request may be on its way to a connection that was just accepted.
        if !is_late && is_handed_over && !control.is_empty_except_datagrams() && quiet_check.is_some() {
            return quiet_check;
        }
        if is_handed_over {
            // Datagram sockets are read until all shards have stopped publishing, and once more when the streams are
            // released.
            if !std::mem::replace(&mut self.has_released_hub, true) {
                lifecycle.shard_stopped_publishing();
            }
            if !is_late && !lifecycle.all_stopped_publishing() {
                return None;
            }
        }
        if !self.stops_datagram_sockets && !is_late && has_waiting_datagrams(started, lifecycle, control) {
            return Some(now);
        }
        if !std::mem::replace(&mut self.stops_datagram_sockets, true) {
            syslog.end_unix_sockets();
            control.stop_datagram_sockets();
            return Some(now);
        }
        if control.receives_datagrams() {
            return None;
        }
        syslog.read_unix_sockets(&mut hub.port, || lifecycle.unix_nanos(now));
        if lifecycle.has_exclusive_listeners() && lifecycle.has_reached(HandoverStage::Released) {
            syslog.read_udp_sockets(&mut hub.port, || lifecycle.unix_nanos(now));
        } else {
            syslog.close_udp_sockets();
        }
        if !is_handed_over {
            return None;
        }
        // They come until the datagram sockets stop.
        let is_answered = hub.pending_coap_publications == 0;
        let is_done = syslog.has_published_all() && hub.has_sent_all() && is_answered;
        if !is_done && !is_late {
            return Some(now.after(RELEASE_CHECK_INTERVAL));
        }
        if let Some(hub) = of_shard.take() {
            hub.disconnect(lifecycle.both_clocks(now));
        }
        Some(now)
    }
}

/// Whether datagrams that were sent before the drain may wait in the sockets: they are read until a turn receives none.
/// A successor reads them itself.
fn has_waiting_datagrams(
    started: Time,
    lifecycle: &Lifecycle,
    control: &ShardControl<'_, ShardService>,
) -> bool {
    !lifecycle.is_handed_over()
        && control.has_received_datagrams()
        && control.now.since(started) < DRAIN_READ_MAX
}
