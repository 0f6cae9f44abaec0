//! Maps a request's method and path to a route.

use stilling_wire::http1::{Method, RequestHead, Status};

use super::accept::{self, MediaType, Specificity};
use super::method_set::MethodSet;
use super::publish_admission;
use super::routes::{RouteMatch, Routes};
use super::shard::HttpConfig;
use super::subscribe;
use crate::metrics::MetricsFormat;

/// What an HTTP listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// Pages, routes, or both.
    pub scope: HttpScope,
    /// Whether it serves `/test/*`.
    pub demo: bool,
    /// Whether it accepts publications (`/publish/*`), if there is a hub.
    pub publishes: bool,
    /// Whether it serves subscriptions (`/subscribe/*`), if there is a hub.
    pub subscribes: bool,
}

/// Which of the server's content a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpScope {
    /// Routes or worker processes, and the pages about the server itself.
    Everything,
    /// Everything except the pages.
    Routes,
    /// The pages only.
    Pages,
}

impl HttpEndpoint {
    fn has_pages(self) -> bool {
        self.scope != HttpScope::Routes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `/test/fast`: answered in the shard.
    Fast,
    /// `/test/slow`: answered after work in a worker.
    Slow,
    /// `/test/panic`: a job that panics.
    Panic,
    /// `/status`, and `/` without a fallback: the page for operators.
    Status,
    /// `/metrics`, in this format.
    Metrics(MetricsFormat),
    /// `/livez`: the process runs.
    Live,
    /// `/readyz`: the server accepts more work.
    Ready,
    /// No such resource, or an unsupported method.
    Refused(Status),
    /// The resource exists, but only for these methods.
    MethodNotAllowed(MethodSet),
    Handler(u16),
    App,
    /// `/publish/<subject>`: the hub.
    Publish,
    /// `/subscribe/<filter>`: the hub, over SSE or WebSocket.
    Subscribe,
    /// `/test/echo`: a WebSocket that returns every message.
    Echo,
}

impl Route {
    /// The route of a request that arrived at `endpoint`: a worker process, a handler, the hub if there is one, or
    /// one of the server's own pages.
    pub(super) fn of(
        head: &RequestHead<'_>,
        config: &HttpConfig,
        endpoint: HttpEndpoint,
        has_hub: bool,
    ) -> Route {
        let publishes = has_hub && head.target.path.starts_with(publish_admission::PUBLISH_PATH_PREFIX);
        let subscribes = has_hub && head.target.path.starts_with(subscribe::SUBSCRIBE_PATH_PREFIX);
        match endpoint.scope {
            HttpScope::Pages => Route::built_in(head, endpoint),
            // Where publishing is disabled, the path belongs to the worker processes.
            _ if config.has_app && publishes && endpoint.publishes => Route::publish(head),
            _ if config.has_app && subscribes && endpoint.subscribes => Route::subscribe(head),
            _ if config.has_app => Route::app_route(head, endpoint),
            _ => Route::handler_route(head, &config.routes, endpoint, (publishes, subscribes)),
        }
    }

    /// Worker processes answer everything except the monitoring pages.
    fn app_route(head: &RequestHead<'_>, endpoint: HttpEndpoint) -> Route {
        match head.target.path {
            b"/status" | b"/metrics" | b"/livez" | b"/readyz" if endpoint.has_pages() => {
                Route::built_in(head, endpoint)
            }
            _ if head.method == Method::Connect => Route::Refused(Status::NotImplemented),
            _ => Route::App,
        }
    }

    fn handler_route(
        head: &RequestHead<'_>,
        routes: &Routes,
        endpoint: HttpEndpoint,
        (publishes, subscribes): (bool, bool),
    ) -> Route {
        match routes.find(head) {
            RouteMatch::Handler(number) => Route::Handler(number),
            RouteMatch::MethodNotAllowed(methods) => Route::MethodNotAllowed(methods),
            // Also where publishing is disabled, unless there is a fallback: `publish_admission::admit` answers 403
            // with the reason.
            RouteMatch::Nothing if publishes && (endpoint.publishes || routes.fallback().is_none()) => {
                Route::publish(head)
            }
            RouteMatch::Nothing if subscribes && (endpoint.subscribes || routes.fallback().is_none()) => {
                Route::subscribe(head)
            }
            RouteMatch::Nothing => match (Route::built_in(head, endpoint), routes.fallback()) {
                (Route::Refused(_), Some(number)) => Route::Handler(number),
                // The fallback has precedence over the status page at `/`.
                (Route::Status, Some(number)) if head.target.path == b"/" => Route::Handler(number),
                (built_in, _) => built_in,
            },
        }
    }

    /// Whether it is a demo route: on a closing connection its response has no `Date` (`OK_CLOSE` of server-demo).
    pub(super) fn is_demo(self) -> bool {
        matches!(self, Route::Fast | Route::Slow)
    }

    fn publish(head: &RequestHead<'_>) -> Route {
        match head.method {
            Method::Post => Route::Publish,
            Method::Other(_) | Method::Connect => Route::Refused(Status::NotImplemented),
            _ => Route::MethodNotAllowed(MethodSet::POST),
        }
    }

    fn subscribe(head: &RequestHead<'_>) -> Route {
        match head.method {
            Method::Get | Method::Head => Route::Subscribe,
            Method::Other(_) | Method::Connect => Route::Refused(Status::NotImplemented),
            _ => Route::MethodNotAllowed(MethodSet::GET),
        }
    }

    fn built_in(head: &RequestHead<'_>, endpoint: HttpEndpoint) -> Route {
        let route = match head.target.path {
            b"/test/fast" if endpoint.demo => Route::Fast,
            b"/test/slow" if endpoint.demo => Route::Slow,
            b"/test/panic" if endpoint.demo => Route::Panic,
            subscribe::ECHO_PATH if endpoint.demo => Route::Echo,
            _ if !endpoint.has_pages() => Route::Refused(Status::NotFound),
            b"/" | b"/status" => Route::Status,
            b"/metrics" => Route::Metrics(metrics_format(head)),
            b"/livez" => Route::Live,
            b"/readyz" => Route::Ready,
            _ => Route::Refused(Status::NotFound),
        };
        match head.method {
            Method::Get | Method::Head => route,
            // The demo routes accept a body and ignore it.
            Method::Post if matches!(route, Route::Fast | Route::Slow) => route,
            Method::Other(_) | Method::Connect => Route::Refused(Status::NotImplemented),
            _ if matches!(route, Route::Refused(_)) => route,
            _ if matches!(route, Route::Fast | Route::Slow) => {
                Route::MethodNotAllowed(MethodSet::GET_AND_POST)
            }
            _ => Route::MethodNotAllowed(MethodSet::GET),
        }
    }
}

/// The format of `/metrics` that the client prefers: OpenMetrics if its weight is higher, or equal and named
/// explicitly; else text, which browsers display.
fn metrics_format(head: &RequestHead<'_>) -> MetricsFormat {
    const OPENMETRICS: MediaType =
        MediaType { kind: "application", subtype: "openmetrics-text", version: "1.0.0" };
    const TEXT: MediaType = MediaType { kind: "text", subtype: "plain", version: "0.0.4" };
    let text = accept::weight(head, &TEXT).map_or(0, |(weight, _)| weight);
    match accept::weight(head, &OPENMETRICS) {
        Some((weight, _)) if weight > text => MetricsFormat::OpenMetrics,
        Some((weight, specificity))
            if weight == text && weight > 0 && specificity >= Specificity::Subtype =>
        {
            MetricsFormat::OpenMetrics
        }
        _ => MetricsFormat::Text,
    }
}
