//! Codes: methods and status codes (RFC 7252 §12.1, and the registries it created).

use core::fmt;

use super::message::MessageContent;

const DETAIL_BITS: u32 = 5;
const DETAIL_MASK: u8 = 0x1f;

/// A code: a class of 3 bits and a detail of 5, written `4.04`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(u8);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $class:literal . $detail:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self::new($class, $detail);)*

            /// Every code with a name.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

codes! {
    /// No request and no response: a ping, an empty acknowledgement or a reset.
    EMPTY = 0 . 0;
    /// Reads a resource.
    GET = 0 . 1;
    /// Has a resource process the payload.
    POST = 0 . 2;
    /// Creates or replaces a resource.
    PUT = 0 . 3;
    /// Deletes a resource.
    DELETE = 0 . 4;
    /// Reads parts of a resource that the payload selects (RFC 8132).
    FETCH = 0 . 5;
    /// Changes parts of a resource (RFC 8132).
    PATCH = 0 . 6;
    /// Changes parts of a resource, idempotently (RFC 8132).
    IPATCH = 0 . 7;
    /// A resource was created.
    CREATED = 2 . 1;
    /// A resource was deleted.
    DELETED = 2 . 2;
    /// The client's representation with this `ETag` is valid.
    VALID = 2 . 3;
    /// The request changed the resource, or was processed.
    CHANGED = 2 . 4;
    /// The response has the representation.
    CONTENT = 2 . 5;
    /// The block was received; send the next (RFC 7959).
    CONTINUE = 2 . 31;
    /// The request is invalid.
    BAD_REQUEST = 4 . 0;
    /// Credentials, or proof of the address by an `Echo` option, are required.
    UNAUTHORIZED = 4 . 1;
    /// A critical option is not recognised.
    BAD_OPTION = 4 . 2;
    /// The client must not do this.
    FORBIDDEN = 4 . 3;
    /// There is no such resource.
    NOT_FOUND = 4 . 4;
    /// The resource does not have this method.
    METHOD_NOT_ALLOWED = 4 . 5;
    /// The accepted content format is not available.
    NOT_ACCEPTABLE = 4 . 6;
    /// The blocks of the request body are incomplete (RFC 7959).
    REQUEST_ENTITY_INCOMPLETE = 4 . 8;
    /// The request conflicts with the resource (RFC 8132).
    CONFLICT = 4 . 9;
    /// The condition of `If-Match` or `If-None-Match` does not hold.
    PRECONDITION_FAILED = 4 . 12;
    /// The request body is too long.
    REQUEST_ENTITY_TOO_LARGE = 4 . 13;
    /// The content format of the request is not supported.
    UNSUPPORTED_CONTENT_FORMAT = 4 . 15;
    /// The payload is valid but cannot be processed (RFC 8132).
    UNPROCESSABLE_ENTITY = 4 . 22;
    /// The client sends too many requests; repeat after `Max-Age` (RFC 8516).
    TOO_MANY_REQUESTS = 4 . 29;
    /// The server failed.
    INTERNAL_SERVER_ERROR = 5 . 0;
    /// The server does not support the request.
    NOT_IMPLEMENTED = 5 . 1;
    /// A gateway got an invalid response.
    BAD_GATEWAY = 5 . 2;
    /// The server is overloaded; repeat after `Max-Age`.
    SERVICE_UNAVAILABLE = 5 . 3;
    /// A gateway got no response in time.
    GATEWAY_TIMEOUT = 5 . 4;
    /// The server is no proxy.
    PROXYING_NOT_SUPPORTED = 5 . 5;
}

impl Code {
    /// Returns the code `class.detail`.
    ///
    /// # Panics
    ///
    /// If the class exceeds 7 or the detail 31.
    #[must_use]
    pub const fn new(class: u8, detail: u8) -> Self {
        assert!(class < 8 && detail <= DETAIL_MASK);
        Self(class << DETAIL_BITS | detail)
    }

    /// Returns the code of its byte on the wire.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// Returns the byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Returns the class: 0 for requests, 2 success, 4 client error, 5 server error.
    #[must_use]
    pub const fn class(self) -> u8 {
        self.0 >> DETAIL_BITS
    }

    /// Returns the detail.
    #[must_use]
    pub const fn detail(self) -> u8 {
        self.0 & DETAIL_MASK
    }

    /// Whether it is the code of a successful response.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.class() == 2
    }

    /// Returns the content of a message with this code; `None` for the reserved classes 1, 6 and 7. Class 3 is
    /// unassigned but not reserved: a response of an unknown kind.
    #[must_use]
    pub const fn content(self) -> Option<MessageContent> {
        match self.class() {
            0 if self.0 == 0 => Some(MessageContent::Empty),
            0 => Some(MessageContent::Request),
            2..=5 => Some(MessageContent::Response),
            _ => None,
        }
    }
}

/// `4.04`
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.class(), self.detail())
    }
}
