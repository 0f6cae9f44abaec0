//! `stilling request`: sends a request to a CoAP server and prints its response, or the states of a resource.

use std::error::Error;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use stilling_client::coap::{CoapClient, CoapClientConfig, CoapRequest, CoapResponse, CoapUrl};
use stilling_wire::coap::{BlockSize, Code, ContentFormat, OptionNumber, UintValue};

use crate::InvalidArgument;
use crate::publish::seconds;
use crate::subscribe::escape_control;

/// Maximum bytes of a request body. Longer: it is refused before anything is sent.
const BODY_SIZE_MAX: u64 = 64 * 1024 * 1024;

#[derive(Args)]
pub(crate) struct RequestArguments {
    /// Address of the resource, such as coap://127.0.0.1:5683/sensors/1?unit=c
    #[arg(value_name = "URL", value_parser = clap::builder::StringValueParser::new().try_map(|text| text.parse::<CoapUrl>()))]
    url: CoapUrl,
    /// The request body; - reads it from standard input [default: none]
    payload: Option<String>,
    /// Read the request body from this file
    #[arg(short, long, value_name = "FILE", conflicts_with = "payload")]
    file: Option<PathBuf>,
    /// Method [default: get, or post with a body]
    #[arg(short, long, value_enum)]
    method: Option<MethodOption>,
    /// Content format of the request body: a number, or text, link-format, xml, octet-stream, json, cbor
    #[arg(long, value_name = "FORMAT", value_parser = content_format())]
    format: Option<ContentFormat>,
    /// Content format wanted for the response
    #[arg(long, value_name = "FORMAT", value_parser = content_format())]
    accept: Option<ContentFormat>,
    /// Further option, as NUMBER=TEXT, or NUMBER=0xHEX for bytes; repeatable
    #[arg(long = "option", value_name = "NUMBER=VALUE", value_parser = coap_option())]
    options: Vec<(OptionNumber, Vec<u8>)>,
    /// Print the state of the resource each time it changes
    #[arg(short, long)]
    observe: bool,
    /// End after N states
    #[arg(short = 'n', long, value_name = "N", requires = "observe", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Send messages once, without acknowledgement and retransmission
    #[arg(long)]
    non_confirmable: bool,
    /// Maximum bytes of a block in both directions: 16, 32, 64, 128, 256, 512 or 1024 [default: 1024, or the server's
    /// choice]
    #[arg(long, value_name = "BYTES", value_parser = block_size())]
    block_size: Option<BlockSize>,
    /// Maximum bytes of the response body
    #[arg(long, value_name = "BYTES", default_value_t = 16_777_216, value_parser = clap::value_parser!(u32).range(1..=1_073_741_824))]
    response_size: u32,
    /// Maximum seconds for the whole response [default: 90]; with --observe, also between states [default: unlimited]
    #[arg(short, long, value_name = "S", value_parser = seconds())]
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodOption {
    Get,
    Post,
    Put,
    Delete,
    Fetch,
    Patch,
    Ipatch,
}

impl MethodOption {
    fn code(self) -> Code {
        match self {
            MethodOption::Get => Code::GET,
            MethodOption::Post => Code::POST,
            MethodOption::Put => Code::PUT,
            MethodOption::Delete => Code::DELETE,
            MethodOption::Fetch => Code::FETCH,
            MethodOption::Patch => Code::PATCH,
            MethodOption::Ipatch => Code::IPATCH,
        }
    }
}

/// A response with an error code; it is already printed. Its class is the exit status.
#[derive(Debug)]
pub(crate) struct ErrorResponse(Code);

impl ErrorResponse {
    pub(crate) fn status(&self) -> u8 {
        self.0.class()
    }
}

impl fmt::Display for ErrorResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(self.0))
    }
}

impl Error for ErrorResponse {}

const FORMATS: [(&str, ContentFormat); 6] = [
    ("text", ContentFormat::TEXT),
    ("link-format", ContentFormat::LINK_FORMAT),
    ("xml", ContentFormat::XML),
    ("octet-stream", ContentFormat::OCTET_STREAM),
    ("json", ContentFormat::JSON),
    ("cbor", ContentFormat::CBOR),
];

