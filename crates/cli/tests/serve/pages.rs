//! Pages for operators: `/metrics` in the requested format, and `/status`.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use crate::support::{DriverUnderTest, HANG_TIMEOUT, Metrics, ServerUnderTest, TestPeer, eventually};

on_both_drivers!(
    metrics_come_in_the_requested_format,
    promtool_has_no_objection,
    openmetrics_is_whole,
    the_status_page_shows_operators_what_they_need,
    refusals_are_highlighted_on_the_status_page,
);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A server with every part that has metrics: streams on disk and in memory, syslog, finished and refused work.
fn busy_server(driver: DriverUnderTest) -> (tempfile::TempDir, ServerUnderTest) {
    let data = tempfile::tempdir().expect("a folder");
    let folder = data.path().display();
    let options = format!(
        "-w 1 -D 1 --nats 127.0.0.1:0 --syslog-udp 127.0.0.1:0 --data {folder}/streams --stream events=events.> \
         --coap 127.0.0.1:0 --packet-log {folder}/packets"
    );
    let server = ServerUnderTest::start(driver, &options);
    let mut peer = server.connect();
    assert_eq!(peer.ask("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert_eq!(peer.ask("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n").status, 404);
    let publication = "POST /publish/events.a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    assert_eq!(peer.ask(publication).status, 200);
    let client = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    client.connect(server.banner_line("listening coap://")).expect("an address");
    client.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
    // A confirmable GET of `/test` over CoAP.
    client.send(b"\x40\x01\0\x01\xb4test").expect("it is sent");
    client.recv(&mut [0; 256]).expect("a response");
    (data, server)
}

fn metrics(server: &ServerUnderTest, fields: &str) -> (String, String) {
    let answer = server.connect().ask(format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    assert_eq!((answer.status, answer.field("Vary")), (200, Some("Accept")));
    (answer.field("Content-Type").expect("it has a type").to_owned(), answer.into_text())
}

/// RFC 9110 §12.5.1: browsers get text, scrapers get their preferred format.
fn metrics_come_in_the_requested_format(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "");
    for (accept, expected) in [
        ("", TEXT),
        ("Accept: */*\r\n", TEXT),
        // Firefox, and Chromium.
        ("Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n", TEXT),
        (
            "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,\
             application/signed-exchange;v=b3;q=0.7\r\n",
            TEXT,
        ),
        // Prometheus 2.42, and 3.
        (
            "Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n",
            OPENMETRICS,
        ),
        (
            "Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n",
            OPENMETRICS,
        ),
        // An older one prefers an unsupported version.
        (
            "Accept: application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n",
            TEXT,
        ),
        ("Accept: application/openmetrics-text\r\n", OPENMETRICS),
        ("Accept: application/openmetrics-text, */*\r\n", OPENMETRICS),
        ("Accept: application/openmetrics-text;q=0, */*\r\n", TEXT),
        ("Accept: application/openmetrics-text;q=0.4, text/plain;q=0.5\r\n", TEXT),
        ("Accept: text/plain\r\nAccept: application/openmetrics-text\r\n", OPENMETRICS),
        ("Accept: application/*\r\n", OPENMETRICS),
        // Without a match RFC 9110 §12.5.1 lets the server answer anyway.
        ("Accept: image/png\r\n", TEXT),
        ("Accept: ;;,\"\r\n", TEXT),
    ] {
        let (kind, text) = metrics(&server, accept);
        assert_eq!(kind, expected, "{accept}");
        assert_eq!(text.ends_with("# EOF\n"), expected == OPENMETRICS, "{accept}");
    }
    server.finish();
}

/// The linter of Prometheus checks the text format and its conventions.
fn promtool_has_no_objection(driver: DriverUnderTest) {
    let (_data, server) = busy_server(driver);
    let (_, text) = metrics(&server, "");
    assert!(text.contains("# TYPE stilling_hub_messages_total counter\n"), "{text}");
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "cannot run promtool: {error}; install Debian's package prometheus (`cargo xtask test` does)"
            )
        });
    child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
    let outcome = child.wait_with_output().expect("it ends");
    let words = [outcome.stdout, outcome.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    assert!(outcome.status.success() && words.is_empty(), "{}\n{words}", outcome.status);
    // The same samples in both.
    let (_, openmetrics) = metrics(&server, "Accept: application/openmetrics-text\r\n");
    let names = |text: &str| -> BTreeSet<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.rsplit_once(' ').expect("a value").0.to_owned()).collect()
    };
    assert_eq!(names(&text), names(&openmetrics));
    assert_eq!(Metrics::of(&text).value("hub_messages_total"), 1);
    server.finish();
}

