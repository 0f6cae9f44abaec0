//! `stilling journal` with the files of a real server: after it, beside it while it writes, and with damaged bytes.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use stilling_journal::disk::file::FileDisk;
use stilling_journal::{Batch, Log, LogConfig, LogRetention, Record, RecordKind};

fn stilling(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stilling"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit status, output, errors.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = stilling(arguments).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn journal(what: &str, path: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let path = path.to_str().expect("text");
    run(&[&["journal", what, path], more].concat())
}

struct JournalServer {
    child: Child,
    _out: BufReader<ChildStdout>,
    url: String,
}

impl JournalServer {
    fn start(driver: &str, data: &Path) -> JournalServer {
        let data = data.to_str().expect("text");
        let arguments = ["serve", "--verbose", "--driver", driver, "--nats", "127.0.0.1:0", "--data", data];
        let mut child = stilling(&arguments).spawn().expect("the binary starts");
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while !line.starts_with("listening nats://") {
            line.clear();
            assert!(out.read_line(&mut line).expect("a line") > 0, "it ended before it listened");
        }
        let url = line.trim_end().replace("listening ", "");
        JournalServer { child, _out: out, url }
    }

    fn publish(&self, arguments: &[&str]) {
        let (status, _, errors) = run(&[&["pub", "-s", &self.url, "-t", "60"], arguments].concat());
        assert_eq!(status, Some(0), "{errors}");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).expect("a child has a number")
    }

    fn finish(mut self) {
        kill_process(self.pid(), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it is ours").success());
    }

    fn kill(mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it runs");
    }
}

impl Drop for JournalServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn segments(stream: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(stream)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "segment"))
        .collect();
    files.sort();
    files
}

/// Rows 0.32 and 2.15: the files of a server can be listed, printed and verified without it and beside it.
fn check_listed_printed_and_judged(driver: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = JournalServer::start(driver, &data);
    server.publish(&["-H", "Nats-Msg-Id:a", "events.door", "open"]);
    server.publish(&["events.light", "{\"on\":true}"]);
    server.publish(&["-n", "10", "events.door", "closed"]);
    let stream = data.join("events");

    let (status, out, errors) = journal("ls", &data, &[]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let holder = format!("in use by process {}", server.child.id());
    let words: Vec<&str> = out.lines().nth(1).expect("a line").split_whitespace().collect();
    assert_eq!(words[..4], ["events", "12", "1", "12"], "{out}");
    assert!(out.contains(&holder), "{out}");
    let (status, out, _) = journal("verify", &data, &[]);
    assert_eq!(status, Some(0), "{out}");
    assert!(out.starts_with("events: 12 records, ") && out.contains(&holder), "{out}");
    let (_, out, _) = journal("cat", &stream, &["--subject", "events.door", "--format", "raw"]);
    assert_eq!(out, format!("open\n{}", "closed\n".repeat(10)));
    server.finish();

    let (_, out, _) = journal("ls", &data, &[]);
    assert!(out.trim_end().ends_with("clean"), "{out}");
    let (status, out, _) = journal("verify", &stream, &[]);
    assert_eq!(status, Some(0), "{out}");
    assert!(out.contains("in 1 segment: intact"), "{out}");
    let (status, out, _) = journal("cat", &stream, &["--from", "1", "--to", "2"]);
    assert_eq!(status, Some(0));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("1 20") && lines[0].ends_with("Z events.door: open"), "{out}");
    assert!(lines[1].ends_with("Z events.light: {\"on\":true}") && lines.len() == 2, "{out}");
    let (_, out, _) = journal("cat", &stream, &["--format", "json", "--to", "2"]);
    let records: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!(records[0]["headers"]["Nats-Msg-Id"][0], "a");
    assert_eq!((&records[0]["text"], &records[1]["data"]["on"]), (&"open".into(), &true.into()));
    let (_, out, _) = journal("cat", &stream, &["--from", "1h", "--format", "raw"]);
    assert_eq!(out.lines().count(), 12);
    let (_, out, _) = journal("cat", &stream, &["--from", "2100-01-01T00:00:00Z"]);
    assert_eq!(out, "");
    let (_, out, _) = journal("cat", &stream, &["--to", "2000-01-01T00:00:00Z"]);
    assert_eq!(out, "");
}

