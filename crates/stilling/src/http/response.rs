//! Responses of handlers.
//!
//! Short bodies are bytes. A long body is a source that workers read piece by piece, at most one piece ahead of the
//! client: a response of any length needs the memory of two pieces, and a slow client occupies no worker.

use std::borrow::Cow;
use std::io::Read;

use stilling_wire::http1::Status;

use super::delegated_connection::{Delegate, DelegatedConnection};
use super::stream::BodyStream;

/// A response: status, fields, body.
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
    /// The server refuses the request; otherwise a handler or a page answers it.
    pub(super) is_refusal: bool,
}

#[derive(Debug)]
pub(super) enum ResponseBody {
    Static(&'static [u8]),
    Bytes(Vec<u8>),
    Stream(Box<BodyStream>),
    /// The connection itself is handed to a worker.
    Delegate(Delegate),
}

impl Response {
    /// A response without a body. The status must be a final one: 100 and 101 become 500.
    pub fn new(status: Status) -> Self {
        Response {
            status,
            content_type: None,
            fields: Vec::new(),
            body: ResponseBody::Static(b""),
            is_refusal: false,
        }
    }

    /// Marks the response as a refusal by the server.
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

    /// 200 with an HTML page.
    pub fn html(page: impl Into<Cow<'static, str>>) -> Self {
        Response::new(Status::Ok).with_type("text/html; charset=utf-8").with_text(page.into())
    }

    /// 200 with encoded JSON.
    pub fn json(text: impl Into<Cow<'static, str>>) -> Self {
        Response::new(Status::Ok).with_type("application/json").with_text(text.into())
    }

    /// 200 with bytes of any media type.
    pub fn bytes(content_type: impl Into<Cow<'static, str>>, bytes: impl Into<Vec<u8>>) -> Self {
        Response::new(Status::Ok).with_type(content_type).with_body(bytes.into())
    }

    /// 200 with the bytes that `source` yields until its end, in bounded memory. A worker reads each piece after the
    /// previous one was sent; calls of `read` may block. If the source fails after the head was sent, the connection is
    /// closed, so that the client notices the truncation; before that, the response is 500.
    pub fn stream(content_type: impl Into<Cow<'static, str>>, source: impl Read + Send + 'static) -> Self {
        let stream = BodyStream::new(Box::new(source), None);
        Response { body: ResponseBody::Stream(stream), ..Response::new(Status::Ok) }.with_type(content_type)
    }

    /// Like [`stream`](Self::stream), with a length known in advance, in bytes. Bytes of the source beyond the length
    /// are not read; a source that ends earlier counts as failed.
    pub fn stream_sized(
        content_type: impl Into<Cow<'static, str>>,
        length: u64,
        source: impl Read + Send + 'static,
    ) -> Self {
        let stream = BodyStream::new(Box::new(source), Some(length));
        Response { body: ResponseBody::Stream(stream), ..Response::new(Status::Ok) }.with_type(content_type)
    }

    /// Replaces the status.
    #[must_use]
    pub fn with_status(self, status: Status) -> Self {
        Response { status, ..self }
    }

    /// Replaces the media type.
    #[must_use]
    pub fn with_type(self, content_type: impl Into<Cow<'static, str>>) -> Self {
        Response { content_type: Some(content_type.into()), ..self }
    }

    /// Adds a field. `Content-Type` (see [`with_type`](Self::with_type)), the fields that the server writes
    /// (`Content-Length`, `Transfer-Encoding`, `Connection`, `Date`), and a name or value that would break the framing
    /// turn the response into a 500.
    #[must_use]
    pub fn with_header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// The status.
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

    pub(super) fn length(&self) -> Option<u64> {
        match &self.body {
            ResponseBody::Static(bytes) => Some(bytes.len() as u64),
            ResponseBody::Bytes(bytes) => Some(bytes.len() as u64),
            ResponseBody::Stream(stream) => stream.length(),
            ResponseBody::Delegate(_) => Some(0),
        }
    }

    /// Reads the first piece of a streamed body, in the worker that ran the handler. A body that ends within it
    /// becomes plain bytes.
    pub(super) fn read_ahead(mut self) -> Self {
        if let ResponseBody::Stream(mut stream) = self.body {
            stream.fill();
            self.body = match stream.into_complete() {
                Ok(bytes) => ResponseBody::Bytes(bytes),
                Err(stream) if stream.has_failed() => {
                    return Response::status_line(Status::InternalServerError);
                }
                Err(stream) => ResponseBody::Stream(stream),
            };
        }
        self
    }

    /// Hands the connection itself to a worker, which runs `serve` with it. `serve` writes everything that the client
    /// receives, including the head of a response if there is one. If no worker is available, the client is answered
    /// 503.
    ///
    /// Each such connection occupies a worker thread until `serve` returns; when all workers are occupied, no other job
    /// runs. Configure threads for them ([`ServeConfig::worker_threads`] or [`scaling`](crate::ServeConfig::scaling)),
    /// or let `serve` pass the socket to an event loop of its own and return. `/status` and `/metrics`
    /// (`stilling_http_delegated`) show their number.
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

/// The media type of plain text.
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
    /// Either value, so that a handler can use `?`.
    fn from(result: Result<T, E>) -> Self {
        result.map_or_else(Into::into, Into::into)
    }
}
