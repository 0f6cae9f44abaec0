//! Resources for trying the server and for the tests of the ETSI CoAP plugtests, whose names they have.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stilling_ring::Time;
use stilling_wire::coap::{Code, ContentFormat, OptionNumber};

use super::answer::Answer;
use super::demo_observables::{DemoObservable, DemoObservables};
use super::execution_log::ExecutionLog;
use super::limits::DEMO_STORED_SIZE_MAX;
use super::request::CoapRequest;

/// How long `separate` takes.
pub(super) const SEPARATE_DELAY: Duration = Duration::from_millis(200);

/// The resources in link format (RFC 6690): path and attributes.
const LINKS: &[(&str, &str)] = &[
    ("/test", "rt=\"test\";ct=0;title=\"Default test resource\""),
    ("/separate", "rt=\"test\";ct=0"),
    ("/large", "rt=\"block\";sz=1700;ct=0"),
    ("/large-update", "rt=\"block\""),
    ("/large-create", "rt=\"block\""),
    ("/large-post", "rt=\"block\""),
    ("/seg1/seg2/seg3", "rt=\"test\";ct=0"),
    ("/query", "rt=\"test\";ct=0"),
    ("/location-query", "rt=\"test\""),
    ("/multi-format", "ct=\"0 41\""),
    ("/validate", "rt=\"test\";ct=0"),
    ("/create1", "rt=\"test\""),
    ("/link1", "rt=\"Type1 Type2\";if=\"If1\""),
    ("/link2", "rt=\"Type2 Type3\";if=\"If2\""),
    ("/link3", "rt=\"Type1 Type3\";if=\"foo\""),
    ("/path", "ct=40"),
    ("/executions", "rt=\"test\""),
    ("/alternate", "anchor=\"/test\";rel=\"alternate\""),
    ("/obs", "rt=\"observe\";obs;ct=0"),
    ("/obs-non", "rt=\"observe\";obs;ct=0"),
    ("/obs-large", "rt=\"observe\";obs;ct=0"),
];

/// The resources below `/path`, which is the entry to them.
const PATH_LINKS: &[(&str, &str)] = &[("/path/sub1", ""), ("/path/sub2", ""), ("/path/sub3", "")];

/// Attributes whose values are lists, separated by spaces (RFC 6690 §2, RFC 7252 §7.2.1).
const LIST_ATTRIBUTES: &[&str] = &["rt", "if", "rel", "rev", "ct"];

const LARGE_LINE: &[u8] = b"/----------------------------------------------------------------\\\n\
|                 RESOURCE BLOCK OF A LARGE ANSWER                 |\n";

/// Bytes of `large`: more than one block of the largest size.
const LARGE_SIZE: usize = 1700;

/// How a demo resource answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoOutcome {
    Answered,
    /// Later, by [`answer_separately`].
    Separate,
    /// There is no such resource.
    NotFound,
}

/// The demo resources. Clones share their state, because the requests of a client with several ports reach several
/// shards. Only the resources that clients can change use its lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct DemoResources {
    state: Arc<Mutex<DemoState>>,
    observables: DemoObservables,
}

#[derive(Debug, Default)]
struct DemoState {
    large_update: Vec<u8>,
    large_create: Option<Vec<u8>>,
    create1: Option<Vec<u8>>,
    validate: Vec<u8>,
    executions: ExecutionLog,
}

/// The answer of `separate`.
pub(super) fn answer_separately(answer: &mut Answer) {
    answer.text(Code::CONTENT, b"separate");
}

impl DemoResources {
    /// Whether a resource honours If-Match and If-None-Match.
    pub(super) fn has_conditions(path: &[u8]) -> bool {
        matches!(path, b"validate" | b"create1")
    }

    /// Those that can be observed.
    pub(super) fn observables(&self) -> &DemoObservables {
        &self.observables
    }