#[test]
fn what_a_server_on_uring_wrote_is_listed_printed_and_verified() {
    check_listed_printed_and_judged("uring");
}

#[test]
fn what_a_server_on_poll_wrote_is_listed_printed_and_verified() {
    check_listed_printed_and_judged("poll");
}

/// While a server writes, every command succeeds: no damage is reported, and the order is right.
fn check_beside_a_writer(driver: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = JournalServer::start(driver, &data);
    server.publish(&["events.a", "0"]);
    let mut publisher =
        stilling(&["pub", "-s", &server.url, "-t", "60", "-n", "20000", "events.a", "--size", "700"])
            .spawn()
            .expect("the binary starts");
    let stream = data.join("events");
    let mut before = 0;
    loop {
        let is_over = publisher.try_wait().expect("it is ours").is_some();
        let (status, out, errors) = journal("verify", &data, &[]);
        assert_eq!(status, Some(0), "{out}{errors}");
        assert!(out.contains(": intact"), "{out}");
        let (status, out, errors) = journal("cat", &stream, &[]);
        assert_eq!((status, errors.as_str()), (Some(0), ""));
        for (at, line) in out.lines().enumerate() {
            assert!(line.starts_with(&format!("{} ", at + 1)), "{line}");
        }
        let count = out.lines().count();
        assert!(count >= before, "{count} after {before}");
        before = count;
        if is_over {
            break;
        }
    }
    assert_eq!(before, 20_001);
    server.finish();
}

#[test]
fn writes_of_a_server_on_uring_are_never_reported_as_damage() {
    check_beside_a_writer("uring");
}

#[test]
fn writes_of_a_server_on_poll_are_never_reported_as_damage() {
    check_beside_a_writer("poll");
}

/// Flipped bits and cut files in the journal of two server runs, the first of which was killed.
fn check_damage(driver: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = JournalServer::start(driver, &data);
    for _ in 0..3 {
        server.publish(&["-n", "40", "events.a", "--size", "1000"]);
    }
    server.kill();
    let server = JournalServer::start(driver, &data);
    for _ in 0..3 {
        server.publish(&["-n", "40", "events.a", "--size", "1000"]);
    }
    server.finish();
    let stream = data.join("events");
    let files = segments(&stream);
    assert_eq!(files.len(), 2);
    let (status, out, _) = journal("verify", &stream, &[]);
    assert_eq!(status, Some(0), "{out}");
    assert!(out.contains("events: 240 records"), "{out}");
    let mut lost = 0;
    for file in &files {
        let name = file.file_name().expect("a name").to_str().expect("text");
        let whole = fs::read(file).expect("a file");
        // The used part ends with the last non-zero byte; the older file is truncated there.
        let end = whole.iter().rposition(|byte| *byte != 0).expect("there is something");
        for bit in (0..30).map(|step| step * (end * 8 / 30) + step % 8) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(file, bytes).expect("it can be written");
            let (status, out, errors) = journal("verify", &data, &[]);
            assert_eq!((status, errors.as_str()), (Some(1), ""), "{name}, bit {bit}: {out}");
            // The reported position is that of the batch with the bit; damage in a header affects the whole file.
            let reported = out.lines().find(|line| line.starts_with(&format!("{name}: ")));
            let reported = reported.unwrap_or_else(|| panic!("{name}, bit {bit}: {out}"));
            if bit / 8 >= 4096 {
                let numbers: Vec<usize> =
                    reported[name.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect();
                assert!((numbers[1]..numbers[1] + numbers[0]).contains(&(bit / 8)), "bit {bit}: {out}");
                lost += usize::from(out.contains(" acknowledged record"));
            }
        }
        for size in (0..12).map(|step| step * (end / 12)) {
            fs::write(file, &whole[..size]).expect("it can be written");
            let (status, out, _) = journal("verify", &data, &[]);
            assert_eq!(status, Some(1), "{name} cut to {size}: {out}");
        }
        fs::write(file, &whole).expect("it can be written");
    }
    assert!(lost > 30, "{lost} flips cost records");
    // A damaged record is reported at its position and at the end.
    let mut bytes = fs::read(&files[0]).expect("a file");
    bytes[4096 + 200] ^= 1;
    fs::write(&files[0], bytes).expect("it can be written");
    let (status, out, errors) = journal("cat", &stream, &[]);
    assert_eq!(status, Some(1));
    assert!(out.starts_with("# 1 to ") && out.contains(" are damaged\n"), "{out}");
    assert!(
        errors.contains("cannot be shown because they are damaged") && errors.contains("verify"),
        "{errors}"
    );
    assert!(out.lines().last().expect("a line").starts_with("240 "), "{out}");
}

