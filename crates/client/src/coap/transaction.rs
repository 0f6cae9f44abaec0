//! A request with all its messages: the blocks of its body, then those of the response.

use std::time::{Duration, Instant};

use stilling_wire::coap::{
    BlockValue, CoapMessage, Code, MessageId, ObserveSequence, OptionNumber, Token, UintValue,
};

use super::body::{Assembled, Assembly, Upload};
use super::error::CoapClientError;
use super::exchange::MessageExchange;
use super::limits::{BODY_RESTARTS_MAX, REPEATS_MAX};
use super::request::{self, CoapRequest, MessageParts};
use super::response::CoapResponse;

/// What follows a response.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The next message is to be sent.
    Send,
    /// The response is complete.
    Complete(CoapResponse),
}

#[derive(Debug)]
pub(crate) struct Transaction {
    request: CoapRequest,
    /// Registers or ends an observation, in messages that do not ask for a later block.
    observe: Option<ObserveSequence>,
    timeout: Duration,
    deadline: Instant,
    upload: Option<Upload>,
    assembly: Assembly,
    /// The block of the response that the next message asks for.
    wanted: Option<BlockValue>,
    echo: Option<Vec<u8>>,
    repeats: u32,
    transfers: u32,
    pub(crate) exchange: Option<MessageExchange>,
}

impl Transaction {
    pub(crate) fn new(
        request: CoapRequest,
        observe: Option<ObserveSequence>,
        size_max: usize,
        timeout: Duration,
        now: Instant,
    ) -> Transaction {
        let upload = Upload::new(request.payload.len(), request.block_size);
        Transaction {
            observe,
            timeout,
            deadline: crate::limits::deadline(now, timeout),
            upload: Some(upload),
            assembly: Assembly::new(size_max),
            wanted: None,
            echo: None,
            repeats: 0,
            transfers: 1,
            exchange: None,
            request,
        }
    }

    /// A transaction that fetches the rest of a notification.
    pub(crate) fn of_notification(
        request: CoapRequest,
        size_max: usize,
        timeout: Duration,
        now: Instant,
    ) -> Transaction {
        Transaction { upload: None, ..Transaction::new(request, None, size_max, timeout, now) }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the current message registers an observation.
    pub(crate) fn is_registering(&self) -> bool {
        self.observe == Some(ObserveSequence::REGISTER) && self.wanted.is_none()
    }

    /// The error of a transaction whose deadline has passed.
    pub(crate) fn timed_out(&self) -> CoapClientError {
        CoapClientError::TimedOut {
            timeout: self.timeout,
            is_acknowledged: self.exchange.as_ref().is_some_and(MessageExchange::is_acknowledged),
            received: self.assembly.received(),
        }
    }

    /// Whether the message is confirmable.
    pub(crate) fn is_confirmable(&self) -> bool {
        self.request.is_confirmable
    }

    /// Writes the next message.
    pub(crate) fn encode(&self, id: MessageId, token: Token) -> Result<Vec<u8>, CoapClientError> {
        let mut options = Vec::new();
        let mut push = |number, value: UintValue| options.push((number, value.as_bytes().to_vec()));
        let mut payload = &self.request.payload[..];
        match (&self.upload, self.wanted) {
            (Some(upload), _) => {
                payload = &payload[upload.range()];
                if let Some(block) = upload.block()? {
                    push(OptionNumber::BLOCK1, block.encode());
                    let length = u32::try_from(self.request.payload.len()).unwrap_or(u32::MAX);
                    push(OptionNumber::SIZE1, UintValue::new(length));
                }
                let first = BlockValue::new(0, false, self.request.block_size);
                if let Some(block) = first.filter(|_| self.request.asks_for_block_size && upload.is_last()) {
                    push(OptionNumber::BLOCK2, block.encode());
                }
            }
            (None, Some(block)) => {
                push(OptionNumber::BLOCK2, block.encode());
                // The payload of FETCH selects the representation (RFC 8132 §2), so each of its requests needs it.
                if self.request.method != Code::FETCH || payload.len() > self.request.block_size.bytes() {
                    payload = &[];
                }
            }
            (None, None) => {}
        }
        if let Some(observe) = self.observe.filter(|_| self.wanted.is_none()) {
            push(OptionNumber::OBSERVE, observe.encode());
        }
        options.extend(self.echo.clone().map(|value| (OptionNumber::ECHO, value)));
        let parts = MessageParts { id, token, options, payload };
        request::encode(&self.request, &parts).map_err(CoapClientError::TooLong)
    }

    /// Processes the response to the current message.
    pub(crate) fn handle_response(&mut self, message: &CoapMessage<'_>) -> Result<Progress, CoapClientError> {
        let response =
            CoapResponse::of(message).map_err(|unknown| CoapClientError::UnrecognisedOption(unknown.0))?;
        if let Some(echo) = response.option(OptionNumber::ECHO) {
            self.echo = Some(echo.to_vec());
            if response.code == Code::UNAUTHORIZED && self.may_repeat() {
                return Ok(Progress::Send);
            }
        }
        if self.continues_upload(&response)? {
            return Ok(Progress::Send);
        }
        self.upload = None;
        self.append(response, message.payload)
    }

    /// Whether a further message of the request body follows.
    fn continues_upload(&mut self, response: &CoapResponse) -> Result<bool, CoapClientError> {
        let block = response.option(OptionNumber::BLOCK1).and_then(|value| BlockValue::decode(value).ok());
        let Some(upload) = &mut self.upload else { return Ok(false) };
        match (response.code, block) {
            (Code::REQUEST_ENTITY_TOO_LARGE, Some(block)) => {
                let shrinks = self.repeats < REPEATS_MAX && upload.shrink(block.size);
                self.repeats += u32::from(shrinks);
                Ok(shrinks)
            }
            // The server has lost the earlier blocks.
            (Code::REQUEST_ENTITY_INCOMPLETE, _)
                if upload.range().start > 0 && self.repeats < REPEATS_MAX =>
            {
                self.repeats += 1;
                *upload = Upload::new(self.request.payload.len(), self.request.block_size);
                Ok(true)
            }
            (code, Some(block)) if code.is_success() && !upload.is_last() => {
                upload.advance(block)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Adds a block to the response, also that of a notification.
    pub(crate) fn append(
        &mut self,
        response: CoapResponse,
        payload: &[u8],
    ) -> Result<Progress, CoapClientError> {
        match self.assembly.append(response, payload, self.request.block_size)? {
            Assembled::Complete => Ok(Progress::Complete(self.assembly.take().unwrap_or_default())),
            Assembled::Next(block) => {
                self.wanted = Some(block);
                Ok(Progress::Send)
            }
            Assembled::Changed => self.restart_download(),
        }
    }

    fn restart_download(&mut self) -> Result<Progress, CoapClientError> {
        // Only reading may be repeated.
        let is_safe = matches!(self.request.method, Code::GET | Code::FETCH);
        if !is_safe || self.transfers > BODY_RESTARTS_MAX {
            return Err(CoapClientError::BodyChanged { transfers: self.transfers });
        }
        self.transfers += 1;
        self.assembly.clear();
        self.wanted = BlockValue::new(0, false, self.request.block_size);
        Ok(Progress::Send)
    }

    fn may_repeat(&mut self) -> bool {
        let may = self.repeats < REPEATS_MAX;
        self.repeats += u32::from(may);
        may
    }
}