    pub(super) fn respond(&self, request: &CoapRequest<'_>, now: Time, answer: &mut Answer) -> DemoOutcome {
        if let Some(observable) = DemoObservable::of(request.path) {
            self.observables.respond(observable, request, now, answer);
            return DemoOutcome::Answered;
        }
        let is_get = request.code == Code::GET;
        match request.path {
            b"test" => test(request, answer),
            b"alternate" if is_get => test(request, answer),
            b"separate" if is_get => return DemoOutcome::Separate,
            b"large" if is_get => large(answer.text(Code::CONTENT, b"")),
            b"seg1" | b"seg1/seg2" | b"seg1/seg2/seg3" if is_get => {
                answer.text(Code::CONTENT, request.path);
            }
            b"path" if is_get => {
                answer.start(Code::CONTENT).format = Some(ContentFormat::LINK_FORMAT);
                write_links(PATH_LINKS, request, answer);
            }
            b"path/sub1" | b"path/sub2" | b"path/sub3" | b"link1" | b"link2" | b"link3" if is_get => {
                answer.text(Code::CONTENT, request.path);
            }
            b"query" if is_get => query(request, answer),
            b"location-query" if request.code == Code::POST => {
                answer.start(Code::CREATED).location_query = &["first=1", "second=2"];
            }
            b"location1/location2/location3" if request.code == Code::POST => {
                answer.start(Code::CREATED).location_path = &["location1", "location2", "location3"];
            }
            b"multi-format" if is_get => multi_format(request, answer),
            b"validate" => self.state().validate(request, answer),
            b"create1" => self.state().create1(request, answer),
            b"large-update" => self.state().large_update(request, answer),
            b"large-create" | b"large-create/1" => self.state().large_create(request, answer),
            b"executions" => self.state().executions(request, answer),
            b"large-post" if request.code == Code::POST => {
                let uppercase = request.payload.iter().map(u8::to_ascii_uppercase);
                answer.text(Code::CHANGED, b"").body.extend(uppercase);
            }
            b"separate" | b"large" | b"query" | b"multi-format" | b"seg1" | b"seg1/seg2"
            | b"seg1/seg2/seg3" | b"location-query" | b"large-post" => {
                answer.start(Code::METHOD_NOT_ALLOWED);
            }
            _ => return DemoOutcome::NotFound,
        }
        DemoOutcome::Answered
    }

    fn state(&self) -> MutexGuard<'_, DemoState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DemoState {
    fn validate(&mut self, request: &CoapRequest<'_>, answer: &mut Answer) {
        let etag = super::body_cache::etag_of(None, &self.validate);
        match request.code {
            Code::GET if request.values(OptionNumber::ETAG).any(|known| known == etag) => {
                answer.start(Code::VALID).etag = Some(etag);
            }
            Code::GET => {
                let body = if self.validate.is_empty() { &b"validate"[..] } else { &self.validate };
                answer.text(Code::CONTENT, body).etag = Some(etag);
            }
            Code::PUT => {
                let mut conditions = request.values(OptionNumber::IF_MATCH).peekable();
                if conditions.peek().is_some() && !conditions.any(|known| known.is_empty() || known == etag) {
                    answer.start(Code::PRECONDITION_FAILED);
                } else {
                    replace(&mut self.validate, request, answer);
                }
            }
            _ => _ = answer.start(Code::METHOD_NOT_ALLOWED),
        }
    }

    /// Counts POST requests by the number in their bodies, to find those that are executed twice.
    fn executions(&mut self, request: &CoapRequest<'_>, answer: &mut Answer) {
        match request.code {
            Code::POST => {
                match std::str::from_utf8(request.payload).ok().and_then(|text| text.parse().ok()) {
                    Some(number) if self.executions.add(number) => {
                        answer.text(Code::CHANGED, request.payload);
                    }
                    _ => answer.error(Code::BAD_REQUEST, "the body is no number that is counted"),
                }
            }
            Code::GET => _ = answer.text(Code::CONTENT, self.executions.to_string().as_bytes()),
            Code::DELETE => {
                self.executions = ExecutionLog::default();
                answer.start(Code::DELETED);
            }
            _ => _ = answer.start(Code::METHOD_NOT_ALLOWED),
        }
    }

    fn create1(&mut self, request: &CoapRequest<'_>, answer: &mut Answer) {
        let is_new_only = request.values(OptionNumber::IF_NONE_MATCH).next().is_some();
        match (request.code, &mut self.create1) {
            (Code::GET, Some(body)) => _ = answer.text(Code::CONTENT, body),
            (Code::PUT, Some(_)) if is_new_only => _ = answer.start(Code::PRECONDITION_FAILED),
            (Code::PUT, Some(body)) => replace(body, request, answer),
            (Code::PUT, None) => {
                let mut body = Vec::new();
                replace(&mut body, request, answer);
                answer.start(Code::CREATED);
                self.create1 = Some(body);
            }
            (Code::DELETE, _) => {
                self.create1 = None;
                answer.start(Code::DELETED);
            }
            (Code::GET, None) => _ = answer.start(Code::NOT_FOUND),
            _ => _ = answer.start(Code::METHOD_NOT_ALLOWED),
        }
    }

    fn large_update(&mut self, request: &CoapRequest<'_>, answer: &mut Answer) {
        match request.code {
            Code::GET if self.large_update.is_empty() => large(answer.text(Code::CONTENT, b"")),
            Code::GET => _ = answer.text(Code::CONTENT, &self.large_update),
            Code::PUT => replace(&mut self.large_update, request, answer),
            _ => _ = answer.start(Code::METHOD_NOT_ALLOWED),
        }
    }

