//! What goes out: ready bytes and verdicts for each shard, in order, and what had no room.
//!
//! ```text
//!   message ─▶ recipients: s1 s2 s3 ▌ the shard of s4 has all its pieces
//!                                   └▶ unsent: [ message, s4 … s900000 ] [ record, its last 7 consumers ] [ mark ]
//!   verdicts, marks, PONG ─▶ the piece of their shard                              goes on when a piece comes back
//! ```
//!
//! One message may go to a million subscriptions, and one record to thousands of consumers with thousands of listeners each:
//! what that makes must not stand in memory at once. So it is handed out piece by piece, and the hub takes nothing more from
//! anybody meanwhile. What waits costs its message once and four bytes for each subscription.

use std::collections::VecDeque;

use stilling_journal::Record;
use stilling_wire::nats::Msg;

pub(crate) use self::unsent::{Unsent, Visible};
use crate::deliveries::{Body, Deliveries, Verdict};
use crate::intake::{Client, Traits};
use crate::payload::Payload;
use crate::pull::EndedPull;
use crate::router::Router;
use crate::subscriptions::Recipient;

mod unsent;

/// Carries deliveries to shards.
pub trait Outlets {
    /// Takes full deliveries for a shard and puts empty ones in their place. Returns whether there were empty ones.
    fn swap(&mut self, shard: usize, deliveries: &mut Deliveries) -> bool;
}

/// What is sent to subscriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) subject: &'a [u8],
    pub(crate) reply: &'a [u8],
    pub(crate) headers: &'a [u8],
    pub(crate) payload: Payload<'a>,
}

/// What goes out to one shard.
#[derive(Debug, Default)]
struct ShardOut {
    /// The piece that is being filled.
    piece: Deliveries,
    /// There was no room when something was put off for it in this turn.
    is_stalled: bool,
}

/// What goes out to all shards.
#[derive(Debug)]
pub(crate) struct FanOut<O> {
    outlets: O,
    shards: Vec<ShardOut>,
    /// What there was no room for in the middle of it, in order.
    unsent: VecDeque<Unsent>,
    /// Numbers messages, so that their bodies lie in each shard's piece once.
    messages: u64,
    delivered: u64,
    /// What takes a subject, who is sent a message, and whose subscriptions end with it; memory that is used again.
    found: Vec<u32>,
    to: Vec<u32>,
    ended: Vec<u32>,
}

impl<O: Outlets> FanOut<O> {
    pub(crate) fn new(outlets: O, shards: usize) -> FanOut<O> {
        FanOut {
            outlets,
            shards: (0..shards).map(|_| ShardOut::default()).collect(),
            unsent: VecDeque::new(),
            messages: 0,
            delivered: 0,
            found: Vec::new(),
            to: Vec::new(),
            ended: Vec::new(),
        }
    }

    pub(crate) fn outlets(&self) -> &O {
        &self.outlets
    }

    pub(crate) fn outlets_mut(&mut self) -> &mut O {
        &mut self.outlets
    }

