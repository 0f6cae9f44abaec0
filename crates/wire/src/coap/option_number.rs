//! Numbers of options, their properties and their definitions (RFC 7252 §5.4.6 and §5.10, and the registry it created).

use core::fmt;

/// The number of an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OptionNumber(pub u16);

/// The format of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionFormat {
    /// No bytes.
    Empty,
    /// Any bytes.
    Opaque,
    /// A number, see [`super::decode_uint`].
    Uint,
    /// UTF-8.
    String,
}

/// What is known of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionDefinition {
    /// The registered name.
    pub name: &'static str,
    /// The format of its value.
    pub format: OptionFormat,
    /// Least bytes of its value.
    pub size_min: u16,
    /// Most bytes of its value.
    pub size_max: u16,
    /// Whether a message may have several.
    pub is_repeatable: bool,
}

macro_rules! options {
    ($($(#[$doc:meta])* $constant:ident = $number:literal, $name:literal, $format:ident, $sizes:expr, $repeatable:literal;)*) => {
        impl OptionNumber {
            $($(#[$doc])* pub const $constant: Self = Self($number);)*

            /// Every option with a definition, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$constant,)*];

            /// Returns the definition of a known option.
            #[must_use]
            pub const fn definition(self) -> Option<OptionDefinition> {
                match self.0 {
                    $($number => Some(OptionDefinition {
                        name: $name,
                        format: OptionFormat::$format,
                        size_min: $sizes.0,
                        size_max: $sizes.1,
                        is_repeatable: $repeatable,
                    }),)*
                    _ => None,
                }
            }
        }
    };
}

options! {
    /// The request applies if the resource has this `ETag`; without bytes, if it exists.
    IF_MATCH = 1, "If-Match", Opaque, (0, 8), true;
    /// The host of the URI.
    URI_HOST = 3, "Uri-Host", String, (1, 255), false;
    /// The validator of a representation.
    ETAG = 4, "ETag", Opaque, (1, 8), true;
    /// The request applies if the resource does not exist.
    IF_NONE_MATCH = 5, "If-None-Match", Empty, (0, 0), false;
    /// Registration for notifications, or their sequence (RFC 7641).
    OBSERVE = 6, "Observe", Uint, (0, 3), false;
    /// The port of the URI.
    URI_PORT = 7, "Uri-Port", Uint, (0, 2), false;
    /// A segment of the path of a created resource.
    LOCATION_PATH = 8, "Location-Path", String, (0, 255), true;
    /// A segment of the path.
    URI_PATH = 11, "Uri-Path", String, (0, 255), true;
    /// The content format of the payload.
    CONTENT_FORMAT = 12, "Content-Format", Uint, (0, 2), false;
    /// Seconds for which the response is fresh, or after which a refused request may be repeated.
    MAX_AGE = 14, "Max-Age", Uint, (0, 4), false;
    /// An argument of the query.
    URI_QUERY = 15, "Uri-Query", String, (0, 255), true;
    /// Proxies that a request may still pass (RFC 8768).
    HOP_LIMIT = 16, "Hop-Limit", Uint, (1, 1), false;
    /// The content format wanted.
    ACCEPT = 17, "Accept", Uint, (0, 2), false;
    /// An argument of the query of a created resource.
    LOCATION_QUERY = 20, "Location-Query", String, (0, 255), true;
    /// The block of the response body (RFC 7959).
    BLOCK2 = 23, "Block2", Uint, (0, 3), false;
    /// The block of the request body (RFC 7959).
    BLOCK1 = 27, "Block1", Uint, (0, 3), false;
    /// Bytes of the response body (RFC 7959).
    SIZE2 = 28, "Size2", Uint, (0, 4), false;
    /// The URI of a request to a proxy.
    PROXY_URI = 35, "Proxy-Uri", String, (1, 1034), false;
    /// The scheme of a request to a proxy.
    PROXY_SCHEME = 39, "Proxy-Scheme", String, (1, 255), false;
    /// Bytes of the request body.
    SIZE1 = 60, "Size1", Uint, (0, 4), false;
    /// A value that the client returns, to prove its address and that it is present (RFC 9175).
    ECHO = 252, "Echo", Opaque, (1, 40), false;
    /// The classes of responses that the client does not want (RFC 7967).
    NO_RESPONSE = 258, "No-Response", Uint, (0, 1), false;
    /// Distinguishes the bodies of concurrent requests (RFC 9175).
    REQUEST_TAG = 292, "Request-Tag", Opaque, (0, 8), true;
}

impl OptionNumber {
    /// Whether a recipient that does not know the option must not process the message.
    #[must_use]
    pub const fn is_critical(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether a proxy that does not know the option must not forward the message.
    #[must_use]
    pub const fn is_unsafe(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether the option is not part of the cache key. Of unsafe options only those that know the option can tell.
    #[must_use]
    pub const fn is_no_cache_key(self) -> bool {
        self.0 & 0x1e == 0x1c
    }
}

/// `Uri-Path`, or `option 65000`
impl fmt::Display for OptionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.definition() {
            Some(definition) => f.write_str(definition.name),
            None => write!(f, "option {}", self.0),
        }
    }
}
