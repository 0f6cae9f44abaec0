//! A request of a client, and what its answer must be.

use stilling_client::coap::{CoapClientError, CoapRequest, CoapResponse, CoapUrl};
use stilling_wire::coap::{BlockSize, Code, OptionNumber};

use super::content::{ContentKind, REQUEST_SIZE_MIN, content, request_body, version_size};
use super::ledger::Ledger;
use crate::SplitMix64;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationKind {
    /// POST: executed once.
    Execute,
    /// PUT: executed, perhaps twice.
    Replace,
    /// GET of bytes that follow from the id.
    Read,
    /// GET of the resource that changes.
    ReadVersion,
    /// GET of the demo resource that answers separately.
    ReadSeparate,
}

/// A request without its answer yet.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    kind: OperationKind,
    id: u64,
    request_size: usize,
    answer_size: usize,
    block_size: BlockSize,
    asks_for_block_size: bool,
    is_confirmable: bool,
    /// It is sent without faults, and must be answered.
    pub(super) is_last: bool,
    /// The version of the resource that changes, at the start.
    version: u64,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationEnd {
    /// With the right bytes.
    Answered,
    /// It was refused for now.
    Refused,
    /// It has no success for another reason, which faults explain.
    Failed,
}

impl Operation {
    pub(super) fn draw(
        id: u64,
        is_reader: bool,
        is_last: bool,
        ledger: &Ledger,
        random: &mut SplitMix64,
    ) -> Operation {
        let kind = match random.below(10) {
            _ if is_reader && random.chance(800) => OperationKind::ReadVersion,
            0..4 => OperationKind::Execute,
            4 => OperationKind::Replace,
            5 | 6 => OperationKind::Read,
            7 | 8 => OperationKind::ReadVersion,
            _ => OperationKind::ReadSeparate,
        };
        let size = |random: &mut SplitMix64, low: usize| {
            let high = if random.chance(400) { 2000 } else { 60 };
            random.between(low as u64, high) as usize
        };
        let (request_size, answer_size) = (size(random, REQUEST_SIZE_MIN), size(random, 0));
        let longest = request_size.max(answer_size).max(1500);
        Operation {
            kind,
            id,
            request_size,
            answer_size,
            // At most some 30 blocks.
            block_size: BlockSize::at_most((longest / 30).max(16) << random.below(6)),
            asks_for_block_size: random.chance(500),
            is_confirmable: is_last || random.chance(800),
            is_last,
            version: ledger.version(),
        }
    }

    pub(super) fn request(&self) -> CoapRequest {
        let (method, path) = match self.kind {
            OperationKind::Execute => (Code::POST, "app/execute".to_owned()),
            OperationKind::Replace => (Code::PUT, "app/replace".to_owned()),
            OperationKind::Read => (Code::GET, format!("app/read/{}/{}", self.id, self.answer_size)),
            OperationKind::ReadVersion => (Code::GET, "app/version".to_owned()),
            OperationKind::ReadSeparate => (Code::GET, "separate".to_owned()),
        };
        let url = CoapUrl {
            host: "10.0.0.1".to_owned(),
            port: 5683,
            path: path.split('/').map(str::to_owned).collect(),
            query: Vec::new(),
        };
        let mut request = CoapRequest::new(method, &url);
        if self.has_body() {
            request.payload = request_body(self.id, self.request_size, self.answer_size);
        }
        request.is_confirmable = self.is_confirmable;
        request.block_size = self.block_size;
        request.asks_for_block_size = self.asks_for_block_size;
        request
    }

    fn has_body(&self) -> bool {
        matches!(self.kind, OperationKind::Execute | OperationKind::Replace)
    }

    /// Whether the request has several blocks.
    pub(super) fn is_long(&self) -> bool {
        self.has_body() && self.request_size > self.block_size.bytes()
    }

    /// Checks a response.
    pub(super) fn check(&self, response: &CoapResponse, ledger: &Ledger) -> Result<OperationEnd, String> {
        let success = if self.has_body() { Code::CHANGED } else { Code::CONTENT };
        match response.code {
            code if code == success => {}
            Code::SERVICE_UNAVAILABLE | Code::TOO_MANY_REQUESTS => {
                response.option(OptionNumber::MAX_AGE).ok_or("a refusal without Max-Age")?;
                return Ok(OperationEnd::Refused);
            }
            Code::BAD_GATEWAY
            | Code::GATEWAY_TIMEOUT
            | Code::INTERNAL_SERVER_ERROR
            | Code::REQUEST_ENTITY_INCOMPLETE
            | Code::UNAUTHORIZED => return Ok(OperationEnd::Failed),
            code => return Err(format!("answered {code}")),
        }
        if self.has_body() && !ledger.is_executed(self.id) {
            return Err("a success, but nothing was executed".to_owned());
        }
        let expected = match self.kind {
            OperationKind::Execute | OperationKind::Replace | OperationKind::Read => {
                content(ContentKind::Answer, self.id, self.answer_size)
            }
            OperationKind::ReadVersion => return self.check_version(&response.payload, ledger),
            // The demo resource has an answer of its own.
            OperationKind::ReadSeparate => return Ok(OperationEnd::Answered),
        };
        if response.payload != expected {
            return Err(format!("wrong bytes: {}", response.payload.escape_ascii()));
        }
        Ok(OperationEnd::Answered)
    }

    /// The bytes are those of one version since the start of the request.
    fn check_version(&self, body: &[u8], ledger: &Ledger) -> Result<OperationEnd, String> {
        let is_version = |version: &u64| {
            version_size(*version) == body.len()
                && content(ContentKind::Version, *version, body.len()) == body
        };
        match (self.version..=ledger.version()).rev().find(is_version) {
            Some(_) => Ok(OperationEnd::Answered),
            None => Err(format!(
                "{} bytes of no version from {} to {}",
                body.len(),
                self.version,
                ledger.version()
            )),
        }
    }

    /// Checks a failure that the client reports.
    pub(super) fn check_failure(error: &CoapClientError) -> Result<OperationEnd, String> {
        match error {
            CoapClientError::Unanswered { .. } | CoapClientError::TimedOut { .. } => Ok(OperationEnd::Failed),
            error => Err(format!("the client reports: {error}")),
        }
    }
}
