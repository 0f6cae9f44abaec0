//! An unrelated web page in the browser of an operator: its requests publish nothing.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use super::NatsServerFixture;
use crate::support::{DriverUnderTest, HANG_TIMEOUT, Tool};

on_both_drivers! {
    a_page_of_another_origin_publishes_nothing,
    a_cors_preflight_is_rejected,
}

/// A page that tries each way to send a request to another origin, and reports the visible results.
const PAGE: &str = r#"<!doctype html><title>Another origin</title><script>
const target = "http://TARGET/publish/events.page";
const ask = (what) => fetch(target, { method: "POST", ...what }).then((answer) => answer.type, () => "refused");
const loaded = (frame) => new Promise((done) => { frame.onload = done; document.body.append(frame); });
const sandboxed = (frame) => new Promise((done) => {
  onmessage = (message) => done(message.data);
  frame.sandbox = "allow-scripts";
  frame.srcdoc = `<script>fetch("${target}", { method: "POST", mode: "no-cors", body: "sandboxed" })
    .then((answer) => answer.type, () => "refused").then((result) => parent.postMessage(result, "*"));</` + "script>";
  document.body.append(frame);
});
onload = async () => {
  const results = [await ask({ mode: "no-cors", body: "simple" }), await ask({ body: "simple and read" })];
  results.push(await ask({ headers: { "Nats-Msg-Id": "1" }, body: "asked first" }));
  results.push(await ask({ headers: { "Content-Type": "application/x-ndjson" }, body: "asked first, too" }));
  const sink = document.createElement("iframe");
  sink.name = "sink";
  await loaded(sink);
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", enctype: "text/plain", target: "sink", action: target });
  document.body.append(form);
  const sent = new Promise((done) => { sink.onload = done; });
  form.submit();
  await sent;
  results.push(await sandboxed(document.createElement("iframe")));
  await fetch("/results?" + results.join("-"));
};
</script><body></body>"#;

struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Browser {
    fn open(url: &str, profile: &Path) -> Browser {
        let mut command = Command::new("chromium");
        command
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-background-networking", "--disable-component-update", "--no-proxy-server"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Browser(command.spawn().expect("chromium runs; `cargo xtask test` installs it"))
    }
}

/// Answers one connection: with the page, or with an empty 404 for its report. A browser also opens spare connections,
/// on which it may never send anything.
fn answer(stream: &TcpStream, page: &str) -> Option<String> {
    let mut head = String::new();
    let mut lines = BufReader::new(stream);
    while lines.read_line(&mut head).ok()? > 2 {}
    let path = head.split(' ').nth(1)?;
    let (status, body) = if path == "/" { ("200 OK", page) } else { ("404 Not Found", "") };
    let size = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n{body}"
    );
    { stream }.write_all(answer.as_bytes()).ok()?;
    path.strip_prefix("/results?").map(ToOwned::to_owned)
}

/// Serves the page on a port of its own; its report comes out of the channel.
fn serve_page(page: String) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}/", listener.local_addr().expect("it has an address"));
    let (sender, receiver) = channel();
    let page = Arc::new(page);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (sender, page) = (sender.clone(), Arc::clone(&page));
            // The test may have ended.
            std::thread::spawn(move || answer(&stream, &page).map(|results| sender.send(results).ok()));
        }
    });
    (url, receiver)
}

fn a_page_of_another_origin_publishes_nothing(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let target = fixture.server.address();
    let (url, receiver) = serve_page(PAGE.replace("TARGET", &target.to_string()));
    let profile = tempfile::tempdir().expect("a folder");
    let browser = Browser::open(&url, profile.path());
    let results = receiver.recv_timeout(HANG_TIMEOUT).expect("the page tells what it saw");
    // `opaque`: the request was sent and its answer hidden.
    assert_eq!(results, "opaque-refused-refused-refused-opaque");
    drop(browser);
    let mut watcher = fixture.server.watch();
    let metrics = watcher.fetch();
    // Sent without a preflight: twice by the page, once by its form, once from the sandbox. Two preflights failed.
    assert_eq!((metrics.answers(403), metrics.answers(405)), (4, 2), "{metrics:?}");
    // A page of the server's own origin may publish, and its message is the first.
    let published = Tool::new("curl", "--silent --show-error --max-time 30 --data own")
        .arg("--header")
        .arg(format!("Origin: http://{target}"))
        .arg(fixture.server.url("/publish/events.page"));
    assert_eq!(published.output(), "{\"stream\":\"events\",\"first\":1,\"last\":1}\n");
    drop(watcher);
    fixture.server.finish();
}

/// No answer has a field that lets a browser continue after a preflight.
fn a_cors_preflight_is_rejected(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    for origin in ["http://example.org", "null"] {
        let head = Tool::new("curl", "--silent --show-error --max-time 30 --include --request OPTIONS")
            .arg("--header")
            .arg(format!("Origin: {origin}"))
            .arg("--header")
            .arg("Access-Control-Request-Method: POST")
            .arg("--header")
            .arg("Access-Control-Request-Headers: nats-msg-id")
            .arg(fixture.server.url("/publish/events.page"))
            .output();
        assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
        assert!(!head.to_ascii_lowercase().contains("access-control-"), "{head}");
    }
    fixture.server.finish();
}
