//! `/status`: a page for operators that refreshes itself, without scripts.

use std::fmt::Write;
use std::time::Duration;

use stilling_engine::{CloseReason, DatagramDropReason};
use stilling_hub::{Gauge, HubCounters, Ingress, Loss, StreamCondition, StreamCounters};
use stilling_ring::Time;
use stilling_wire::http1::Status;

use super::pages::uncached;
use super::response::Response;
use super::shard::HttpShard;
use crate::coap::DatagramClass;
use crate::hub::HubHandleCounters;
use crate::overview::Overview;
use crate::rates::Flow;
use crate::upstream::App;

/// Seconds between reloads of the page.
const REFRESH_SECONDS: u32 = 3;

/// Age from which a measurement of a disk is shown with its age.
const MEASUREMENT_STALE_AFTER: Duration = Duration::from_secs(10);

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1c2733;--faint:#5a6b7b;--back:#f6f8fa;--card:#fff;--line:#dfe5ea;--link:#0b62a8;\
--bad:#a31515;--bad-back:#fdeaea;--warn:#7a4b00;--warn-back:#fff4de}\
@media(prefers-color-scheme:dark){:root{--text:#dbe4ec;--faint:#94a5b5;--back:#12171c;--card:#1a2128;--line:#2c3640;\
--link:#7db7e8;--bad:#ffb4b4;--bad-back:#3d1717;--warn:#ffd58a;--warn-back:#36290f}}\
*{box-sizing:border-box}body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1.2rem;\
color:var(--text);background:var(--back)}h1{font-size:1.5rem;margin:0}h2{font-size:1rem;margin:0 0 .4rem}\
p{margin:.2rem 0;color:var(--faint)}a{color:var(--link)}\
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.2rem,1fr));gap:.7rem;margin:1rem 0}\
.figures div,section{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.7rem .9rem}\
.figures b{display:block;font-size:1.45rem;font-weight:600;font-variant-numeric:tabular-nums;white-space:nowrap}\
.figures span{color:var(--faint);font-size:.85rem}\
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(19rem,1fr));gap:.7rem;align-items:start}\
.wide{margin:.7rem 0;overflow-x:auto}table{border-collapse:collapse;width:100%}\
td,th{padding:.22rem .5rem .22rem 0;border-top:1px solid var(--line);text-align:left;font-weight:400;vertical-align:top}\
tr:first-child>*{border-top:0}th{color:var(--faint);font-size:.85rem}\
td+td,th+th{text-align:right;font-variant-numeric:tabular-nums;padding-right:0;padding-left:.7rem;white-space:nowrap}\
.refused,.refused b,.refused td,.refused span{color:var(--bad)}.refused td{font-weight:600}\
.figures .refused{background:var(--bad-back);border-color:currentColor}\
.bad,.warn{border-left:.35rem solid;padding:.6rem .9rem;margin:0 0 .8rem;border-radius:.3rem;overflow-wrap:anywhere}\
.bad{background:var(--bad-back);color:var(--bad)}.warn{background:var(--warn-back);color:var(--warn)}";

pub(super) fn render(http: &HttpShard, now: Time) -> Response {
    // The result is shown at the next reload.
    http.overview.volumes.request_measurement();
    uncached("text/html; charset=utf-8", page(&http.overview, http.is_ready(), now))
}

