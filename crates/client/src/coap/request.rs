//! Requests, and their messages.

use stilling_wire::coap::{
    BlockSize, CoapEncodeError, Code, ContentFormat, MessageId, MessageType, MessageWriter, OptionNumber,
    Token, UintValue,
};

use super::limits::{REQUEST_MESSAGE_SIZE_MAX, REQUEST_OPTIONS_MAX};
use super::url::CoapUrl;

/// A request: method, options and body. A body longer than a block is sent in blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoapRequest {
    /// The method.
    pub method: Code,
    /// Options with their values, in any order. The client adds those for blocks, Observe and Echo.
    pub options: Vec<(OptionNumber, Vec<u8>)>,
    /// The body.
    pub payload: Vec<u8>,
    /// Whether the messages are confirmable.
    pub is_confirmable: bool,
    /// Most bytes of a block, in both directions.
    pub block_size: BlockSize,
    /// Whether the first message already has `Block2` with this size. Otherwise the server chooses a size, and later
    /// messages use the smaller of both.
    pub asks_for_block_size: bool,
}

impl CoapRequest {
    /// A confirmable request without a body for the resource of `url`.
    #[must_use]
    pub fn new(method: Code, url: &CoapUrl) -> CoapRequest {
        let host = url.host_name().map(|name| (OptionNumber::URI_HOST, name.as_bytes().to_vec()));
        let path = url.path.iter().map(|segment| (OptionNumber::URI_PATH, segment.clone().into_bytes()));
        let query = url.query.iter().map(|argument| (OptionNumber::URI_QUERY, argument.clone().into_bytes()));
        CoapRequest {
            method,
            options: host.into_iter().chain(path).chain(query).collect(),
            payload: Vec::new(),
            is_confirmable: true,
            block_size: BlockSize::MAX,
            asks_for_block_size: false,
        }
    }

    /// Sets the body and its format.
    #[must_use]
    pub fn with_payload(mut self, payload: Vec<u8>, format: Option<ContentFormat>) -> CoapRequest {
        self.payload = payload;
        if let Some(ContentFormat(format)) = format {
            self.push_uint(OptionNumber::CONTENT_FORMAT, u32::from(format));
        }
        self
    }

    /// Requests a format of the response.
    #[must_use]
    pub fn accepting(mut self, ContentFormat(format): ContentFormat) -> CoapRequest {
        self.push_uint(OptionNumber::ACCEPT, u32::from(format));
        self
    }

    /// Sends each message once, without an acknowledgement.
    #[must_use]
    pub fn non_confirmable(mut self) -> CoapRequest {
        self.is_confirmable = false;
        self
    }

    fn push_uint(&mut self, number: OptionNumber, value: u32) {
        self.options.push((number, UintValue::new(value).as_bytes().to_vec()));
    }
}

/// What distinguishes one message of a request from the others.
#[derive(Clone, Debug)]
pub(crate) struct MessageParts<'a> {
    pub(crate) id: MessageId,
    pub(crate) token: Token,
    /// Options of this message alone.
    pub(crate) options: Vec<(OptionNumber, Vec<u8>)>,
    pub(crate) payload: &'a [u8],
}

/// Writes a message of the request.
///
/// # Errors
/// If it is longer than [`REQUEST_MESSAGE_SIZE_MAX`], or has too many or too long options.
pub(crate) fn encode(request: &CoapRequest, parts: &MessageParts<'_>) -> Result<Vec<u8>, CoapEncodeError> {
    if request.options.len() > REQUEST_OPTIONS_MAX {
        return Err(CoapEncodeError::Full);
    }
    // The sort is stable: repeated options keep their order.
    let mut options: Vec<&(OptionNumber, Vec<u8>)> = request.options.iter().chain(&parts.options).collect();
    options.sort_by_key(|(number, _)| *number);
    let kind = if request.is_confirmable { MessageType::Confirmable } else { MessageType::NonConfirmable };
    let mut buffer = [0; REQUEST_MESSAGE_SIZE_MAX];
    let mut writer = MessageWriter::new(&mut buffer, kind, request.method, parts.id, parts.token)?;
    for (number, value) in options {
        writer.option(*number, value)?;
    }
    Ok(writer.payload(parts.payload)?.to_vec())
}
