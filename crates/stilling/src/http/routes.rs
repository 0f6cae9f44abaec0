//! Which handler answers which request.
//!
//! A table of patterns, each with a handler per method. It is made once, before the server starts, and
//! shared by all shards and workers.

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

/// A handler's function. It runs on any thread, many times at once.
pub(super) type HandlerFn = dyn Fn(&Request<'_>) -> Response + Send + Sync;

/// A handler, by where it runs.
#[derive(Clone)]
pub(super) enum Handler {
    /// In the shard, between two events: it must not block.
    Inline(Arc<HandlerFn>),
    /// In a worker, where it may take its time.
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
/// A pattern is a path with placeholders: `{name}` is one segment, `{*rest}` all that follows. The more
/// exact pattern wins. A `GET` handler answers `HEAD` too, unless there is one for it. A path with
/// handlers but none for the method is answered 405, one without by the server's own pages (`/status`, `/metrics`,
/// `/livez`, `/readyz`), by the fallback if there is one, or 404.
#[derive(Clone, Default)]
pub struct Routes {
    /// From a path to a place in `handlers_by_pattern`.
    patterns: Patterns,
    /// The same from the pattern's own text.
    indices: BTreeMap<String, usize>,
    /// For each pattern its handlers: numbers of `handlers`.
    handlers_by_pattern: Vec<Vec<(Method<'static>, u16)>>,
    handlers: Vec<Handler>,
    /// The number of the handler for what no pattern matches.
    fallback: Option<u16>,
    wants_peers: bool,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Routes({} patterns, {} handlers)", self.handlers_by_pattern.len(), self.handlers.len())
    }
}

/// What the table says about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteMatch {
    /// The number of a handler.
    Handler(u16),
    /// The path has handlers, for these methods.
    OtherMethods(MethodSet),
    Nothing,
}

impl Routes {
    /// No routes: the server answers with its own pages only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers in the shard, between two events of all its connections. For what is in memory and quick:
    /// a handler that blocks makes everybody wait. A panic costs this request's answer (500).
    ///
    /// # Panics
    /// The pattern is malformed, collides with another, or has a handler for this method already.
    #[must_use]
    pub fn inline<R: Into<Response>>(
        self,
        method: Method<'static>,
        pattern: &str,
        handler: impl Fn(&Request<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        self.with_handler(method, pattern, Handler::Inline(Arc::new(move |request| handler(request).into())))
    }

    /// Answers in a worker, where the handler may block. Requests wait for a worker in the order in which
    /// they came; when too many wait, or one waits for too long, it is answered 503 with `Retry-After`.
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

    /// Answers `GET` and `HEAD` below `prefix` with the files of a directory, read by workers: media type
    /// by extension, `Last-Modified` and `ETag` with conditional requests, single byte ranges,
    /// `index.html` for a directory. Nothing outside the directory is reached (links that lead out are not
    /// followed), and nothing whose name begins with a dot.
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

    /// Answers in the shard whatever no pattern matches, with any method; the server's own pages come first, but for `/`.
    /// A path whose pattern has no handler for the method is answered 405 all the same.
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
    /// There is a fallback already.
    #[must_use]
    pub fn fallback_inline<R: Into<Response>>(
        self,
        handler: impl Fn(&Request<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        self.with_fallback(Handler::Inline(Arc::new(move |request| handler(request).into())))
    }

    /// The same in a worker, where the handler may block.
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

    /// Lets handlers know where their clients come from ([`Request::peer`]). It costs a system call for each
    /// connection, and with direct descriptors it is not known.
    #[must_use]
    pub fn with_peers(self) -> Self {
        Routes { wants_peers: true, ..self }
    }

    /// Whether handlers want to know where their clients come from.
    pub(super) fn wants_peers(&self) -> bool {
        self.wants_peers
    }

    /// The handler for what no pattern matches.
    pub(super) fn fallback(&self) -> Option<u16> {
        self.fallback
    }

    fn next_number(&self) -> u16 {
        u16::try_from(self.handlers.len()).expect("a server has at most 65,536 handlers")
    }

    /// Whether there are none.
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
            None => RouteMatch::OtherMethods(methods.iter().map(|(method, _)| *method).collect()),
        }
    }

    /// The patterns, for the placeholders of a request.
    pub(super) fn patterns(&self) -> &Patterns {
        &self.patterns
    }
}
