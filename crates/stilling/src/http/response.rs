//! What a handler answers.
//!
//! Short bodies are bytes. Long ones are a source that is read piece by piece, always in a worker and
//! never further ahead of the client than one piece: so an answer of any length takes the memory of two
//! pieces, and a client that reads slowly holds no worker.

use std::borrow::Cow;
use std::io::Read;

use stilling_wire::http1::Status;

use super::delegated_connection::{Delegate, DelegatedConnection};
use super::stream::BodyStream;

/// An answer: status, fields, body.
///
/// ```
/// use stilling::http::{Response, Status};
///
/// let response = Response::text("created\n").with_status(Status::Created).with_header("Location", "/items/1");
/// ```
#[derive(Debug)]
pub struct Response {
    pub(super) status: Status,
    pub(super) content_type: Option<Cow<'static, str>>,
    pub(super) fields: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    pub(super) body: ResponseBody,
    /// The server refuses with it by itself; otherwise it is what a handler or a page has to say.
    pub(super) is_refusal: bool,
}

/// The body of an answer.
#[derive(Debug)]
pub(super) enum ResponseBody {
    Static(&'static [u8]),
    Bytes(Vec<u8>),
    Stream(Box<BodyStream>),
    /// The connection itself goes to a worker.
    Delegate(Delegate),
}

impl Response {
    /// An answer without a body. Its status is a final one: 100 and 101 become 500.
    pub fn new(status: Status) -> Self {
        Response {
            status,
            content_type: None,
            fields: Vec::new(),
            body: ResponseBody::Static(b""),
            is_refusal: false,
        }
    }

    /// The same as a refusal by the server itself.
    #[must_use]
    pub(super) fn into_refusal(self) -> Self {
        Response { is_refusal: true, ..self }
    }

    /// A status with its reason as a line of text.
    pub fn status_line(status: Status) -> Self {
        // "HTTP/1.1 404 Not Found\r\n"
        let line = &status.line()["HTTP/1.1 ".len()..];
        let mut text = line[..line.len() - 2].to_vec();
        text.push(b'\n');
        Response::new(status).with_type(TEXT).with_body(text)
    }

    /// 200 with plain text in UTF-8.
    pub fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Response::new(Status::Ok).with_type(TEXT).with_text(text.into())
    }

    /// 200 with a page.
    pub fn html(page: impl Into<Cow<'static, str>>) -> Self {
        Response::new(Status::Ok).with_type("text/html; charset=utf-8").with_text(page.into())
    }

    /// 200 with JSON that is written already.
    pub fn json(text: impl Into<Cow<'static, str>>) -> Self {
        Response::new(Status::Ok).with_type("application/json").with_text(text.into())
    }

    /// 200 with bytes of a type of your own.
    pub fn bytes(content_type: impl Into<Cow<'static, str>>, bytes: impl Into<Vec<u8>>) -> Self {
        Response::new(Status::Ok).with_type(content_type).with_body(bytes.into())
    }

    /// 200 with whatever `source` gives until its end, in bounded memory. It is read in a worker, a piece
    /// at a time, when the client has taken the piece before; each call of `read` may block. A source
    /// that fails ends the connection, so that the client knows that something is missing.
    pub fn stream(content_type: impl Into<Cow<'static, str>>, source: impl Read + Send + 'static) -> Self {
        let stream = BodyStream::new(Box::new(source), None);
        Response { body: ResponseBody::Stream(stream), ..Response::new(Status::Ok) }.with_type(content_type)
    }

    /// The same with a length that is known beforehand, in bytes. What the source has beyond is not
    /// read; a source that ends before fails.
    pub fn stream_sized(
        content_type: impl Into<Cow<'static, str>>,
        length: u64,
        source: impl Read + Send + 'static,
    ) -> Self {
        let stream = BodyStream::new(Box::new(source), Some(length));
        Response { body: ResponseBody::Stream(stream), ..Response::new(Status::Ok) }.with_type(content_type)
    }

    /// The same answer with another status.
    #[must_use]
    pub fn with_status(self, status: Status) -> Self {
        Response { status, ..self }
    }

    /// The same answer with another media type.
    #[must_use]
    pub fn with_type(self, content_type: impl Into<Cow<'static, str>>) -> Self {
        Response { content_type: Some(content_type.into()), ..self }
    }

