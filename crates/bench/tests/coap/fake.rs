//! A server with bodies in blocks, and with one fault.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use stilling_wire::coap::{
    BlockSize, BlockValue, CoapMessage, Code, MessageContent, MessageId, MessageType, MessageWriter,
    OptionNumber, Token, encode_empty,
};

/// Bytes of the body of variant 0; that of variant `n` has `n` more.
pub(crate) const BODY_SIZE: usize = 240;

const BLOCK: usize = 64;

/// Answers before the fault, which the first requests of a run need.
const CORRECT_ANSWERS: u64 = 7 * 4 + 20;

/// One in so many answers has the fault.
const FAULT_INTERVAL: u64 = 50;

/// Wait for a datagram before the server checks whether it ends.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    Separate,
    ToPreviousPeer,
    UnknownToken,
    OtherId,
    OtherVariant,
    FlippedBit,
    OtherBlock,
    OtherETag,
    ErrorCode,
    Reset,
    Garbage,
    Twice,
    Shed,
    SilentAfterFirst,
    Silent,
}

pub(crate) struct FakeServer {
    pub(crate) address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeServer {
    pub(crate) fn start(fault: Fault) -> FakeServer {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.set_read_timeout(Some(TICK)).expect("it can be set");
        let address = socket.local_addr().expect("it is bound");
        let ends = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut answerer = Answerer {
                socket,
                fault,
                answers: 0,
                next_id: 0,
                previous: None,
                executed: BTreeSet::new(),
                repeated: 0,
            };
            let mut buffer = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((size, from)) = answerer.socket.recv_from(&mut buffer) {
                    answerer.handle(&buffer[..size], from);
                }
            }
        });
        FakeServer { address, ends, thread: Some(thread) }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Answerer {
    socket: UdpSocket,
    fault: Fault,
    answers: u64,
    next_id: MessageId,
    previous: Option<SocketAddr>,
    /// Numbers of the executed POST requests.
    executed: BTreeSet<Vec<u8>>,
    repeated: u64,
}

fn body(variant: usize) -> Vec<u8> {
    (0..BODY_SIZE + variant).map(|at| (at * 7 + variant * 13) as u8).collect()
}

impl Answerer {
    fn handle(&mut self, datagram: &[u8], from: SocketAddr) {
        let message = CoapMessage::parse(datagram).expect("the generator sends valid messages");
        if message.content != MessageContent::Request {
            return;
        }
        self.answers += 1;
        let is_fault = self.answers > CORRECT_ANSWERS && self.answers.is_multiple_of(FAULT_INTERVAL);
        let fault = match self.fault {
            Fault::Silent => return,
            Fault::SilentAfterFirst if self.answers > 7 * 4 => return,
            Fault::Separate => Fault::Separate,
            fault if is_fault => fault,
            _ => Fault::None,
        };
        let to = match fault {
            Fault::ToPreviousPeer => self.previous.unwrap_or(from),
            _ => from,
        };
        if self.previous != Some(from) && fault != Fault::ToPreviousPeer {
            self.previous = Some(from);
        }
        let answer = self.answer(&message, fault);
        for _ in 0..if fault == Fault::Twice { 2 } else { 1 } {
            self.socket.send_to(&answer, to).expect("it is sent");
        }
    }

    /// Counts executions, of repeated requests as well: it recognises no duplicates.
    fn count_execution(&mut self, message: &CoapMessage<'_>) -> Vec<u8> {
        let (code, body) = match message.code {
            Code::POST => {
                self.repeated += u64::from(!self.executed.insert(message.payload.to_vec()));
                (Code::CHANGED, message.payload.to_vec())
            }
            Code::DELETE => {
                (self.executed, self.repeated) = (BTreeSet::new(), 0);
                (Code::DELETED, Vec::new())
            }
            _ => {
                let text = format!("executed={} repeated={}", self.executed.len(), self.repeated);
                (Code::CONTENT, text.into_bytes())
            }
        };
        let mut buffer = [0; 128];
        let kind = MessageType::Acknowledgement;
        let writer = MessageWriter::new(&mut buffer, kind, code, message.id, message.token);
        writer.and_then(|writer| writer.payload(&body)).expect("there is room").to_vec()
    }

    fn answer(&mut self, message: &CoapMessage<'_>, fault: Fault) -> Vec<u8> {
        if message.options.values(OptionNumber::URI_PATH).next() == Some(b"executions") {
            return self.count_execution(message);
        }
        match fault {
            Fault::Reset => return encode_empty(MessageType::Reset, message.id).to_vec(),
            Fault::Garbage => return b"\x00garbage".to_vec(),
            _ => {}
        }
        let query = message.options.values(OptionNumber::URI_QUERY).next().expect("it has a query");
        let variant: usize =
            std::str::from_utf8(&query[2..]).ok().and_then(|n| n.parse().ok()).expect("a number");
        let mut body = body(if fault == Fault::OtherVariant { (variant + 1) % 7 } else { variant });
        let block = message.options.values(OptionNumber::BLOCK2).next();
        let mut number = block.map_or(0, |value| BlockValue::decode(value).expect("a block").number());
        if fault == Fault::OtherBlock {
            number ^= 1;
        }
        let start = number as usize * BLOCK;
        if fault == Fault::FlippedBit {
            body[start] ^= 1;
        }
        let end = body.len().min(start + BLOCK);
        let (code, etag) = match fault {
            Fault::ErrorCode => (Code::INTERNAL_SERVER_ERROR, b"v1"),
            Fault::Shed => (Code::SERVICE_UNAVAILABLE, b"v1"),
            Fault::OtherETag => (Code::CONTENT, b"v2"),
            _ => (Code::CONTENT, b"v1"),
        };
        let token = match fault {
            Fault::UnknownToken => Token::new(&[0xee; 8]).expect("a token"),
            _ => message.token,
        };
        let (kind, id) = self.kind_and_id(message, fault);
        let mut buffer = [0; 256];
        let mut writer = MessageWriter::new(&mut buffer, kind, code, id, token).expect("it has room");
        writer.option(OptionNumber::ETAG, etag).expect("it has room");
        let block = BlockValue::new(number, end < body.len(), BlockSize::at_most(BLOCK)).expect("a number");
        writer.option(OptionNumber::BLOCK2, block.encode().as_bytes()).expect("it has room");
        writer.payload(&body[start..end]).expect("it has room").to_vec()
    }

    fn kind_and_id(&mut self, message: &CoapMessage<'_>, fault: Fault) -> (MessageType, MessageId) {
        self.next_id = self.next_id.wrapping_add(1);
        match (message.kind, fault) {
            (MessageType::Confirmable, Fault::Separate) => (MessageType::Confirmable, self.next_id),
            (MessageType::Confirmable, Fault::OtherId) => (MessageType::Acknowledgement, message.id ^ 1),
            (MessageType::Confirmable, _) => (MessageType::Acknowledgement, message.id),
            _ => (MessageType::NonConfirmable, self.next_id),
        }
    }
}