fn content_format() -> impl TypedValueParser<Value = ContentFormat> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let named = FORMATS.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
        named.or_else(|| text.parse().ok().map(ContentFormat)).ok_or_else(|| {
            let names = FORMATS.map(|(name, _)| name).join(", ");
            format!("expected a number from 0 to 65535, or one of {names}")
        })
    })
}

fn block_size() -> impl TypedValueParser<Value = BlockSize> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let size = text.parse().ok().map(|bytes| (bytes, BlockSize::at_most(bytes)));
        match size.filter(|(bytes, size)| size.bytes() == *bytes) {
            Some((_, size)) => Ok(size),
            None => Err("a block has 16, 32, 64, 128, 256, 512 or 1024 bytes"),
        }
    })
}

fn coap_option() -> impl TypedValueParser<Value = (OptionNumber, Vec<u8>)> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let wrong = "an option is NUMBER=TEXT or NUMBER=0xHEX";
        let (number, value) = text.split_once('=').ok_or(wrong)?;
        let number = OptionNumber(number.parse().map_err(|_| wrong)?);
        let value = match value.strip_prefix("0x") {
            Some(hex) => bytes_of(hex).ok_or(wrong)?,
            None => value.as_bytes().to_vec(),
        };
        Ok::<_, &str>((number, value))
    })
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = hex.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

