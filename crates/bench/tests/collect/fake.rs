//! A NATS server with one stream that does as it should but for one lie. Its records outlive its connections, so it can be
//! killed and started again.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use stilling_wire::nats::{
    ClientDecoder, ClientEvent, Filter, Info, Limits, Msg, PING, PONG, PubAck, Publish, Subject, encode_err,
};

/// What the fake does wrong; numbers count publications to the stream or deliveries, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    Nothing,
    /// No acknowledgement.
    Silence(u64),
    /// The acknowledgement comes twice.
    TwiceAcknowledged(u64),
    OtherStream(u64),
    /// The sequence of the acknowledgement before.
    OldSequence(u64),
    Duplicate(u64),
    Garbage(u64),
    Refusal(u64),
    NoResponders(u64),
    /// An acknowledgement for a message that nobody has sent yet.
    Prophecy(u64),
    /// The connection ends instead of an acknowledgement.
    Close(u64),
    /// `-ERR` instead of an acknowledgement.
    Error(u64),
    /// Acknowledged and not kept.
    Forgotten(u64),
    Undelivered(u64),
    DeliveredTwice(u64),
    Corrupted(u64),
    /// Asks whether the client lives, in the middle of everything.
    Ping(u64),
    /// Never says that it lives.
    NoPong,
    /// At the first start after a kill, the first record is gone.
    LostAtStart,
    /// At the next start, the last two records have changed places.
    SwappedAtStart,
    /// At the next start, there is one more.
    InventedAtStart,
    /// At the next start, the last record is there twice.
    TwiceAtStart,
    /// At the second start after a kill, there is something else in the place of the first record.
    LostLater,
    /// A message that is sent again is stored again; the first one is never acknowledged.
    IdsIgnored,
}

type Writer = Arc<Mutex<TcpStream>>;

struct Kept {
    lie: Lie,
    is_alive: bool,
    starts: u32,
    records: Vec<(Vec<u8>, Vec<u8>)>,
    /// The sequence of each header block: the generator's have nothing but the message's id.
    ids: std::collections::HashMap<Vec<u8>, u64>,
    /// Publications to the stream, kept or not.
    publications: u64,
    deliveries: u64,
    subscribers: Vec<(Vec<u8>, Vec<u8>, Writer)>,
    sockets: Vec<TcpStream>,
}

impl Kept {
    /// The number of its life, unless it is dead.
    fn life(&self) -> Option<u32> {
        self.is_alive.then_some(self.starts)
    }
}

/// A running fake; ends with its test.
pub(crate) struct Fake {
    address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
    thread: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

fn locked(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().expect("nobody panics with it")
}

impl Fake {
    pub(crate) fn start(lie: Lie) -> Fake {
        Fake::listening(lie, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"))
    }

    pub(crate) fn listening(lie: Lie, listener: TcpListener) -> Fake {
        let address = listener.local_addr().expect("it is bound");
        let kept = Arc::new(Mutex::new(Kept {
            lie,
            is_alive: true,
            starts: 0,
            records: Vec::new(),
            ids: std::collections::HashMap::new(),
            publications: 0,
            deliveries: 0,
            subscribers: Vec::new(),
            sockets: Vec::new(),
        }));
        let is_over = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (Arc::clone(&kept), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                let kept = Arc::clone(&shared);
                let life = locked(&kept).life();
                if let Some(life) = life {
                    std::thread::spawn(move || serve(stream, &kept, life));
                }
            }
        });
        Fake { address, kept, thread: Some(thread), is_over }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Records in the stream.
    pub(crate) fn records(&self) -> usize {
        locked(&self.kept).records.len()
    }

    /// The process has died: every connection ends, nothing is kept or answered any more.
    pub(crate) fn die(&self) {
        let mut kept = locked(&self.kept);
        kept.is_alive = false;
        for socket in kept.sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        kept.subscribers.clear();
    }

