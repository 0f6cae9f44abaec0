//! The examples do what their first lines say: each is started as a program and talked to with curl.
//!
//! Cargo builds them together with the tests and puts them into `examples` beside the folder of the test
//! binaries.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A running example.
struct Example {
    child: Child,
    url: String,
}

impl Example {
    /// Starts an example on a free port, with further arguments.
    #[track_caller]
    fn start(name: &str, arguments: &[&str]) -> Example {
        let binary = std::env::current_exe().expect("this test is a file");
        let profile =
            binary.parent().and_then(|deps| deps.parent()).expect("it lies in target/<profile>/deps");
        let mut child = Command::new(profile.join("examples").join(name))
            .arg("127.0.0.1:0")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cargo builds the examples with the tests of the crate");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a first line");
        let url = line.trim_end().strip_prefix("listening ").expect("it says where it listens").to_owned();
        Example { child, url }
    }

    /// What curl says: the body, then the status on a line of its own.
    #[track_caller]
    fn curl(&self, path: &str, arguments: &[&str]) -> (String, u16) {
        let outcome = Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"])
            .args(arguments)
            .arg(format!("{}{path}", self.url))
            .stdin(Stdio::null())
            .output()
            .expect("curl is installed");
        assert!(outcome.status.success(), "{path}: {outcome:?}");
        let text = String::from_utf8(outcome.stdout).expect("text");
        let (body, status) = text.rsplit_once('\n').expect("the status is written last");
        (body.to_owned(), status.parse().expect("a status"))
    }

    /// SIGTERM ends it with success.
    #[track_caller]
    fn finish(mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a child has a number");
        kill_process(pid, Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // A test that failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hello_greets() {
    let example = Example::start("hello", &[]);
    assert_eq!(example.curl("/hello/you", &[]), ("Hello you\n".to_owned(), 200));
    assert_eq!(example.curl("/hello", &[]).1, 404);
    example.finish();
}

/// Row 4.3: what takes its time is done by workers, what does not is not kept waiting.
#[test]
fn slow_work_counts_and_computes() {
    let example = Example::start("slow_work", &[]);
    assert_eq!(example.curl("/count/3", &["--no-buffer"]), ("1\n2\n3\n".to_owned(), 200));
    assert_eq!(example.curl("/count/many", &[]).1, 400);
    assert_eq!(example.curl("/digest", &["--data", "a"]), ("af63dc4c8601ec8c\n".to_owned(), 200));
    assert_eq!(example.curl("/quick", &[]), ("quick\n".to_owned(), 200));
    example.finish();
}

#[test]
fn json_api_keeps_items() {
    let example = Example::start("json_api", &[]);
    let is = |found: (String, u16), status: u16, text: &str| assert_eq!(found, (text.to_owned(), status));
    is(example.curl("/items", &[]), 200, "[]\n");
    let tea = r#"{"name":"tea","price":250}"#;
    is(example.curl("/items", &["--data", tea]), 201, "{\"id\":1,\"name\":\"tea\",\"price\":250}\n");
    is(example.curl("/items/1", &[]), 200, "{\"id\":1,\"name\":\"tea\",\"price\":250}\n");
    is(example.curl("/items", &[]), 200, "[{\"id\":1,\"name\":\"tea\",\"price\":250}]\n");
    for (data, status, why) in [
        (r#"{"name":""#, 400, "EOF"),
        (r#"{"name":"tea"}"#, 400, "missing field `price`"),
        (r#"{"name":"tea","price":-1}"#, 400, "invalid value"),
        (r#"{"name":"tea","price":1,"colour":2}"#, 400, "unknown field `colour`"),
        (r#"{"name":"","price":1}"#, 422, "1 to 100 bytes"),
    ] {
        let (text, found) = example.curl("/items", &["--data", data]);
        assert!(found == status && text.starts_with("{\"error\":\"") && text.contains(why), "{data}: {text}");
    }
    is(example.curl("/items/1", &["--request", "DELETE"]), 204, "");
    is(example.curl("/items/1", &["--request", "DELETE"]), 404, "{\"error\":\"no item 1\"}\n");
    is(example.curl("/items/x", &[]), 400, "{\"error\":\"`x` is not a number\"}\n");
    assert_eq!(example.curl("/items", &["--request", "PUT"]).1, 405);
    example.finish();
}

#[test]
fn files_serves_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.txt"), "0123456789").expect("a file");
    let example = Example::start("files", &[folder.path().to_str().expect("a path of text")]);
    assert_eq!(example.curl("/a.txt", &[]), ("0123456789".to_owned(), 200));
    assert_eq!(example.curl("/a.txt", &["--range", "2-4"]), ("234".to_owned(), 206));
    assert_eq!(example.curl("/old", &["--location"]), ("<p>Files, and this page.</p>\n".to_owned(), 200));
    assert_eq!(example.curl("/none", &[]).1, 404);
    example.finish();
}
