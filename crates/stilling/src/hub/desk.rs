//! What the sessions of one shard share for their dealings with the hub.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, recv, recvfrom};
use stilling_engine::Token;
use stilling_engine::counters::Counter;
use stilling_engine::driver::Datagram;
use stilling_hub::{Now, UnixNanos};
use stilling_ring::Time;
use stilling_wire::nats::{Info, Limits};

use super::closing::Closers;
use super::lazy_journal::LazyJournal;
use super::limits::UDP_LEFT_MAX;
use super::port::{HubMail, Port};
use super::runner::Runner;
use crate::nats::Users;
use crate::syslog::{Rules, SETTLED_PER_TURN, SyslogDesk};

/// Bytes of a datagram that are read at the end; more than a message may have.
const DATAGRAM_SIZE_MAX: usize = 64 * 1024;

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
    pub(crate) runner: Option<Runner<LazyJournal>>,
    pub(crate) shard: usize,
    /// Connections that publish as long as they are open: NATS, syslog.
    pub(crate) streaming: u32,
    /// Publications by HTTP that wait for room or for their verdicts.
    pub(crate) publications: u32,
    /// When something of a publication by HTTP came last.
    pub(crate) published: Time,
    /// Further descriptors of the Unix datagram sockets, to read what is left in their queues at the end.
    pub(crate) unix_sockets: Vec<OwnedFd>,
    /// The same of the UDP sockets.
    pub(crate) udp_sockets: Vec<OwnedFd>,
    closers: Option<Closers>,
    /// What waits of syslog has had its part of this turn's room.
    has_settled: bool,
}

/// What one shard's sessions have seen.
#[derive(Debug, Default)]
pub struct DeskCounters {
    /// Clients that were disconnected as slow consumers.
    pub slow_consumers: Counter,
    /// Clients that were not let in.
    pub shut_out: Counter,
    /// Publications over NATS that were dropped because they had no valid subject or reply subject.
    pub publications_invalid: Counter,
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
        runner: Option<Runner<LazyJournal>>,
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
            streaming: 0,
            publications: 0,
            published: Time::ZERO,
            unix_sockets: Vec::new(),
            udp_sockets: Vec::new(),
            closers: None,
            has_settled: false,
        }
    }

    /// Has the hub come to its end on a thread of its own when this shard leaves it early.
    pub(crate) fn with_closers(self, closers: Closers) -> HubDesk {
        HubDesk { closers: Some(closers), ..self }
    }

    /// Nothing more can be sent to the Unix datagram sockets: senders get an error and can connect to the successor's.
    pub(crate) fn end_unix_sockets(&self) {
        for socket in &self.unix_sockets {
            // A socket takes that at any time.
            let _ = rustix::net::shutdown(socket, Shutdown::Read);
        }
    }

    /// Reads what is left in the queues of the Unix datagram sockets, which nothing else reads any more.
    pub(crate) fn read_unix_sockets(&mut self, now_ns: impl Fn() -> UnixNanos) {
        let mut bytes = [0; DATAGRAM_SIZE_MAX];
        let from = SocketAddr::from(([0, 0, 0, 0], 0));
        for socket in std::mem::take(&mut self.unix_sockets) {
            while let Ok((size, whole)) = recv(&socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                let datagram = Datagram { from, payload: &bytes[..size], truncated: whole > size };
                self.take_syslog_datagram(&datagram, None, &now_ns);
            }
        }
    }

    /// Reads what is left in the queues of the UDP sockets, which nothing else reads any more, and closes them. They take
    /// datagrams until then, so no more than [`UDP_LEFT_MAX`] are read.
    pub(crate) fn read_udp_sockets(&mut self, now_ns: impl Fn() -> UnixNanos) {
        let mut bytes = [0; DATAGRAM_SIZE_MAX];
        for socket in std::mem::take(&mut self.udp_sockets) {
            for _ in 0..UDP_LEFT_MAX {
                let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
                let Ok((size, whole, Some(from))) = recvfrom(&socket, &mut bytes, flags) else { break };
                let Ok(from) = SocketAddr::try_from(from) else { break };
                let datagram = Datagram { from, payload: &bytes[..size], truncated: whole > size };
                self.take_syslog_datagram(&datagram, Some(from.ip()), &now_ns);
            }
        }
    }

    /// Leaves the hub, which is to have nothing more from this shard. Where the shard runs it, it goes on on a thread of its
    /// own until the other shards have left and everything is written; then the streams are closed and released.
    pub(crate) fn leave(mut self: Box<Self>, now: Now) {
        let runner = self.runner.take();
        let closers = self.closers.take();
        drop(self);
        if let Some((runner, closers)) = runner.zip(closers) {
            closers.close(runner, now);
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

    /// Whether the hub has everything that this shard had for it.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.syslog.is_settled() && self.port.is_settled()
    }

    /// Whether the shard may end: it has nothing to tell the hub, and, if it runs the hub, nobody else has.
    pub(crate) fn is_done(&self) -> bool {
        self.has_handed_over() && self.runner.as_ref().is_none_or(|runner| runner.is_done_but_for(self.shard))
    }
}

#[cfg(test)]
mod tests {
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
