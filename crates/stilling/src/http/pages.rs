//! The pages that the server answers about itself. They allocate: they are for people and scrapers.

use std::fmt::Write;

use stilling_engine::{CloseReason, Io};
use stilling_hub::{Condition, Door, Loss};
use stilling_wire::http1::Status;

use super::answer::{self, Terms};
use super::response::{Response, TEXT};
use super::service::HttpService;
use crate::metrics;
use crate::overview::Overview;

/// `/metrics`.
pub(super) fn metrics(service: &HttpService) -> Response {
    fresh(metrics::MEDIA_TYPE, metrics::render(&service.overview))
}

/// `/readyz`: whether more work is welcome, and how many worker processes are ready for it. Not ready while a stream is frozen
/// or waits for room: publications to it would be refused. Other trouble of streams is a line of its own.
pub(super) fn ready(terms: &Terms, io: &mut Io<'_, HttpService>) -> bool {
    let streams = StreamLines::of(&io.service.overview);
    if io.service.is_ready() && !streams.refusals.is_empty() {
        let text = streams.refusals + &streams.details;
        return answer::send(terms, Status::ServiceUnavailable, TEXT, text.as_bytes(), io);
    }
    let details = streams.details;
    let has_process = io.service.overview.app.as_ref().is_none_or(|app| app.counters().ready > 0);
    let is_ready = io.service.is_ready() && has_process;
    let status = if is_ready { Status::Ok } else { Status::ServiceUnavailable };
    let Some(app) = &io.service.overview.app else {
        return match is_ready {
            true => answer::send(terms, status, TEXT, format!("ready\n{details}").as_bytes(), io),
            false => answer::send_status(terms, status, io),
        };
    };
    let counters = app.counters();
    let word = if is_ready { "ready" } else { "not ready" };
    let text = format!("{word}: {} of {} worker processes\n{details}", counters.ready, counters.wanted);
    answer::send(terms, status, TEXT, text.as_bytes(), io)
}

/// What `/readyz` says about streams, as much as has room in a short answer.
#[derive(Default)]
struct StreamLines {
    /// Which streams take nothing, and why.
    refusals: String,
    /// What else is wrong with streams.
    details: String,
}

impl StreamLines {
    fn of(see: &Overview) -> StreamLines {
        let mut lines = StreamLines::default();
        for stream in see.hub.get().iter().flat_map(|hub| &hub.streams) {
            let (name, health) = (&stream.name, stream.health.get());
            let reason = health.reason.as_deref().unwrap_or_default();
            let is_refusing =
                matches!(health.condition, Condition::Waiting | Condition::Closed | Condition::Frozen);
            if is_refusing && lines.refusals.len() < STREAM_LINES_MAX {
                let _ = writeln!(
                    lines.refusals,
                    "not ready: the stream {name} is {}: {reason}",
                    health.condition.name()
                );
            }
            let slow = (health.condition == Condition::Slow).then_some(reason);
            for detail in health.details().chain(slow) {
                if lines.details.len() < STREAM_LINES_MAX {
                    let _ = writeln!(lines.details, "stream {name}: {detail}");
                }
            }
        }
        lines
    }
}

/// Bytes of each part of what `/readyz` says about streams, but for the line that reaches it. Full: further lines are left out.
const STREAM_LINES_MAX: usize = 4 * 1024;

/// `/status`.
pub(super) fn status(service: &HttpService) -> Response {
    fresh("text/html; charset=utf-8", status_page(&service.overview, service.is_ready()))
}

