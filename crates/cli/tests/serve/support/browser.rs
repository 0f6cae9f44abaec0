//! A headless browser, controlled over its debugging pipe (Chrome DevTools Protocol).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::HANG_TIMEOUT;

/// The browser reads commands from descriptor 3 and writes events to descriptor 4.
const PIPES: &str = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Killed on drop.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    last_id: u64,
    /// Uncaught exceptions of pages, and violations of their security policies.
    faults: Vec<String>,
    _profile: TempDir,
}

/// A page with storage of its own.
#[derive(Clone, Debug)]
pub(crate) struct BrowserPage {
    session: String,
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let profile = tempfile::tempdir().expect("a folder");
        let mut child = Command::new("sh")
            .args(["-c", PIPES, "sh"])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-component-update"])
            .args(["--no-proxy-server", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell runs");
        let commands = child.stdin.take().expect("it is piped");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while output.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
                let message =
                    serde_json::from_slice(&bytes[..bytes.len() - 1]).expect("the browser writes JSON");
                // The test may have ended.
                if sender.send(message).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        Browser { child, commands, messages, last_id: 0, faults: Vec::new(), _profile: profile }
    }

    /// Opens a page with storage of its own.
    pub(crate) fn open(&mut self, url: &str) -> BrowserPage {
        let context = self.browser_call("Target.createBrowserContext", json!({}));
        let target = self.browser_call(
            "Target.createTarget",
            json!({ "url": "about:blank", "newWindow": true, "browserContextId": context["browserContextId"] }),
        );
        let attached = self.browser_call(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        let page = BrowserPage { session: attached["sessionId"].as_str().expect("a session").to_owned() };
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            self.call(&page, domain, json!({}));
        }
        self.call(&page, "Page.navigate", json!({ "url": url }));
        page
    }

    /// Runs a script in a page. Returns the value of its last expression; a promise is awaited.
    #[track_caller]
    pub(crate) fn evaluate(&mut self, page: &BrowserPage, script: &str) -> Value {
        let parameters = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let outcome = self.call(page, "Runtime.evaluate", parameters);
        assert!(outcome["exceptionDetails"].is_null(), "{script}: {outcome}");
        outcome["result"]["value"].clone()
    }

    /// Waits until an expression is true in a page.
    #[track_caller]
    pub(crate) fn wait_until(&mut self, page: &BrowserPage, expression: &str) {
        let until = Instant::now() + HANG_TIMEOUT;
        while self.evaluate(page, expression) != true {
            assert!(
                Instant::now() < until,
                "{expression}: {}",
                self.evaluate(page, "document.body.innerText")
            );
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// The faults of all pages so far.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }

    fn browser_call(&mut self, method: &str, parameters: Value) -> Value {
        self.send(json!({ "method": method, "params": parameters }))
    }

    fn call(&mut self, page: &BrowserPage, method: &str, parameters: Value) -> Value {
        self.send(json!({ "method": method, "params": parameters, "sessionId": page.session }))
    }

    fn send(&mut self, mut command: Value) -> Value {
        self.last_id += 1;
        command["id"] = self.last_id.into();
        let line = format!("{command}\0");
        self.commands.write_all(line.as_bytes()).expect("chromium runs; `cargo xtask test` installs it");
        loop {
            let message = self.messages.recv_timeout(HANG_TIMEOUT).expect("the browser answers");
            if message["id"] == self.last_id {
                assert!(message["error"].is_null(), "{command}: {message}");
                return message["result"].clone();
            }
            self.note_fault(&message);
        }
    }

    fn note_fault(&mut self, event: &Value) {
        let entry = &event["params"]["entry"];
        let is_fault = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            // Failed connections are logged, too.
            Some("Log.entryAdded") => entry["source"] == "security",
            _ => false,
        };
        if is_fault {
            self.faults.push(event["params"].to_string());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
