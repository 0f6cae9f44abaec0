//! The table of routes: patterns, each with a handler per method. It is built before the server starts and shared by
//! all shards and workers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use stilling_wire::http1::{Method, RequestHead};

use super::files::Directory;
use super::method_set::MethodSet;
use super::patterns::Patterns;
use super::request::Request;
use super::response::Response;

/// A handler's function. It runs on several threads at once.
pub(super) type HandlerFn = dyn Fn(&Request<'_>) -> Response + Send + Sync;

/// A handler, by where it runs.
#[derive(Clone)]
pub(super) enum Handler {
    /// Runs in the shard and must not block.
    Inline(Arc<HandlerFn>),
    /// Runs in a worker and may block.
    Worker(Arc<HandlerFn>),
}

impl Handler {
    pub(super) fn answer(&self) -> &Arc<HandlerFn> {
        match self {
            Handler::Inline(answer) | Handler::Worker(answer) => answer,
        }
    }
}

/// The routes of a server.
///
/// ```
/// use stilling::http::{Method, Response, Routes, Status};
///
/// let routes = Routes::new()
///     .inline(Method::Get, "/hello", |_| "Hello\n")
///     .inline(Method::Get, "/hello/{name}", |request| {
///         let name = request.param("name").ok_or(Status::BadRequest)?;
///         Ok::<_, Status>(format!("Hello {name}\n"))
///     })
///     .worker(Method::Post, "/count", |request| format!("{} bytes\n", request.body().len()))
///     .files("/static", "public");
/// # let _ = routes;
/// ```
///
/// A pattern is a path with placeholders: `{name}` matches one segment, `{*rest}` the rest of the path. The most
/// specific pattern wins. A `GET` handler also answers `HEAD`, unless `HEAD` has its own. If a path has handlers, but
/// none for the method, the response is 405. A path without handlers is answered by the server's own pages
/// (`/status`, `/metrics`, `/livez`, `/readyz`), else by the fallback, else 404.
#[derive(Clone, Default)]
pub struct Routes {
    /// Maps a path to an index into `handlers_by_pattern`.
    patterns: Patterns,
    /// Maps a pattern's text to the same index.
    indices: BTreeMap<String, usize>,
    /// The handlers of each pattern, as indices into `handlers`.
    handlers_by_pattern: Vec<Vec<(Method<'static>, u16)>>,
    handlers: Vec<Handler>,
    /// The index of the handler for unmatched paths.
    fallback: Option<u16>,
    needs_peer_addresses: bool,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Routes({} patterns, {} handlers)", self.handlers_by_pattern.len(), self.handlers.len())
    }
}

/// The result of looking up a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteMatch {
    /// The index of a handler.
    Handler(u16),
    /// The path has handlers, but only for these methods.
    MethodNotAllowed(MethodSet),
    Nothing,
}

