//! A client core, the datagrams it sends, and the server's answers.

use std::time::{Duration, Instant};

use stilling_wire::coap::{
    CoapMessage, Code, MessageId, MessageType, MessageWriter, OptionNumber, Token, decode_uint,
};

use crate::coap::{CoapClientConfig, CoapClientCore, CoapClientEvent, CoapRequest, CoapUrl};

/// A message with its own bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OwnedMessage {
    pub(super) kind: MessageType,
    pub(super) code: Code,
    pub(super) id: MessageId,
    pub(super) token: Token,
    pub(super) options: Vec<(OptionNumber, Vec<u8>)>,
    pub(super) payload: Vec<u8>,
}

impl OwnedMessage {
    pub(super) fn parse(datagram: &[u8]) -> OwnedMessage {
        let message = CoapMessage::parse(datagram).expect("a valid message");
        OwnedMessage {
            kind: message.kind,
            code: message.code,
            id: message.id,
            token: message.token,
            options: message.options.map(|option| (option.number, option.value.to_vec())).collect(),
            payload: message.payload.to_vec(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut buffer = [0; 2048];
        let mut writer =
            MessageWriter::new(&mut buffer, self.kind, self.code, self.id, self.token).expect("it has room");
        for (number, value) in &self.options {
            writer.option(*number, value).expect("the options are in order");
        }
        writer.payload(&self.payload).expect("it has room").to_vec()
    }

    pub(super) fn option(&self, number: OptionNumber) -> Option<&[u8]> {
        self.options.iter().find(|(of, _)| *of == number).map(|(_, value)| &value[..])
    }

    pub(super) fn uint(&self, number: OptionNumber) -> Option<u32> {
        self.option(number).and_then(decode_uint)
    }

    pub(super) fn block(&self, number: OptionNumber) -> Option<(u32, bool, usize)> {
        self.option(number).map(|value| {
            let block = stilling_wire::coap::BlockValue::decode(value).expect("a valid block");
            (block.number(), block.more, block.size.bytes())
        })
    }

    /// The response in the acknowledgement.
    pub(super) fn piggybacked(&self, code: Code) -> OwnedMessage {
        OwnedMessage {
            kind: MessageType::Acknowledgement,
            code,
            id: self.id,
            token: self.token,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// The response in a message of the server.
    pub(super) fn separate(&self, kind: MessageType, id: MessageId, code: Code) -> OwnedMessage {
        OwnedMessage { kind, id, ..self.piggybacked(code) }
    }

    pub(super) fn empty(kind: MessageType, id: MessageId) -> OwnedMessage {
        let (options, payload) = (Vec::new(), Vec::new());
        OwnedMessage { kind, code: Code::EMPTY, id, token: Token::EMPTY, options, payload }
    }

    pub(super) fn with(mut self, number: OptionNumber, value: &[u8]) -> OwnedMessage {
        self.options.push((number, value.to_vec()));
        self
    }

    pub(super) fn body(mut self, payload: &[u8]) -> OwnedMessage {
        self.payload = payload.to_vec();
        self
    }
}

pub(super) struct Fixture {
    pub(super) core: CoapClientCore,
    pub(super) now: Instant,
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        Fixture::with_config(CoapClientConfig::default())
    }

    pub(super) fn with_config(config: CoapClientConfig) -> Fixture {
        Fixture { core: CoapClientCore::new(config, 1), now: Instant::now() }
    }

    pub(super) fn start(&mut self, request: CoapRequest) -> OwnedMessage {
        self.core.start(request, self.now);
        self.only_sent()
    }

    pub(super) fn observe(&mut self, request: CoapRequest) -> OwnedMessage {
        self.core.observe(request, self.now);
        self.only_sent()
    }

    pub(super) fn sent(&mut self) -> Vec<OwnedMessage> {
        std::iter::from_fn(|| self.core.poll_transmit())
            .map(|datagram| OwnedMessage::parse(&datagram))
            .collect()
    }

    pub(super) fn only_sent(&mut self) -> OwnedMessage {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    pub(super) fn receive(&mut self, message: &OwnedMessage) {
        self.core.handle_datagram(&message.encode(), self.now);
    }

    /// Passes an answer and returns the client's only next message.
    pub(super) fn exchange(&mut self, message: &OwnedMessage) -> OwnedMessage {
        self.receive(message);
        assert_eq!(self.event(), None);
        self.only_sent()
    }

    pub(super) fn event(&mut self) -> Option<CoapClientEvent> {
        self.core.poll_event()
    }

    pub(super) fn error(&mut self) -> String {
        match self.event() {
            Some(CoapClientEvent::Failed(error)) => error.to_string(),
            other => panic!("expected a failure, found {other:?}"),
        }
    }

    pub(super) fn response(&mut self) -> (Code, Vec<u8>) {
        match self.event() {
            Some(CoapClientEvent::Response(response)) => (response.code, response.payload),
            other => panic!("expected a response, found {other:?}"),
        }
    }

    pub(super) fn notification(&mut self) -> Vec<u8> {
        match self.event() {
            Some(CoapClientEvent::Notification(response)) => response.payload,
            other => panic!("expected a notification, found {other:?}"),
        }
    }

    /// Lets time pass up to the next timer and processes it.
    pub(super) fn run_timer(&mut self) -> Duration {
        let next = self.core.next_timer().expect("a timer runs");
        let passed = next.saturating_duration_since(self.now);
        self.now = self.now.max(next);
        self.core.handle_timer(self.now);
        passed
    }
}

pub(super) fn get(path: &str) -> CoapRequest {
    CoapRequest::new(Code::GET, &url(path))
}

pub(super) fn put(path: &str, payload: &[u8]) -> CoapRequest {
    CoapRequest::new(Code::PUT, &url(path)).with_payload(payload.to_vec(), None)
}

fn url(path: &str) -> CoapUrl {
    format!("coap://127.0.0.1{path}").parse().expect("a valid address")
}

/// Bytes that differ at each offset of a body and between bodies.
pub(super) fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ seed).collect()
}
