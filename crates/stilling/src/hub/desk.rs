//! What the sessions of one shard share for their dealings with the hub.

use std::sync::Arc;
use std::time::Duration;

use stilling_engine::Token;
use stilling_engine::counters::Counter;
use stilling_hub::Now;
use stilling_wire::nats::{Info, Limits};

use super::opened::House;
use super::port::{HubMail, Port};
use super::runner::Runner;
use crate::nats::Users;
use crate::syslog::{Rules, SETTLED_PER_TURN, SyslogDesk};

/// One shard's desk: how its sessions come to the hub.
pub struct HubDesk {
    pub(crate) port: Port,
    pub(crate) users: Arc<Users>,
    /// What the NATS listeners say of themselves.
    pub(crate) info: Info<'static>,
    pub(crate) limits: Limits,
    pub(crate) syslog: SyslogDesk,
    /// Bytes for long messages whose ends have not come.
    pub(crate) assembled: usize,
    /// The connection whose long message goes on although there is no room for it.
    pub(crate) beyond: Option<Token>,
    /// Memory for short texts.
    pub(crate) scratch: Vec<u8>,
    pub(crate) counters: Arc<DeskCounters>,
    /// The hub itself, on the shard that runs it.
    pub(crate) runner: Option<Runner<House>>,
    pub(crate) shard: usize,
    /// What waits of syslog has had its part of this turn's room.
    has_settled: bool,
}

/// What one shard's sessions have seen.
#[derive(Debug, Default)]
pub struct DeskCounters {
    /// Subscribers that were cut off because they did not read.
    pub slow_consumers: Counter,
    /// Clients that were not let in.
    pub shut_out: Counter,
    /// Publications by HTTP that found no room on the way to the hub for too long.
    pub publications_shed: Counter,
    /// Publications by HTTP whose verdicts did not come in time.
    pub publications_unanswered: Counter,
}

