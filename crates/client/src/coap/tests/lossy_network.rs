//! Transfers over a network that loses, repeats and reorders datagrams, with a server that recognises duplicates.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use stilling_ring::SplitMix64;
use stilling_wire::coap::{BlockSize, BlockValue, Code, MessageId, MessageType, OptionNumber};

use super::fixture::{OwnedMessage, get, pattern, put};
use crate::coap::{CoapClientConfig, CoapClientCore, CoapClientEvent, CoapRequest};

const LOSS_PERCENT: u64 = 10;
const DUPLICATION_PERCENT: u64 = 5;
const DELAY_MS_MAX: u64 = 200;
const BLOCK: usize = 64;

/// Stores a resource; executes each message id once.
struct ModelServer {
    body: Vec<u8>,
    partial: Vec<u8>,
    answers: HashMap<MessageId, Vec<OwnedMessage>>,
    executed: u32,
    next_id: MessageId,
    answers_separately: bool,
}

impl ModelServer {
    fn handle(&mut self, message: &OwnedMessage) -> Vec<OwnedMessage> {
        if message.code == Code::EMPTY {
            return Vec::new();
        }
        if let Some(answers) = self.answers.get(&message.id) {
            return answers.clone();
        }
        let response = match message.code {
            Code::GET => self.get(message),
            _ => self.put(message),
        };
        let answers = if self.answers_separately {
            self.next_id += 1;
            let acknowledgement = OwnedMessage::empty(MessageType::Acknowledgement, message.id);
            let separate = OwnedMessage { kind: MessageType::Confirmable, id: self.next_id, ..response };
            vec![acknowledgement, separate]
        } else {
            vec![response]
        };
        self.answers.insert(message.id, answers.clone());
        answers
    }

    fn get(&self, message: &OwnedMessage) -> OwnedMessage {
        let number = message.block(OptionNumber::BLOCK2).map_or(0, |(number, ..)| number as usize);
        let (start, end) = (number * BLOCK, (number * BLOCK + BLOCK).min(self.body.len()));
        let block = BlockValue::new(number as u32, end < self.body.len(), BlockSize::at_most(BLOCK));
        message
            .piggybacked(Code::CONTENT)
            .with(OptionNumber::BLOCK2, block.expect("a small number").encode().as_bytes())
            .body(&self.body[start..end])
    }

    fn put(&mut self, message: &OwnedMessage) -> OwnedMessage {
        let (number, more, size) = message.block(OptionNumber::BLOCK1).expect("the body has several blocks");
        assert_eq!(number as usize * size, self.partial.len(), "each block is executed once and in order");
        self.partial.extend_from_slice(&message.payload);
        let code = if more { Code::CONTINUE } else { Code::CHANGED };
        if !more {
            self.body = std::mem::take(&mut self.partial);
            self.executed += 1;
        }
        message
            .piggybacked(code)
            .with(OptionNumber::BLOCK1, message.option(OptionNumber::BLOCK1).expect("it has one"))
    }
}

/// Datagrams on their way, with the time of their arrival.
struct LossyNetwork {
    random: SplitMix64,
    under_way: Vec<(Instant, bool, Vec<u8>)>,
}

impl LossyNetwork {
    fn send(&mut self, datagram: Vec<u8>, to_server: bool, now: Instant) {
        let copies = match self.random.bits() % 100 {
            roll if roll < LOSS_PERCENT => 0,
            roll if roll < LOSS_PERCENT + DUPLICATION_PERCENT => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = Duration::from_millis(self.random.bits() % DELAY_MS_MAX);
            self.under_way.push((now + delay, to_server, datagram.clone()));
        }
    }

    fn next(&mut self) -> Option<(Instant, bool, Vec<u8>)> {
        let at = (0..self.under_way.len()).min_by_key(|at| self.under_way[*at].0)?;
        Some(self.under_way.swap_remove(at))
    }
}

/// Runs a request to its end.
fn run(
    core: &mut CoapClientCore,
    server: &mut ModelServer,
    network: &mut LossyNetwork,
    request: CoapRequest,
    now: &mut Instant,
) -> CoapClientEvent {
    core.start(request, *now);
    loop {
        while let Some(datagram) = core.poll_transmit() {
            network.send(datagram, true, *now);
        }
        if let Some(event) = core.poll_event() {
            return event;
        }
        let timer = core.next_timer().expect("a request in progress has a timer");
        match network.next() {
            Some((at, to_server, datagram)) if at <= timer => {
                *now = at.max(*now);
                if to_server {
                    for answer in server.handle(&OwnedMessage::parse(&datagram)) {
                        network.send(answer.encode(), false, *now);
                    }
                } else {
                    core.handle_datagram(&datagram, *now);
                }
            }
            later => {
                network.under_way.extend(later);
                *now = timer;
                core.handle_timer(timer);
            }
        }
    }
}

/// Row 1.11: bodies in blocks arrive whole in both directions with 10 % loss, 5 % duplication and reordering, and no
/// block is executed twice.
#[test]
fn bodies_cross_a_lossy_network_unchanged() {
    let mut complete = 0;
    for seed in 0..300 {
        let mut server = ModelServer {
            body: pattern(1, 10),
            partial: Vec::new(),
            answers: HashMap::new(),
            executed: 0,
            next_id: 0,
            answers_separately: seed % 3 == 0,
        };
        let mut network = LossyNetwork { random: SplitMix64::new(seed), under_way: Vec::new() };
        let config =
            CoapClientConfig { request_timeout: Duration::from_secs(3600), ..CoapClientConfig::default() };
        let mut core = CoapClientCore::new(config, seed);
        let mut now = Instant::now();
        let body = pattern(seed as u8, 1000 + seed as usize);
        let upload = CoapRequest { block_size: BlockSize::at_most(BLOCK), ..put("/large-update", &body) };
        // A message and all its repetitions may be lost; then the rest is not checked.
        let CoapClientEvent::Response(response) = run(&mut core, &mut server, &mut network, upload, &mut now)
        else {
            continue;
        };
        assert_eq!((response.code, server.executed), (Code::CHANGED, 1), "seed {seed}");
        assert_eq!(server.body, body, "seed {seed}");
        let read = run(&mut core, &mut server, &mut network, get("/large-update"), &mut now);
        if let CoapClientEvent::Response(response) = read {
            assert_eq!(response.payload, body, "seed {seed}");
            complete += 1;
        }
    }
    assert!(complete > 200, "only {complete} of 300 transfers were complete");
}
