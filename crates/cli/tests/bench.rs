//! `stilling bench`: table, JSON, exit status.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use stilling_probe::eventually;

fn stilling(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

struct BenchTargetServer {
    child: Child,
    /// Standard output; a closed pipe would end the process.
    _out: BufReader<ChildStdout>,
    url: String,
}

impl BenchTargetServer {
    fn start() -> BenchTargetServer {
        let mut child = stilling("serve --listen 127.0.0.1:0 --accept-threads 1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("its output is piped"));
        out.read_line(&mut line).expect("a line");
        let url = line.trim_end().strip_prefix("listening ").expect("where it listens").to_owned();
        BenchTargetServer { child, _out: out, url }
    }

    fn bench(&self, path: &str, options: &str) -> Output {
        stilling(&format!("bench http {}{path} {options}", self.url)).output().expect("the binary runs")
    }
}

impl Drop for BenchTargetServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_good_run_prints_a_table_and_exits_with_0() {
    let outcome = BenchTargetServer::start().bench("/test/fast", "-n 1000 -c 10 -t 2");
    let out = text(&outcome.stdout);
    assert_eq!(outcome.status.code(), Some(0), "{out}{}", text(&outcome.stderr));
    assert!(out.contains("correct responses     1000 ("), "{out}");
    assert!(out.lines().any(|line| line.starts_with("latency (ms)")), "{out}");
    // A progress bar needs a terminal.
    assert_eq!(text(&outcome.stderr), "");
}

#[test]
fn json_is_one_object_with_figures_and_parameters() {
    let outcome =
        BenchTargetServer::start().bench("/livez", "-n 1000 --rate 20000 --pipeline 4 --json --driver poll");
    assert_eq!(outcome.status.code(), Some(0), "{}", text(&outcome.stderr));
    let json: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON value");
    assert_eq!((&json["ok"], &json["driver"]), (&1000.into(), &"poll".into()));
    assert_eq!(json["parameters"]["pipeline"], 4);
    assert_eq!(json["parameters"]["requests"], 1000);
}

/// Row 5.4: a changing load is one run, with figures for each step and each tenth of a second.
#[test]
fn steps_have_figures_of_their_own_in_json_and_in_the_table() {
    let server = BenchTargetServer::start();
    let outcome = server.bench("/test/fast", "-c 4 --steps 50:0.2,200:0.2,50:0.2 --json");
    assert_eq!(outcome.status.code(), Some(0), "{}", text(&outcome.stderr));
    let json: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON value");
    let all = |list: &str, field: &str| -> Vec<serde_json::Value> {
        json[list].as_array().expect("a list").iter().map(|entry| entry[field].clone()).collect()
    };
    assert_eq!(all("steps", "due"), [10, 40, 10]);
    assert_eq!(all("steps", "rate"), [50.0, 200.0, 50.0]);
    assert_eq!(all("windows", "due"), [5, 5, 20, 20, 5, 5]);
    let begun: u64 = all("steps", "requests").iter().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(json["requests"], begun);
    let table = text(&server.bench("/test/fast", "-c 4 --steps 50:0.1,20:0.1").stdout);
    assert!(table.contains("open loop, 2 steps"), "{table}");
    assert!(
        table.lines().any(|line| line.starts_with("20 requests/s") && line.contains("of 2 due")),
        "{table}"
    );
}

#[test]
fn failures_are_named_and_make_the_exit_status_1() {
    let server = BenchTargetServer::start();
    let check = |path: &str, options: &str, words: &str| {
        let outcome = server.bench(path, options);
        let stderr_text = text(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
        assert!(stderr_text.starts_with("stilling: ") && stderr_text.contains(words), "{stderr_text}");
    };
    check("/livez", "-n 10 --expect-body something", "10 wrong_body (first: the body");
    check("/none", "-n 10", "the first answer is wrong (unexpected_status): status 404 instead of 200");
    check("/none", "-n 10 --expect-status 403 --expect-body x", "10 unexpected_status");
    check("/test/fast", "-n 10 -c 1000000", "1000000 connections do not fit into the limit");
}

#[test]
fn a_refused_connection_is_reported_in_one_line() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let outcome = stilling(&format!("bench http http://{address}/")).output().expect("the binary runs");
    assert_eq!(outcome.status.code(), Some(1));
    let stderr_text = text(&outcome.stderr);
    assert_eq!(stderr_text.lines().count(), 1, "{stderr_text}");
    assert!(
        stderr_text.contains(&format!("cannot connect to {address}: Connection refused")),
        "{stderr_text}"
    );
}

#[test]
fn wrong_options_exit_with_64() {
    let check = |options: &str, words: &str| {
        let outcome = stilling(&format!("bench http {options}")).output().expect("the binary runs");
        let stderr_text = text(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(64), "{options}: {stderr_text}");
        assert!(stderr_text.contains(words), "{options}: {stderr_text}");
    };
    check("", "<URL>");
    check("https://127.0.0.1/", "not a usable URL");
    check("http://127.0.0.1:1/ -n 0", "--requests");
    check("http://127.0.0.1:1/ -n 5 -d 5", "cannot be used with");
    check("http://127.0.0.1:1/ --close --pipeline 2", "cannot be used with");
    check("http://127.0.0.1:1/ --hold 1 --rate 5", "cannot be used with");
    check("http://127.0.0.1:1/ --rate 0", "rate");
    check("http://127.0.0.1:1/ --steps 5", "is not RATE:SECONDS");
    check("http://127.0.0.1:1/ --steps 0:1", "a step needs a rate above 0");
    check("http://127.0.0.1:1/ --steps 5:1 --rate 5", "cannot be used with");
    check("http://127.0.0.1:1/ --steps 5:1 -n 5", "cannot be used with");
    check("http://127.0.0.1:1/ -t 51", "more threads than connections");
    check("http://127.0.0.1:1/ --source 10.0.0.1/2", "127");
    check("http://127.0.0.1:1/ --pipeline 4096", "more than 65536");
    check("http://127.0.0.1:1/ --unknown", "--unknown");
}

#[test]
fn a_body_is_expected_as_text_or_from_a_file() {
    let server = BenchTargetServer::start();
    let check = |body: &str, status: i32| {
        let outcome = server.bench("/test/fast", &format!("-n 1 --method HEAD --expect-status 200 {body}"));
        assert_eq!(outcome.status.code(), Some(status), "{body}: {}", text(&outcome.stderr));
    };
    check("", 0);
    check("--expect-body=", 0);
    check("--expect-body=x", 1);
    // An empty file: the body of a response to HEAD.
    check("--expect-body=/dev/null", 0);
    check(&format!("--expect-body={}/tests/bench.rs", env!("CARGO_MANIFEST_DIR")), 1);
}

#[test]
fn held_connections_are_reported_once_all_are_open() {
    let outcome = BenchTargetServer::start().bench("/test/fast", "--hold 0.5 -c 20 --json");
    assert_eq!(outcome.status.code(), Some(0), "{}", text(&outcome.stderr));
    assert_eq!(text(&outcome.stderr), "holding 20 connections\n");
    let json: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON value");
    assert_eq!((&json["ok"], &json["held"]), (&20.into(), &20.into()));
}

/// Row 0.23: wrong usage of the message generator exits like any other, and an unreachable server is named.
#[test]
fn a_collect_run_that_cannot_be_is_explained() {
    let run = |arguments: &str| stilling(arguments).output().expect("the binary runs");
    for (arguments, words) in [
        ("bench collect 127.0.0.1:1 --protocol redis --unconfirmed", "cannot be left out"),
        ("bench collect 127.0.0.1:1 --protocol syslog", "no acknowledgements"),
        ("bench collect 127.0.0.1:1 --per-message --subscribers 1", "persistent connections"),
        ("bench collect 127.0.0.1:1 --core", "--unconfirmed"),
        ("bench crash --data nowhere", "COMMAND"),
    ] {
        let outcome = run(arguments);
        let stderr_text = text(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(64), "{arguments}: {stderr_text}");
        assert!(stderr_text.contains(words), "{arguments}: {stderr_text}");
    }
    let outcome = run("bench collect 127.0.0.1:1 --wait 0.001");
    let stderr_text = text(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
    assert!(stderr_text.contains("cannot connect to 127.0.0.1:1"), "{stderr_text}");
}

/// Row 2.1: the same of the broadcast generator.
#[test]
fn a_broadcast_run_that_cannot_be_is_explained() {
    let run = |arguments: &str| stilling(arguments).output().expect("the binary runs");
    for (arguments, words) in [
        ("bench broadcast 127.0.0.1:1 --protocol redis --distinct-sids", "only NATS"),
        ("bench broadcast 127.0.0.1:1 --subjects 3 --publishers 2", "one publisher"),
        ("bench broadcast 127.0.0.1:1 --subjects 3 --subscribers 2", "--subscribers"),
        ("bench broadcast 127.0.0.1:1 --clients 3", "--thrash"),
        ("bench broadcast 127.0.0.1:1 --thrash --size 64", "--size"),
        ("bench broadcast 127.0.0.1:1 --subject a.*", "not a subject"),
    ] {
        let outcome = run(arguments);
        let stderr_text = text(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(64), "{arguments}: {stderr_text}");
        assert!(stderr_text.contains(words), "{arguments}: {stderr_text}");
    }
    for thrash in ["", " --thrash"] {
        let outcome = run(&format!("bench broadcast 127.0.0.1:1 --wait 0.001{thrash}"));
        let stderr_text = text(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
        assert!(stderr_text.contains("cannot connect to 127.0.0.1:1"), "{stderr_text}");
    }
}

/// Row 0.30: the first Ctrl+C requests the end, and a run that waits for a silent server continues; the second one ends
/// the program.
#[test]
fn a_second_interrupt_ends_the_program_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut command = stilling(&format!("bench collect {address} --seconds 3600"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    // The first connection is a probe; on the second one the generator waits for the server's greeting.
    let _silent = [listener.accept(), listener.accept()].map(|accepted| accepted.expect("it connects"));
    let process = Pid::from_raw(child.id().cast_signed()).expect("a child has a number");
    for _ in 0..2 {
        kill_process(process, Signal::INT).expect("it has not been waited for");
        // Two pending signals would count as one.
        eventually("the signal has been taken", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:\t"));
            let pending = pending.and_then(|mask| u64::from_str_radix(mask, 16).ok())?;
            (pending & 1 << (Signal::INT.as_raw() - 1) == 0).then_some(())
        });
    }
    let outcome = child.wait_with_output().expect("it is a child");
    assert_eq!(outcome.status.code(), Some(1));
    assert_eq!((text(&outcome.stdout), text(&outcome.stderr)), (String::new(), String::new()));
}

/// `stilling serve` with CoAP only, and the address in its first line.
fn coap_server() -> (BenchTargetServer, String) {
    let mut child = stilling("serve --coap 127.0.0.1:0 --accept-threads 1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut out = BufReader::new(child.stdout.take().expect("its output is piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    let url = line.trim_end().strip_prefix("listening ").expect("where it listens").to_owned();
    assert!(url.starts_with("coap://"), "{url}");
    (BenchTargetServer { child, _out: out, url: url.clone() }, url)
}

/// Rows 1.19 and 1.21: transactions per second, and the spread of their latency.
#[test]
fn coap_requests_are_reported_as_text_and_as_json() {
    let (server, url) = coap_server();
    let run = |options: &str| stilling(&format!("bench coap {options}")).output().expect("the binary runs");
    let outcome = run(&format!("{url}/test -n 2000 -s 8"));
    let out = text(&outcome.stdout);
    assert_eq!(outcome.status.code(), Some(0), "{out}{}", text(&outcome.stderr));
    assert!(out.contains("completed               2000 ("), "{out}");
    assert!(out.contains("standard deviation"), "{out}");
    let pid = server.child.id();
    let outcome = run(&format!("{url}/large -s 4 --steps 50:0.2,200:0.2,50:0.2 --pid {pid} --json"));
    assert_eq!(outcome.status.code(), Some(0), "{}", text(&outcome.stderr));
    let json: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON value");
    let due: Vec<_> = json["steps"].as_array().expect("a list").iter().map(|step| &step["due"]).collect();
    assert_eq!(due, [&serde_json::json!(10), &40.into(), &10.into()]);
    assert_eq!((&json["shed"], &json["duplicates"]), (&0.into(), &0.into()));
    let latency = &json["latency"];
    assert!(latency["mean_us"].as_f64() > Some(0.0) && latency["stdev_us"].as_f64() > Some(0.0), "{json}");
    assert!(json["server_cpu_s"].is_number(), "{json}");
    let outcome = run(&format!("{url}/none -n 5 --wait 0.01"));
    let stderr_text = text(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
    assert!(stderr_text.contains("unexpected_code: 4.04"), "{stderr_text}");
}

/// Row 1.11: with 10 % of the datagrams lost in each direction and 5 % sent twice, no request is executed twice.
#[test]
fn no_coap_request_is_executed_twice() {
    let (_server, url) = coap_server();
    let options = format!(
        "{url}/executions --count-executions -n 3000 -s 64 -w 64 --loss 10 --duplication 5 --reordering 5 --timeout 120 \
         --json"
    );
    let outcome = stilling(&format!("bench coap {options}")).output().expect("the binary runs");
    assert_eq!(outcome.status.code(), Some(0), "{}", text(&outcome.stderr));
    let json: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON value");
    let count = |value: &serde_json::Value| value.as_u64().expect("a number");
    let executed = count(&json["executions"]["executed"]);
    assert_eq!((count(&json["executions"]["repeated"]), count(&json["failures_total"])), (0, 0), "{json}");
    assert!(executed >= count(&json["completed"]) && executed <= 3000, "{json}");
    assert_eq!(count(&json["completed"]) + count(&json["lost"]), 3000, "{json}");
    assert!(count(&json["retransmissions"]) > 100 && count(&json["duplicates"]) > 0, "{json}");
}

/// Row 1.19: wrong usage of the CoAP generator exits like any other.
#[test]
fn wrong_options_of_the_coap_generator_exit_with_64() {
    for (options, words) in [
        ("", "<URL>"),
        ("http://127.0.0.1/", "coap://"),
        ("coap://127.0.0.1:1/ -n 0", "--requests"),
        ("coap://127.0.0.1:1/ -s 0", "--sockets"),
        ("coap://127.0.0.1:1/ --variants 2", "variants differ by {n}"),
        ("coap://127.0.0.1:1/ --loss 95", "0 to 90 percent"),
        ("coap://127.0.0.1:1/ --count-executions", "--requests"),
        ("coap://127.0.0.1:1/ --count-executions -n 2000000", "counted requests"),
        ("coap://127.0.0.1:1/ --rate 0", "rate"),
        ("coap://127.0.0.1:1/ --steps 5", "is not RATE:SECONDS"),
        ("coap://127.0.0.1:1/ --steps 5:1 --rate 5", "cannot be used with"),
        ("coap://127.0.0.1:1/ --steps 5:1 -n 5", "cannot be used with"),
        ("coap://127.0.0.1:1/ --unknown", "--unknown"),
    ] {
        let outcome = stilling(&format!("bench coap {options}")).output().expect("the binary runs");
        let stderr_text = text(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(64), "{options}: {stderr_text}");
        assert!(stderr_text.contains(words), "{options}: {stderr_text}");
    }
}