#[test]
fn a_flipped_bit_of_a_server_on_uring_is_reported_with_its_position() {
    check_damage("uring");
}

#[test]
fn a_flipped_bit_of_a_server_on_poll_is_reported_with_its_position() {
    check_damage("poll");
}

/// Loss markers, sequences removed by retention, and payloads that are not text.
#[test]
fn missing_records_are_reported_at_their_position() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("logs");
    let disk = FileDisk::open_or_create(&path).expect("it can be made");
    let (mut log, _) =
        Log::open(disk, "logs", LogConfig { segment_size: 8192, ..LogConfig::default() }).expect("it opens");
    let lost = br#"{"lost":120,"reason":"shed"}"#;
    let records = [
        Record::new(b"syslog.a", b"one"),
        Record { kind: RecordKind::Loss, subject: b"syslog.a", headers: b"", payload: lost },
        Record::new(b"syslog.b", b"\xff\x1b["),
    ];
    for record in &records {
        let mut batch = Batch::new(4096);
        batch.begin(log.next(), 1_700_000_000_000_000_000);
        batch.push(record).expect("it fits");
        log.append(&mut [batch]).expect("the disk takes it");
    }
    let (_, out, _) = journal("cat", &path, &[]);
    let time = "2023-11-14T22:13:20.000Z";
    let marked = format!("2 {time} syslog.a: # messages were lost here {{\"lost\":120,\"reason\":\"shed\"}}");
    let expected = format!("1 {time} syslog.a: one\n{marked}\n3 {time} syslog.b: \\xff\\x1b[\n");
    assert_eq!(out, expected);
    let (_, out, errors) = journal("cat", &path, &["--format", "raw", "--to", "2"]);
    assert_eq!((out.as_str(), errors.contains("messages were lost here")), ("one\n", true));
    let (_, out, _) = journal("cat", &path, &["--format", "json", "--from", "2"]);
    let reported: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!((&reported[0]["kind"], &reported[0]["data"]["lost"]), (&"loss".into(), &120.into()));
    assert_eq!(reported[1]["base64"], "/xtb");
    log.retain(&LogRetention { records: Some(1), ..LogRetention::default() }, 0, u64::MAX)
        .expect("it is removed");
    let (status, out, _) = journal("cat", &path, &["--from", "1"]);
    assert_eq!(status, Some(0));
    assert!(out.starts_with("# 1 to 2 were removed by retention\n3 "), "{out}");
    let (_, out, _) = journal("cat", &path, &[]);
    assert!(out.starts_with("3 "), "{out}");
}

/// Rows 2.12, 2.13, 2.14: as a log, a stream has one line with the time for each second with records, none for an idle
/// one, and always one before the first record after a pause.
#[test]
fn a_log_has_one_time_line_per_second_with_records() {
    const SECOND: u64 = 1_000_000_000;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("auction");
    let disk = FileDisk::open_or_create(&path).expect("it can be made");
    let (mut log, _) = Log::open(disk, "auction", LogConfig::default()).expect("it opens");
    let begin = 1_700_000_000 * SECOND;
    // Times of batches of two records each, in milliseconds.
    for at in [0, 1, 400, 999, 1000, 61_000, 61_500] {
        let mut batch = Batch::new(4096);
        batch.begin(log.next(), begin + at * SECOND / 1000);
        for subject in [b"auction.a.bid", b"auction.b.bid"] {
            batch.push(&Record::new(subject, at.to_string().as_bytes())).expect("it fits");
        }
        log.append(&mut [batch]).expect("the disk takes it");
    }
    let (status, out, _) = journal("cat", &path, &["--format", "log"]);
    assert_eq!(status, Some(0));
    let expected = "# 2023-11-14T22:13:20Z
1 auction.a.bid: 0
2 auction.b.bid: 0
3 auction.a.bid: 1
4 auction.b.bid: 1
5 auction.a.bid: 400
6 auction.b.bid: 400
7 auction.a.bid: 999
8 auction.b.bid: 999
# 2023-11-14T22:13:21Z
9 auction.a.bid: 1000
10 auction.b.bid: 1000
# 2023-11-14T22:14:21Z
11 auction.a.bid: 61000
12 auction.b.bid: 61000
13 auction.a.bid: 61500
14 auction.b.bid: 61500
";
    assert_eq!(out, expected);
    // Records that are not printed cause no line.
    let (_, out, _) =
        journal("cat", &path, &["--format", "log", "--from", "10", "--subject", "auction.a.bid"]);
    assert_eq!(out, "# 2023-11-14T22:14:21Z\n11 auction.a.bid: 61000\n13 auction.a.bid: 61500\n");
}

