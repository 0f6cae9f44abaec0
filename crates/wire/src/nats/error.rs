//! Decode errors: what was expected, what was found, and where; the text for `-ERR`, and whether the connection closes.
//! Eight bytes, so a decoder can store one; text is formatted on demand.

use core::fmt;

/// The element that offsets count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatsElement {
    /// The line, from the first byte of its operation.
    Line,
    /// The CR LF after a payload.
    PayloadEnd,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $text:literal $end:ident, $expected:literal;)*) => {
        /// The broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum NatsFault { $($(#[$doc])* $name,)* }

        impl NatsFault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The text of `-ERR`, as known to NATS clients.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Whether the connection closes, because the start of the next operation is unknown or the peer violates
            /// the protocol.
            #[must_use]
            pub const fn closes(self) -> bool {
                match self { $(Self::$name => matches!(ConnectionEffect::$end, ConnectionEffect::Closes),)* }
            }

            /// The expected input, to follow the word "expected".
            #[must_use]
            pub const fn expected(self) -> &'static str {
                match self { $(Self::$name => $expected,)* }
            }
        }
    };
}

enum ConnectionEffect {
    Closes,
    Stays,
}

faults! {
    /// An operation unknown in this direction.
    Operation: "Unknown Protocol Operation" Closes, "an operation of the protocol";
    /// Too few or too many arguments, or a control byte among them.
    Arguments: "Parser Error" Closes, "the arguments of the operation, then CR LF";
    /// A payload size that is not 1 to 9 digits.
    PayloadDigits: "Parser Error" Closes, "a size in 1 to 9 decimal digits";
    /// A header size that is not 1 to 9 digits.
    HeaderDigits: "Parser Error" Closes, "a header size in 1 to 9 decimal digits";
    /// A header size above the total size.
    HeaderSize: "Parser Error" Closes, "a header size not above the total size";
    /// A subscription id that is too long or has a control byte.
    Sid: "Parser Error" Closes, "a short subscription id";
    /// An `UNSUB` count that is not 1 to 9 digits.
    CountDigits: "Parser Error" Closes, "a number of messages in 1 to 9 decimal digits";
    /// The options of `CONNECT`, or the description of `INFO`, are not a valid JSON object.
    Json: "Parser Error" Closes, "a JSON object with fields of the right types";
    /// The line is longer than `control_line_size_max`.
    ControlLineSize: "Maximum Control Line Exceeded" Closes, "the end of the line within control_line_size_max";
    /// The message is longer than `payload_size_max`.
    PayloadSize: "Maximum Payload Violation" Closes, "a message within payload_size_max";
    /// A payload is not followed by CR LF: its size was wrong.
    PayloadEnd: "Unknown Protocol Operation" Closes, "CR LF after the announced number of bytes";
    /// A subject that cannot be published to.
    PublishSubject: "Invalid Publish Subject" Stays, "a subject of non-empty tokens without wildcards";
    /// A reply subject that cannot be published to.
    ReplySubject: "Invalid Publish Subject" Stays, "a reply subject of non-empty tokens without wildcards";
    /// A filter that cannot be subscribed to.
    Filter: "Invalid Subject" Stays, "non-empty tokens; '*' matches one token, '>' one or more at the end";
    /// A queue name that is too long or has a control byte.
    Queue: "Invalid Subject" Stays, "a queue name without control bytes, within the length of a subject";
}

/// A malformed line. The peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatsDecodeError {
    fault: NatsFault,
    element: NatsElement,
    found: Option<u8>,
    offset: u32,
}

impl NatsDecodeError {
    #[cold]
    pub(crate) fn new(fault: NatsFault, element: NatsElement, offset: usize, found: Option<u8>) -> Self {
        Self { fault, element, found, offset: u32::try_from(offset).unwrap_or(u32::MAX) }
    }

    #[cold]
    pub(crate) fn line(fault: NatsFault, offset: usize, found: Option<u8>) -> Self {
        Self::new(fault, NatsElement::Line, offset, found)
    }

    /// The broken rule.
    #[must_use]
    pub fn fault(&self) -> NatsFault {
        self.fault
    }

    /// The text of `-ERR`.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.fault.text()
    }

    /// Whether the connection closes.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.fault.closes()
    }

    /// Bytes from the start of [`NatsDecodeError::element`] to the offending byte.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The element that the offset counts from.
    #[must_use]
    pub fn element(&self) -> NatsElement {
        self.element
    }

    /// The offending byte, if a single byte is at fault.
    #[must_use]
    pub fn found(&self) -> Option<u8> {
        self.found
    }
}

/// `Parser Error: expected a size in 1 to 9 decimal digits at byte 6 of the line, found 0x78 'x'`
impl fmt::Display for NatsDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {} ", self.text(), self.fault.expected())?;
        let element = match self.element {
            NatsElement::Line => "line",
            NatsElement::PayloadEnd => "payload's end",
        };
        write!(f, "at byte {} of the {element}", self.offset)?;
        match self.found {
            Some(byte) if byte.is_ascii_graphic() => write!(f, ", found {byte:#04x} '{}'", byte as char),
            Some(byte) => write!(f, ", found {byte:#04x}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for NatsDecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_small_and_shows_its_evidence() {
        assert!(size_of::<Option<NatsDecodeError>>() <= 8);
        let error = NatsDecodeError::line(NatsFault::PayloadDigits, 6, Some(b'x'));
        assert_eq!(
            error.to_string(),
            "Parser Error: expected a size in 1 to 9 decimal digits at byte 6 of the line, found 0x78 'x'"
        );
    }

    #[test]
    fn a_text_can_stand_between_the_quotes_of_its_line() {
        for fault in NatsFault::ALL {
            assert!(fault.text().bytes().all(|byte| byte == b' ' || byte.is_ascii_alphabetic()), "{fault:?}");
        }
    }
}