    fn large_create(&mut self, request: &CoapRequest<'_>, answer: &mut Answer) {
        let is_item = request.path.ends_with(b"/1");
        match (request.code, is_item, &self.large_create) {
            (Code::POST, false, _) => {
                let mut body = self.large_create.take().unwrap_or_default();
                replace(&mut body, request, answer);
                self.large_create = Some(body);
                answer.start(Code::CREATED).location_path = &["large-create", "1"];
            }
            (Code::GET, _, Some(body)) => _ = answer.text(Code::CONTENT, body),
            (Code::GET, ..) => _ = answer.start(Code::NOT_FOUND),
            (Code::DELETE, true, _) => {
                self.large_create = None;
                answer.start(Code::DELETED);
            }
            _ => _ = answer.start(Code::METHOD_NOT_ALLOWED),
        }
    }
}

fn test(request: &CoapRequest<'_>, answer: &mut Answer) {
    match request.code {
        Code::GET => _ = answer.text(Code::CONTENT, b"welcome to the plugtest"),
        Code::POST => answer.start(Code::CREATED).location_path = &["location1", "location2", "location3"],
        Code::PUT => _ = answer.start(Code::CHANGED),
        Code::DELETE => _ = answer.start(Code::DELETED),
        Code::FETCH => _ = answer.text(Code::CONTENT, request.payload),
        Code::PATCH | Code::IPATCH => _ = answer.start(Code::CHANGED),
        _ => _ = answer.start(Code::METHOD_NOT_ALLOWED),
    }
}

fn large(answer: &mut Answer) {
    while answer.body.len() < LARGE_SIZE {
        let count = LARGE_LINE.len().min(LARGE_SIZE - answer.body.len());
        answer.body.extend_from_slice(&LARGE_LINE[..count]);
    }
}

fn query(request: &CoapRequest<'_>, answer: &mut Answer) {
    answer.text(Code::CONTENT, b"");
    for argument in request.values(OptionNumber::URI_QUERY) {
        if !answer.body.is_empty() {
            answer.body.push(b'&');
        }
        answer.body.extend_from_slice(argument);
    }
}

fn multi_format(request: &CoapRequest<'_>, answer: &mut Answer) {
    match request.accept {
        None | Some(ContentFormat::TEXT) => _ = answer.text(Code::CONTENT, b"text"),
        Some(ContentFormat::XML) => {
            answer.text(Code::CONTENT, b"<text/>").format = Some(ContentFormat::XML);
        }
        Some(_) => _ = answer.start(Code::NOT_ACCEPTABLE),
    }
}

fn replace(stored: &mut Vec<u8>, request: &CoapRequest<'_>, answer: &mut Answer) {
    if request.payload.len() > DEMO_STORED_SIZE_MAX {
        answer.start(Code::REQUEST_ENTITY_TOO_LARGE).size1 = Some(DEMO_STORED_SIZE_MAX as u32);
        return;
    }
    stored.clear();
    stored.extend_from_slice(request.payload);
    answer.start(Code::CHANGED);
}

/// Writes the links that match the query of a request for `/.well-known/core` (RFC 6690 §4.1).
pub(super) fn links(request: &CoapRequest<'_>, answer: &mut Answer) {
    write_links(LINKS, request, answer);
}

fn write_links(links: &[(&str, &str)], request: &CoapRequest<'_>, answer: &mut Answer) {
    for (path, attributes) in links {
        if request.values(OptionNumber::URI_QUERY).all(|query| matches_link(query, path, attributes)) {
            if !answer.body.is_empty() {
                answer.body.push(b',');
            }
            let separator = if attributes.is_empty() { ">" } else { ">;" };
            for piece in ["<", path, separator, attributes] {
                answer.body.extend_from_slice(piece.as_bytes());
            }
        }
    }
}

/// Whether a link has the attribute that `name=value` names; `*` at the end of the value matches all that follows.
fn matches_link(query: &[u8], path: &str, attributes: &str) -> bool {
    let Ok(query) = std::str::from_utf8(query) else { return false };
    let Some((name, wanted)) = query.split_once('=') else { return false };
    let is_match = |value: &str| match wanted.strip_suffix('*') {
        Some(prefix) => value.starts_with(prefix),
        None => value == wanted,
    };
    if name == "href" {
        return is_match(path);
    }
    let mut pairs = attributes.split(';').filter_map(|attribute| attribute.split_once('='));
    pairs.any(|(of, value)| {
        let value = value.trim_matches('"');
        let is_list = LIST_ATTRIBUTES.contains(&name);
        of == name && if is_list { value.split(' ').any(is_match) } else { is_match(value) }
    })
}
