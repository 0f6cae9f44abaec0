//! The end of a shard: connections finish, then the streams and datagram sockets are left to a successor.

use std::time::Duration;

use stilling_engine::{CloseReason, Control};
use stilling_ring::Time;

use super::ShardService;
use crate::hub::HubHandle;
use crate::hub::limits::{DRAIN_QUIET, PART_LOOK};
use crate::hub::parting::QuietWait;
use crate::lifecycle::{Lifecycle, Phase, Stage};
use crate::syslog::SyslogShard;

/// How far the drain of a shard has come.
#[derive(Debug)]
pub(super) struct Drain {
    /// How long requests in flight may take.
    timeout: Duration,
    /// When the drain began and when it ends.
    began: Option<(Time, Time)>,
    /// What had not finished by then was cut off.
    cut_off: bool,
    /// Nothing publishes any more over connections of this shard.
    has_parted: bool,
    /// The datagram sockets are being closed.
    ends_datagrams: bool,
}

impl Drain {
    pub(super) fn new(timeout: Duration) -> Drain {
        Drain { timeout, began: None, cut_off: false, has_parted: false, ends_datagrams: false }
    }

    /// Follows the process through its life. `leftovers`: connections to worker processes over which nothing is waited for.
    /// `hub` is none when it has been left to a successor. Returns when to call again at the latest.
    pub(super) fn turn(
        &mut self,
        hub: &mut Option<Box<HubHandle>>,
        syslog: &mut SyslogShard,
        leftovers: u32,
        lifecycle: &Lifecycle,
        control: &mut Control<'_, ShardService>,
    ) -> Option<Time> {
        let phase = lifecycle.phase();
        if phase == Phase::Running {
            return None;
        }
        let Some((began, deadline)) = self.began else {
            self.began = Some((control.now, control.now.after(self.timeout)));
            if lifecycle.is_alone() {
                control.empty_and_close_listeners();
            } else {
                control.stop_accepting();
            }
            control.drain();
            // The listeners' last connections come in with the next turn.
            return Some(control.now);
        };
        let is_late = phase == Phase::Stopping || control.now >= deadline;
        let again = self.part_with_hub(began, hub, syslog, lifecycle, control, is_late);
        let hub_is_done = hub.as_ref().is_none_or(|hub| syslog.is_settled() && hub.is_done());
        if control.is_empty() && (hub_is_done || phase == Phase::Stopping) {
            control.stop();
            return None;
        }
        // Nothing waits for what is left over, so the end does not either.
        if leftovers > 0 && control.has_at_most(leftovers) {
            if !std::mem::replace(&mut self.cut_off, true) {
                control.abort_all(CloseReason::Drained);
            }
            return None;
        }
        if is_late {
            if !std::mem::replace(&mut self.cut_off, true) {
                control.abort_all(CloseReason::DrainTimeout);
            }
            return again;
        }
        again.into_iter().chain([deadline]).min()
    }

    /// Ends what publishes, and then the way to the hub, so that a successor has the streams and the datagram sockets long
    /// before the last answer has left. Returns when to look again. Without a successor only the datagram sockets end here, with
    /// the listeners: the next server binds them anew.
    fn part_with_hub(
        &mut self,
        began: Time,
        of_shard: &mut Option<Box<HubHandle>>,
        syslog: &mut SyslogShard,
        lifecycle: &Lifecycle,
        control: &mut Control<'_, ShardService>,
        is_late: bool,
    ) -> Option<Time> {
        let now = control.now;
        let is_handed_over = lifecycle.is_handed_over();
        let hub = of_shard.as_deref_mut()?;
        let quiet_check = QuietWait::begin(began).next_check(now, hub.published.max(began), false);
        let is_busy = is_handed_over && (hub.streaming > 0 || hub.publications > 0);
        if !is_late && is_busy {
            // Connections leave the hub in calls of their own, some of them behind this one in a turn.
            return Some(now.after(DRAIN_QUIET));
        }
        // A request may be on its way to a connection that was accepted just now.
        if !is_late && is_handed_over && !control.is_empty_but_for_datagrams() && quiet_check.is_some() {
            return quiet_check;
        }
        if is_handed_over {
            // Datagrams are read until all shards are so far: their sockets are read again when the streams are released.
            if !std::mem::replace(&mut self.has_parted, true) {
                lifecycle.shard_parted();
            }
            if !is_late && !lifecycle.all_have_parted() {
                return None;
            }
        }
        if !std::mem::replace(&mut self.ends_datagrams, true) {
            syslog.end_unix_sockets();
            control.close_datagram_sockets();
            return Some(now);
        }
        if control.has_datagram_sockets() {
            return None;
        }
        syslog.read_unix_sockets(&mut hub.port, || lifecycle.unix_nanos(now));
        if lifecycle.is_alone() && lifecycle.has_reached(Stage::Released) {
            syslog.read_udp_sockets(&mut hub.port, || lifecycle.unix_nanos(now));
        } else {
            syslog.leave_udp_sockets();
        }
        if !is_handed_over {
            return None;
        }
        let is_done = syslog.is_settled() && hub.has_handed_over();
        if !is_done && !is_late {
            return Some(now.after(PART_LOOK));
        }
        if let Some(hub) = of_shard.take() {
            hub.leave(lifecycle.both_clocks(now));
        }
        Some(now)
    }
}
