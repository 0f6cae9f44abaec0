//! Real programs behind the server: gunicorn and Node. A missing program is a failure, never a skip.

use std::path::{Path, PathBuf};

use super::{before, get};
use crate::coap_workers;
use crate::support::{DriverUnderTest, ServerUnderTest};

on_both_drivers! {
    gunicorn_is_a_worker_process,
    node_is_a_worker_process,
}

fn gunicorn() -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gunicorn/bin/gunicorn");
    assert!(program.exists(), "{} is missing; `cargo xtask test` installs it", program.display());
    program
}

fn folder() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/app")
}

/// Checks the common responses of both programs: a page, an echoed body, a stream of unknown length.
fn check(driver: DriverUnderTest, command: &str, options: &str) {
    let server = before(driver, command, options);
    let mut watcher = server.watch();
    watcher.until("all are ready", |metrics| super::ready(metrics) == 2);
    let mut peer = server.connect();
    for _ in 0..20 {
        let answer = peer.ask(get("/hello?name=x"));
        assert_eq!((answer.status, answer.text()), (200, "hello name=x for 127.0.0.1 at shop.example"));
    }
    let (head, body) = super::ask_alone(&server, "/stream");
    assert!(
        head.contains("\r\nTransfer-Encoding: chunked\r\n")
            || head.contains("\r\nContent-Length: 700000\r\n"),
        "{head}"
    );
    assert!(body.len() == 700_000 && body.iter().all(|byte| *byte == b's'));
    for size in [10, 100_000, 3_000_000] {
        let body = "b".repeat(size);
        peer.send(format!("POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}"));
        assert_eq!(peer.answer().text(), size.to_string());
    }
    peer.send(get("/fail"));
    assert_eq!(peer.answer().status, 500);
    check_coap(&server);
    drop((peer, watcher));
    server.finish();
}

/// The same responses over CoAP.
fn check_coap(server: &ServerUnderTest) {
    let hello = coap_workers::ask(server, "-m get", "/hello?name=x");
    assert_eq!(hello, "hello name=x for 127.0.0.1 at localhost");
    assert_eq!(coap_workers::ask(server, "-m post -e 12345", "/length"), "5");
    // Row 1.5.
    for count in ["1", "2", "3"] {
        assert_eq!(coap_workers::ask(server, "-m get", "/count?session=a"), count);
    }
    let stream = coap_workers::ask(server, "-m get", "/stream");
    assert!(stream.len() == 700_000 && stream.bytes().all(|byte| byte == b's'));
}

fn gunicorn_is_a_worker_process(driver: DriverUnderTest) {
    let command = format!(
        "exec '{}' --no-control-socket --log-level warning --chdir '{}' --bind unix:{{socket}} application:answer",
        gunicorn().display(),
        folder()
    );
    check(driver, &command, "--processes 2 --coap 127.0.0.1:0 --max-body-size 10000000");
}

fn node_is_a_worker_process(driver: DriverUnderTest) {
    let command = format!("exec node '{}/application.js'", folder());
    check(driver, &command, "--processes 2 --coap 127.0.0.1:0 --app-concurrency 8 --max-body-size 10000000");
}