fn page(overview: &Overview, ready: bool, now: Time) -> String {
    let mut page = String::with_capacity(12 * 1024);
    let (alerts, is_refusing) = alerts(overview, now);
    let state = match (ready, is_refusing) {
        (false, _) => "draining",
        (true, true) => "not ready",
        (true, false) => "ready",
    };
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <meta http-equiv=refresh content={REFRESH_SECONDS}><title>Stilling: {state}</title><style>{STYLE}</style>{alerts}\
         <h1>Stilling {version}: {state}</h1>\
         <p>up {uptime} · driver {driver} · {shards} shards · {workers} worker threads\
         <p>listening on {listeners} · <a href=/metrics>metrics</a>",
        version = env!("CARGO_PKG_VERSION"),
        uptime = span(overview.rates.uptime(now)),
        driver = overview.driver,
        shards = grouped(overview.engines.len() as u64),
        workers = grouped(overview.workers as u64),
        listeners = overview.listeners.join(", "),
    );
    if let Some(fallback) = &overview.driver_fallback {
        let _ = write!(page, "<p>{}", escape(fallback));
    }
    figures(&mut page, overview, now);
    streams(&mut page, overview);
    page.push_str("<div class=tables>");
    refusals(&mut page, overview);
    work(&mut page, overview);
    connections(&mut page, overview);
    listeners(&mut page, overview);
    messages(&mut page, overview);
    coap(&mut page, overview);
    packet_log(&mut page, overview);
    rates(&mut page, overview);
    let responses: Vec<_> = (Status::ALL.iter())
        .map(|status| {
            (format!("{} {}", status.code(), status.reason()), overview.http(|c| c.responses(*status)))
        })
        .collect();
    let is_shown = |(name, count): &&(String, u64)| *count > 0 || name.starts_with("200");
    let rows = responses.iter().filter(is_shown).map(|(name, count)| (name.as_str(), *count));
    table(&mut page, "Responses", rows, |name| name.starts_with("503"));
    let closed = CloseReason::ALL.map(|reason| (reason.name(), overview.engine(|c| c.closed(reason))));
    table(&mut page, "Closed connections", closed, |_| false);
    page.push_str("</div></html>");
    page
}

fn figures(page: &mut String, overview: &Overview, now: Time) {
    let recent = overview.recent(now);
    let delta = &recent.delta;
    let rate = |count| rate(recent.per_second(count));
    page.push_str("<div class=figures>");
    let mut figure = |class: &str, value: &str, name: &str| {
        let _ = write!(page, "<div{class}><b>{value}</b><span>{name}</span></div>");
    };
    let open = overview.engine(|c| &c.open);
    let work = overview.work();
    let wait = recent.mean_wait().map_or_else(|| "–".to_owned(), short_span);
    figure("", &rate(delta.requests), "requests/s");
    if overview.hub.get().is_some() {
        figure("", &rate(delta.messages), "messages/s");
        figure("", &rate(delta.delivered), "deliveries/s");
    }
    let class = if delta.refused > 0 { " class=refused" } else { "" };
    figure(class, &rate(delta.refused), "refusals/s");
    figure("", &wait, "wait in the queue, mean");
    figure("", &grouped(work.queued), "requests in the queue");
    figure("", &grouped(open), "connections");
    page.push_str("</div>");
}

fn refusals(page: &mut String, overview: &Overview) {
    if overview.refused() == 0 {
        return;
    }
    table(page, "Refused", overview.refusals(), |_| true);
}

fn work(page: &mut String, overview: &Overview) {
    let pool = overview.work();
    let rows = [
        ("queued now", pool.queued),
        ("most queued at once", pool.queued_max),
        ("running now", pool.busy),
        ("connections served by workers", overview.http.iter().map(|counters| counters.delegated()).sum()),
        ("done", pool.done),
        ("refused, queue full", pool.rejected),
        ("expired in the queue", pool.expired),
        ("of them shed", pool.shed),
        ("cancelled, client gone", pool.cancelled),
        ("panicked", pool.panicked),
        ("run by accept threads", pool.inline),
        ("worker threads now", pool.threads),
        ("worker threads started", pool.threads_started),
        ("worker threads ended, not needed", pool.threads_ended),
        ("worker threads refused by the system", pool.threads_failed),
    ];
    table(page, "Jobs", rows, |name| {
        ["refused, queue full", "expired in the queue", "of them shed", "panicked"].contains(&name)
    });
    for app in &overview.apps {
        processes(page, app);
    }
}

