//! Maps a request's method and path to a route.

use stilling_wire::http1::{Method, RequestHead, Status};

use super::accept::{self, MediaType, Specificity};
use super::auction_page;
use super::method_set::MethodSet;
use super::publish_admission;
use super::routes::{RouteMatch, Routes};
use super::shard::HttpConfig;
use super::subscribe;
use crate::metrics::MetricsFormat;
use crate::upstream::PoolIndex;

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
    /// NATS over WebSocket, at any path.
    NatsWebSocket,
}

impl HttpEndpoint {
    fn has_pages(self) -> bool {
        matches!(self.scope, HttpScope::Everything | HttpScope::Pages)
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
    /// The worker processes of this pool.
    App(PoolIndex),
    /// `/publish/<subject>`: the hub.
    Publish,
    /// `/subscribe/<filter>`: the hub, over SSE or WebSocket.
    Subscribe,
    /// `/test/echo`: a WebSocket that returns every message.
    Echo,
    /// `/auction`: the page for bidders.
    Auction,
    /// `/nats`: the NATS client protocol over WebSocket.
    Nats,
}

/// A path of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HubPath {
    Publish,
    Subscribe,
    Auction,
    Nats,
}

impl HubPath {
    fn of(head: &RequestHead<'_>, config: &HttpConfig) -> Option<HubPath> {
        match head.target.path {
            path if path.starts_with(publish_admission::PUBLISH_PATH_PREFIX) => Some(HubPath::Publish),
            path if path.starts_with(subscribe::SUBSCRIBE_PATH_PREFIX) => Some(HubPath::Subscribe),
            subscribe::NATS_PATH => Some(HubPath::Nats),
            auction_page::AUCTION_PATH if !config.auction_filters.is_empty() => Some(HubPath::Auction),
            _ => None,
        }
    }

    fn is_open_at(self, endpoint: HttpEndpoint) -> bool {
        match self {
            HubPath::Publish => endpoint.publishes,
            HubPath::Subscribe | HubPath::Auction => endpoint.subscribes,
            HubPath::Nats => endpoint.publishes && endpoint.subscribes,
        }
    }

    fn route(self, head: &RequestHead<'_>) -> Route {
        match (self, head.method) {
            (HubPath::Publish, Method::Post) => Route::Publish,
            (HubPath::Subscribe, Method::Get | Method::Head) => Route::Subscribe,
            (HubPath::Auction, Method::Get | Method::Head) => Route::Auction,
            (HubPath::Nats, Method::Get) => Route::Nats,
            (_, Method::Other(_) | Method::Connect) => Route::Refused(Status::NotImplemented),
            (HubPath::Publish, _) => Route::MethodNotAllowed(MethodSet::POST),
            (HubPath::Subscribe | HubPath::Auction | HubPath::Nats, _) => {
                Route::MethodNotAllowed(MethodSet::GET)
            }
        }
    }
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
        let hub_path = has_hub.then(|| HubPath::of(head, config)).flatten();
        match (endpoint.scope, hub_path) {
            (HttpScope::Pages, _) => Route::built_in(head, endpoint),
            (HttpScope::NatsWebSocket, _) => HubPath::Nats.route(head),
            // Where a path of the hub is disabled, it belongs to the worker processes.
            (_, Some(path)) if !config.apps.is_empty() && path.is_open_at(endpoint) => path.route(head),
            _ if !config.apps.is_empty() => Route::app_route(head, config, endpoint),
            _ => Route::handler_route(head, &config.routes, endpoint, hub_path),
        }
    }

    /// Worker processes answer everything in their patterns except the monitoring pages.
    fn app_route(head: &RequestHead<'_>, config: &HttpConfig, endpoint: HttpEndpoint) -> Route {
        match head.target.path {
            b"/status" | b"/metrics" | b"/livez" | b"/readyz" if endpoint.has_pages() => {
                Route::built_in(head, endpoint)
            }
            _ if head.method == Method::Connect => Route::Refused(Status::NotImplemented),
            path => config.apps.find(path).map_or_else(|| Route::built_in(head, endpoint), Route::App),
        }
    }

    fn handler_route(
        head: &RequestHead<'_>,
        routes: &Routes,
        endpoint: HttpEndpoint,
        hub_path: Option<HubPath>,
    ) -> Route {
        match (routes.find(head), hub_path) {
            (RouteMatch::Handler(number), _) => Route::Handler(number),
            (RouteMatch::MethodNotAllowed(methods), _) => Route::MethodNotAllowed(methods),
            // Also where the path is disabled, unless there is a fallback: `publish_admission` answers 403 with the
            // reason.
            (RouteMatch::Nothing, Some(path)) if path.is_open_at(endpoint) || routes.fallback().is_none() => {
                path.route(head)
            }
            (RouteMatch::Nothing, _) => match (Route::built_in(head, endpoint), routes.fallback()) {
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