    /// It lives again, with what was on disk, or what the lie makes of it.
    pub(crate) fn live(&self) {
        // Those who connected in an earlier life are still to be turned away: this connection comes behind them, and hears
        // something, or its end, when it is its turn.
        let mut last = TcpStream::connect(self.address).expect("the listener lives on");
        let _ = last.read(&mut [0]);
        let mut kept = locked(&self.kept);
        kept.is_alive = true;
        kept.starts += 1;
        let end = kept.records.len();
        match kept.lie {
            Lie::LostAtStart if end > 0 && kept.starts == 2 => drop(kept.records.remove(0)),
            Lie::SwappedAtStart if end > 1 => kept.records.swap(end - 1, end - 2),
            Lie::InventedAtStart if end > 0 => kept.records.push((b"events.0".to_vec(), vec![b'0'; 64])),
            Lie::TwiceAtStart if end > 0 => {
                let last = kept.records[end - 1].clone();
                kept.records.push(last);
            }
            Lie::LostLater if end > 1 && kept.starts == 3 => {
                kept.records[0] = kept.records[end - 1].clone();
            }
            _ => {}
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.die();
        // It waits for a connection; this one tells it to look.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, kept: &Mutex<Kept>, life: u32) {
    let _ = stream.set_nodelay(true);
    let (Ok(copy), Ok(writer)) = (stream.try_clone(), stream.try_clone()) else { return };
    let writer: Writer = Arc::new(Mutex::new(writer));
    {
        let mut kept = locked(kept);
        if kept.life() != Some(life) {
            return;
        }
        kept.sockets.push(copy);
    }
    let mut out = Vec::new();
    Info { version: "2.10.0".into(), headers: true, max_payload: 1 << 20, ..Info::default() }
        .encode(&mut out);
    let mut conversation = Conversation { kept, life, writer, own: Vec::new() };
    let (limits, mut decoder) =
        (Limits { whole_size_max: 1 << 21, ..Limits::default() }, ClientDecoder::default());
    let (mut unread, mut piece) = (Vec::new(), vec![0; 65_536]);
    loop {
        if !conversation.say(&mut out) {
            break;
        }
        let Ok(count @ 1..) = stream.read(&mut piece) else { break };
        unread.extend_from_slice(&piece[..count]);
        let mut at = 0;
        loop {
            let Ok(step) = decoder.decode(&limits, &unread[at..]) else { return };
            at += step.consumed;
            match step.event {
                ClientEvent::NeedMore => break,
                event => {
                    if !conversation.hear(event, &mut out) {
                        conversation.say(&mut out);
                        let _ = stream.shutdown(Shutdown::Both);
                        return;
                    }
                }
            }
        }
        unread.drain(..at);
    }
    let _ = stream.shutdown(Shutdown::Both);
}

struct Conversation<'k> {
    kept: &'k Mutex<Kept>,
    /// What was read in an earlier life is gone with it.
    life: u32,
    writer: Writer,
    /// The connection's own subscriptions.
    own: Vec<(Vec<u8>, Vec<u8>)>,
}

fn takes(filter: &[u8], subject: &[u8]) -> bool {
    let limits = Limits::default().subject;
    match (Filter::parse(filter, &limits), Subject::parse(subject, &limits)) {
        (Ok(filter), Ok(subject)) => filter.takes(subject),
        _ => false,
    }
}

impl Conversation<'_> {
    fn say(&self, out: &mut Vec<u8>) -> bool {
        let said = self.writer.lock().is_ok_and(|mut writer| writer.write_all(out).is_ok());
        out.clear();
        said
    }

    /// Whether the conversation goes on.
    fn hear(&mut self, event: ClientEvent<'_>, out: &mut Vec<u8>) -> bool {
        match event {
            ClientEvent::Ping if locked(self.kept).lie == Lie::NoPong => {}
            ClientEvent::Ping => out.extend_from_slice(PONG),
            ClientEvent::Subscribe(wanted) => {
                let (filter, sid) = (wanted.filter.as_bytes().to_vec(), wanted.sid.to_vec());
                if filter.starts_with(b"_INBOX") {
                    self.own.push((filter, sid));
                } else {
                    locked(self.kept).subscribers.push((filter, sid, Arc::clone(&self.writer)));
                }
            }
            ClientEvent::Publish(message) if message.subject.as_str().starts_with("$JS.API.") => {
                self.answer(&message, out);
            }
            ClientEvent::Publish(message) => return self.publish(&message, out),
            _ => {}
        }
        true
    }

    /// A message to one of the connection's own subscriptions.
    fn reply(&self, to: &[u8], headers: &[u8], payload: &[u8], from: Option<&[u8]>, out: &mut Vec<u8>) {
        let sid = self.own.iter().rev().find(|(filter, _)| takes(filter, to)).map(|(_, sid)| &sid[..]);
        if let Some(sid) = sid {
            Msg { subject: to, sid, reply: from, headers, payload }.encode(out);
        }
    }

