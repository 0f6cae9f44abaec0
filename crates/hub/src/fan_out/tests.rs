//! What each shard is handed, and what waits for it.

use super::*;
use crate::deliveries::Delivery;
use crate::key::HashKey;
use crate::limits::DELIVERIES_SIZE;
use crate::subscriptions::Recipient;

/// Shards that hold what they were handed.
#[derive(Debug)]
struct Shards {
    handed: Vec<Vec<Deliveries>>,
    room: usize,
    gone: Option<usize>,
}

impl Outlets for Shards {
    fn swap(&mut self, shard: usize, deliveries: &mut Deliveries) -> bool {
        if self.handed[shard].len() >= self.room {
            return false;
        }
        self.handed[shard].push(std::mem::take(deliveries));
        true
    }

    fn is_gone(&self, shard: usize) -> bool {
        self.gone == Some(shard)
    }
}

const ALICE: Client = Client { shard: 0, token: 1 };
const BOB: Client = Client { shard: 1, token: 2 };
const HEADERS: Traits = Traits { headers: true, no_responders: false, no_echo: false };

/// Bytes that may wait for a shard.
const QUEUE_SIZE: usize = 2 * DELIVERIES_SIZE;

/// Two shards with so many pieces each, and subscriptions to `a`: one of ALICE, the others of BOB.
fn fan_out(room: usize, bobs: &[&str]) -> (FanOut<Shards>, Router) {
    let mut router = Router::new(HashKey(1, 2), 100, std::iter::empty());
    router.subscribe(ALICE, HEADERS, (b"a", b"", b"1")).expect("there is room");
    for sid in bobs {
        router.subscribe(BOB, Traits::default(), (b"a", b"", sid.as_bytes())).expect("there is room");
    }
    (FanOut::new(Shards { handed: vec![Vec::new(), Vec::new()], room, gone: None }, 2, QUEUE_SIZE), router)
}

/// Sends to all that listen to `a`.
fn send(out: &mut FanOut<Shards>, router: &mut Router, payload: &[u8]) -> u32 {
    let mut found = Vec::new();
    router.find(b"a", &mut found);
    let message = Message { subject: b"a", reply: b"", headers: b"", payload: payload.into() };
    out.send(router, &found, None, &message)
}

