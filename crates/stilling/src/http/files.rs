//! Serves files: a directory below a path, conditional requests, byte ranges.
//!
//! A worker opens the file relative to the directory's descriptor, with openat2(2) and RESOLVE_BENEATH: the kernel
//! rejects paths and links that lead out. A check of the path's text would be racy, since links may change.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use stilling_wire::http1::{Method, Status};

use super::request::Request;
use super::response::Response;

/// Attempts to open a file while components of its path are renamed. Then 500.
const OPEN_ATTEMPTS_MAX: u32 = 16;

const INDEX: &str = "index.html";

pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Directory { path }
    }

    /// Responds with the file that the placeholder `path` names.
    pub(super) fn answer(&self, request: &Request<'_>) -> Response {
        let name = match request.param("path") {
            Some(name) => name,
            // The placeholder is present but not UTF-8.
            None if request.has_param("path") => return Response::status_line(Status::NotFound),
            None if request.path().ends_with(b"/") => "".into(),
            None => return with_slash(request),
        };
        let wanted =
            if name.is_empty() || name.ends_with('/') { format!("{name}{INDEX}") } else { name.into() };
        match self.open(&wanted) {
            Ok(file) => Response::file(request, file, &content_type(&wanted)),
            // 503 here means that the server is out of descriptors or memory.
            Err(status) => Response::status_line(status).into_refusal(),
        }
    }

    fn open(&self, name: &str) -> Result<File, Status> {
        let is_hidden = |segment: &str| segment.starts_with('.') && segment != ".well-known";
        if name.split('/').any(|segment| segment.is_empty() || is_hidden(segment)) || name.contains('\0') {
            return Err(Status::NotFound);
        }
        let directory = open_directory(&self.path).map_err(status_of)?;
        // NONBLOCK: opening a pipe must not block the worker until the pipe has a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match rustix::fs::openat2(&directory, name, flags, Mode::empty(), resolve) {
                Ok(file) => return Ok(file.into()),
                // A component was renamed during the lookup.
                Err(Errno::AGAIN) if attempts < OPEN_ATTEMPTS_MAX => {}
                Err(error) => return Err(status_of(error)),
            }
        }
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn status_of(error: Errno) -> Status {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG | Errno::ILSEQ => {
            Status::NotFound
        }
        // A socket, or a device that does not exist.
        Errno::NXIO | Errno::NODEV => Status::NotFound,
        Errno::ACCESS | Errno::PERM => Status::Forbidden,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Status::ServiceUnavailable,
        _ => Status::InternalServerError,
    }
}

/// The media type by the name's extension; text is declared as UTF-8.
fn content_type(name: &str) -> String {
    let guess = mime_guess::from_path(name).first_or_octet_stream();
    match guess.type_().as_str() {
        "text" => format!("{guess}; charset=utf-8"),
        _ => guess.to_string(),
    }
}

impl Response {
    /// A file, or the part of it that the request selects: 200, 206, 304, 412 or 416 (RFC 9110 §13, §14). For worker
    /// handlers with the methods GET and HEAD, because it makes blocking system calls. A directory is redirected to its
    /// path with a trailing slash; anything else but a regular file is answered 404.
    pub fn file(request: &Request<'_>, file: File, content_type: &str) -> Response {
        let metadata = match file.metadata() {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(metadata) if metadata.is_dir() && !request.path().ends_with(b"/") => {
                return with_slash(request);
            }
            Ok(_) => return Response::status_line(Status::NotFound),
            Err(_) => return Response::status_line(Status::InternalServerError),
        };
        let seen = FileVersion {
            etag: format!("\"{:x}-{:x}-{:x}\"", metadata.mtime(), metadata.mtime_nsec(), metadata.len()),
            modified: whole_seconds(metadata.modified().unwrap_or(UNIX_EPOCH)),
        };
        let described = |response: Response| {
            let response = response.with_header("ETag", seen.etag.clone());
            response.with_header("Last-Modified", httpdate::fmt_http_date(seen.modified))
        };
        match seen.conditions(request) {
            PreconditionOutcome::Fails => return Response::status_line(Status::PreconditionFailed),
            PreconditionOutcome::NotModified => return described(Response::new(Status::NotModified)),
            PreconditionOutcome::Holds => {}
        }
        let length = metadata.len();
        // RFC 9110 §14.2: ranges apply to GET only.
        let has_range = request.method() == Method::Get && seen.is_in_range(request);
        let range = request.header("range").filter(|_| has_range);
        let (start, end, status) =
            match range.map_or(ByteRange::Whole, |range| ByteRange::parse(range, length)) {
                ByteRange::Whole => (0, length, Status::Ok),
                ByteRange::Part { start, end } => (start, end, Status::PartialContent),
                ByteRange::Unsatisfiable => {
                    let response = Response::status_line(Status::RangeNotSatisfiable);
                    return response.with_header("Content-Range", format!("bytes */{length}"));
                }
            };
        let mut file = file;
        if start > 0 && file.seek(SeekFrom::Start(start)).is_err() {
            return Response::status_line(Status::InternalServerError);
        }
        let response = Response::stream_sized(content_type.to_owned(), end - start, file).with_status(status);
        let response = described(response).with_header("Accept-Ranges", "bytes");
        match status {
            Status::PartialContent => {
                response.with_header("Content-Range", format!("bytes {start}-{}/{length}", end - 1))
            }
            _ => response,
        }
    }
}