fn processes(page: &mut String, app: &App) {
    let (counters, requests) = (app.counters(), app.requests());
    let (affinity, sessions) = (app.affinity(), app.sessions());
    let rows = [
        ("ready now", counters.ready),
        ("configured", counters.configured),
        ("waiting to restart", counters.backing_off),
        ("started", counters.started),
        ("exited", counters.exited),
        ("killed", counters.killed),
        ("recycled, requests", counters.recycled),
        ("recycled, memory", counters.recycled_memory),
        ("reloads", counters.reloaded),
        ("reloads failed", counters.reloads_failed),
        ("requests in processes now", requests.busy),
        ("requests queued now", requests.queued),
        ("most requests queued", requests.queued_max),
        ("requests done", requests.done),
        ("requests refused, queue full", requests.rejected.saturating_sub(affinity.no_worker)),
        ("requests refused, no worker", affinity.no_worker),
        ("clients with a process now", affinity.assigned),
        ("requests expired in the queue", requests.expired),
        ("sessions now", sessions.sessions),
        ("sessions evicted", sessions.evicted),
        ("session states refused, too large", sessions.too_large),
        ("session states lost", sessions.lost),
    ];
    let title = format!("Worker processes: {} at {}", app.config().name, app.config().paths);
    table(page, &title, rows, |name| {
        name.starts_with("requests refused")
            || name.starts_with("session states")
            || ["exited", "killed", "reloads failed", "requests expired in the queue", "sessions evicted"]
                .contains(&name)
    });
}

fn connections(page: &mut String, overview: &Overview) {
    let rows = [
        ("open now", overview.engine(|c| &c.open)),
        ("capacity", u64::from(overview.capacity) * overview.engines.len() as u64),
        ("accepted", overview.engine(|c| &c.accepted)),
        ("refused, no descriptors", overview.engine(|c| &c.refused_descriptors)),
        ("refused, at capacity", overview.engine(|c| &c.refused_full)),
        ("pauses of accepting", overview.engine(|c| &c.gate_closed)),
    ];
    table(page, "Connections", rows, |name| name.starts_with("refused"));
}

/// SYN floods and accept queues. Those of the system cover its network namespace.
fn listeners(page: &mut String, overview: &Overview) {
    let counters = overview.listen.counters();
    let row = |name: &str, value| (name.to_owned(), value);
    let mut rows = vec![
        row("SYN floods", counters.floods.get()),
        row("SYN cookies sent", counters.cookies_sent.get()),
        row("SYN cookies returned", counters.cookies_returned.get()),
        row("SYN cookies failed", counters.cookies_failed.get()),
        row("dropped, accept queue full", counters.overflows.get()),
        row("backlogs raised", counters.raises.get()),
        row("backlogs lowered", counters.lowers.get()),
    ];
    for of in overview.listen.figures() {
        rows.push((format!("waiting now, {}", of.url), of.queue));
        rows.push((format!("most waiting at once, {}", of.url), of.queue_max));
        rows.push((format!("backlog, {}", of.url), of.backlog));
        rows.push((format!("dropped, {}", of.url), of.drops));
    }
    let rows = rows.iter().map(|(name, count)| (name.as_str(), *count));
    table(page, "Listeners", rows, |name| name.starts_with("dropped") || name == "SYN floods");
}

fn messages(page: &mut String, overview: &Overview) {
    let Some(hub) = overview.hub.get() else { return };
    let lost = |loss| Ingress::ALL.into_iter().map(|ingress| hub.losses(ingress, loss)).sum();
    let subscribers = |open: fn(&HubHandleCounters) -> u64| {
        overview.hub_handles.iter().map(|handle| open(handle)).sum::<u64>()
    };
    let feeds = hub.feeds();
    let pending_peak = hub.streams.iter().map(|stream| stream.pending_peak.get()).max().unwrap_or(0);
    let mut rows = vec![
        ("messages".to_owned(), hub.messages.get()),
        ("bytes received".to_owned(), hub.bytes.get()),
        ("most waiting for the disk at once".to_owned(), pending_peak),
        ("delivered".to_owned(), hub.delivered()),
        ("duplicates".to_owned(), hub.duplicates.get()),
        ("subscriptions now".to_owned(), hub.subscriptions()),
        ("feeds now".to_owned(), feeds.feeds),
        ("subscriptions that read a feed now".to_owned(), feeds.sharers),
        ("bytes of memory for feeds now".to_owned(), feeds.held_size),
        ("bytes encoded for feeds".to_owned(), feeds.encoded_size),
        ("bytes sent from feeds".to_owned(), feeds.sent_size),
        ("subscribers by SSE now".to_owned(), subscribers(|handle| handle.sse.open())),
        ("subscribers by WebSocket now".to_owned(), subscribers(|handle| handle.websocket.open())),
        ("subscribers that catch up now".to_owned(), hub.catch_ups.get()),
        ("times that a slow subscriber fell behind".to_owned(), hub.fallen_behind()),
        ("consumers now".to_owned(), hub.consumers.get()),
        ("requests processed".to_owned(), hub.requests.get()),
        ("requests waiting now".to_owned(), hub.queue_length()),
        ("most requests waiting at once".to_owned(), hub.queue_length_max.get()),
        ("mean wait of requests, µs".to_owned(), mean_wait_us(hub)),
        ("longest wait of a request, µs".to_owned(), hub.queue_wait_ns_max.get() / 1000),
    ];
    rows.extend(Loss::ALL.map(|loss| (format!("lost: {}", loss.name()), lost(loss))));
    let dropped = overview.engine(|c| &c.datagrams_dropped_by_kernel);
    rows.push(("lost: datagrams dropped by the kernel".to_owned(), dropped));
    let rows = rows.iter().map(|(name, count)| (name.as_str(), *count));
    table(page, "Messages", rows, |name| name.starts_with("lost"));
}

