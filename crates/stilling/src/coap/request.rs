//! A request with its options decoded once.

use stilling_wire::coap::{
    BlockValue, CoapMessage, Code, ContentFormat, NoResponse, ObserveSequence, OptionNumber, Options,
    decode_uint,
};

use super::limits::{CACHE_KEY_SIZE_MAX, PATH_SIZE_MAX};

/// A decoded request that borrows from its datagram, or from the assembly of its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoapRequest<'a> {
    pub(super) code: Code,
    /// The segments, joined by `/`.
    pub(super) path: &'a [u8],
    pub(super) options: Options<'a>,
    pub(super) payload: &'a [u8],
    pub(super) block1: Option<BlockValue>,
    pub(super) block2: Option<BlockValue>,
    pub(super) observe: Option<ObserveSequence>,
    pub(super) accept: Option<ContentFormat>,
    pub(super) format: Option<ContentFormat>,
    pub(super) size1: Option<u32>,
    pub(super) echo: Option<&'a [u8]>,
    pub(super) no_response: NoResponse,
    /// It has If-Match or If-None-Match.
    pub(super) is_conditional: bool,
}

/// Why a request is answered with an error before its resource is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestError {
    /// An unknown critical option.
    BadOption(OptionNumber),
    /// It is for a proxy.
    Proxy,
    /// A reserved block size, or a number out of its range.
    BadValue,
    /// The path is longer than any resource's.
    PathTooLong,
}

impl RequestError {
    pub(super) fn code(self) -> Code {
        match self {
            RequestError::BadOption(_) => Code::BAD_OPTION,
            RequestError::Proxy => Code::PROXYING_NOT_SUPPORTED,
            RequestError::BadValue => Code::BAD_REQUEST,
            RequestError::PathTooLong => Code::NOT_FOUND,
        }
    }
}

/// Memory for the path of a request.
#[derive(Debug)]
pub(super) struct PathBuffer {
    bytes: [u8; PATH_SIZE_MAX],
    size: usize,
}

impl PathBuffer {
    pub(super) const fn new() -> PathBuffer {
        PathBuffer { bytes: [0; PATH_SIZE_MAX], size: 0 }
    }

    /// Appends a segment. A slash in it is not one between segments, so it is percent-encoded.
    fn push(&mut self, segment: &[u8], is_first: bool) -> Option<()> {
        if !is_first {
            self.append(b"/")?;
        }
        let mut pieces = segment.split(|&byte| byte == b'/');
        self.append(pieces.next().unwrap_or_default())?;
        for piece in pieces {
            self.append(b"%2F")?;
            self.append(piece)?;
        }
        Some(())
    }

    fn append(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes.get_mut(self.size..self.size + bytes.len())?.copy_from_slice(bytes);
        self.size += bytes.len();
        Some(())
    }
}

/// Options that may be in a request; further elective ones are skipped.
fn is_supported(option: OptionNumber) -> bool {
    matches!(
        option,
        OptionNumber::IF_MATCH
            | OptionNumber::URI_HOST
            | OptionNumber::ETAG
            | OptionNumber::IF_NONE_MATCH
            | OptionNumber::OBSERVE
            | OptionNumber::URI_PORT
            | OptionNumber::URI_PATH
            | OptionNumber::CONTENT_FORMAT
            | OptionNumber::URI_QUERY
            | OptionNumber::ACCEPT
            | OptionNumber::BLOCK2
            | OptionNumber::BLOCK1
            | OptionNumber::SIZE2
            | OptionNumber::SIZE1
            | OptionNumber::PROXY_URI
            | OptionNumber::PROXY_SCHEME
            | OptionNumber::ECHO
            | OptionNumber::NO_RESPONSE
            | OptionNumber::REQUEST_TAG
    )
}