/// A page that is true now and not later.
fn fresh(content_type: &'static str, page: String) -> Response {
    Response::bytes(content_type, page).with_header("Cache-Control", "no-store")
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:44rem;padding:0 1rem;\
color:#1c2733;background:#fbfcfd}h1{font-size:1.6rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .4rem;\
color:#40566b}p{margin:.3rem 0}table{border-collapse:collapse;width:100%}td{padding:.2rem .4rem;\
border-bottom:1px solid #e3e9ee}td+td{text-align:right;font-variant-numeric:tabular-nums}\
@media(prefers-color-scheme:dark){body{color:#dbe4ec;background:#14191f}h2{color:#9db3c7}\
td{border-color:#2a333c}a{color:#7db7e8}}\
.bad,.warn{border-left:.4rem solid;padding:.5rem .8rem;margin:.6rem 0;border-radius:.2rem;overflow-wrap:anywhere}\
.bad{border-color:#c62828;background:#fde7e7;color:#7f1515}.warn{border-color:#c77700;background:#fff3dc;color:#6b4300}\
@media(prefers-color-scheme:dark){.bad{background:#3d1717;color:#ffc9c9}.warn{background:#3a2b0d;color:#ffdf9e}}";

fn status_page(see: &Overview, ready: bool) -> String {
    let mut page = String::with_capacity(8 * 1024);
    let (alerts, is_refusing) = alerts(see);
    let state = match (ready, is_refusing) {
        (false, _) => "draining",
        (true, true) => "not ready",
        (true, false) => "ready",
    };
    let _ = write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <meta http-equiv=refresh content=5><title>Stilling: {state}</title><style>{STYLE}</style>{alerts}\
         <h1>Stilling {version}</h1><p>{state} · driver {driver} · {shards} shards · {workers} worker threads\
         <p>listening on {listeners} · <a href=/metrics>metrics</a>",
        version = env!("CARGO_PKG_VERSION"),
        driver = see.driver,
        shards = see.engines.len(),
        workers = see.workers,
        listeners = see.listeners.join(", "),
    );
    if let Some(fallback) = &see.driver_fallback {
        let _ = write!(page, "<p>{}", escape(fallback));
    }
    let pool = see.work();
    table(
        &mut page,
        "Connections",
        &[
            ("open now", see.engine(|c| &c.open)),
            ("capacity", u64::from(see.capacity) * see.engines.len() as u64),
            ("accepted", see.engine(|c| &c.accepted)),
            ("refused, no descriptors", see.engine(|c| &c.refused_descriptors)),
            ("refused, no room", see.engine(|c| &c.refused_full)),
            ("pauses of accepting", see.engine(|c| &c.gate_closed)),
        ],
    );
    table(
        &mut page,
        "Work",
        &[
            ("queued now", pool.queued),
            ("running now", pool.busy),
            ("connections in workers' hands", see.http.iter().map(|counters| counters.delegated()).sum()),
            ("done", pool.done),
            ("refused, queue full", pool.refused),
            ("expired in the queue", pool.expired),
            ("shed of them", pool.shed),
            ("cancelled, client gone", pool.cancelled),
            ("panicked", pool.panicked),
            ("run by accept threads", pool.inline),
            ("worker threads now", pool.threads),
            ("worker threads started", pool.threads_started),
            ("worker threads ended, not needed", pool.threads_ended),
            ("worker threads refused by the system", pool.threads_failed),
        ],
    );
    if let Some(app) = &see.app {
        let counters = app.counters();
        let rows = [
            ("ready now", counters.ready),
            ("wanted", counters.wanted),
            ("waiting to be started again", counters.resting),
            ("started", counters.started),
            ("died", counters.died),
            ("killed", counters.killed),
            ("recycled", counters.recycled),
        ];
        table(&mut page, "Worker processes", &rows);
    }
    streams(&mut page, see);
    let answers: Vec<_> =
        Status::ALL.iter().map(|status| (status.reason(), see.http(|c| c.answers(*status)))).collect();
    table(&mut page, "Answers", &answers);
    let closed = CloseReason::ALL.map(|reason| (reason.name(), see.engine(|c| c.closed(reason))));
    table(&mut page, "Closed connections", &closed);
    page
}

/// What is wrong with streams, for the top of the page, and whether one of them takes nothing.
fn alerts(see: &Overview) -> (String, bool) {
    let (mut page, mut is_refusing) = (String::new(), false);
    for stream in see.hub.get().iter().flat_map(|hub| &hub.streams) {
        let (name, health) = (escape(&stream.name), stream.health.get());
        if let Some(reason) = &health.reason {
            let (class, refuses) = match health.condition {
                Condition::Waiting | Condition::Closed | Condition::Frozen => ("bad", true),
                Condition::Slow | Condition::Open => ("warn", false),
            };
            is_refusing |= refuses;
            let (condition, reason) = (health.condition.name(), escape(reason));
            let _ = write!(page, "<p class={class} role=alert><b>Stream {name}: {condition}</b><br>{reason}");
        }
        for detail in health.details() {
            let _ = write!(page, "<p class=warn role=alert><b>Stream {name}</b><br>{}", escape(detail));
        }
    }
    (page, is_refusing)
}

/// Rows with a value, and the first one always.
fn table(page: &mut String, title: &str, rows: &[(&str, u64)]) {
    let _ = write!(page, "<h2>{title}</h2><table>");
    for (at, (name, value)) in rows.iter().enumerate() {
        if at == 0 || *value > 0 {
            let _ = write!(page, "<tr><td>{}<td>{value}", name.replace('_', " "));
        }
    }
    page.push_str("</table>");
}

/// The streams of the hub, and what was lost before it.
fn streams(page: &mut String, see: &Overview) {
    let Some(hub) = see.hub.get() else { return };
    page.push_str(
        "<h2>Streams</h2><table><tr><td>stream<td>first<td>last<td>visible<td>waiting for the disk<td>state",
    );
    for stream in &hub.streams {
        let state = stream.health.get().condition.name();
        let [first, last, visible, pending] =
            [&stream.first, &stream.last, &stream.visible, &stream.pending].map(stilling_hub::Figure::get);
        let _ = write!(
            page,
            "<tr><td>{}<td>{first}<td>{last}<td>{visible}<td>{pending}<td>{state}",
            escape(&stream.name)
        );
    }
    page.push_str("</table>");
    let lost = |loss| Door::ALL.into_iter().map(|door| hub.losses(door, loss)).sum();
    let mut rows = vec![
        ("messages", hub.messages.get()),
        ("delivered", hub.delivered.get()),
        ("duplicates", hub.duplicates.get()),
        ("subscriptions now", hub.subscriptions.get()),
        ("consumers now", hub.consumers.get()),
    ];
    let losses = Loss::ALL.map(|loss| (format!("lost: {}", loss.name()), lost(loss)));
    rows.extend(losses.iter().map(|(name, count)| (name.as_str(), *count)));
    rows.push(("lost: datagrams dropped by the kernel", see.engine(|c| &c.datagrams_dropped_by_kernel)));
    table(page, "Messages", &rows);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
