//! The counters of the original systems, in all three forms: text, OpenMetrics, `/status`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{DriverUnderTest, Metrics, ServerUnderTest, TestPeer, binary};

on_both_drivers!(
    every_counter_of_the_built_jobs_is_in_all_three_forms,
    the_generator_reports_every_counter_of_the_client,
);

const PAGE: &str = include_str!("../../../../docs/metrics.md");

/// A counter of an original system, its metric, its label if only one value counts, its name on `/status`.
struct CounterNames(&'static str, &'static str, &'static str, &'static str);

/// BBQ's server has the first six; the others are the gauges of the pool and its queue.
const COUNTERS: [CounterNames; 11] = [
    CounterNames("runtime", "start_time_seconds", "", "up"),
    CounterNames("server accepts", "accepted_total", "", "accepted"),
    CounterNames("server megabytes", "hub_received_bytes_total", "", "bytes received"),
    CounterNames("server receives", "hub_messages_total", "", "messages"),
    CounterNames("max pending msgs", "hub_stream_pending_max", "", "most waiting for the disk at once"),
    CounterNames("curr pending msgs", "hub_stream_pending", "", "waiting for the disk"),
    CounterNames("worker threads", "worker_threads", "", "worker threads now"),
    CounterNames("running jobs", "jobs_running", "", "running now"),
    CounterNames("queued jobs", "jobs_queued", "", "queued now"),
    CounterNames("most queued jobs", "jobs_queued_max", "", "most queued at once"),
    CounterNames("refused jobs", "jobs_total", "{outcome=\"refused\"}", "refused, queue full"),
];

/// BBQ's client: the counter and the path of fields in the generator's report.
const CLIENT_COUNTERS: [(&str, &[&str]); 8] = [
    ("clients sends", &["accounting", "sends"]),
    ("clients megabytes", &["megabytes_per_s"]),
    ("clients fails", &["accounting", "fails"]),
    ("connections fails", &["connection_fails"]),
    ("queued msgs", &["accounting", "queued"]),
    ("min sendtime", &["send_time", "min_us"]),
    ("max sendtime", &["send_time", "max_us"]),
    ("avg sendtime", &["send_time", "mean_us"]),
];

fn page(peer: &mut TestPeer, path: &str, fields: &str) -> String {
    let answer = peer.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    assert_eq!(answer.status, 200);
    answer.into_text()
}

fn row(status: &str, name: &str) -> Option<u64> {
    let rest = status.split(&format!("<tr><td>{name}<td>")).nth(1);
    let rest = rest.or_else(|| status.split(&format!("<tr class=refused><td>{name}<td>")).nth(1))?;
    rest.split('<').next()?.replace(',', "").parse().ok()
}