    /// The same answer with one field more. Not for `Content-Type` (see [`with_type`](Self::with_type)),
    /// nor for the fields that frame the message (`Content-Length`, `Transfer-Encoding`, `Connection`,
    /// `Date`), which the server writes. One of these, and a name or value that would break the framing,
    /// makes the whole answer 500.
    #[must_use]
    pub fn with_header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// Its status.
    pub fn status(&self) -> Status {
        self.status
    }

    fn with_text(self, text: Cow<'static, str>) -> Self {
        let body = match text {
            Cow::Borrowed(text) => ResponseBody::Static(text.as_bytes()),
            Cow::Owned(text) => ResponseBody::Bytes(text.into_bytes()),
        };
        Response { body, ..self }
    }

    fn with_body(self, bytes: Vec<u8>) -> Self {
        Response { body: ResponseBody::Bytes(bytes), ..self }
    }

    /// The length of the body, where it is known.
    pub(super) fn length(&self) -> Option<u64> {
        match &self.body {
            ResponseBody::Static(bytes) => Some(bytes.len() as u64),
            ResponseBody::Bytes(bytes) => Some(bytes.len() as u64),
            ResponseBody::Stream(stream) => stream.length(),
            ResponseBody::Delegate(_) => Some(0),
        }
    }

    /// Reads the first piece of a streamed body, on the worker that has the handler's answer anyway. A
    /// body that is no longer than that is plain bytes from now on.
    pub(super) fn read_ahead(mut self) -> Self {
        if let ResponseBody::Stream(mut stream) = self.body {
            stream.fill();
            self.body = match stream.into_short() {
                Ok(bytes) => ResponseBody::Bytes(bytes),
                Err(stream) if stream.has_failed() => {
                    return Response::status_line(Status::InternalServerError);
                }
                Err(stream) => ResponseBody::Stream(stream),
            };
        }
        self
    }

    /// No answer but the connection itself: `serve` gets it in a worker, which is its own until it returns.
    /// It writes whatever the client is to read, beginning with the head of an answer if there is to be
    /// one. When no worker can be had the client is answered 503.
    ///
    /// Each such connection holds a worker thread until `serve` returns: as many of them as there are workers, and
    /// no other work is done. Give the pool threads for them ([`ServeConfig::worker_threads`] or
    /// [`growth`](crate::ServeConfig::growth)), or have `serve` hand the socket to an event loop of its own and
    /// return. `/status` and `/metrics` say how many there are (`stilling_http_delegated`).
    ///
    /// [`ServeConfig::worker_threads`]: crate::ServeConfig::worker_threads
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use stilling::http::{Method, Response, Routes};
    ///
    /// let routes = Routes::new().inline(Method::Get, "/shout", |_| {
    ///     Response::delegate(|mut client| {
    ///         let _ = client.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: shout\r\n\r\n");
    ///         let mut bytes = [0; 256];
    ///         while let Ok(count @ 1..) = client.read(&mut bytes) {
    ///             bytes[..count].make_ascii_uppercase();
    ///             if client.write_all(&bytes[..count]).is_err() {
    ///                 break;
    ///             }
    ///         }
    ///     })
    /// });
    /// # let _ = routes;
    /// ```
    pub fn delegate(serve: impl FnOnce(DelegatedConnection) + Send + 'static) -> Self {
        let body = ResponseBody::Delegate(Delegate(Box::new(serve)));
        Response { body, ..Response::new(Status::SwitchingProtocols) }
    }
}

/// The media type of plain explanations.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

impl From<Status> for Response {
    /// The status with its reason as a line of text.
    fn from(status: Status) -> Self {
        Response::status_line(status)
    }
}

impl From<&'static str> for Response {
    fn from(text: &'static str) -> Self {
        Response::text(text)
    }
}

impl From<String> for Response {
    fn from(text: String) -> Self {
        Response::text(text)
    }
}

impl<T: Into<Response>, E: Into<Response>> From<Result<T, E>> for Response {
    /// Whichever it is: so that a handler may use `?`.
    fn from(result: Result<T, E>) -> Self {
        result.map_or_else(Into::into, Into::into)
    }
}