/// Redirects to the path with a trailing slash, from which a directory's relative links resolve.
fn with_slash(request: &Request<'_>) -> Response {
    match std::str::from_utf8(request.path()) {
        Ok(path) => {
            Response::status_line(Status::MovedPermanently).with_header("Location", format!("{path}/"))
        }
        Err(_) => Response::status_line(Status::NotFound),
    }
}

/// Truncates to seconds: HTTP dates have no fractions (RFC 9110 §5.6.7).
fn whole_seconds(time: SystemTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The validators of one version of a file.
struct FileVersion {
    etag: String,
    modified: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PreconditionOutcome {
    Holds,
    NotModified,
    Fails,
}

impl FileVersion {
    /// Evaluates preconditions in the order of RFC 9110 §13.2.2.
    fn conditions(&self, request: &Request<'_>) -> PreconditionOutcome {
        if let Some(wanted) = request.header("if-match") {
            if !self.is_current(wanted) {
                return PreconditionOutcome::Fails;
            }
        } else if let Some(date) = request.header("if-unmodified-since").and_then(parse_date)
            && self.modified > date
        {
            return PreconditionOutcome::Fails;
        }
        let is_read = matches!(request.method(), Method::Get | Method::Head);
        if let Some(known) = request.header("if-none-match") {
            if self.is_listed(known) {
                return if is_read { PreconditionOutcome::NotModified } else { PreconditionOutcome::Fails };
            }
        } else if is_read
            && let Some(date) = request.header("if-modified-since").and_then(parse_date)
            && self.modified <= date
        {
            return PreconditionOutcome::NotModified;
        }
        PreconditionOutcome::Holds
    }

    /// RFC 9110 §13.1.1: `If-Match` compares strongly, so a weak tag never matches.
    fn is_current(&self, tags: &[u8]) -> bool {
        let mut tags = tags.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        tags.any(|tag| tag == b"*" || tag == self.etag.as_bytes())
    }

    fn is_listed(&self, tags: &[u8]) -> bool {
        let tags = tags.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        // RFC 9110 §8.8.3.2, weak comparison: the server's tags are strong, so only the client's `W/` is dropped.
        tags.map(|tag| tag.strip_prefix(b"W/").unwrap_or(tag))
            .any(|tag| tag == b"*" || tag == self.etag.as_bytes())
    }

    /// RFC 9110 §13.1.5: `If-Range` allows a range only of the same version of the file.
    fn is_in_range(&self, request: &Request<'_>) -> bool {
        match request.header("if-range") {
            None => true,
            Some(value) if value.starts_with(b"\"") => value == self.etag.as_bytes(),
            Some(value) => parse_date(value) == Some(self.modified),
        }
    }
}

fn parse_date(value: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()
}

/// What a `Range` field selects; `end` is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteRange {
    Whole,
    Part { start: u64, end: u64 },
    Unsatisfiable,
}

impl ByteRange {
    /// RFC 9110 §14.1.2. Several ranges, other units and malformed values select the whole file, as §14.2 allows.
    fn parse(value: &[u8], length: u64) -> ByteRange {
        let of = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        let Some(spec) = std::str::from_utf8(value).ok().and_then(|text| text.strip_prefix("bytes=")) else {
            return ByteRange::Whole;
        };
        let Some((first, last)) = spec.trim().split_once('-') else { return ByteRange::Whole };
        match (first.is_empty(), of(first), last.is_empty(), of(last)) {
            (true, _, false, Some(0)) => ByteRange::Unsatisfiable,
            (true, _, false, Some(_)) if length == 0 => ByteRange::Unsatisfiable,
            (true, _, false, Some(suffix)) => {
                ByteRange::Part { start: length.saturating_sub(suffix), end: length }
            }
            (false, Some(start), true, _) if start < length => ByteRange::Part { start, end: length },
            (false, Some(start), false, Some(last)) if start <= last && start < length => {
                ByteRange::Part { start, end: length.min(last.saturating_add(1)) }
            }
            (false, Some(start), false, Some(last)) if start > last => ByteRange::Whole,
            (false, Some(_), true, _) | (false, Some(_), false, Some(_)) => ByteRange::Unsatisfiable,
            _ => ByteRange::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};

    use super::super::patterns::Patterns;
    use super::*;

    /// RFC 9110 §13.1.2, §13.1.3: 304 is an answer to GET and HEAD only.
    #[test]
    fn preconditions_depend_on_the_method() {
        use PreconditionOutcome::{Fails, Holds, NotModified};
        let version = FileVersion { etag: "\"a\"".to_owned(), modified: UNIX_EPOCH };
        for (field, for_get, for_post) in [
            ("If-None-Match: \"a\"", NotModified, Fails),
            ("If-None-Match: *", NotModified, Fails),
            ("If-None-Match: \"b\"", Holds, Holds),
            ("If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT", NotModified, Holds),
            ("If-Match: \"b\"", Fails, Fails),
        ] {
            for (method, expected) in
                [("GET", for_get), ("HEAD", for_get), ("POST", for_post), ("DELETE", for_post)]
            {
                let text = format!("{method} /a HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
                let mut decoder = RequestDecoder::default();
                let step = decoder.decode(&HttpLimits::default(), text.as_bytes()).expect("a request");
                let RequestEvent::Head(head) = step.event else { panic!("not a head: {text}") };
                let patterns = Patterns::default();
                let request = Request::new(head, b"", &patterns, None);
                assert_eq!(version.conditions(&request), expected, "{method}, {field}");
            }
        }
    }

    #[test]
    fn ranges_follow_the_rfc() {
        let part = |start, end| ByteRange::Part { start, end };
        for (value, length, expected) in [
            ("bytes=0-0", 10, part(0, 1)),
            ("bytes=2-5", 10, part(2, 6)),
            ("bytes=2-", 10, part(2, 10)),
            ("bytes=-3", 10, part(7, 10)),
            ("bytes=-30", 10, part(0, 10)),
            ("bytes=5-99", 10, part(5, 10)),
            ("bytes=9-18446744073709551615", 10, part(9, 10)),
            ("bytes=10-", 10, ByteRange::Unsatisfiable),
            ("bytes=10-12", 10, ByteRange::Unsatisfiable),
            ("bytes=-0", 10, ByteRange::Unsatisfiable),
            ("bytes=-1", 0, ByteRange::Unsatisfiable),
            ("bytes=0-", 0, ByteRange::Unsatisfiable),
            ("bytes=5-2", 10, ByteRange::Whole),
            ("bytes=0-1,3-4", 10, ByteRange::Whole),
            ("bytes=+1-2", 10, ByteRange::Whole),
            ("bytes=", 10, ByteRange::Whole),
            ("bytes=-", 10, ByteRange::Whole),
            ("lines=1-2", 10, ByteRange::Whole),
            ("bytes=99999999999999999999-", 10, ByteRange::Whole),
        ] {
            assert_eq!(ByteRange::parse(value.as_bytes(), length), expected, "{value} of {length}");
        }
    }
}