/// CoAP: datagrams by class, exchanges, and everything that was dropped.
fn coap(page: &mut String, overview: &Overview) {
    if !overview.listeners.iter().any(|listener| listener.starts_with("coap:")) {
        return;
    }
    let largest = overview.engines.iter().map(|c| c.datagrams_waiting_max.get()).max().unwrap_or(0);
    let count_of = |class| overview.coap(|counters| counters.datagrams(class));
    let mut rows = vec![("requests: new".to_owned(), count_of(DatagramClass::New))];
    let others = DatagramClass::ALL.into_iter().filter(|class| *class != DatagramClass::New);
    rows.extend(others.map(|class| (format!("datagrams: {}", class.name()), count_of(class))));
    let row = |name: &str, value| (name.to_owned(), value);
    rows.extend([
        row("exchanges remembered now", overview.coap(|c| c.exchanges.get())),
        row("forgotten early, table full", overview.coap(|c| c.exchanges_evicted.get())),
        row("requests waiting for their answers now", overview.coap(|c| c.pending.get())),
        row("incomplete request bodies now", overview.coap(|c| c.assemblies.get())),
        row("separate responses", overview.coap(|c| c.separate_responses.get())),
        row("unacknowledged messages now", overview.coap(|c| c.transmissions.get())),
        row("observers now", overview.coap(|c| c.observers.get())),
        row("observed resources now", overview.coap(|c| c.observed_resources.get())),
        row("notifications", overview.coap(|c| c.notifications.get() + c.confirmable_notifications.get())),
        row("datagrams waiting now", overview.engine(|c| &c.datagrams_waiting)),
        row("most datagrams waiting in a shard", largest),
        row("dropped: answers without acknowledgement", overview.coap(|c| c.transmissions_timed_out.get())),
        row("dropped: refused with 5.03, table full", overview.coap(|c| c.refused_full.get())),
        row("dropped: observers refused, table full", overview.coap(|c| c.observers_refused.get())),
        row("dropped: states too long for observers", overview.coap(|c| c.states_dropped.get())),
        row("dropped: observers that were gone", overview.coap(|c| c.observers_gone.get())),
        row(
            "dropped: by the kernel, receive buffer full",
            overview.engine(|c| &c.datagrams_dropped_by_kernel),
        ),
        row("dropped: too many waiting", overview.engine(|c| &c.datagrams_shed)),
        row(
            "dropped: answer too long without proof of address",
            overview.coap(|c| c.amplification_limited.get()),
        ),
    ]);
    rows.extend(DatagramDropReason::ALL.map(|reason| {
        (format!("dropped: not sent, {}", reason.name()), overview.engine(|c| c.datagrams_dropped(reason)))
    }));
    rows.extend(
        (overview.receive_buffers.iter())
            .map(|(listener, size)| (format!("receive buffer in bytes, {listener}"), *size)),
    );
    let rows = rows.iter().map(|(name, count)| (name.as_str(), *count));
    table(page, "CoAP", rows, |name| name.starts_with("dropped") || name.starts_with("forgotten"));
    coap_workers(page, overview);
    coap_stages(page, overview);
}

