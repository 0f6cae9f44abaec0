//! Decode errors: the broken rule, its place in the datagram, and the reaction that RFC 7252 requires. Text is formatted
//! on demand.

use core::fmt;

use super::message::MessageId;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $expected:literal;)*) => {
        /// The broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum CoapFault { $($(#[$doc])* $name,)* }

        impl CoapFault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The expected input, to follow the word "expected".
            #[must_use]
            pub const fn expected(self) -> &'static str {
                match self { $(Self::$name => $expected,)* }
            }
        }
    };
}

faults! {
    /// RFC 7252 §3: the datagram is shorter than a header.
    Header: "a header of 4 bytes";
    /// RFC 7252 §3: a version other than 1.
    Version: "version 1";
    /// RFC 7252 §3: token lengths 9 to 15 are reserved.
    TokenSize: "a token of at most 8 bytes";
    /// The datagram ends inside the token.
    TokenEnd: "the rest of the token";
    /// RFC 7252 §4.2: classes 1, 6 and 7 are reserved.
    CodeClass: "a code of class 0, 2, 3, 4 or 5";
    /// RFC 7252 §4.3, table 1: an empty non-confirmable message, a request as an acknowledgement, or a reset with content.
    TypeContent: "a code that its type of message may have";
    /// RFC 7252 §4.1: an empty message has a token, options or a payload.
    EmptyContent: "the end of an empty message";
    /// RFC 7252 §3.1: the nibble 15 outside of a payload marker.
    OptionNibble: "an option delta and length of at most 14";
    /// The datagram ends inside an option.
    OptionEnd: "the rest of the option";
    /// The deltas exceed the greatest option number, 65,535.
    OptionNumber: "an option number of 16 bits";
    /// RFC 7252 §3: a payload marker without a payload.
    PayloadMissing: "a payload behind its marker";
}

/// The answer to a message that is not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// None.
    Ignore,
    /// A reset with the message's id.
    Reset(MessageId),
}

/// A datagram that is no valid message. The peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoapDecodeError {
    fault: CoapFault,
    reaction: Reaction,
    offset: u16,
}

impl CoapDecodeError {
    #[cold]
    pub(crate) fn new(fault: CoapFault, reaction: Reaction, offset: usize) -> Self {
        Self { fault, reaction, offset: u16::try_from(offset).unwrap_or(u16::MAX) }
    }

    /// The broken rule.
    #[must_use]
    pub fn fault(&self) -> CoapFault {
        self.fault
    }

    /// The required answer: a reset for a confirmable message, silence for all others (RFC 7252 §4.2, §4.3), and for
    /// what is not of version 1.
    #[must_use]
    pub fn reaction(&self) -> Reaction {
        self.reaction
    }

    /// Bytes before the broken part.
    #[must_use]
    pub fn offset(&self) -> u16 {
        self.offset
    }
}

/// `expected version 1 at byte 0 of the datagram`
impl fmt::Display for CoapDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {} at byte {} of the datagram", self.fault.expected(), self.offset)
    }
}

impl core::error::Error for CoapDecodeError {}
