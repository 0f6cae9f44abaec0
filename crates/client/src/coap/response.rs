//! Responses.

use std::time::Duration;

use stilling_wire::coap::{
    CoapMessage, Code, ContentFormat, ObserveSequence, OptionNumber, UnrecognisedOption, decode_uint,
};

use super::limits::MAX_AGE_DEFAULT;

/// A complete response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoapResponse {
    /// The status code.
    pub code: Code,
    /// Options of the first block, in the order of their numbers.
    pub options: Vec<(OptionNumber, Vec<u8>)>,
    /// The body: all blocks.
    pub payload: Vec<u8>,
}

impl Default for CoapResponse {
    /// An empty response without a code.
    fn default() -> CoapResponse {
        CoapResponse { code: Code::EMPTY, options: Vec::new(), payload: Vec::new() }
    }
}

/// Options of responses that the client processes. All others are critical errors or skipped.
fn is_supported(number: OptionNumber) -> bool {
    matches!(
        number,
        OptionNumber::ETAG
            | OptionNumber::OBSERVE
            | OptionNumber::LOCATION_PATH
            | OptionNumber::CONTENT_FORMAT
            | OptionNumber::MAX_AGE
            | OptionNumber::LOCATION_QUERY
            | OptionNumber::BLOCK2
            | OptionNumber::BLOCK1
            | OptionNumber::SIZE2
            | OptionNumber::SIZE1
            | OptionNumber::ECHO
    )
}

impl CoapResponse {
    /// Copies code and options of a message; the payload is added block by block.
    pub(crate) fn of(message: &CoapMessage<'_>) -> Result<CoapResponse, UnrecognisedOption> {
        let options = message
            .options
            .recognised(is_supported)
            .map(|option| option.map(|option| (option.number, option.value.to_vec())));
        Ok(CoapResponse {
            code: message.code,
            options: options.collect::<Result<_, _>>()?,
            payload: Vec::new(),
        })
    }

    /// The first value of an option.
    #[must_use]
    pub fn option(&self, number: OptionNumber) -> Option<&[u8]> {
        self.options.iter().find(|(of, _)| *of == number).map(|(_, value)| &value[..])
    }

    /// The format of the body.
    #[must_use]
    pub fn content_format(&self) -> Option<ContentFormat> {
        let value = decode_uint(self.option(OptionNumber::CONTENT_FORMAT)?)?;
        u16::try_from(value).ok().map(ContentFormat)
    }

    /// Time for which the response is fresh, or after which a refused request may be repeated.
    #[must_use]
    pub fn max_age(&self) -> Duration {
        let seconds = self.option(OptionNumber::MAX_AGE).and_then(decode_uint);
        seconds.map_or(MAX_AGE_DEFAULT, |seconds| Duration::from_secs(u64::from(seconds)))
    }

    /// The sequence of a notification.
    #[must_use]
    pub fn observe_sequence(&self) -> Option<ObserveSequence> {
        ObserveSequence::decode(self.option(OptionNumber::OBSERVE)?)
    }

    /// Path and query of a created resource, such as `/a/b?c`; `None` if the server names none.
    #[must_use]
    pub fn location(&self) -> Option<String> {
        let parts = |wanted: OptionNumber, before: fn(usize) -> char| {
            let values = self.options.iter().filter(move |(number, _)| *number == wanted);
            values.enumerate().fold(String::new(), |mut text, (at, (_, value))| {
                text.push(before(at));
                text.push_str(&String::from_utf8_lossy(value));
                text
            })
        };
        let path = parts(OptionNumber::LOCATION_PATH, |_| '/');
        let query = parts(OptionNumber::LOCATION_QUERY, |at| if at == 0 { '?' } else { '&' });
        Some(path + &query).filter(|location| !location.is_empty())
    }
}