/// CoAP requests at worker processes, and those that were shed.
fn coap_workers(page: &mut String, overview: &Overview) {
    if overview.apps.is_empty() {
        return;
    }
    let rows = [
        ("requests forwarded", overview.coap(|c| c.forwarded.get())),
        ("pools in overload now, of all shards", overview.coap(|c| c.overloaded_pools.get())),
        ("refused: no worker free in time", overview.coap(|c| c.no_worker.get())),
        ("refused: shed with 5.03", overview.coap(|c| c.shed_unavailable.get())),
        ("refused: shed with 4.29", overview.coap(|c| c.shed_too_many.get())),
        ("refused: shed without a reply", overview.coap(|c| c.shed_silently.get())),
        ("failed: no usable response", overview.coap(|c| c.worker_failures.get())),
        ("failed: timeout", overview.coap(|c| c.worker_timeouts.get())),
        ("failed: response too large", overview.coap(|c| c.responses_too_large.get())),
    ];
    table(page, "CoAP at worker processes", rows, |name| {
        name.starts_with("refused") || name.starts_with("failed")
    });
}

/// The mean time of each stage of CoAP.
fn coap_stages(page: &mut String, overview: &Overview) {
    page.push_str("<section><h2>CoAP stages</h2><table><tr><th>stage<th>datagrams<th>mean µs");
    for (stage, time, count) in overview.coap_stages() {
        let mean = time.as_secs_f64() * 1e6 / count.max(1) as f64;
        let _ = write!(page, "<tr><td>{stage}<td>{}<td>{mean:.1}", grouped(count));
    }
    page.push_str("</table></section>");
}

fn packet_log(page: &mut String, overview: &Overview) {
    let Some(log) = &overview.packet_log else { return };
    let rows = [
        ("datagrams recorded", log.sum(|c| &c.recorded)),
        ("bytes written", log.written.get()),
        ("files begun", log.files.get()),
        ("missing: too slow a disk", log.sum(|c| &c.dropped)),
        ("missing: error of the file system", log.discarded.get()),
        ("errors of the file system", log.errors.get()),
    ];
    table(page, "Packet log", rows, |name| name.starts_with("missing") || name.starts_with("errors"));
}

/// Mean and best second of each flow.
fn rates(page: &mut String, overview: &Overview) {
    let of_flow = |flow: Flow| (flow, overview.rates.flow(flow));
    let mut flows = Flow::ALL.map(of_flow).into_iter().filter(|(_, rates)| rates.peak > 0).peekable();
    if flows.peek().is_none() {
        return;
    }
    page.push_str("<section><h2>Messages per second</h2><table><tr><th>flow<th>mean<th>best second");
    for (flow, rates) in flows {
        let (mean, peak) = (rate(rates.mean), grouped(rates.peak));
        let _ = write!(page, "<tr><td>{}<td>{mean}<td>{peak}", flow.name());
    }
    page.push_str("</table></section>");
}

/// The mean wait in microseconds, rounded up: 0 means that no request waited.
fn mean_wait_us(hub: &HubCounters) -> u64 {
    hub.queue_wait_ns.get().div_ceil(hub.requests_timed.get().max(1) * 1000)
}

fn streams(page: &mut String, overview: &Overview) {
    let Some(hub) = overview.hub.get() else { return };
    page.push_str(
        "<section class=wide><h2>Streams</h2><table><tr><th>stream<th>first<th>last<th>visible<th>waiting for the disk\
         <th>state<th>on disk<th>free on its volume<th>rejected by its gate",
    );
    for stream in &hub.streams {
        stream_row(page, overview, stream);
    }
    page.push_str("</table></section>");
}

fn stream_row(page: &mut String, overview: &Overview, stream: &StreamCounters) {
    let condition = stream.health.get().condition;
    let class = if condition == StreamCondition::Open { "" } else { " class=refused" };
    let [first, last, visible, pending] =
        [&stream.first, &stream.last, &stream.visible, &stream.pending].map(Gauge::get).map(grouped);
    let _ = write!(
        page,
        "<tr{class}><td>{}<td>{first}<td>{last}<td>{visible}<td>{pending}<td>{}",
        escape(&stream.name),
        condition.name()
    );
    match overview.volumes.usage(&stream.name) {
        Some(usage) => {
            let _ = write!(page, "<td>{}<td>{}", binary_size(usage.bytes), binary_size(usage.free));
            if usage.age > MEASUREMENT_STALE_AFTER {
                let _ = write!(page, " ({} ago)", span(usage.age));
            }
        }
        None => page.push_str("<td>–<td>–"),
    }
    let _ = write!(page, "<td>{}", grouped(stream.rejected.get()));
}