/// A closed pipe is not an error.
#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("many");
    let disk = FileDisk::open_or_create(&path).expect("it can be made");
    let (mut log, _) = Log::open(disk, "many", LogConfig::default()).expect("it opens");
    for _ in 0..40 {
        let mut batch = Batch::new(64 * 1024);
        batch.begin(log.next(), 1);
        while batch.push(&Record::new(b"a", &[b'x'; 1000])).is_ok() {}
        log.append(&mut [batch]).expect("the disk takes it");
    }
    let mut child = stilling(&["journal", "cat", path.to_str().expect("text")]).spawn().expect("it starts");
    let mut line = String::new();
    let mut out = BufReader::with_capacity(64, child.stdout.take().expect("it is piped"));
    out.read_line(&mut line).expect("a line");
    drop(out);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_read_error_includes_a_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = JournalServer::start("poll", &data);
    server.publish(&["events.a", "x"]);
    server.finish();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).expect("it can be made");
    let check = |what: &str, path: &Path, words: &str| {
        let (status, out, errors) = journal(what, path, &[]);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{errors}");
        assert!(errors.contains(words), "{errors}");
    };
    for what in ["ls", "cat", "verify"] {
        check(
            what,
            &folder.path().join("other/data"),
            "does not exist: name the directory of the server's --data",
        );
        check(what, &empty, "contains no stream: streams are in the directory of the server's --data");
        check(what, &data.join("evnets"), "did you mean events?");
        check(what, &data.join("orders"), "there is no stream orders in ");
        check(what, &segments(&data.join("events"))[0], "is a file: name its stream's directory");
    }
    check("cat", &data, "is a directory of streams: events; name one, such as ");
    let (status, _, errors) = run(&["journal", "cat", "x", "--from", "yesterday"]);
    assert_eq!(status, Some(64));
    assert!(errors.contains("a span back such as 10m"), "{errors}");
    // A valid header of a later version.
    let file = segments(&data.join("events")).remove(0);
    let mut bytes = fs::read(&file).expect("a file");
    bytes[8] = 9;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..4096]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::write(&file, bytes).expect("it can be written");
    let (status, _, errors) = journal("verify", &data, &[]);
    assert_eq!(status, Some(2));
    assert!(errors.contains("has format 9 and this program reads format 1"), "{errors}");
    let (status, _, errors) = journal("cat", &data.join("events"), &[]);
    assert_eq!(status, Some(2));
    assert!(errors.contains("open it with the version of stilling that wrote it"), "{errors}");
}

/// `stilling serve` under strace: the `read`th read of the file `segment` and the next one fail.
fn start_with_failing_reads(driver: &str, data: &Path, segment: &Path, read: u32) -> Output {
    let inject = format!("inject=pread64:error=EIO:when={read}..{}", read + 1);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=pread64", "-e", &inject, "-P"]).arg(segment);
    command.args([env!("CARGO_BIN_EXE_stilling"), "serve", "--driver", driver, "--nats", "127.0.0.1:0"]);
    command.arg("--data").arg(data).stdin(Stdio::null());
    command.output().expect("strace runs; install it (`cargo xtask test` does)")
}

