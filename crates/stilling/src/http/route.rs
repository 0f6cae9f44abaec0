//! Which answer a request gets: the method and path decide.

use stilling_wire::http1::{Method, RequestHead, Status};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `/test/fast`: answered in the shard.
    Fast,
    /// `/test/slow`: answered after work in a worker.
    Slow,
    /// `/test/panic`: work that panics, to show that it costs one answer.
    Panic,
    /// `/status`, and `/` for those who just look: a page for people.
    Status,
    /// `/metrics`: OpenMetrics.
    Metrics,
    /// `/livez`: the process runs.
    Live,
    /// `/readyz`: the server wants more work.
    Ready,
    /// Nothing is there, or nobody can answer it.
    Refused(Status),
    /// Something is there, but not for this method.
    OtherMethods {
        /// `POST` is among those that it answers.
        post: bool,
    },
}

impl Route {
    /// The route of a request; `demo` says whether `/test/*` is answered on this listener.
    pub(super) fn of(head: &RequestHead<'_>, demo: bool) -> Route {
        let route = match head.target.path {
            b"/test/fast" if demo => Route::Fast,
            b"/test/slow" if demo => Route::Slow,
            b"/test/panic" if demo => Route::Panic,
            b"/" | b"/status" => Route::Status,
            b"/metrics" => Route::Metrics,
            b"/livez" => Route::Live,
            b"/readyz" => Route::Ready,
            _ => Route::Refused(Status::NotFound),
        };
        match head.method {
            Method::Get | Method::Head => route,
            // The demo routes take a body and ignore it.
            Method::Post if matches!(route, Route::Fast | Route::Slow) => route,
            Method::Other(_) | Method::Connect => Route::Refused(Status::NotImplemented),
            _ if matches!(route, Route::Refused(_)) => route,
            _ => Route::OtherMethods { post: matches!(route, Route::Fast | Route::Slow) },
        }
    }
}
