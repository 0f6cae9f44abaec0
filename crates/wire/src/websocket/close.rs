//! Close codes (RFC 6455 §7.4, and the registry it created).

use core::fmt;

/// A code that a close frame may carry: 1000 to 1003, 1007 to 1014, 3000 to 4999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// The server shuts down, or the page is left.
    pub const GOING_AWAY: Self = Self(1001);
    /// The peer violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// Data of a kind that is not accepted, such as binary messages.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// A message's data does not fit its kind: text that is not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// The message violates a policy.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// The message is too long.
    pub const TOO_BIG: Self = Self(1009);
    /// The client requires an extension that the server did not accept.
    pub const EXTENSION_REQUIRED: Self = Self(1010);
    /// The server cannot fulfil the request.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// The server restarts; reconnect after a random delay.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// The server is overloaded; reconnect later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);
    /// A gateway got an invalid response.
    pub const BAD_GATEWAY: Self = Self(1014);
    /// The subscriber reads too slowly. In the range for private use.
    pub const SLOW_CONSUMER: Self = Self(4008);

    /// Returns the code if a close frame may carry it; 1004 to 1006 and 1015 are reserved.
    #[must_use]
    pub const fn new(code: u16) -> Option<Self> {
        match code {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(code)),
            _ => None,
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
