//! Decode errors: the broken rule, the offending byte and its offset, and the code of the close frame that answers.
//! Eight bytes, so a decoder can store one; text is formatted on demand.

use core::fmt;

use super::close::CloseCode;

/// The element that offsets count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketElement {
    /// The header of a frame.
    Header,
    /// A text message, all fragments together.
    Message,
    /// The payload of a close frame.
    ClosePayload,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $code:ident in $element:ident, $expected:literal;)*) => {
        /// The broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum WebSocketFault { $($(#[$doc])* $name,)* }

        impl WebSocketFault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code of the close frame that answers it.
            #[must_use]
            pub const fn close_code(self) -> CloseCode {
                match self { $(Self::$name => CloseCode::$code,)* }
            }

            /// The element that offsets count from.
            #[must_use]
            pub const fn element(self) -> WebSocketElement {
                match self { $(Self::$name => WebSocketElement::$element,)* }
            }

            /// The expected input, to follow the word "expected". Short enough for the reason of a close frame.
            #[must_use]
            pub const fn expected(self) -> &'static str {
                match self { $(Self::$name => $expected,)* }
            }
        }
    };
}

faults! {
    /// RFC 6455 §5.2: a reserved bit is set, and no extension was negotiated.
    ReservedBits: PROTOCOL_ERROR in Header, "reserved bits of 0";
    /// RFC 6455 §5.2: opcodes 3 to 7 and 11 to 15 are reserved.
    Opcode: PROTOCOL_ERROR in Header, "a known opcode";
    /// RFC 6455 §5.5: a control frame is fragmented.
    ControlFragmented: PROTOCOL_ERROR in Header, "a control frame in one piece";
    /// RFC 6455 §5.5: a control frame is longer than 125 bytes.
    ControlSize: PROTOCOL_ERROR in Header, "a control frame of at most 125 bytes";
    /// RFC 6455 §5.4: a continuation frame without a message to continue.
    ContinuationUnexpected: PROTOCOL_ERROR in Header, "the start of a message before its continuation";
    /// RFC 6455 §5.4: a message starts before the previous one ended.
    MessageUnfinished: PROTOCOL_ERROR in Header, "the end of the message before the next one";
    /// RFC 6455 §5.1: a client's frame is not masked.
    MaskMissing: PROTOCOL_ERROR in Header, "a masked frame";
    /// RFC 6455 §5.1: a server's frame is masked.
    MaskPresent: PROTOCOL_ERROR in Header, "a frame without a mask";
    /// RFC 6455 §5.2: the length does not have the shortest form.
    LengthForm: PROTOCOL_ERROR in Header, "a length in its shortest form";
    /// RFC 6455 §5.2: the highest bit of a 64-bit length is set.
    LengthSign: PROTOCOL_ERROR in Header, "a length of at most 63 bits";
    /// The message is longer than `message_size_max`.
    MessageSize: TOO_BIG in Header, "a message within message_size_max";
    /// RFC 6455 §8.1: a text message is not UTF-8.
    Text: INVALID_DATA in Message, "UTF-8";
    /// RFC 6455 §8.1: a text message ends inside a sequence.
    TextEnd: INVALID_DATA in Message, "the rest of a UTF-8 sequence";
    /// RFC 6455 §5.5.1: the payload of a close frame is a single byte.
    ClosePayload: PROTOCOL_ERROR in ClosePayload, "a close code of two bytes";
    /// RFC 6455 §7.4: a close frame cannot carry this code.
    CloseCode: PROTOCOL_ERROR in ClosePayload, "a close code that may be sent";
    /// RFC 6455 §5.5.1: the reason of a close frame is not UTF-8.
    CloseReason: INVALID_DATA in ClosePayload, "a reason in UTF-8";
}

/// A frame or message that violates the protocol. The peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocketDecodeError {
    fault: WebSocketFault,
    found: Option<u8>,
    offset: u32,
}

impl WebSocketDecodeError {
    #[cold]
    pub(crate) fn new(fault: WebSocketFault, offset: usize, found: Option<u8>) -> Self {
        Self { fault, found, offset: u32::try_from(offset).unwrap_or(u32::MAX) }
    }

    /// The broken rule.
    #[must_use]
    pub fn fault(&self) -> WebSocketFault {
        self.fault
    }

    /// The code of the close frame that answers it.
    #[must_use]
    pub fn close_code(&self) -> CloseCode {
        self.fault.close_code()
    }

    /// A reason for the close frame.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.fault.expected()
    }

    /// Bytes from the start of the fault's element to the offending byte.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The offending byte, if a single byte is at fault. Bytes of headers are as sent, all others unmasked.
    #[must_use]
    pub fn found(&self) -> Option<u8> {
        self.found
    }
}

/// `1002: expected a known opcode at byte 0 of the frame, found 0x83`
impl fmt::Display for WebSocketDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = match self.fault.element() {
            WebSocketElement::Header => "frame",
            WebSocketElement::Message => "text message",
            WebSocketElement::ClosePayload => "close frame's payload",
        };
        let (code, expected) = (self.close_code(), self.fault.expected());
        write!(f, "{code}: expected {expected} at byte {} of the {element}", self.offset)?;
        self.found.map_or(Ok(()), |byte| write!(f, ", found {byte:#04x}"))
    }
}

impl core::error::Error for WebSocketDecodeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::limits::CONTROL_SIZE_MAX;

    #[test]
    fn an_error_is_small_and_shows_its_evidence() {
        assert!(size_of::<Option<WebSocketDecodeError>>() <= 8);
        let error = WebSocketDecodeError::new(WebSocketFault::Opcode, 0, Some(0x83));
        assert_eq!(error.to_string(), "1002: expected a known opcode at byte 0 of the frame, found 0x83");
    }

    #[test]
    fn every_fault_has_a_code_for_the_wire_and_a_reason_that_fits() {
        for fault in WebSocketFault::ALL {
            let code = fault.close_code();
            assert_eq!(CloseCode::new(code.get()), Some(code));
            assert!(fault.expected().len() + 2 <= CONTROL_SIZE_MAX, "{fault:?}");
        }
    }
}