/// Row 5.3: every counter of BBQ's server and every gauge of the pool and its queue, with the same value in the text
/// format, in OpenMetrics and on `/status`; docs/metrics.md lists them.
fn every_counter_of_the_built_jobs_is_in_all_three_forms(driver: DriverUnderTest) {
    let data = tempfile::tempdir().expect("a folder");
    let options = format!(
        "-A 1 -w 1 -D 60000 --max-queue 1 --queue-target off --drain-timeout 0.1 --nats 127.0.0.1:0 --data {} \
         --stream events=events.>",
        data.path().display()
    );
    let server = ServerUnderTest::start(driver, &options);
    let mut watcher = server.watch();
    let mut peer = server.connect();
    let publication = "POST /publish/events.a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    for _ in 0..3 {
        assert_eq!(peer.ask(publication).status, 200);
    }
    let mut inside: Vec<TestPeer> = Vec::new();
    for jobs in 1..=2 {
        let mut slow = server.connect();
        slow.send("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n");
        watcher.until("it is in", |metrics| {
            (metrics.value("jobs_running"), metrics.value("jobs_queued")) == (1, jobs - 1)
        });
        inside.push(slow);
    }
    assert_eq!(peer.ask("GET /test/slow HTTP/1.1\r\nHost: a\r\n\r\n").status, 503);

    let text = page(&mut peer, "/metrics", "");
    let openmetrics = page(&mut peer, "/metrics", "Accept: application/openmetrics-text\r\n");
    let status = page(&mut peer, "/status", "");
    assert!(openmetrics.ends_with("# EOF\n") && !text.contains("# EOF"), "two formats");
    for CounterNames(counter, metric, label, name) in COUNTERS {
        let value = Metrics::of(&text).value(&format!("{metric}{label}"));
        assert_eq!(Metrics::of(&openmetrics).value(&format!("{metric}{label}")), value, "{counter}");
        match counter {
            "runtime" => {
                let started = UNIX_EPOCH + Duration::from_secs(value);
                assert!(started <= SystemTime::now(), "{value}");
                let runs = SystemTime::now().duration_since(started).expect("it started before now");
                assert!(runs < Duration::from_secs(3600), "{runs:?}");
                assert!(status.contains("<p>up "), "{status}");
            }
            // A column of the table of streams: its fifth cell.
            "curr pending msgs" => {
                assert!(status.contains(&format!("<th>{name}<th>")), "{status}");
                assert!(
                    status.contains(&format!("<tr><td>events<td>1<td>3<td>3<td>{value}<td>")),
                    "{status}"
                );
            }
            _ => assert_eq!(row(&status, name), Some(value), "{counter}: {status}"),
        }
        let listed = format!("| {counter} | `stilling_{metric}` | {name} |");
        assert!(PAGE.contains(&listed), "docs/metrics.md lacks {listed}");
    }
    let value = |name: &str| Metrics::of(&text).value(name);
    // The watcher, the publisher and two waiting clients.
    assert_eq!((value("accepted_total"), value("hub_messages_total")), (4, 3));
    assert!(value("hub_received_bytes_total") >= 15 && value("hub_stream_pending_max") >= 1);
    assert_eq!((value("jobs_running"), value("jobs_queued"), value("jobs_queued_max")), (1, 1, 1));
    assert_eq!(value("jobs_total{outcome=\"refused\"}"), 1);
    drop((inside, peer, watcher));
    server.finish();
}

/// Row 5.3: the eight counters of BBQ's client in the generator's report, as text and as JSON.
fn the_generator_reports_every_counter_of_the_client(driver: DriverUnderTest) {
    let data = tempfile::tempdir().expect("a folder");
    let options = format!("--nats 127.0.0.1:0 --data {} --stream events=events.>", data.path().display());
    let server = ServerUnderTest::start(driver, &options);
    let nats = server.banner_line("listening nats://").to_owned();
    let run = |form: &str| {
        let mut command = binary();
        command.args(["bench", "collect", &nats, "--subject", "events", "--stream", "events"]);
        let output =
            command.args(["--messages", "200", "--clients", "2"]).args(form.split_whitespace()).output();
        let output = output.expect("the generator starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("it is text")
    };
    let report: serde_json::Value = serde_json::from_str(&run("--json")).expect("one JSON value");
    let text = run("");
    for (counter, fields) in CLIENT_COUNTERS {
        let value = fields.iter().fold(&report, |value, field| &value[field]);
        assert!(value.as_f64().is_some_and(|value| value >= 0.0), "{counter}: {report}");
        assert!(text.lines().any(|line| line.starts_with(&format!("{counter}: "))), "{counter}: {text}");
        let listed = format!("| {counter} | `{}` |", fields.join("."));
        assert!(PAGE.contains(&listed), "docs/metrics.md lacks {listed}");
    }
    let account = &report["accounting"];
    assert_eq!((account["sends"].as_u64(), account["queued"].as_u64()), (Some(200), Some(200)), "{report}");
    assert_eq!(
        (account["fails"].as_u64(), report["connection_fails"].as_u64()),
        (Some(0), Some(0)),
        "{report}"
    );
    let [min, mean, max] = ["min_us", "mean_us", "max_us"].map(|field| report["send_time"][field].as_f64());
    assert!(Some(0.0) < min && min <= mean && mean <= max, "{report}");
    assert!(report["megabytes_per_s"].as_f64() > Some(0.0), "{report}");
    server.finish();
}
