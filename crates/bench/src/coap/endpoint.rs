//! One source port: its message ids, its requests in flight, and the verification of its answers.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use stilling_wire::coap::{
    BlockSize, BlockValue, CoapEncodeError, CoapMessage, Code, MessageContent, MessageId, MessageType,
    MessageWriter, OptionNumber, Token, encode_empty,
};

use super::datagrams::Outbox;
use super::expected::ExpectedBodies;
use super::faults::FaultInjector;
use super::limits::{IDS_PER_PORT, IDS_RESERVED, RECEIVE_BUFFER, REQUEST_SIZE_MAX};
use super::plan::CoapPlan;
use super::slot::{ETag, RequestToken, Slot, SlotTimer};
use super::tally::{CoapFailure, CoapTally};

/// Writes the requests of all variants.
#[derive(Debug)]
pub(super) struct RequestEncoder {
    variants: Vec<Vec<(OptionNumber, Vec<u8>)>>,
    kind: MessageType,
    /// Requests are POST, each with its number as body.
    counts_executions: bool,
    buffer: [u8; REQUEST_SIZE_MAX],
}

impl RequestEncoder {
    pub(super) fn new(plan: &CoapPlan) -> RequestEncoder {
        let options_of = |variant: u32| {
            let path = plan.path.iter().map(|part| (OptionNumber::URI_PATH, part));
            let query = plan.query.iter().map(|part| (OptionNumber::URI_QUERY, part));
            let numbered = |part: &String| part.replace("{n}", &variant.to_string()).into_bytes();
            path.chain(query).map(|(number, part)| (number, numbered(part))).collect()
        };
        let kind = if plan.is_confirmable { MessageType::Confirmable } else { MessageType::NonConfirmable };
        RequestEncoder {
            variants: (0..plan.variants).map(options_of).collect(),
            kind,
            counts_executions: plan.counts_executions,
            buffer: [0; REQUEST_SIZE_MAX],
        }
    }

    pub(super) fn encode(
        &mut self,
        variant: u32,
        (id, token): (MessageId, Token),
        block: Option<BlockValue>,
    ) -> Result<&[u8], CoapEncodeError> {
        let (code, options) = match self.counts_executions {
            true => (Code::POST, &self.variants[0]),
            false => (Code::GET, &self.variants[variant as usize]),
        };
        let mut writer = MessageWriter::new(&mut self.buffer, self.kind, code, id, token)?;
        for (number, value) in options {
            writer.option(*number, value)?;
        }
        if self.counts_executions {
            return writer.payload(variant.to_string().as_bytes());
        }
        if let Some(block) = block {
            writer.option(OptionNumber::BLOCK2, block.encode().as_bytes())?;
        }
        Ok(writer.finish())
    }
}

/// What all endpoints of a run share.
#[derive(Debug)]
pub(super) struct LoadContext {
    pub(super) encoder: RequestEncoder,
    pub(super) expected: ExpectedBodies,
    pub(super) faults: FaultInjector,
    pub(super) tally: CoapTally,
    pub(super) is_confirmable: bool,
    pub(super) loses: bool,
    pub(super) timeout_ns: u64,
    /// Number of endpoints.
    pub(super) endpoints: u16,
    /// Generation before the first message of each slot.
    pub(super) first_generation: u32,
    pub(super) in_flight: u64,
    /// Time of the turn in nanoseconds of the run.
    pub(super) now_ns: u64,
}

pub(super) struct Endpoint {
    number: u16,
    pub(super) socket: UdpSocket,
    next_id: MessageId,
    ids_left: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    pub(super) outbox: Outbox,
}

/// A socket for datagrams of the server only, with a source port chosen by the system.
fn open(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    Ok(socket)
}

impl Endpoint {
    pub(super) fn open(number: u16, plan: &CoapPlan, first_generation: u32) -> io::Result<Endpoint> {
        Ok(Endpoint {
            number,
            socket: open(plan.to)?,
            next_id: first_generation as MessageId,
            ids_left: IDS_PER_PORT,
            slots: vec![Slot::new(first_generation); plan.window.into()],
            free: (0..plan.window).rev().collect(),
            outbox: Outbox::default(),
        })
    }