impl RequestArguments {
    /// Sends the request and prints the response. No response, and a response with an error code, are errors.
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let request = self.request()?;
        let mut config =
            CoapClientConfig { response_size_max: self.response_size as usize, ..Default::default() };
        config.request_timeout = self.timeout.unwrap_or(config.request_timeout);
        let mut client = CoapClient::connect(&self.url, config)?;
        if self.observe {
            return self.follow(&mut client, request);
        }
        print_response(&client.request(request)?, false)?;
        Ok(())
    }

    fn request(&self) -> Result<CoapRequest, Box<dyn Error>> {
        let body = self.body()?;
        let default = if body.is_some() { MethodOption::Post } else { MethodOption::Get };
        let method = self.method.unwrap_or(default);
        if self.observe && !matches!(method, MethodOption::Get | MethodOption::Fetch) {
            let words = "only get and fetch can be observed: leave out --observe, or choose another --method";
            return Err(Box::new(InvalidArgument(words.to_owned())));
        }
        let mut request = CoapRequest::new(method.code(), &self.url);
        request = request.with_payload(body.unwrap_or_default(), self.format);
        request.options.extend(self.options.iter().cloned());
        if let Some(ContentFormat(format)) = self.accept {
            let value = UintValue::new(u32::from(format));
            request.options.push((OptionNumber::ACCEPT, value.as_bytes().to_vec()));
        }
        request.is_confirmable = !self.non_confirmable;
        if let Some(size) = self.block_size {
            (request.block_size, request.asks_for_block_size) = (size, true);
        }
        Ok(request)
    }

    fn body(&self) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
        match (&self.payload, &self.file) {
            (Some(text), _) if text == "-" => read_body(std::io::stdin().lock(), "standard input").map(Some),
            (Some(text), _) => Ok(Some(text.clone().into_bytes())),
            (None, Some(path)) => open_body(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Prints states until the count is reached, the timeout passes, or the observation or the output ends.
    fn follow(&self, client: &mut CoapClient, request: CoapRequest) -> Result<(), Box<dyn Error>> {
        let mut states = client.observe(request)?;
        let (mut seen, mut last) = (0, Instant::now());
        while self.count.is_none_or(|count| seen < count) {
            let left = self.timeout.map_or(Duration::MAX, |timeout| timeout.saturating_sub(last.elapsed()));
            let Some(response) = states.next(left)? else {
                if self.timeout.is_none_or(|timeout| last.elapsed() < timeout) {
                    continue;
                }
                return match self.count {
                    Some(count) => Err(format!("{seen} of {count} states arrived in time").into()),
                    None => Ok(states.end()?),
                };
            };
            (seen, last) = (seen + 1, Instant::now());
            if !print_response(&response, true)? {
                return Ok(());
            }
            if !states.is_open() {
                writeln!(std::io::stderr(), "stilling: the server does not send further states")?;
                return Ok(());
            }
        }
        Ok(states.end()?)
    }
}

fn open_body(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let shown = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    read_body(file, &shown)
}

fn read_body(input: impl Read, name: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut body = Vec::new();
    input
        .take(BODY_SIZE_MAX + 1)
        .read_to_end(&mut body)
        .map_err(|error| format!("cannot read {name}: {error}"))?;
    if body.len() as u64 > BODY_SIZE_MAX {
        return Err(format!("{name} has more than {BODY_SIZE_MAX} bytes").into());
    }
    Ok(body)
}

/// Prints the payload to standard output, and the code to standard error. Returns whether the output is still open.
fn print_response(response: &CoapResponse, ends_line: bool) -> Result<bool, Box<dyn Error>> {
    let mut line = describe(response.code);
    if let Some(location) = response.location() {
        line += &format!(" at {}", escape_control(&location));
    }
    if matches!(response.code, Code::TOO_MANY_REQUESTS | Code::SERVICE_UNAVAILABLE) {
        line += &format!("; repeat after {} s", response.max_age().as_secs());
    }
    // The payload of an error without a format is text for a person (RFC 7252 §5.5.2).
    let is_diagnostic = !response.code.is_success() && response.content_format().is_none();
    if is_diagnostic && !response.payload.is_empty() {
        line += &format!(": {}", escape_control(&String::from_utf8_lossy(&response.payload)));
    }
    writeln!(std::io::stderr(), "{line}")?;
    let mut out = std::io::stdout().lock();
    if !is_diagnostic {
        let end: &[u8] = if ends_line { b"\n" } else { b"" };
        let written = out.write_all(&response.payload).and_then(|()| out.write_all(end));
        match written.and_then(|()| out.flush()) {
            // The reader has closed the pipe: not an error.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
            written => written?,
        }
    }
    if response.code.is_success() { Ok(true) } else { Err(Box::new(ErrorResponse(response.code))) }
}

/// The code and its name, such as `2.05 Content`.
fn describe(code: Code) -> String {
    let name = match code {
        Code::CREATED => "Created",
        Code::DELETED => "Deleted",
        Code::VALID => "Valid",
        Code::CHANGED => "Changed",
        Code::CONTENT => "Content",
        Code::CONTINUE => "Continue",
        Code::BAD_REQUEST => "Bad Request",
        Code::UNAUTHORIZED => "Unauthorized",
        Code::BAD_OPTION => "Bad Option",
        Code::FORBIDDEN => "Forbidden",
        Code::NOT_FOUND => "Not Found",
        Code::METHOD_NOT_ALLOWED => "Method Not Allowed",
        Code::NOT_ACCEPTABLE => "Not Acceptable",
        Code::REQUEST_ENTITY_INCOMPLETE => "Request Entity Incomplete",
        Code::CONFLICT => "Conflict",
        Code::PRECONDITION_FAILED => "Precondition Failed",
        Code::REQUEST_ENTITY_TOO_LARGE => "Request Entity Too Large",
        Code::UNSUPPORTED_CONTENT_FORMAT => "Unsupported Content-Format",
        Code::UNPROCESSABLE_ENTITY => "Unprocessable Entity",
        Code::TOO_MANY_REQUESTS => "Too Many Requests",
        Code::INTERNAL_SERVER_ERROR => "Internal Server Error",
        Code::NOT_IMPLEMENTED => "Not Implemented",
        Code::BAD_GATEWAY => "Bad Gateway",
        Code::SERVICE_UNAVAILABLE => "Service Unavailable",
        Code::GATEWAY_TIMEOUT => "Gateway Timeout",
        Code::PROXYING_NOT_SUPPORTED => "Proxying Not Supported",
        _ => return code.to_string(),
    };
    format!("{code} {name}")
}