/// OpenMetrics 1.0: each family once, its lines together, its samples named by its type, an end.
fn openmetrics_is_whole(driver: DriverUnderTest) {
    let (_data, server) = busy_server(driver);
    let (_, text) = metrics(&server, "Accept: application/openmetrics-text\r\n");
    let lines = text.strip_suffix("# EOF\n").expect("its end");
    let (mut families, mut suffix, mut samples) = (BTreeSet::new(), "", 0);
    let mut family = String::new();
    for line in lines.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                assert!(families.insert(name.to_owned()), "{name} is there twice");
                assert!(!help.is_empty(), "{name} is not explained");
                name.clone_into(&mut family);
            }
            ["#", "TYPE", name, kind] => {
                assert_eq!(name, family);
                suffix = if kind == "counter" { "_total" } else { "" };
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                assert!(kind != "counter" || !name.ends_with("_total"), "{line}");
            }
            ["#", "UNIT", name, unit] => {
                assert_eq!(name, family);
                assert!(name.ends_with(&format!("_{unit}")), "{line}");
            }
            _ => {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                let name = sample.split('{').next().expect("a name");
                assert_eq!(name, format!("{family}{suffix}"), "{line}");
                assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
                samples += 1;
            }
        }
    }
    assert!(families.len() > 40 && samples > families.len(), "{text}");
    server.finish();
}

fn status(server: &ServerUnderTest) -> String {
    let answer = server.connect().ask("GET /status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((answer.status, answer.field("Cache-Control")), (200, Some("no-store")));
    answer.into_text()
}

#[track_caller]
fn figure(page: &str, name: &str) -> String {
    let end = page.find(&format!("</b><span>{name}</span>")).unwrap_or_else(|| panic!("no {name}: {page}"));
    let begin = page[..end].rfind("<b>").expect("it begins") + "<b>".len();
    page[begin..end].to_owned()
}

/// Row 1.22: the stages of CoAP. Uptime, rates, waits, streams with their disks, statuses with their texts; the page refreshes without scripts.
fn the_status_page_shows_operators_what_they_need(driver: DriverUnderTest) {
    let (_data, server) = busy_server(driver);
    let page = eventually("the disk of the stream is measured", || {
        let page = status(&server);
        let row = page.split("<tr><td>events<td>").nth(1)?.split("<tr>").next()?;
        let cells: Vec<&str> = row.split("<td>").collect();
        assert_eq!(cells[..5], ["1", "1", "1", "0", "open"], "{page}");
        let is_measured = cells[5].ends_with("iB") && !cells[5].starts_with("0 ") && cells[6].contains("iB");
        is_measured.then_some(page)
    });
    for text in [
        "<meta http-equiv=refresh content=3>",
        "<title>Stilling: ready</title>",
        "<p>up ",
        "<td>200 OK<td>",
        "<td>404 Not Found<td>1",
        "<th>on disk<th>free on its volume<th>rejected by its gate",
        "<h2>CoAP</h2><table><tr><td>requests: new<td>1<tr>",
        "<td>exchanges remembered now<td>1<tr>",
        "<td>most datagrams waiting in a shard<td>1<tr>",
        "<td>receive buffer in bytes, coap://127.0.0.1:",
        "<tr><td>queue<td>1<td>",
        "<tr><td>encode<td>1<td>",
        "<tr><td>send<td>1<td>",
        "<h2>Packet log</h2><table><tr><td>datagrams recorded<td>2<tr>",
    ] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    let capacity = page.split("<td>capacity<td>").nth(1).expect("it is shown");
    let capacity: String = capacity.chars().take_while(|&letter| letter != '<').collect();
    assert!(capacity.contains(',') && capacity.replace(',', "").parse::<u64>().is_ok(), "{capacity}");
    assert!(!page.contains("<script"), "{page}");
    assert_eq!(figure(&page, "refusals/s"), "0");
    for name in ["requests/s", "messages/s"] {
        let rate = figure(&page, name);
        assert!(rate.starts_with(|letter: char| letter.is_ascii_digit()) && rate != "0", "{name}: {rate}");
    }
    let wait = figure(&page, "wait in the queue, mean");
    assert!(wait.ends_with("ms") || wait.ends_with(" s"), "{wait}");
    // A page that stays open for days does not grow.
    let longest = (0..50).map(|_| status(&server).len()).max().expect("there are some");
    assert!(longest < page.len() + 200, "{longest} and {}", page.len());
    server.finish();
}

/// Refusals have a table of their own and a mark at each figure.
fn refusals_are_highlighted_on_the_status_page(driver: DriverUnderTest) {
    let server = ServerUnderTest::start(driver, "-w 1 -D 60000 --max-queue 1 --drain-timeout 0.1");
    assert!(!status(&server).contains("<h2>Refused</h2>"));
    let mut watcher = server.watch();
    let mut inside = Vec::<TestPeer>::new();
    for jobs in 1..=2 {
        let mut peer = server.connect();
        peer.send("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n");
        watcher.until("it is in", |metrics| {
            metrics.value("jobs_running") + metrics.value("jobs_queued") == jobs
                && metrics.value("jobs_running") == 1
        });
        inside.push(peer);
    }
    for _ in 0..3 {
        assert_eq!(server.connect().ask("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n").status, 503);
    }
    let page = status(&server);
    for text in [
        "<h2>Refused</h2><table><tr class=refused><td>all<td>3",
        "<tr class=refused><td>\u{2003}queue full<td>3",
        "<tr class=refused><td>503 Service Unavailable<td>3",
        "<div class=refused><b>",
    ] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    assert_eq!(figure(&page, "requests in the queue"), "1");
    drop((inside, watcher));
    server.finish();
}