impl Routes {
    /// No routes: the server answers with its own pages only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler that runs in the shard. It must be quick: a handler that blocks delays all connections of the
    /// shard. A handler that panics is answered 500.
    ///
    /// # Panics
    /// If the pattern is malformed, collides with another, or already has a handler for this method.
    #[must_use]
    pub fn inline<R: Into<Response>>(
        self,
        method: Method<'static>,
        pattern: &str,
        handler: impl Fn(&Request<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        self.with_handler(method, pattern, Handler::Inline(Arc::new(move |request| handler(request).into())))
    }

    /// Adds a handler that runs in a worker and may block. Requests queue for the workers in order of arrival. If the
    /// queue is full, or a request has waited too long, it is answered 503 with `Retry-After`.
    ///
    /// # Panics
    /// As [`inline`](Self::inline).
    #[must_use]
    pub fn worker<R: Into<Response>>(
        self,
        method: Method<'static>,
        pattern: &str,
        handler: impl Fn(&Request<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        self.with_handler(method, pattern, Handler::Worker(Arc::new(move |request| handler(request).into())))
    }

    /// Answers `GET` and `HEAD` below `prefix` with the files of a directory, read by workers: media type by
    /// extension, `Last-Modified` and `ETag` with conditional requests, single byte ranges, `index.html` for a
    /// directory. Links that lead out of the directory are not followed. Names that begin with a dot are not served,
    /// except `.well-known`.
    ///
    /// # Panics
    /// As [`inline`](Self::inline).
    #[must_use]
    pub fn files(self, prefix: &str, directory: impl Into<PathBuf>) -> Self {
        let prefix = prefix.trim_end_matches('/');
        let directory = Arc::new(Directory::new(directory.into()));
        let of = |pattern: &str, routes: Self| {
            let directory = Arc::clone(&directory);
            let answer = move |request: &Request<'_>| directory.answer(request);
            routes.worker(Method::Get, &format!("{prefix}{pattern}"), answer)
        };
        let routes = of("/{*path}", of("/", self));
        if prefix.is_empty() { routes } else { of("", routes) }
    }

    fn with_handler(mut self, method: Method<'static>, pattern: &str, handler: Handler) -> Self {
        let number = self.next_number();
        let new = self.handlers_by_pattern.len();
        let index = *self.indices.entry(pattern.to_owned()).or_insert(new);
        if index == new {
            if let Err(error) = self.patterns.insert(pattern, index) {
                panic!("the route {pattern:?} cannot be added: {error}");
            }
            self.handlers_by_pattern.push(Vec::new());
        }
        let methods = &mut self.handlers_by_pattern[index];
        let name = method.as_bytes().escape_ascii().to_string();
        assert!(
            methods.iter().all(|(present, _)| *present != method),
            "the route {pattern:?} has two handlers for {name}"
        );
        methods.push((method, number));
        self.handlers.push(handler);
        self
    }

    /// Adds a handler for all paths that no pattern matches, with any method; it runs in the shard. The server's own
    /// pages have precedence, except at `/`. A path that a pattern matches is still answered 405 if it has no handler
    /// for the method.
    ///
    /// ```
    /// use stilling::http::{Response, Routes, Status};
    ///
    /// let routes = Routes::new()
    ///     .fallback_inline(|_| Response::html("<p>Nothing here.").with_status(Status::NotFound));
    /// # let _ = routes;
    /// ```
    ///
    /// # Panics
    /// If there is already a fallback.
    #[must_use]
    pub fn fallback_inline<R: Into<Response>>(
        self,
        handler: impl Fn(&Request<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        self.with_fallback(Handler::Inline(Arc::new(move |request| handler(request).into())))
    }

    /// Like [`fallback_inline`](Self::fallback_inline), in a worker: the handler may block.
    ///
    /// # Panics
    /// As [`fallback_inline`](Self::fallback_inline).
    #[must_use]
    pub fn fallback_worker<R: Into<Response>>(
        self,
        handler: impl Fn(&Request<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        self.with_fallback(Handler::Worker(Arc::new(move |request| handler(request).into())))
    }

    fn with_fallback(mut self, handler: Handler) -> Self {
        assert!(self.fallback.is_none(), "the routes have two fallbacks");
        self.fallback = Some(self.next_number());
        self.handlers.push(handler);
        self
    }

    /// Makes client addresses available to handlers ([`Request::peer`]). This costs a system call per connection.
    /// With direct descriptors the addresses are not available.
    #[must_use]
    pub fn with_peer_addresses(self) -> Self {
        Routes { needs_peer_addresses: true, ..self }
    }

    pub(super) fn needs_peer_addresses(&self) -> bool {
        self.needs_peer_addresses
    }

    pub(super) fn fallback(&self) -> Option<u16> {
        self.fallback
    }

    fn next_number(&self) -> u16 {
        u16::try_from(self.handlers.len()).expect("a server has at most 65,536 handlers")
    }

    /// Whether there are no handlers.
    pub fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    pub(super) fn handler(&self, number: u16) -> &Handler {
        &self.handlers[usize::from(number)]
    }

    pub(super) fn find(&self, head: &RequestHead<'_>) -> RouteMatch {
        if self.handlers_by_pattern.is_empty() {
            return RouteMatch::Nothing;
        }
        let Ok(path) = std::str::from_utf8(head.target.path) else { return RouteMatch::Nothing };
        let Some(index) = self.patterns.index(path) else { return RouteMatch::Nothing };
        let methods = &self.handlers_by_pattern[index];
        let of = |wanted: Method<'_>| methods.iter().find(|(method, _)| *method == wanted);
        let handler = match head.method {
            Method::Head => of(Method::Head).or_else(|| of(Method::Get)),
            method => of(method),
        };
        match handler {
            Some((_, number)) => RouteMatch::Handler(*number),
            None => RouteMatch::MethodNotAllowed(methods.iter().map(|(method, _)| *method).collect()),
        }
    }

    pub(super) fn patterns(&self) -> &Patterns {
        &self.patterns
    }
}