/// What a shard was handed, as text; a long payload by its first letter.
fn text(out: &mut FanOut<Shards>, shard: usize) -> String {
    let mut text = String::new();
    for mut piece in out.outlets_mut().handed[shard].drain(..) {
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

/// The sids and the first letters of the payloads of messages, and whatever else is there.
fn outline(text: &str) -> Vec<String> {
    let lines = text.split("\r\n").filter(|line| !line.is_empty());
    lines
        .map(|line| match line.strip_prefix("MSG a ") {
            Some(line) => line.split(' ').next().unwrap_or_default().to_owned(),
            None if line.len() > 1000 => line[..1].to_owned(),
            None => line.to_owned(),
        })
        .collect()
}

/// Lets a shard go on until nothing waits for it. Returns all that it is handed.
fn drain(out: &mut FanOut<Shards>, router: &mut Router, shard: usize) -> String {
    let mut all = String::new();
    while out.has_piece_for(shard) || !out.outlets().handed[shard].is_empty() {
        all.push_str(&text(out, shard));
        out.begin_turn(router);
        out.flush(router);
    }
    all
}

#[test]
fn a_message_is_encoded_as_each_subscription_takes_it_and_verdicts_come_in_order() {
    let (mut out, mut router) = fan_out(1, &["9"]);
    let headers = b"NATS/1.0\r\nA: b\r\n\r\n";
    let message = Message { subject: b"a", reply: b"r", headers, payload: b"x".into() };
    out.send_by_subject(&mut router, &message);
    out.verdict(BOB, 7, Verdict::Passed { subscriptions: 2 });
    out.bytes(BOB, |out| out.extend_from_slice(b"PONG"));
    out.close(BOB);
    assert!(out.has_piece_for(0) && out.has_piece_for(1));
    out.flush(&mut router);
    assert!(!out.has_piece_for(0) && !out.has_piece_for(1));
    assert_eq!(text(&mut out, 0), "HMSG a 1 r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n");
    let verdict = "Verdict { ticket: 7, verdict: Passed { subscriptions: 2 } }";
    assert_eq!(text(&mut out, 1), format!("MSG a 9 r 1\r\nx\r\n{verdict}PONGClose"));
    assert_eq!(out.delivered(), 2);
}

#[test]
fn a_shard_without_room_is_noted_until_it_has_some() {
    let (mut out, mut router) = fan_out(0, &["9"]);
    router.unsubscribe(ALICE, b"1", None);
    router.subscribe(ALICE, HEADERS, (b"b", b"", b"1")).expect("there is room");
    let payload = vec![b'x'; DELIVERIES_SIZE];
    assert!(out.has_room() && !out.has_room_again());
    send(&mut out, &mut router, &payload);
    assert!(!out.has_room() && out.has_room_for(&router, b"b") && !out.has_room_for(&router, b"a"));
    out.begin_turn(&mut router);
    assert!(!out.has_room_again() && !out.has_regained_room(), "nothing has come back");
    out.outlets_mut().room = 1;
    out.flush(&mut router);
    assert!(out.has_room_again(), "the hub is not to sleep");
    out.begin_turn(&mut router);
    assert!(out.has_regained_room() && !out.has_room_again() && out.has_room());
    out.begin_turn(&mut router);
    assert!(!out.has_regained_room());
}

/// Row "one client never pays for another": everything for a shard with room goes out at once, and what waits for the other
/// one keeps its order.
#[test]
fn a_full_shard_holds_up_what_goes_to_itself_alone_and_in_order() {
    let (mut out, mut router) = fan_out(2, &["8", "9"]);
    let mut alice = String::new();
    for letter in [b'p', b'q', b'r'] {
        assert_eq!(send(&mut out, &mut router, &vec![letter; DELIVERIES_SIZE]), 3);
        for to in [ALICE, BOB] {
            out.verdict(to, u32::from(letter), Verdict::Passed { subscriptions: 3 });
            out.mark(to, letter.into());
            out.bytes(to, |out| out.extend_from_slice(b"PONG\r\n"));
        }
        out.flush(&mut router);
        alice.push_str(&text(&mut out, 0));
    }
    assert_eq!(outline(&alice).iter().filter(|line| *line == "1").count(), 3, "nothing waits");
    assert!(!out.has_piece_for(0) && out.has_piece_for(1));
    let expected: Vec<_> = [b'p', b'q', b'r']
        .into_iter()
        .flat_map(|letter| {
            let (name, ticket) = (char::from(letter).to_string(), u32::from(letter));
            let verdict = Verdict::Passed { subscriptions: 3 };
            let end = format!("Verdict {{ ticket: {ticket}, verdict: {verdict:?} }}Mark({ticket})PONG");
            ["8".to_owned(), name.clone(), "9".to_owned(), name, end]
        })
        .collect();
    assert_eq!(outline(&drain(&mut out, &mut router, 1)), expected);
    assert_eq!((out.delivered(), out.waiting_size()), (9, 0));
}

#[test]
fn over_its_bound_a_queue_has_a_message_once_for_all_subscriptions() {
    let bobs: Vec<_> = (10..60).map(|sid| sid.to_string()).collect();
    let bobs: Vec<_> = bobs.iter().map(String::as_str).collect();
    let (mut out, mut router) = fan_out(0, &bobs);
    router.unsubscribe(ALICE, b"1", None);
    let payload = vec![b'x'; DELIVERIES_SIZE / 4];
    let mut sent = 0;
    while !out.is_over(1) {
        send(&mut out, &mut router, &payload);
        sent += 1;
    }
    let before = out.waiting_size();
    assert!(before < QUEUE_SIZE + DELIVERIES_SIZE + payload.len(), "{before} bytes");
    assert!(sent > 4, "a piece has the payload once");
    send(&mut out, &mut router, &payload);
    sent += 1;
    // The piece that was open, the payload, and the subscriptions.
    let more = out.waiting_size() - before;
    assert!(more < DELIVERIES_SIZE + 2 * payload.len(), "{more} bytes");
    out.outlets_mut().room = 1;
    let got = outline(&drain(&mut out, &mut router, 1));
    let mut sids: Vec<_> = got[..100].iter().step_by(2).collect();
    assert!(got.chunks(100).all(|message| message == &got[..100]), "{got:?}");
    sids.sort();
    assert_eq!((sids.iter().map(|sid| sid.as_str()).collect(), got.len()), (bobs, sent as usize * 100));
    assert_eq!((out.delivered(), out.waiting_size()), (sent * 50, 0));
}

/// A subscription's number may be another's when the message that waited for it goes out.
#[test]
fn what_waits_for_a_subscription_that_is_gone_reaches_no_other() {
    let (mut out, mut router) = fan_out(0, &["8", "9"]);
    let payload = vec![b'x'; DELIVERIES_SIZE];
    while !out.is_over(1) {
        send(&mut out, &mut router, &payload);
    }
    send(&mut out, &mut router, b"last");
    router.unsubscribe(BOB, b"9", None);
    router.subscribe(BOB, Traits::default(), (b"b", b"", b"7")).expect("there is room");
    router.unsubscribe(BOB, b"8", Some(1000));
    out.outlets_mut().room = 1;
    let got = drain(&mut out, &mut router, 1);
    assert!(got.ends_with("MSG a 8 4\r\nlast\r\n"), "{:?}", outline(&got));
    assert!(!got.contains("MSG a 7") && !got.contains("MSG a 9 4\r\n"));
}

#[test]
fn nothing_waits_for_a_shard_that_has_ended() {
    let (mut out, mut router) = fan_out(0, &["8", "9"]);
    let payload = vec![b'x'; DELIVERIES_SIZE];
    while !out.is_over(1) {
        send(&mut out, &mut router, &payload);
    }
    out.outlets_mut().gone = Some(1);
    out.begin_turn(&mut router);
    assert!(!out.is_over(1) && !out.has_piece_for(1) && !out.has_room());
    assert!(out.is_waiting(), "the other one is there");
}

#[test]
fn a_subscription_that_ends_counts_each_message_as_it_is_sent() {
    let (mut out, mut router) = fan_out(1, &["1", "2", "3"]);
    router.unsubscribe(BOB, b"1", Some(1));
    let mut found = Vec::new();
    router.find(b"a", &mut found);
    assert_eq!(send(&mut out, &mut router, b"x"), 4);
    assert_eq!((out.delivered(), router.subscriptions()), (4, 3));
    let short = Message { subject: b"a", reply: b"", headers: b"", payload: b"y".into() };
    let silent = Traits { no_echo: true, ..Traits::default() };
    assert_eq!(out.send(&mut router, &found, Some((ALICE, silent)), &short), 2);
    assert_eq!(out.send(&mut router, &found, Some((BOB, silent)), &short), 1);
    assert_eq!(out.send_heard(&mut router, b"nothing", &short), None);
    assert!(out.send_heard(&mut router, b"a", &short).is_some());
}

#[test]
fn what_the_first_leaves_behind_waits_before_the_others() {
    let (mut out, _) = fan_out(1, &[]);
    let message = Message { subject: b"a", reply: b"r", headers: b"h", payload: b"x".into() };
    let ended = || VecDeque::new();
    assert!(out.take_unsent().is_none());
    out.keep_statuses(ended());
    out.mark(ALICE, 9);
    assert!(out.has_begun() && !out.has_piece_for(0), "the mark waits, too");
    let (first, others) = out.take_unsent().expect("statuses");
    assert!(matches!(first, Unsent::Statuses(_)));
    out.unsent.push_back(Unsent::of_message(5, &message, &[3]));
    assert!(!out.put_back(others), "it is not sent to its end");
    let (first, others) = out.take_unsent().expect("the rest of it");
    let Unsent::Message { number: 5, message: kept, to } = first else { panic!("a message is first") };
    assert_eq!((kept.message(), to), (message, vec![3]));
    assert!(out.put_back(others));
    assert!(matches!(out.take_unsent(), Some((Unsent::Mark { mark: 9, .. }, _))));
    out.mark(ALICE, 10);
    assert!(!out.has_begun() && out.has_piece_for(0), "nothing waits any more");
}

#[test]
fn a_subscription_is_encoded_with_its_own_sid() {
    let mut piece = Deliveries::new();
    let to = Recipient { client: BOB, sid: b"42", takes_headers: false };
    let message = Message { subject: b"a", reply: b"", headers: b"h", payload: b"x".into() };
    encode(&mut piece, to, 1, &message);
    assert_eq!(piece.advance(), Some(BOB.token));
    assert_eq!(piece.current(), Some(Delivery::Bytes(b"MSG a 42 1\r\nx\r\n", b"")));
}
