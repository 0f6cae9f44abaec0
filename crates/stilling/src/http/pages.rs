//! The server's pages about itself, for operators and scrapers. They may allocate.

use std::fmt::Write;
use std::sync::Arc;

use stilling_engine::Io;
use stilling_hub::StreamCondition;
use stilling_wire::http1::Status;
use stilling_workers::processes::ProcessCounters;

use super::response::{Response, TEXT};
use super::response_writer::{self, ResponseTerms};
use super::shard::{HttpContext, HttpShard};
use crate::metrics::{self, MetricsFormat};
use crate::overview::Overview;
use crate::upstream::App;

pub(super) fn metrics(http: &HttpShard, format: MetricsFormat) -> Response {
    // RFC 9110 §12.5.5.
    uncached(format.media_type(), metrics::render_as(format, &http.overview)).with_header("Vary", "Accept")
}

/// Answers `/readyz`: whether the server accepts more work, and how many worker processes are ready. Not ready while a
/// pool has no process that is ready, or while a stream is frozen, closed or waits for room, because it refuses
/// publications. Each other problem of a stream is reported on its own line.
pub(super) fn ready(terms: &ResponseTerms, io: &mut Io<'_>, cx: &mut HttpContext<'_>) -> bool {
    let streams = StreamReadiness::of(&cx.http.overview);
    if cx.http.is_ready() && !streams.refusals.is_empty() {
        let text = streams.refusals + &streams.details;
        cx.http.counters.unavailable.add(1);
        return response_writer::send(terms, Status::ServiceUnavailable, TEXT, text.as_bytes(), io, cx);
    }
    let details = streams.details;
    let apps = &cx.http.overview.apps;
    let is_ready = cx.http.is_ready() && apps.iter().all(|app| app.counters().ready > 0);
    let status = if is_ready { Status::Ok } else { Status::ServiceUnavailable };
    let text = match apps.as_slice() {
        [] if is_ready => format!("ready\n{details}"),
        [] => String::new(),
        apps => processes(apps, is_ready) + &details,
    };
    cx.http.counters.unavailable.add(u64::from(!is_ready));
    match text.is_empty() {
        true => response_writer::send_status(terms, status, io, cx),
        false => response_writer::send(terms, status, TEXT, text.as_bytes(), io, cx),
    }
}

/// The number of ready processes of all pools and, of several pools or while processes keep exiting, of each pool.
fn processes(apps: &[Arc<App>], is_ready: bool) -> String {
    let counters: Vec<_> = apps.iter().map(|app| (app, app.counters())).collect();
    let sum =
        |of: fn(&ProcessCounters) -> u64| counters.iter().map(|(_, counters)| of(counters)).sum::<u64>();
    let word = if is_ready { "ready" } else { "not ready" };
    let mut text =
        format!("{word}: {} of {} worker processes\n", sum(|of| of.ready), sum(|of| of.configured));
    for (app, of) in counters.iter().filter(|(_, of)| apps.len() > 1 || of.backing_off > 0) {
        // Writing to a string does not fail.
        let _ = write!(text, "{}: {} of {} ready", app.config().name, of.ready, of.configured);
        let _ = match of.backing_off {
            0 => writeln!(text),
            waiting => writeln!(text, ", {waiting} keep exiting and start again within {:?}", of.backoff),
        };
    }
    text
}

/// What `/readyz` reports about streams, bounded to fit a short response.
#[derive(Default)]
struct StreamReadiness {
    /// The streams that refuse messages, and why.
    refusals: String,
    /// Other problems of streams.
    details: String,
}

impl StreamReadiness {
    fn of(overview: &Overview) -> StreamReadiness {
        let mut lines = StreamReadiness::default();
        for stream in overview.hub.get().iter().flat_map(|hub| &hub.streams) {
            let (name, health) = (&stream.name, stream.health.get());
            let reason = health.reason.as_deref().unwrap_or_default();
            let is_refusing = matches!(
                health.condition,
                StreamCondition::Waiting | StreamCondition::Closed | StreamCondition::Frozen
            );
            if is_refusing && lines.refusals.len() < STREAM_TEXT_SIZE_MAX {
                let _ = writeln!(
                    lines.refusals,
                    "not ready: the stream {name} is {}: {reason}",
                    health.condition.name()
                );
            }
            let slow = (health.condition == StreamCondition::Slow).then_some(reason);
            for detail in health.details().chain(slow) {
                if lines.details.len() < STREAM_TEXT_SIZE_MAX {
                    let _ = writeln!(lines.details, "stream {name}: {detail}");
                }
            }
        }
        lines
    }
}

/// Bytes of each list of streams in `/readyz`, not counting the line that exceeds it. Full: further lines are omitted.
const STREAM_TEXT_SIZE_MAX: usize = 4 * 1024;

pub(super) fn uncached(content_type: &'static str, page: String) -> Response {
    Response::bytes(content_type, page).with_header("Cache-Control", "no-store")
}
