//! Syslog connections on a shard with a hub: framing, room and ends.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use stilling_engine::CloseReason;
use stilling_hub::{HashKey, HubCounters, Ingress, Loss};

use super::limits::IDLE_TIMEOUT;
use super::shard::SyslogShard;
use super::{SyslogRules, SyslogTransport};
use crate::hub::HubHandle;
use crate::hub::testing::{fill, hub_of_one_shard};
use crate::shard::testing::ShardFixture;
use crate::shard::{Endpoint, ShardHub};

struct SyslogFixture {
    shard: ShardFixture,
    hub_counters: Arc<HubCounters>,
}

impl SyslogFixture {
    fn new(sources: &str) -> SyslogFixture {
        SyslogFixture::with_full_port(sources, false)
    }

    /// `is_full`: the first turn begins without room in the queue to the hub.
    fn with_full_port(sources: &str, is_full: bool) -> SyslogFixture {
        let (mut port, runner, hub_counters) = hub_of_one_shard();
        if is_full {
            fill(&mut port);
        }
        let subject = "syslog.{app}".parse().expect("a template");
        let rules = SyslogRules::new(vec![sources.parse().expect("a range")], subject, &[], HashKey(1, 2));
        let hub = ShardHub {
            hub: HubHandle::new(port, Arc::default(), 1 << 20, Arc::default(), None, 0),
            nats: Default::default(),
            syslog: SyslogShard::new(Arc::new(rules), 1024),
        };
        let shard = ShardFixture::new(Endpoint::Syslog(SyslogTransport::Tcp), Some((hub, runner)));
        SyslogFixture { shard, hub_counters }
    }

    fn connect_and_send(&mut self, text: &str) -> TcpStream {
        let mut client = self.shard.connect();
        client.write_all(text.as_bytes()).expect("it is short");
        client
    }

    /// Turns the shard until the connection has ended for this reason. Returns the number of published messages.
    fn messages_at_end(&mut self, reason: CloseReason) -> u64 {
        self.shard.turn_until("it is closed", |shard| shard.engine_counters.closed(reason).get() == 1);
        // The hub has everything that was published before the end.
        for _ in 0..3 {
            self.shard.turn();
        }
        self.hub_counters.messages.get()
    }

    fn losses(&self, loss: Loss) -> u64 {
        self.hub_counters.losses(Ingress::Syslog, loss)
    }
}

/// The end of a connection ends a line, but no message with a length.
#[test]
fn an_unterminated_message_is_published_and_an_incomplete_one_counted() {
    for (text, messages, truncated) in
        [("<13>a: x\n<13>a: y", 2, 0), ("8 <13>a: x8 <13>a: y", 2, 0), ("8 <13>a: x8 <13>a", 2, 1)]
    {
        let mut fixture = SyslogFixture::new("127.0.0.0/8");
        let client = fixture.connect_and_send(text);
        client.shutdown(Shutdown::Write).expect("it is open");
        assert_eq!(fixture.messages_at_end(CloseReason::PeerClosed), messages, "{text}");
        assert_eq!(fixture.losses(Loss::Truncated), truncated, "{text}");
    }
}

/// Row 0.14: without room a connection is not read, and loses nothing.
#[test]
fn a_connection_without_room_is_read_later() {
    let mut fixture = SyslogFixture::with_full_port("127.0.0.0/8", true);
    let client = fixture.connect_and_send("<13>a: x\n<13>a: y\n");
    client.shutdown(Shutdown::Write).expect("it is open");
    let others = fixture.messages_at_end(CloseReason::PeerClosed) - 2;
    assert!(others > 0, "the queue was full");
    assert_eq!(fixture.losses(Loss::Shed) + fixture.losses(Loss::Truncated), 0);
}

#[test]
fn a_connection_from_an_unlisted_address_is_closed_and_counted() {
    let mut fixture = SyslogFixture::new("10.0.0.0/8");
    let _client = fixture.connect_and_send("<13>a: x\n");
    assert_eq!(fixture.messages_at_end(CloseReason::Forbidden), 0);
    assert_eq!(fixture.losses(Loss::Forbidden), 1);
}

#[test]
fn an_idle_connection_ends_and_its_incomplete_message_is_counted() {
    let text = "<13>a: x\n<13>a";
    let mut fixture = SyslogFixture::new("127.0.0.0/8");
    let _client = fixture.connect_and_send(text);
    fixture.shard.turn_until_received(text.len() as u64);
    fixture.shard.time.advance(IDLE_TIMEOUT * 2);
    assert_eq!(fixture.messages_at_end(CloseReason::IdleTimeout), 1);
    assert_eq!(fixture.losses(Loss::Truncated), 1);
}

/// A draining server reads what its peers have sent, until they are silent.
#[test]
fn a_drain_publishes_what_has_been_sent() {
    let text = "<13>a: x\n<13>a: y";
    let mut fixture = SyslogFixture::new("127.0.0.0/8");
    let _client = fixture.connect_and_send(text);
    fixture.shard.turn_until_received(text.len() as u64);
    fixture.shard.lifecycle.end();
    let open = |fixture: &SyslogFixture| fixture.shard.engine_counters.open.get();
    for _ in 0..1000 {
        fixture.shard.turn();
        fixture.shard.time.advance(std::time::Duration::from_millis(10));
        if open(&fixture) == 0 {
            break;
        }
    }
    assert_eq!(fixture.messages_at_end(CloseReason::Drained), 2);
    assert_eq!(fixture.losses(Loss::Truncated), 1, "the rest of the line is unknown");
}