    fn publish(&self, message: &Publish<'_>, out: &mut Vec<u8>) -> bool {
        let mut kept = locked(self.kept);
        if kept.life() != Some(self.life) {
            return false;
        }
        let number = kept.publications;
        kept.publications += 1;
        let lie = kept.lie;
        let ack = |sequence, stream: &str, duplicate| {
            let mut json = Vec::new();
            PubAck { stream: stream.to_owned().into(), sequence, duplicate }.encode(&mut json);
            json
        };
        if !message.headers.is_empty() && lie != Lie::IdsIgnored {
            let next = kept.records.len() as u64 + 1;
            let first = *kept.ids.entry(message.headers.to_vec()).or_insert(next);
            if first != next {
                if let Some(reply) = message.reply {
                    self.reply(reply.as_bytes(), b"", &ack(first, "events", true), None, out);
                }
                return true;
            }
        }
        if lie != Lie::Forgotten(number) {
            kept.records.push((message.subject.as_bytes().to_vec(), message.payload.to_vec()));
        }
        self.deliver(&mut kept, message);
        let Some(reply) = message.reply else { return true };
        let sequence = kept.records.len() as u64 + u64::from(lie == Lie::Forgotten(number));
        let right = ack(sequence, "events", false);
        let to = reply.as_bytes();
        let mut say = |payload: &[u8]| self.reply(to, b"", payload, None, out);
        match lie {
            Lie::Silence(at) if at == number => {}
            Lie::IdsIgnored if number == 0 => {}
            Lie::TwiceAcknowledged(at) if at == number => {
                say(&right);
                say(&right);
            }
            Lie::OtherStream(at) if at == number => say(&ack(sequence, "others", false)),
            Lie::OldSequence(at) if at == number => say(&ack(sequence - 1, "events", false)),
            Lie::Duplicate(at) if at == number => say(&ack(sequence, "events", true)),
            Lie::Garbage(at) if at == number => say(b"{\"stream\":\"events\"}"),
            Lie::Refusal(at) if at == number => {
                say(br#"{"error":{"code":503,"err_code":10077,"description":"no room"},"stream":"events","seq":0}"#);
            }
            Lie::NoResponders(at) if at == number => {
                self.reply(to, b"NATS/1.0 503\r\n\r\n", b"", None, out);
            }
            Lie::Prophecy(at) if at == number => {
                say(&right);
                let dot = to.iter().rposition(|&byte| byte == b'.').expect("an inbox has tokens");
                let inbox = [&to[..=dot], b"999999"].concat();
                self.reply(&inbox, b"", &ack(sequence + 1, "events", false), None, out);
            }
            Lie::Close(at) if at == number => return false,
            Lie::Error(at) if at == number => {
                encode_err(out, "Permissions Violation for Publish");
            }
            Lie::Ping(at) if at == number => {
                out.extend_from_slice(PING);
                self.reply(to, b"", &right, None, out);
            }
            _ => say(&right),
        }
        true
    }

    fn deliver(&self, kept: &mut Kept, message: &Publish<'_>) {
        let subject = message.subject.as_bytes();
        for at in 0..kept.subscribers.len() {
            let number = kept.deliveries;
            let (filter, sid, writer) = &kept.subscribers[at];
            if !takes(filter, subject) {
                continue;
            }
            let mut payload = message.payload.to_vec();
            let count = match kept.lie {
                Lie::Undelivered(at) if at == number => 0,
                Lie::DeliveredTwice(at) if at == number => 2,
                Lie::Corrupted(at) if at == number => {
                    *payload.last_mut().expect("it is not empty") ^= 1;
                    1
                }
                _ => 1,
            };
            let mut out = Vec::new();
            for _ in 0..count {
                Msg { subject, sid, reply: None, headers: b"", payload: &payload }.encode(&mut out);
            }
            let _ = writer.lock().expect("nobody panics with it").write_all(&out);
            kept.deliveries += 1;
        }
    }

    /// Making a stream, its state, a replay.
    fn answer(&self, message: &Publish<'_>, out: &mut Vec<u8>) {
        let Some(reply) = message.reply else { return };
        let kept = locked(self.kept);
        let last = kept.records.len();
        let body: serde_json::Value = serde_json::from_slice(message.payload).unwrap_or_default();
        let answer = format!(r#"{{"state":{{"messages":{last},"first_seq":1,"last_seq":{last}}}}}"#);
        self.reply(reply.as_bytes(), b"", answer.as_bytes(), None, out);
        let config = &body["config"];
        let (Some(deliver), Some(from)) =
            (config["deliver_subject"].as_str(), config["opt_start_seq"].as_u64())
        else {
            return;
        };
        let records = kept.records.iter().enumerate().skip(from as usize - 1);
        for (delivered, (at, (_, payload))) in records.enumerate() {
            let place = format!("$JS.ACK.events.c.1.{}.{}.0.{}", at + 1, delivered + 1, last - at - 1);
            self.reply(deliver.as_bytes(), b"", payload, Some(place.as_bytes()), out);
        }
    }
}
