//! The hub's part of a shard's turn: connections and syslog datagrams share the queue to the hub.

use std::time::Duration;

use stilling_engine::Token;
use stilling_hub::Now;

use crate::hub::{HubHandle, HubMail};
use crate::syslog::SyslogShard;

/// The next mail from the hub, with its connection.
pub(super) fn next_hub_mail(hub: &mut HubHandle, syslog: &mut SyslogShard) -> Option<(Token, HubMail)> {
    // Held datagrams get a part of new room first: connections could use all of it.
    syslog.publish_backlog_share(&mut hub.port);
    hub.next_mail()
}

/// Ends a turn of the shard. Returns for how long it may sleep.
pub(super) fn turn_hub(
    hub: &mut HubHandle,
    syslog: &mut SyslogShard,
    now: impl Fn() -> Now,
) -> Option<Duration> {
    syslog.turn(&mut hub.port);
    hub.turn(now)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use stilling_engine::driver::Datagram;
    use stilling_hub::{Durability, HashKey, Ingress, Loss, StreamConfig, UnixNanos};

    use super::*;
    use crate::hub::testing::{GREEDY, fill, hub_of_one_shard, hub_with};
    use crate::syslog::SyslogRules;

    fn stream(filter: &str, durability: Durability) -> StreamConfig {
        StreamConfig { subjects: vec![filter.to_owned()], durability, ..StreamConfig::default() }
    }

    fn syslog(streams: &[StreamConfig]) -> SyslogShard {
        let rules =
            SyslogRules::new(Vec::new(), "syslog.{app}".parse().expect("a template"), streams, HashKey(1, 2));
        SyslogShard::new(Arc::new(rules), 1024)
    }

    /// Row 0.14: held datagrams get their share of the room, however much the connections publish.
    #[test]
    fn datagrams_that_wait_come_before_connections_that_always_have_more() {
        let (port, mut runner, counters) = hub_of_one_shard();
        let mut hub = HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0);
        let mut syslog = syslog(&[]);
        fill(&mut hub.port);
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        for _ in 0..200 {
            let payload = [b'y'; 1000];
            let datagram = Datagram { from, local: None, payload: &payload, truncated: false };
            syslog.receive(&mut hub.port, &datagram, None, || UnixNanos::EPOCH);
        }
        assert!(!syslog.has_published_all(), "there was no room");
        let mut turns = 0;
        while !syslog.has_published_all() {
            turn_hub(&mut hub, &mut syslog, || Now::simulated(0));
            runner.turn(Now::simulated(0));
            while let Some((token, mail)) = next_hub_mail(&mut hub, &mut syslog) {
                assert_eq!((token.bits(), mail), (GREEDY, HubMail::Room));
                fill(&mut hub.port);
            }
            turns += 1;
            assert!(turns < 20, "they wait still");
        }
        assert!(counters.messages.get() > 200);
    }

    /// Datagrams to a full stream are held by their shard, which sleeps meanwhile; the hub has only the first.
    #[test]
    fn datagrams_to_a_full_stream_are_held_until_it_accepts_or_refuses_them() {
        let streams = vec![stream(">", Durability::Disk)];
        let (port, mut runner, counters) = hub_with(streams.clone());
        let mut hub = HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0);
        let mut syslog = syslog(&streams);
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut turn = |hub: &mut HubHandle, syslog: &mut SyslogShard, seconds: u64| {
            turn_hub(hub, syslog, || Now::simulated(0));
            runner.turn(Now::simulated(seconds * 1_000_000_000));
            assert_eq!(next_hub_mail(hub, syslog), None, "no connection is called");
        };
        for _ in 0..10 {
            let datagram = Datagram { from, local: None, payload: b"x", truncated: false };
            syslog.receive(&mut hub.port, &datagram, None, || UnixNanos::EPOCH);
            turn(&mut hub, &mut syslog, 0);
        }
        assert_eq!((counters.parked_requests.get(), hub.port.parked()), (1, 1));
        assert!(!syslog.has_published_all() && !hub.has_mail(), "they wait without a turn");
        for second in 1..30 {
            turn(&mut hub, &mut syslog, second);
        }
        assert!(syslog.has_published_all());
        assert_eq!((counters.losses(Ingress::Syslog, Loss::Hung), counters.parked.get()), (10, 0));
    }
    /// Design, section 5: datagrams to a full stream do not delay other datagrams, and do not use their room.
    #[test]
    fn datagrams_to_other_streams_continue_while_one_is_full() {
        let memory = StreamConfig { name: "memory".to_owned(), ..stream("syslog.quick", Durability::Memory) };
        let streams = vec![stream("syslog.full", Durability::Disk), memory];
        let (port, mut runner, counters) = hub_with(streams.clone());
        let mut hub = HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0);
        let mut syslog = syslog(&streams);
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut turn = |hub: &mut HubHandle, syslog: &mut SyslogShard, seconds: u64| {
            turn_hub(hub, syslog, || Now::simulated(0));
            runner.turn(Now::simulated(seconds * 1_000_000_000));
            assert_eq!(next_hub_mail(hub, syslog), None, "no connection is called");
        };
        let long = "x".repeat(1000);
        // More for the full stream than one source may hold.
        for number in 0..400 {
            for app in ["full", "quick", "unheard"] {
                let text = format!("<14>1 - host {app} - - - {number} {long}");
                let datagram = Datagram { from, local: None, payload: text.as_bytes(), truncated: false };
                syslog.receive(&mut hub.port, &datagram, None, || UnixNanos::EPOCH);
            }
            turn(&mut hub, &mut syslog, 0);
        }
        assert_eq!((counters.streams[1].last.get(), counters.undelivered.get()), (400, 400));
        assert_eq!((counters.parked.get(), counters.losses(Ingress::Syslog, Loss::Shed)), (1, 0));
        assert!(!syslog.has_published_all() && !hub.has_mail(), "they wait without a turn");
        for second in 1..30 {
            turn(&mut hub, &mut syslog, second);
        }
        assert!(syslog.has_published_all());
        let (hung, shed) =
            (counters.losses(Ingress::Syslog, Loss::Hung), counters.losses(Ingress::Syslog, Loss::Shed));
        assert!(shed > 0 && hung + shed == 400, "{hung} {shed}");
        assert_eq!(counters.parked.get(), 0);
    }
}