/// Alerts for the top of the page, mostly about streams, and whether a stream refuses messages.
fn alerts(overview: &Overview, now: Time) -> (String, bool) {
    let (mut page, mut is_refusing) = (String::new(), false);
    if let Some(age) = overview.listen.flood_age(now) {
        let _ = write!(page, "<p class=warn role=alert>SYN flood, detected {} ago", span(age));
    }
    for stream in overview.hub.get().iter().flat_map(|hub| &hub.streams) {
        let (name, health) = (escape(&stream.name), stream.health.get());
        if let Some(reason) = &health.reason {
            let (class, refuses) = match health.condition {
                StreamCondition::Waiting | StreamCondition::Closed | StreamCondition::Frozen => ("bad", true),
                StreamCondition::Slow | StreamCondition::Open => ("warn", false),
            };
            is_refusing |= refuses;
            let (condition, reason) = (health.condition.name(), escape(reason));
            let _ = write!(page, "<p class={class} role=alert><b>Stream {name}: {condition}</b><br>{reason}");
        }
        for detail in health.details() {
            let _ = write!(page, "<p class=warn role=alert><b>Stream {name}</b><br>{}", escape(detail));
        }
    }
    let packet_log = overview.packet_log.as_ref().and_then(|log| log.failure());
    for line in overview.not_opened.iter().chain(&packet_log) {
        let _ = write!(page, "<p class=warn role=alert>{}", escape(line));
    }
    (page, is_refusing)
}

/// A table of the rows with a nonzero value, and the first row; refusals are highlighted.
fn table<'a>(
    page: &mut String,
    title: &str,
    rows: impl IntoIterator<Item = (&'a str, u64)>,
    is_refusal: impl Fn(&str) -> bool,
) {
    let _ = write!(page, "<section><h2>{title}</h2><table>");
    for (at, (name, value)) in rows.into_iter().enumerate() {
        if at == 0 || value > 0 {
            let class = if value > 0 && is_refusal(name) { " class=refused" } else { "" };
            let _ = write!(page, "<tr{class}><td>{}<td>{}", name.replace('_', " "), grouped(value));
        }
    }
    page.push_str("</table></section>");
}

/// A number with its digits in groups of three: `1,234,567`.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate, with one decimal below 100.
fn rate(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value < 0.1 {
        "< 0.1".to_owned()
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        grouped(value.round() as u64)
    }
}

/// Bytes in the largest unit of which there is at least one: `1.5 GiB`.
fn binary_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in units {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// A span in its two largest units: `3 d 4 h`.
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{} d {hours} h", grouped(days)),
    }
}

/// A wait in milliseconds, or in seconds from one second on.
fn short_span(span: Duration) -> String {
    let millis = span.as_secs_f64() * 1e3;
    match millis {
        _ if millis < 0.1 => "< 0.1 ms".to_owned(),
        _ if millis < 1000.0 => format!("{millis:.1} ms"),
        _ => format!("{:.1} s", millis / 1e3),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_reading() {
        let groups = [0, 7, 999, 1000, 12_345, 1_234_567, u64::MAX].map(grouped);
        assert_eq!(groups, ["0", "7", "999", "1,000", "12,345", "1,234,567", "18,446,744,073,709,551,615"]);
        assert_eq!(
            [0.0, 0.04, 0.25, 99.94, 99.96, 1234.5].map(rate),
            ["0", "< 0.1", "0.2", "99.9", "100", "1,235"]
        );
        let sizes = [0, 1023, 1024, 1536, 5 << 30, u64::MAX].map(binary_size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "16.0 EiB"]);
        let spans = [0, 59, 60, 3599, 3600, 86_399, 86_400, 100_000_000].map(Duration::from_secs).map(span);
        assert_eq!(
            spans,
            ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "23 h 59 min", "1 d 0 h", "1,157 d 9 h"]
        );
        let waits =
            [0, 50_000, 1_500_000, 999_000_000, 2_345_000_000].map(Duration::from_nanos).map(short_span);
        assert_eq!(waits, ["< 0.1 ms", "< 0.1 ms", "1.5 ms", "999.0 ms", "2.3 s"]);
    }
}