impl HubDesk {
    pub(crate) fn new(
        port: Port,
        users: Arc<Users>,
        (info, counters): (Info<'static>, Arc<DeskCounters>),
        runner: Option<Runner<House>>,
        shard: usize,
    ) -> HubDesk {
        let payload_size_max = u32::try_from(info.max_payload).unwrap_or(u32::MAX);
        let limits = Limits { payload_size_max, ..Limits::default() };
        let syslog = SyslogDesk::new(Arc::default(), payload_size_max);
        HubDesk {
            port,
            users,
            info,
            limits,
            syslog,
            assembled: 0,
            beyond: None,
            scratch: Vec::new(),
            counters,
            runner,
            shard,
            has_settled: false,
        }
    }

    /// Has syslog dealt with by these rules.
    pub(crate) fn with_syslog(self, rules: &Arc<Rules>) -> HubDesk {
        HubDesk { syslog: SyslogDesk::new(Arc::clone(rules), self.limits.payload_size_max), ..self }
    }

    /// The next connection that hears something. What waits of syslog's datagrams gets its part of new room first: nobody
    /// else would leave it any.
    pub(crate) fn next_mail(&mut self) -> Option<(Token, HubMail)> {
        if !self.has_settled && self.port.is_waited_for() && !self.syslog.is_settled() {
            self.has_settled = self.syslog.settle(&mut self.port, SETTLED_PER_TURN);
        }
        self.port.next_mail()
    }

    /// Ends a turn of the shard. Returns for how long it may sleep.
    pub(crate) fn turn<T: Into<Now>>(&mut self, now: impl FnOnce() -> T) -> Option<Duration> {
        self.syslog.settle(&mut self.port, usize::MAX);
        self.has_settled = false;
        self.port.set_wanted(!self.syslog.is_settled());
        self.port.flush();
        let runner = self.runner.as_mut()?;
        runner.turn(now());
        runner.looks_again_in()
    }

    /// Whether there is something for a connection of the shard, or for the hub.
    pub(crate) fn has_mail(&self) -> bool {
        self.port.has_mail() || self.runner.as_ref().is_some_and(|runner| !runner.is_quiet())
    }

    /// Whether the shard may end: it has nothing to tell the hub, and, if it runs the hub, nobody else has.
    pub(crate) fn is_done(&self) -> bool {
        self.syslog.is_settled()
            && self.port.is_settled()
            && self.runner.as_ref().is_none_or(|runner| runner.is_done_but_for(self.shard))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use stilling_engine::driver::Datagram;
    use stilling_hub::{Door, HashKey, Hub, HubConfig, Publication, Request, Threads, Traits};
    use stilling_ring::Wake;

    use super::super::runner::connect;
    use super::*;

    const GREEDY: u64 = 7;

    /// A hub without streams, turned by hand, and its only shard's way to it.
    fn hub_of_one_shard() -> (Port, Runner<Threads>, Arc<stilling_hub::Counters>) {
        let wakes: Vec<_> = (0..2).map(|_| Arc::new(Wake::new(|| ()))).collect();
        let (mut ports, outlets, inlets) = connect(&wakes[..1], &wakes[1]);
        let config = HubConfig { streams: Vec::new(), ..HubConfig::default() };
        let hub = Hub::new(config, &[], (Threads::default(), outlets), 1, (HashKey(1, 2), 0));
        let counters = hub.counters();
        let runner = Runner::new(hub, inlets, None);
        (ports.pop().expect("one for each shard"), runner, counters)
    }

    /// Asks for as much as there is room for, as a connection does that has much to say.
    fn fill(port: &mut Port) {
        let publication = Publication {
            door: Door::Nats,
            subject: b"a",
            reply: b"",
            headers: b"",
            payload: &[b'x'; 10_000],
            ticket: None,
        };
        while port.has_room() {
            port.ask(Token::from_bits(GREEDY), Traits::default(), &Request::Publish(publication));
        }
        port.wait(Token::from_bits(GREEDY));
    }

    /// Row 0.14: datagrams that wait get their part of the room, however much connections have to say.
    #[test]
    fn datagrams_that_wait_come_before_those_who_always_have_more() {
        let (port, mut runner, counters) = hub_of_one_shard();
        let info = super::super::info(0, false, 1 << 20);
        let mut desk = HubDesk::new(port, Arc::default(), (info, Arc::default()), None, 0);
        fill(&mut desk.port);
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        for _ in 0..200 {
            let payload = [b'y'; 1000];
            let datagram = Datagram { from, payload: &payload, truncated: false };
            desk.take_syslog_datagram(&datagram, None, || 0);
        }
        assert!(!desk.syslog.is_settled(), "there was no room");
        let mut turns = 0;
        while !desk.syslog.is_settled() {
            desk.turn(|| 0);
            runner.turn(0);
            while let Some((token, mail)) = desk.next_mail() {
                assert_eq!((token.bits(), mail), (GREEDY, HubMail::Room));
                fill(&mut desk.port);
            }
            turns += 1;
            assert!(turns < 20, "they wait still");
        }
        assert!(counters.messages.get() > 200);
    }

    /// Invariant 4: neither who waits for room nor deliveries that never end keep from the hub what it has to be told.
    #[test]
    fn what_cannot_wait_goes_first_and_who_waits_has_a_turn_between_deliveries() {
        let (mut port, mut runner, counters) = hub_of_one_shard();
        let (member, token) = (Token::from_bits(1), Token::from_bits(GREEDY));
        let subscribe = Request::Subscribe { filter: b"a", queue: b"", sid: b"1" };
        port.ask(member, Traits::default(), &subscribe);
        for _ in 0..3 {
            fill(&mut port);
        }
        port.flush();
        runner.turn(0);
        assert_eq!(counters.subscriptions.get(), 1);
        // Everything that comes back is taken at once by those who wait.
        let mut order = String::new();
        while let Some((token, mail)) = port.next_mail() {
            match mail {
                HubMail::Delivery => assert_eq!(token, member),
                HubMail::Room => {
                    while port.has_room() {
                        port.ask(token, Traits::default(), &Request::Barrier);
                    }
                }
            }
            order.push(if mail == HubMail::Room { 'r' } else { 'd' });
        }
        assert!(order.contains("rd"), "deliveries come behind room: {order}");
        for _ in 0..3 {
            port.wait(token);
        }
        port.leave(member);
        port.flush();
        assert!(!port.has_room() && !port.errands_are_done(), "every intake is with the hub, and full");
        // One turn, and those who wait fill what came back before the turn of the shard is over.
        for _ in 0..4 {
            runner.turn(0);
            while let Some((token, mail)) = port.next_mail() {
                if mail == HubMail::Room {
                    fill(&mut port);
                    assert_eq!(token.bits(), GREEDY);
                }
            }
            port.flush();
        }
        assert!(port.errands_are_done());
        runner.turn(0);
        assert_eq!(counters.subscriptions.get(), 0, "it has left");
    }
}