/// Invariant 6: bytes that the disk cannot read at a start are neither torn nor gone. The server does not start,
/// reports the reason, and finds everything when the disk reads again.
fn check_unreadable(driver: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = JournalServer::start(driver, &data);
    server.publish(&["-n", "400", "events.a", "--size", "2000"]);
    server.kill();
    let segment = segments(&data.join("events")).pop().expect("there is one");
    let name = segment.file_name().expect("a name").to_str().expect("text");
    for read in 1..5 {
        let outcome = start_with_failing_reads(driver, &data, &segment, read);
        let errors = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(1), "read {read}: {errors}");
        assert!(errors.contains("cannot read") && errors.contains(name), "read {read}: {errors}");
    }
    let server = JournalServer::start(driver, &data);
    server.publish(&["events.a", "last"]);
    let (_, out, errors) = journal("cat", &data.join("events"), &[]);
    assert_eq!((out.lines().count(), errors.as_str()), (401, ""));
    assert!(out.ends_with("events.a: last\n"), "{out}");
    server.finish();
    let (status, out, _) = journal("verify", &data, &[]);
    assert_eq!(status, Some(0), "{out}");
}

#[test]
fn a_server_on_uring_that_cannot_read_its_journal_loses_nothing_of_it() {
    check_unreadable("uring");
}

#[test]
fn a_server_on_poll_that_cannot_read_its_journal_loses_nothing_of_it() {
    check_unreadable("poll");
}

/// `verify` and `cat` report unreadable files.
#[test]
fn a_read_error_is_not_reported_as_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = folder.path().join("logs");
    let disk = FileDisk::open_or_create(&stream).expect("it can be made");
    let (mut log, _) = Log::open(disk, "logs", LogConfig::default()).expect("it opens");
    let mut batch = Batch::new(4096);
    batch.begin(1, 1_700_000_000_000_000_000);
    batch.push(&Record::new(b"a", b"x")).expect("it fits");
    log.append(&mut [batch]).expect("there is room");
    log.close().expect("there is room");
    let segment = segments(&stream).pop().expect("there is one");
    for what in ["verify", "cat"] {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=pread64", "-P"]).arg(&segment);
        // Skips the reads of the header and of the last segment.
        command.args(["-e", "inject=pread64:error=EIO:when=3+"]);
        command.arg(env!("CARGO_BIN_EXE_stilling")).args(["journal", what]).arg(&stream);
        let outcome = command.output().expect("strace runs; install it (`cargo xtask test` does)");
        let errors = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(2), "{what}: {errors}");
        assert!(errors.contains("cannot read") && errors.contains("Input/output error"), "{errors}");
    }
}

/// No message is acknowledged when another program has removed the folder.
fn check_removed(driver: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = JournalServer::start(driver, &data);
    server.publish(&["events.a", "kept"]);
    fs::remove_dir_all(&data).expect("it is ours");
    let (status, out, errors) = run(&["pub", "-s", &server.url, "-t", "5", "events.a", "lost"]);
    assert_ne!(status, Some(0), "{out}{errors}");
}

#[test]
fn a_server_on_uring_acknowledges_nothing_into_a_removed_folder() {
    check_removed("uring");
}

#[test]
fn a_server_on_poll_acknowledges_nothing_into_a_removed_folder() {
    check_removed("poll");
}

/// Rows 2.15, 0.32: a damaged last batch may have been acknowledged, and is reported also after later starts.
fn check_damaged_end(driver: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = JournalServer::start(driver, &data);
    server.publish(&["events.a", "first"]);
    server.publish(&["events.a", "damaged"]);
    server.kill();
    let stream = data.join("events");
    let segment = segments(&stream).pop().expect("there is one");
    let mut bytes = fs::read(&segment).expect("a file");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("there is something");
    bytes[end] ^= 1;
    fs::write(&segment, bytes).expect("it can be written");
    for life in 0..2 {
        let server = JournalServer::start(driver, &data);
        server.publish(&["events.a", "later"]);
        server.finish();
        let (status, out, _) = journal("verify", &data, &[]);
        assert_eq!(status, Some(1), "life {life}: {out}");
        assert!(
            out.contains("records from 2 to 2 at most") && out.contains("may have been acknowledged"),
            "{out}"
        );
    }
    let (_, out, _) = journal("cat", &stream, &[]);
    assert!(out.contains("# 2 to ") && out.contains("may have been acknowledged"), "{out}");
}

#[test]
fn a_damaged_end_of_a_server_on_uring_stays_on_record() {
    check_damaged_end("uring");
}

#[test]
fn a_damaged_end_of_a_server_on_poll_stays_on_record() {
    check_damaged_end("poll");
}