impl<'a> CoapRequest<'a> {
    /// Decodes the options of a request. `path` gets its path.
    pub(super) fn decode(
        message: &CoapMessage<'a>,
        path: &'a mut PathBuffer,
    ) -> Result<CoapRequest<'a>, RequestError> {
        let mut request = CoapRequest {
            code: message.code,
            path: &[],
            options: message.options,
            payload: message.payload,
            block1: None,
            block2: None,
            observe: None,
            accept: None,
            format: None,
            size1: None,
            echo: None,
            no_response: NoResponse::default(),
            is_conditional: false,
        };
        let mut segments = 0;
        path.size = 0;
        for option in message.options.recognised(is_supported) {
            let option = option.map_err(|unknown| RequestError::BadOption(unknown.0))?;
            let value = option.value;
            match option.number {
                OptionNumber::URI_PATH => {
                    path.push(value, segments == 0).ok_or(RequestError::PathTooLong)?;
                    segments += 1;
                }
                OptionNumber::PROXY_URI | OptionNumber::PROXY_SCHEME => return Err(RequestError::Proxy),
                OptionNumber::BLOCK1 => request.block1 = Some(block(value)?),
                OptionNumber::BLOCK2 => request.block2 = Some(block(value)?),
                OptionNumber::OBSERVE => request.observe = ObserveSequence::decode(value),
                OptionNumber::ACCEPT => request.accept = format(value),
                OptionNumber::CONTENT_FORMAT => request.format = format(value),
                OptionNumber::SIZE1 => request.size1 = decode_uint(value),
                OptionNumber::ECHO => request.echo = Some(value),
                OptionNumber::NO_RESPONSE => request.no_response = NoResponse::decode(value),
                OptionNumber::IF_MATCH | OptionNumber::IF_NONE_MATCH => request.is_conditional = true,
                _ => {}
            }
        }
        request.path = &path.bytes[..path.size];
        Ok(request)
    }

    /// The values of an option.
    pub(super) fn values(&self, number: OptionNumber) -> impl Iterator<Item = &'a [u8]> {
        self.options.values(number)
    }

    /// Whether it asks for a later block of an answer.
    pub(super) fn later_block(&self) -> Option<BlockValue> {
        self.block2.filter(|block| block.number() > 0)
    }

    /// Whether it asks for a later block of an answer, or has a later block of its body.
    pub(super) fn is_next_block(&self) -> bool {
        self.later_block().is_some() || self.block1.is_some_and(|block| block.number() > 0)
    }

    /// Whether it registers an observer (RFC 7641 §3.1). A request for a later block does not.
    pub(super) fn registers(&self) -> bool {
        self.observe == Some(ObserveSequence::REGISTER) && self.is_safe() && self.later_block().is_none()
    }

    /// Whether the request may be executed again without an effect.
    pub(super) fn is_safe(&self) -> bool {
        is_safe(self.code)
    }
}

/// Whether a method has no effect.
pub(super) fn is_safe(method: Code) -> bool {
    matches!(method, Code::GET | Code::FETCH)
}

fn block(value: &[u8]) -> Result<BlockValue, RequestError> {
    BlockValue::decode(value).map_err(|_| RequestError::BadValue)
}

fn format(value: &[u8]) -> Option<ContentFormat> {
    Some(ContentFormat(u16::try_from(decode_uint(value)?).ok()?))
}

/// Bytes that are equal for requests with the same answer: the method and the options of the cache key (RFC 7252
/// §5.4.6), without those that select blocks or register observations.
#[derive(Debug)]
pub(super) struct CacheKey {
    bytes: [u8; CACHE_KEY_SIZE_MAX],
    size: usize,
}

impl CacheKey {
    pub(super) const fn new() -> CacheKey {
        CacheKey { bytes: [0; CACHE_KEY_SIZE_MAX], size: 0 }
    }

    /// Sets the key to that of a request; without bytes if it is too long.
    pub(super) fn set(&mut self, message: &CoapMessage<'_>) {
        self.size = 0;
        if self.write(message).is_none() {
            self.size = 0;
        }
    }

    fn write(&mut self, message: &CoapMessage<'_>) -> Option<()> {
        self.append(&[message.code.byte()])?;
        for option in message.options.filter(|option| is_in_key(option.number)) {
            let size = u16::try_from(option.value.len()).ok()?;
            self.append(&option.number.0.to_be_bytes())?;
            self.append(&size.to_be_bytes())?;
            self.append(option.value)?;
        }
        Some(())
    }

    fn append(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes.get_mut(self.size..self.size + bytes.len())?.copy_from_slice(bytes);
        self.size += bytes.len();
        Some(())
    }

    /// The bytes; `None` if the request has too many.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        (self.size > 0).then(|| &self.bytes[..self.size])
    }
}

fn is_in_key(number: OptionNumber) -> bool {
    !number.is_no_cache_key()
        && !matches!(
            number,
            OptionNumber::BLOCK1
                | OptionNumber::BLOCK2
                | OptionNumber::OBSERVE
                | OptionNumber::ETAG
                | OptionNumber::ECHO
                | OptionNumber::NO_RESPONSE
        )
}
