//! The supported status codes, each with its complete status line.

macro_rules! statuses {
    ($($name:ident = $code:literal $reason:literal;)*) => {
        /// A response status (RFC 9110 §15).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Status { $(#[doc = concat!($code, " ", $reason)] $name = $code,)* }

        impl Status {
            /// Every status in the table.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The reason phrase.
            #[must_use]
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason,)* }
            }

            /// The status line with its CRLF.
            #[must_use]
            pub const fn line(self) -> &'static [u8] {
                match self { $(Self::$name => concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n").as_bytes(),)* }
            }
        }
    };
}

statuses! {
    Continue = 100 "Continue";
    SwitchingProtocols = 101 "Switching Protocols";
    Ok = 200 "OK";
    Created = 201 "Created";
    Accepted = 202 "Accepted";
    NoContent = 204 "No Content";
    PartialContent = 206 "Partial Content";
    MovedPermanently = 301 "Moved Permanently";
    Found = 302 "Found";
    SeeOther = 303 "See Other";
    NotModified = 304 "Not Modified";
    TemporaryRedirect = 307 "Temporary Redirect";
    PermanentRedirect = 308 "Permanent Redirect";
    BadRequest = 400 "Bad Request";
    Unauthorized = 401 "Unauthorized";
    Forbidden = 403 "Forbidden";
    NotFound = 404 "Not Found";
    MethodNotAllowed = 405 "Method Not Allowed";
    NotAcceptable = 406 "Not Acceptable";
    RequestTimeout = 408 "Request Timeout";
    Conflict = 409 "Conflict";
    Gone = 410 "Gone";
    LengthRequired = 411 "Length Required";
    PreconditionFailed = 412 "Precondition Failed";
    ContentTooLarge = 413 "Content Too Large";
    UriTooLong = 414 "URI Too Long";
    UnsupportedMediaType = 415 "Unsupported Media Type";
    RangeNotSatisfiable = 416 "Range Not Satisfiable";
    ExpectationFailed = 417 "Expectation Failed";
    MisdirectedRequest = 421 "Misdirected Request";
    UnprocessableContent = 422 "Unprocessable Content";
    UpgradeRequired = 426 "Upgrade Required";
    TooManyRequests = 429 "Too Many Requests";
    RequestHeaderFieldsTooLarge = 431 "Request Header Fields Too Large";
    InternalServerError = 500 "Internal Server Error";
    NotImplemented = 501 "Not Implemented";
    BadGateway = 502 "Bad Gateway";
    ServiceUnavailable = 503 "Service Unavailable";
    GatewayTimeout = 504 "Gateway Timeout";
    HttpVersionNotSupported = 505 "HTTP Version Not Supported";
}

impl Status {
    /// The three-digit code.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Whether RFC 9110 §8.6 forbids a `Content-Length` with this status.
    #[must_use]
    pub const fn forbids_length(self) -> bool {
        self.code() < 200 || self.code() == 204
    }
}