    /// Messages sent to subscriptions.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self) {
        for shard in &mut self.shards {
            shard.is_stalled = false;
        }
    }

    /// Ends a turn: hands what there is to the shards.
    pub(crate) fn flush(&mut self) {
        for (shard, ShardOut { piece, .. }) in self.shards.iter_mut().enumerate() {
            if !piece.is_empty() {
                self.outlets.swap(shard, piece);
            }
        }
    }

    /// Whether there is something for a shard that could not be handed out.
    pub(crate) fn has_piece_for(&self, shard: usize) -> bool {
        !self.shards[shard].piece.is_empty()
    }

    /// Whether every shard can be handed more.
    pub(crate) fn has_room(&mut self) -> bool {
        (0..self.shards.len()).all(|shard| self.has_room_in(shard))
    }

    /// Whether one shard can be handed more.
    #[inline]
    pub(crate) fn has_room_in(&mut self, shard: usize) -> bool {
        let ShardOut { piece, is_stalled } = &mut self.shards[shard];
        let has_room = !piece.is_full() || self.outlets.swap(shard, piece);
        *is_stalled |= !has_room;
        has_room
    }

    /// Whether all shards that had no room in this turn have none still; none if all had room.
    pub(crate) fn is_stalled(&self) -> Option<bool> {
        let mut stalled = self.shards.iter().filter(|shard| shard.is_stalled).peekable();
        stalled.peek()?;
        Some(stalled.all(|shard| shard.piece.is_full()))
    }

    /// Appends bytes of the hub's own for a connection.
    pub(crate) fn bytes(&mut self, to: Client, write: impl FnOnce(&mut Vec<u8>)) {
        self.shards[to.shard as usize].piece.bytes(to.token, write);
    }

    /// Appends a verdict.
    pub(crate) fn verdict(&mut self, to: Client, ticket: u32, verdict: Verdict) {
        self.shards[to.shard as usize].piece.verdict(to.token, ticket, verdict);
    }

    /// Has a connection's input not read until it is [resumed](Self::resume).
    pub(crate) fn pause(&mut self, client: Client) {
        self.shards[client.shard as usize].piece.pause(client.token);
    }

    /// Has a connection's input read again.
    pub(crate) fn resume(&mut self, client: Client) {
        self.shards[client.shard as usize].piece.resume(client.token);
    }

    /// Has a connection closed behind what it was sent.
    pub(crate) fn close(&mut self, client: Client) {
        self.shards[client.shard as usize].piece.close(client.token);
    }

    /// Appends a mark, behind what waits.
    pub(crate) fn mark(&mut self, to: Client, mark: u64) {
        if self.has_begun() {
            self.unsent.push_back(Unsent::Mark { to, mark });
        } else {
            self.put_mark(to, mark);
        }
    }

    /// Appends a mark that has waited.
    pub(crate) fn put_mark(&mut self, to: Client, mark: u64) {
        self.shards[to.shard as usize].piece.mark(to.token, mark);
    }

    /// Sends a message to the subscriptions `found`, one of each queue; what there is no room for is sent as soon as there
    /// is. Returns to how many.
    pub(crate) fn send(
        &mut self,
        router: &mut Router,
        found: &[u32],
        from: Option<(Client, Traits)>,
        message: &Message<'_>,
    ) -> u32 {
        self.messages += 1;
        let number = self.messages;
        let mut to = std::mem::take(&mut self.to);
        to.clear();
        let silent = from.filter(|(_, traits)| traits.no_echo).map(|(client, _)| client);
        router.choose(found, silent, &mut to);
        let sent = if self.has_begun() { 0 } else { self.send_to_all(router, number, message, &to) };
        if sent < to.len() {
            self.unsent.push_back(Unsent::of_message(number, message, &to[sent..]));
        }
        let count = to.len() as u32;
        self.to = to;
        count
    }

    /// Sends a message of the hub's own to the subscriptions that take its subject; to none, if it has none.
    pub(crate) fn send_by_subject(&mut self, router: &mut Router, message: &Message<'_>) {
        if message.subject.is_empty() {
            return;
        }
        let mut found = std::mem::take(&mut self.found);
        router.find(message.subject, &mut found);
        self.send(router, &found, None, message);
        self.found = found;
    }

    /// Sends a message of the hub's own to the reply subject that a client has given.
    pub(crate) fn send_reply(&mut self, router: &mut Router, client: Client, message: &Message<'_>) {
        let mut found = std::mem::take(&mut self.found);
        router.find_reply(client, message.subject, &mut found);
        self.send(router, &found, None, message);
        self.found = found;
    }

    /// Sends a message to the subscriptions that take `subject`, which may differ from its own. Returns one of their clients;
    /// none if there are none.
    pub(crate) fn send_heard(
        &mut self,
        router: &mut Router,
        subject: &[u8],
        message: &Message<'_>,
    ) -> Option<Client> {
        let mut found = std::mem::take(&mut self.found);
        router.find(subject, &mut found);
        let heard = router.first_client(&found);
        if heard.is_some() {
            self.send(router, &found, None, message);
        }
        self.found = found;
        heard
    }

    /// Sends the message `number` to subscriptions that may be gone, as long as their shards have room. Returns to how many of
    /// them.
    pub(crate) fn send_to_all(
        &mut self,
        router: &mut Router,
        number: u64,
        message: &Message<'_>,
        to: &[u32],
    ) -> usize {
        let send_to = |&&id: &&u32| {
            let Some(subscription) = router.get_mut(id) else { return true };
            let has_room = self.send_to(subscription.recipient(), number, message);
            if has_room && subscription.count_delivery() {
                self.ended.push(id);
            }
            has_room
        };
        let sent = to.iter().take_while(send_to).count();
        self.ended.drain(..).for_each(|id| router.forget(id));
        sent
    }

    /// Sends the message `number` to a subscription. Returns whether there was room.
    #[inline]
    fn send_to(&mut self, to: Recipient<'_>, number: u64, message: &Message<'_>) -> bool {
        let Recipient { client, sid, takes_headers } = to;
        let shard = client.shard as usize;
        let ShardOut { piece, is_stalled } = &mut self.shards[shard];
        if piece.is_full() && !self.outlets.swap(shard, piece) {
            *is_stalled = true;
            return false;
        }
        let &Message { subject, reply, headers, payload } = message;
        let has_headers = takes_headers && !headers.is_empty();
        let headers = if has_headers { headers } else { b"" };
        let reply = (!reply.is_empty()).then_some(reply);
        let line = Msg { subject, sid, reply, headers, payload: payload.bytes() };
        if let Some(range) = payload.block() {
            let line = |out: &mut Vec<u8>| {
                line.encode_line(out);
                out.extend_from_slice(headers);
            };
            piece.shared_message(client.token, number, line, range);
        } else {
            piece.message(
                client.token,
                Body { message: number, has_headers },
                |out| line.encode_line(out),
                |out| {
                    out.extend_from_slice(headers);
                    out.extend_from_slice(payload.bytes());
                    out.extend_from_slice(b"\r\n");
                },
            );
        }
        self.delivered += 1;
        true
    }

    /// Whether something that was begun waits for room.
    pub(crate) fn has_begun(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Has a record wait for the rest of the consumers that want it.
    pub(crate) fn keep_record(&mut self, visible: Visible, record: &Record<'_, Payload<'_>>, to: &[u32]) {
        self.unsent.push_back(Unsent::of_record(visible, record, to));
    }

    /// Has statuses wait, behind what waits already.
    pub(crate) fn keep_statuses(&mut self, ended: VecDeque<EndedPull>) {
        self.unsent.push_back(Unsent::Statuses(ended));
    }

    /// Has something wait again, of which a part was sent.
    pub(crate) fn keep(&mut self, unsent: Unsent) {
        self.unsent.push_back(unsent);
    }

    /// Takes the first that waits, and the others behind it. What the first leaves behind when it is sent waits before the
    /// others, which are to be [put back](Self::put_back).
    pub(crate) fn take_unsent(&mut self) -> Option<(Unsent, VecDeque<Unsent>)> {
        let first = self.unsent.pop_front()?;
        Some((first, std::mem::take(&mut self.unsent)))
    }

    /// Has the others wait again. Returns whether the first was sent to its end.
    pub(crate) fn put_back(&mut self, mut others: VecDeque<Unsent>) -> bool {
        let is_sent = !self.has_begun();
        self.unsent.append(&mut others);
        is_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliveries::Delivery;
    use crate::key::HashKey;
    use crate::limits::DELIVERIES_SIZE;

    /// Shards that hold what they were handed.
    #[derive(Debug)]
    struct Shards {
        handed: Vec<Vec<Deliveries>>,
        room: usize,
    }

    impl Outlets for Shards {
        fn swap(&mut self, shard: usize, deliveries: &mut Deliveries) -> bool {
            if self.handed[shard].len() >= self.room {
                return false;
            }
            self.handed[shard].push(std::mem::take(deliveries));
            true
        }
    }

    const ALICE: Recipient<'static> =
        Recipient { client: Client { shard: 0, token: 1 }, sid: b"1", takes_headers: true };
    const BOB: Recipient<'static> =
        Recipient { client: Client { shard: 1, token: 2 }, sid: b"9", takes_headers: false };

    fn fan_out(room: usize) -> FanOut<Shards> {
        FanOut::new(Shards { handed: vec![Vec::new(), Vec::new()], room }, 2)
    }

    /// What a shard was handed, as text.
    fn text(fan_out: &mut FanOut<Shards>, shard: usize) -> String {
        let mut text = String::new();
        for mut piece in fan_out.outlets_mut().handed[shard].drain(..) {
            while piece.advance().is_some() {
                match piece.current().expect("there is one") {
                    Delivery::Bytes(first, second) => {
                        text.push_str(&String::from_utf8([first, second].concat()).expect("text"));
                    }
                    Delivery::Message(line, payload, end) => {
                        let parts = [line, payload.bytes(), end].concat();
                        text.push_str(&String::from_utf8(parts).expect("text"));
                    }
                    other => text.push_str(&format!("{other:?}")),
                }
            }
        }
        text
    }

    #[test]
    fn a_message_is_encoded_as_each_subscription_takes_it_and_verdicts_come_in_order() {
        let mut out = fan_out(1);
        let headers = b"NATS/1.0\r\nA: b\r\n\r\n";
        let message = Message { subject: b"a", reply: b"r", headers, payload: b"x".into() };
        assert!(out.send_to(ALICE, 1, &message) && out.send_to(BOB, 1, &message));
        out.verdict(BOB.client, 7, Verdict::Passed { subscriptions: 2 });
        out.bytes(BOB.client, |out| out.extend_from_slice(b"PONG"));
        out.close(BOB.client);
        assert!(out.has_piece_for(0) && out.has_piece_for(1));
        out.flush();
        assert!(!out.has_piece_for(0) && !out.has_piece_for(1));
        assert_eq!(text(&mut out, 0), "HMSG a 1 r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n");
        let verdict = "Verdict { ticket: 7, verdict: Passed { subscriptions: 2 } }";
        assert_eq!(text(&mut out, 1), format!("MSG a 9 r 1\r\nx\r\n{verdict}PONGClose"));
        assert_eq!(out.delivered(), 2);
    }

    #[test]
    fn a_shard_without_room_is_noted_until_the_turn_ends() {
        let mut out = fan_out(0);
        let payload = vec![b'x'; DELIVERIES_SIZE];
        let message = Message { subject: b"a", reply: b"", headers: b"", payload: payload[..].into() };
        assert!(out.has_room() && out.send_to(BOB, 1, &message), "one message may be too long");
        assert_eq!(out.is_stalled(), None);
        assert!(!out.send_to(BOB, 1, &message) && !out.has_room());
        assert!(out.has_room_in(0) && !out.has_room_in(1));
        assert_eq!((out.is_stalled(), out.delivered()), (Some(true), 1));
        assert!(out.send_to(ALICE, 1, &message), "the other shard has room");
        out.outlets_mut().room = 1;
        out.flush();
        assert_eq!(out.is_stalled(), Some(false), "it has room by now");
        out.begin_turn();
        assert_eq!(out.is_stalled(), None);
        assert!(out.has_room());
    }

    #[test]
    fn a_message_goes_to_all_that_take_it_as_far_as_there_is_room() {
        let mut router = Router::new(HashKey(1, 2), 100, std::iter::empty());
        for sid in ["1", "2", "3"] {
            let what = (&b"a"[..], &b""[..], sid.as_bytes());
            router.subscribe(BOB.client, Traits::default(), what).expect("there is room");
        }
        router.unsubscribe(BOB.client, b"1", Some(1));
        let mut out = fan_out(1);
        let payload = vec![b'x'; DELIVERIES_SIZE];
        let message = Message { subject: b"a", reply: b"", headers: b"", payload: payload[..].into() };
        let mut found = Vec::new();
        router.find(b"a", &mut found);
        assert_eq!(out.send(&mut router, &found, None, &message), 3);
        assert_eq!((out.delivered(), out.has_begun(), router.subscriptions()), (2, true, 2));
        let short = Message { payload: b"y".into(), ..message };
        let silent = Traits { no_echo: true, ..Traits::default() };
        assert_eq!(out.send(&mut router, &found, Some((ALICE.client, silent)), &short), 2);
        assert_eq!(out.send(&mut router, &found, Some((BOB.client, silent)), &short), 0);
        assert_eq!(out.delivered(), 2, "it waits behind the first");
        assert_eq!(out.send_heard(&mut router, b"nobody", &short), None);
        assert_eq!(out.send_heard(&mut router, b"a", &short), Some(BOB.client));
    }

    #[test]
    fn what_the_first_leaves_behind_waits_before_the_others() {
        let mut out = fan_out(1);
        let message = Message { subject: b"a", reply: b"r", headers: b"h", payload: b"x".into() };
        assert!(out.take_unsent().is_none());
        out.keep(Unsent::of_message(5, &message, &[1, 2, 3]));
        out.mark(ALICE.client, 9);
        assert!(out.has_begun() && !out.has_piece_for(0), "the mark waits, too");
        let (first, others) = out.take_unsent().expect("a message");
        let Unsent::Message { number, message: kept, mut to } = first else { panic!("a message is first") };
        assert_eq!((number, kept.message()), (5, message));
        to.drain(..2);
        out.keep(Unsent::Message { number, message: kept, to });
        assert!(!out.put_back(others), "it is not sent to its end");
        let (first, others) = out.take_unsent().expect("the rest of it");
        assert!(matches!(first, Unsent::Message { to, .. } if to == [3]));
        assert!(out.put_back(others));
        assert!(matches!(out.take_unsent(), Some((Unsent::Mark { mark: 9, .. }, _))));
        out.mark(ALICE.client, 10);
        assert!(!out.has_begun() && out.has_piece_for(0), "nothing waits any more");
    }
}