    /// Whether a request can start.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.ids_left > IDS_RESERVED
    }

    /// Whether the ids are used up and no request needs this source port any more.
    pub(super) fn needs_port(&self) -> bool {
        self.ids_left <= IDS_RESERVED && self.free.len() == self.slots.len()
    }

    /// Continues with a new source port. Returns the old one, which must stay open.
    pub(super) fn renew(&mut self, to: SocketAddr) -> io::Result<UdpSocket> {
        self.ids_left = IDS_PER_PORT;
        Ok(std::mem::replace(&mut self.socket, open(to)?))
    }

    /// Starts a request in a free slot, if there is one.
    pub(super) fn start(&mut self, context: &mut LoadContext, variant: u32, intended_ns: u64) {
        let Some(at) = self.free.pop() else { return };
        let deadline_ns = intended_ns.max(context.now_ns) + context.timeout_ns;
        self.slots[usize::from(at)].start(variant, intended_ns, deadline_ns);
        context.in_flight += 1;
        context.tally.start(intended_ns);
        self.send_message(context, at);
    }

    /// Sends the next message of a slot.
    fn send_message(&mut self, context: &mut LoadContext, at: u16) {
        if self.ids_left == 0 {
            context.tally.fail(CoapFailure::IdsExhausted, || format!("source port {}", self.number));
            return self.release(context, at);
        }
        self.ids_left -= 1;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.slots[usize::from(at)].begin_message(id, context.is_confirmable, context.now_ns);
        self.transmit(context, at);
    }

    fn transmit(&mut self, context: &mut LoadContext, at: u16) {
        let slot = &self.slots[usize::from(at)];
        let token = RequestToken { endpoint: self.number, slot: at, generation: slot.generation };
        let block = slot.block.and_then(|(offset, size)| BlockValue::at_offset(offset, false, size));
        // The first requests have shown that the message fits.
        if let Ok(datagram) = context.encoder.encode(slot.variant, (slot.id, token.encode()), block) {
            context.faults.send(self.number, datagram, &mut self.outbox);
        }
    }

    fn release(&mut self, context: &mut LoadContext, at: u16) {
        self.slots[usize::from(at)].is_busy = false;
        self.free.push(at);
        context.in_flight -= 1;
    }

    pub(super) fn handle_timers(&mut self, context: &mut LoadContext) {
        for at in 0..self.slots.len() as u16 {
            let slot = &mut self.slots[usize::from(at)];
            if !slot.is_busy {
                continue;
            }
            match slot.handle_timer(context.now_ns) {
                SlotTimer::Idle => {}
                SlotTimer::Retransmit => {
                    context.tally.retransmissions += 1;
                    self.transmit(context, at);
                }
                timer @ (SlotTimer::Unacknowledged | SlotTimer::Expired) => {
                    let is_last = timer == SlotTimer::Unacknowledged;
                    if context.loses && (is_last || !context.is_confirmable) {
                        context.tally.lost += 1;
                    } else {
                        context.tally.fail(CoapFailure::Timeout, || format!("{slot:?}"));
                    }
                    self.release(context, at);
                }
            }
        }
    }

    pub(super) fn receive(&mut self, context: &mut LoadContext, datagram: &[u8]) {
        if context.faults.drops_received() {
            return;
        }
        let message = match CoapMessage::parse(datagram) {
            Ok(message) => message,
            Err(error) => return context.tally.fail(CoapFailure::Malformed, || error.to_string()),
        };
        match (message.content, message.kind) {
            (MessageContent::Response, _) => self.receive_response(context, &message),
            (MessageContent::Empty, MessageType::Acknowledgement) => {
                if let Some(at) = self.slot_with_id(message.id) {
                    self.slots[usize::from(at)].acknowledge();
                }
            }
            (MessageContent::Empty, MessageType::Reset) => {
                if let Some(at) = self.slot_with_id(message.id) {
                    context.tally.fail(CoapFailure::Reset, || format!("message id {}", message.id));
                    self.release(context, at);
                }
            }
            _ => context.tally.fail(CoapFailure::Malformed, || format!("a request or ping: {message:?}")),
        }
    }

    fn slot_with_id(&self, id: MessageId) -> Option<u16> {
        self.slots.iter().position(|slot| slot.is_busy && slot.id == id).map(|at| at as u16)
    }

    fn receive_response(&mut self, context: &mut LoadContext, message: &CoapMessage<'_>) {
        if message.kind == MessageType::Confirmable {
            let acknowledgement = encode_empty(MessageType::Acknowledgement, message.id);
            context.faults.send(self.number, &acknowledgement, &mut self.outbox);
        }
        let Some(token) = RequestToken::decode(&message.token) else {
            return context.tally.fail(CoapFailure::UnknownToken, || format!("{message:?}"));
        };
        if token.endpoint != self.number && token.endpoint < context.endpoints {
            let detail = || format!("source port {} received {message:?}", self.number);
            return context.tally.fail(CoapFailure::Misdirected, detail);
        }
        let slot = self.slots.get(usize::from(token.slot));
        let Some(slot) = slot.filter(|_| token.endpoint == self.number) else {
            return context.tally.fail(CoapFailure::UnknownToken, || format!("{message:?}"));
        };
        let age = slot.generation.wrapping_sub(token.generation);
        let issued = slot.generation.wrapping_sub(context.first_generation);
        if age >= issued {
            return context.tally.fail(CoapFailure::UnknownToken, || format!("{message:?}"));
        }
        if age > 0 || !slot.is_busy {
            context.tally.duplicates += 1;
            return;
        }
        let has_wrong_id = message.kind == MessageType::Acknowledgement && message.id != slot.id;
        match if has_wrong_id { Err(CoapFailure::WrongId) } else { self.verify(context, token.slot, message) }
        {
            Ok(ResponsePart::Last) => {
                let intended_ns = self.slots[usize::from(token.slot)].intended_ns;
                context.tally.complete(intended_ns, context.now_ns);
                self.release(context, token.slot);
            }
            Ok(ResponsePart::Block) => self.send_message(context, token.slot),
            Ok(ResponsePart::Shed) => {
                let intended_ns = self.slots[usize::from(token.slot)].intended_ns;
                context.tally.shed(intended_ns, context.now_ns);
                self.release(context, token.slot);
            }
            Err(failure) => {
                context.tally.fail(failure, || evidence(message));
                self.release(context, token.slot);
            }
        }
    }

    /// Compares a response with the request of its slot and with the expected body.
    fn verify(
        &mut self,
        context: &mut LoadContext,
        at: u16,
        message: &CoapMessage<'_>,
    ) -> Result<ResponsePart, CoapFailure> {
        match message.code {
            Code::CHANGED if context.encoder.counts_executions => {
                let number = self.slots[usize::from(at)].variant.to_string();
                let is_own = message.payload == number.as_bytes();
                return if is_own { Ok(ResponsePart::Last) } else { Err(CoapFailure::WrongBody) };
            }
            Code::CONTENT if !context.encoder.counts_executions => {}
            Code::TOO_MANY_REQUESTS | Code::SERVICE_UNAVAILABLE => return Ok(ResponsePart::Shed),
            _ => return Err(CoapFailure::UnexpectedCode),
        }
        let slot = &mut self.slots[usize::from(at)];
        let (mut block, mut etag) = (None, ETag::default());
        for option in message.options {
            match option.number {
                OptionNumber::ETAG => etag = ETag::new(option.value),
                OptionNumber::BLOCK2 => {
                    block = Some(BlockValue::decode(option.value).map_err(|_| CoapFailure::WrongBlock)?);
                }
                _ => {}
            }
        }
        let offset = slot.block.map_or(0, |(offset, _)| offset);
        let is_last = block.is_none_or(|block| !block.more);
        let is_expected = match block {
            Some(block) => {
                let has_size = is_last || message.payload.len() == block.size.bytes();
                has_size && block.offset() == offset
            }
            None => offset == 0,
        };
        if !is_expected || (offset > 0 && etag != slot.etag) {
            return Err(CoapFailure::WrongBlock);
        }
        if !context.expected.accept(slot.variant, offset, message.payload, is_last) {
            return Err(CoapFailure::WrongBody);
        }
        context.tally.blocks += 1;
        slot.etag = etag;
        slot.block = Some((offset + message.payload.len(), block.map_or(BlockSize::MAX, |block| block.size)));
        Ok(if is_last { ResponsePart::Last } else { ResponsePart::Block })
    }
}

/// What a correct response is.
enum ResponsePart {
    Last,
    Block,
    Shed,
}

fn evidence(message: &CoapMessage<'_>) -> String {
    let shown = &message.payload[..message.payload.len().min(32)];
    format!("{} with {} bytes: {}", message.code, message.payload.len(), shown.escape_ascii())
}
