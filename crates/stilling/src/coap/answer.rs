//! An answer of a resource, and its messages: whole or block by block.

use stilling_wire::coap::{
    BlockSize, BlockValue, CoapEncodeError, Code, ContentFormat, MessageId, MessageType, MessageWriter,
    ObserveSequence, OptionNumber, Token,
};

use super::body_cache::{BodyHead, ETag, etag_of};
use super::peers::ECHO_SIZE;

/// What a resource answers. Its memory is reused.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: Code,
    pub(super) format: Option<ContentFormat>,
    pub(super) etag: Option<ETag>,
    pub(super) max_age: Option<u32>,
    pub(super) location_path: &'static [&'static str],
    pub(super) location_query: &'static [&'static str],
    /// The location that a worker names: Location-Path options, then Location-Query options.
    pub(super) location: Vec<(OptionNumber, Vec<u8>)>,
    /// The maximum size of a request's body, for 4.13.
    pub(super) size1: Option<u32>,
    /// For a request that has to be repeated with it (RFC 9175 §2.3).
    pub(super) echo: Option<[u8; ECHO_SIZE]>,
    pub(super) body: Vec<u8>,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer {
            code: Code::CONTENT,
            format: None,
            etag: None,
            max_age: None,
            location_path: &[],
            location_query: &[],
            location: Vec::new(),
            size1: None,
            echo: None,
            body: Vec::new(),
        }
    }
}

impl Answer {
    /// Starts an answer without a body.
    pub(super) fn start(&mut self, code: Code) -> &mut Answer {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        *self = Answer { code, body, ..Answer::default() };
        self
    }

    /// Starts an answer with a diagnostic payload (RFC 7252 §5.5.2).
    pub(super) fn error(&mut self, code: Code, reason: &str) {
        self.start(code).body.extend_from_slice(reason.as_bytes());
    }

    /// Starts an answer with text.
    pub(super) fn text(&mut self, code: Code, text: &[u8]) -> &mut Answer {
        let answer = self.start(code);
        answer.format = Some(ContentFormat::TEXT);
        answer.body.extend_from_slice(text);
        answer
    }

    /// The head of a body that is sent in blocks.
    pub(super) fn head(&self) -> BodyHead {
        BodyHead {
            code: self.code,
            format: self.format,
            etag: self.etag.unwrap_or_else(|| etag_of(self.format, &self.body)),
            max_age: self.max_age,
        }
    }
}

/// Where a message goes and what it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageHead {
    pub(super) kind: MessageType,
    pub(super) id: MessageId,
    pub(super) token: Token,
    pub(super) observe: Option<ObserveSequence>,
    /// Acknowledges a block of the request.
    pub(super) block1: Option<BlockValue>,
}

/// Writes an answer that fits one message.
pub(super) fn encode_whole<'b>(
    buffer: &'b mut [u8],
    head: &MessageHead,
    answer: &Answer,
) -> Result<&'b [u8], CoapEncodeError> {
    let mut writer = MessageWriter::new(buffer, head.kind, answer.code, head.id, head.token)?;
    if let Some(etag) = &answer.etag {
        writer.option(OptionNumber::ETAG, etag)?;
    }
    if let Some(observe) = head.observe {
        writer.option(OptionNumber::OBSERVE, observe.encode().as_bytes())?;
    }
    for segment in answer.location_path {
        writer.option(OptionNumber::LOCATION_PATH, segment.as_bytes())?;
    }
    for (number, value) in answer.location.iter().filter(|(number, _)| *number == OptionNumber::LOCATION_PATH)
    {
        writer.option(*number, value)?;
    }
    if let Some(format) = answer.format {
        writer.uint(OptionNumber::CONTENT_FORMAT, format.0.into())?;
    }
    if let Some(max_age) = answer.max_age {
        writer.uint(OptionNumber::MAX_AGE, max_age)?;
    }
    for argument in answer.location_query {
        writer.option(OptionNumber::LOCATION_QUERY, argument.as_bytes())?;
    }
    for (number, value) in
        answer.location.iter().filter(|(number, _)| *number == OptionNumber::LOCATION_QUERY)
    {
        writer.option(*number, value)?;
    }
    if let Some(block) = head.block1 {
        writer.option(OptionNumber::BLOCK1, block.encode().as_bytes())?;
    }
    if let Some(size) = answer.size1 {
        writer.uint(OptionNumber::SIZE1, size)?;
    }
    if let Some(value) = &answer.echo {
        writer.option(OptionNumber::ECHO, value)?;
    }
    writer.payload(&answer.body)
}

/// Writes the block of a body that starts at `offset`.
pub(super) fn encode_block<'b>(
    buffer: &'b mut [u8],
    head: &MessageHead,
    answer: &BodyHead,
    body: &[u8],
    (offset, size): (usize, BlockSize),
) -> Result<&'b [u8], CoapEncodeError> {
    let end = body.len().min(offset + size.bytes());
    let block = BlockValue::at_offset(offset, end < body.len(), size).ok_or(CoapEncodeError::ValueSize)?;
    let mut writer = MessageWriter::new(buffer, head.kind, answer.code, head.id, head.token)?;
    writer.option(OptionNumber::ETAG, &answer.etag)?;
    if let Some(observe) = head.observe {
        writer.option(OptionNumber::OBSERVE, observe.encode().as_bytes())?;
    }
    if let Some(format) = answer.format {
        writer.uint(OptionNumber::CONTENT_FORMAT, format.0.into())?;
    }
    if let Some(max_age) = answer.max_age {
        writer.uint(OptionNumber::MAX_AGE, max_age)?;
    }
    writer.option(OptionNumber::BLOCK2, block.encode().as_bytes())?;
    if let Some(block) = head.block1 {
        writer.option(OptionNumber::BLOCK1, block.encode().as_bytes())?;
    }
    if offset == 0 {
        writer.uint(OptionNumber::SIZE2, u32::try_from(body.len()).unwrap_or(u32::MAX))?;
    }
    writer.payload(&body[offset..end])
}
