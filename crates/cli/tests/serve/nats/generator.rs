//! `stilling bench collect` on the real server: its report matches the server's records, and it ends as documented,
//! after its messages, its seconds, or Ctrl+C.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::NatsServerFixture;
use crate::support::{DriverUnderTest, HANG_TIMEOUT, ServerUnderTest, binary, eventually};

on_both_drivers! {
    every_send_mode_is_accounted_for,
    a_pause_of_the_server_is_in_the_longest_send_time,
    the_report_has_all_lines_of_both_stress_programs,
    an_interrupt_ends_a_run_with_its_report,
    seconds_end_a_run_with_its_report,
    a_run_reports_that_its_server_died,
}

struct GeneratorProcess(Child);

impl GeneratorProcess {
    fn start(to: &NatsServerFixture, options: &str) -> GeneratorProcess {
        GeneratorProcess(
            command(to, options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"),
        )
    }

    fn interrupt(&self) {
        let process = Pid::from_raw(self.0.id().cast_signed()).expect("a child has a number");
        kill_process(process, Signal::INT).expect("it has not been waited for");
    }

    /// Waits for its own end; returns exit status, report and standard error.
    #[track_caller]
    fn ends(mut self) -> (Option<i32>, Value, String) {
        let (mut out, mut stderr_text) = (String::new(), String::new());
        self.0.stdout.take().expect("it is piped").read_to_string(&mut out).expect("it is text");
        self.0.stderr.take().expect("it is piped").read_to_string(&mut stderr_text).expect("it is text");
        let status = self.0.wait().expect("it is a child").code();
        let report = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{stderr_text}"));
        (status, report, stderr_text)
    }
}

impl Drop for GeneratorProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(to: &NatsServerFixture, options: &str) -> Command {
    let mut command = binary();
    command.args(["bench", "collect", &to.nats().to_string()]).args(options.split_whitespace());
    command.args(["--timeout", &HANG_TIMEOUT.as_secs().to_string()]).stdin(Stdio::null());
    command
}

/// Checks that the accounting of a run has no failure and no gap; returns the number of sent messages.
#[track_caller]
fn balanced(report: &Value) -> u64 {
    let account = &report["accounting"];
    let count = |name: &str| account[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"));
    assert_eq!(count("queued"), count("sends") + count("fails"), "{report}");
    assert_eq!(count("received"), count("sends"), "{report}");
    let wrong = ["fails", "received_of_fails", "reported_lost", "unexplained", "invented"].map(count);
    assert_eq!(wrong, [0; 5], "{report}");
    for name in ["failures_total", "connection_fails"] {
        assert_eq!(report[name], 0, "{report}");
    }
    assert_eq!(
        (&report["evidence"], &report["failure_records"]),
        (&serde_json::json!({}), &serde_json::json!([]))
    );
    count("sends")
}

/// The last sequence of the server's stream, and the number of messages that wait for the disk.
fn stream(server: &ServerUnderTest) -> (u64, u64) {
    let metrics = server.watch().fetch();
    let of = |name: &str| metrics.value(&format!("{name}{{stream=\"events\"}}"));
    (of("hub_stream_last_sequence"), of("hub_stream_pending"))
}

/// Rows 0.23 to 0.29 and 0.32: queued messages = sends = receives, no message and no connection fails, nothing is
/// pending at the end; with acknowledgements and without, over kept connections and over one for each message.
fn every_send_mode_is_accounted_for(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let monitor = format!("--json -n 2000 --monitor {}", fixture.server.url("/metrics"));
    let mut all = 0;
    for (manner, connects) in [
        ("", 4),
        ("--unconfirmed", 4),
        ("--per-message --window 1", 2000),
        ("--unconfirmed --per-message --window 1", 2000),
        ("--subscribers 1", 4),
    ] {
        let (status, report, stderr_text) =
            GeneratorProcess::start(&fixture, &format!("{monitor} {manner}")).ends();
        assert_eq!((status, stderr_text.as_str()), (Some(0), ""), "{manner}: {report}");
        assert_eq!(balanced(&report), 2000, "{manner}");
        assert_eq!(report["connects"], connects, "{manner}: {report}");
        all += 2000;
        assert_eq!(stream(&fixture.server), (all, 0), "{manner}: {report}");
        let server = &report["server"];
        assert_eq!((&server["pending"], &server["lost"]), (&0.into(), &0.into()), "{manner}: {report}");
        assert!(server["accepts"].as_u64() >= Some(connects), "{manner}: {report}");
        assert!(server["received"].as_u64() >= Some(2000), "{manner}: {report}");
        send_times_are_of_one_run(&report);
    }
    assert_eq!(fixture.records("events", 1).1, all - 1);
    fixture.server.finish();
}

/// Row 0.28: every message was timed (shortest ≤ mean ≤ longest), none took longer than the run, and the mean is
/// possible with the window: at most `clients × window` messages are in flight at a time (Little's law).
#[track_caller]
fn send_times_are_of_one_run(report: &Value) {
    let of = |name: &str| report["send_time"][name].as_f64().expect("a number") / 1e6;
    let (shortest, mean, longest) = (of("min_us"), of("mean_us"), of("max_us"));
    assert!(0.0 < shortest && shortest <= mean && mean <= longest, "{report}");
    let elapsed = report["elapsed_s"].as_f64().expect("a number");
    // The histogram has three significant digits.
    assert!(longest <= elapsed * 1.01, "{report}");
    let number = |value: &Value| value.as_f64().expect("a number");
    let in_flight = number(&report["parameters"]["clients"]) * number(&report["parameters"]["window"]);
    let sends = number(&report["accounting"]["sends"]);
    assert!(mean <= 1.01 * elapsed * in_flight / sends, "{report}");
}

/// Row 0.28: a pause of the server during a flood appears in the longest send time, and changes the mean only by the
/// messages in flight; every message is still acknowledged.
fn a_pause_of_the_server_is_in_the_longest_send_time(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let pause = Duration::from_millis(500);
    let generator = GeneratorProcess::start(&fixture, "--json --seconds 3600");
    eventually("messages have come", || (stream(&fixture.server).0 > 1000).then_some(()));
    fixture.server.signal(Signal::STOP);
    fixture.server.wait_until_stopped();
    std::thread::sleep(pause);
    fixture.server.signal(Signal::CONT);
    let so_far = stream(&fixture.server).0;
    eventually("more have come", || (stream(&fixture.server).0 > so_far + 5000).then_some(()));
    generator.interrupt();
    let (status, report, stderr_text) = generator.ends();
    assert_eq!((status, stderr_text.as_str()), (Some(0), ""), "{report}");
    balanced(&report);
    send_times_are_of_one_run(&report);
    let longest = report["send_time"]["max_us"].as_f64().expect("a number") / 1e6;
    assert!(longest >= pause.as_secs_f64() * 0.99, "{report}");
    fixture.server.finish();
}

/// Row 0.23: the lines of the two programs, in their order, those of the server among them.
fn the_report_has_all_lines_of_both_stress_programs(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let options = format!("-n 2000 --monitor {}", fixture.server.url("/metrics"));
    let outcome = command(&fixture, &options).output().expect("the binary runs");
    let out = String::from_utf8_lossy(&outcome.stdout);
    assert_eq!(outcome.status.code(), Some(0), "{out}{}", String::from_utf8_lossy(&outcome.stderr));
    let mut lines = out.lines();
    for expected in [
        "SERVER",
        "runtime: ",
        "server accepts: ",
        "server megabytes: 8.19 (",
        "server receives: 2000 (",
        "max pending msgs: ",
        "curr pending msgs: 0",
        "CLIENT",
        "runtime: ",
        "clients sends: 2000 (",
        "clients megabytes: 8.19 (",
        "clients fails: 0 (",
        "connections fails: 0 (",
        "queued msgs: 2000 (",
        "min sendtime: ",
        "max sendtime: ",
        "avg sendtime: ",
        "accounting            balanced: queued 2000 = sends 2000 + fails 0; received 2000, ",
    ] {
        let is_it = lines.any(|line| line.starts_with(expected) && !line.contains("n/a"));
        assert!(is_it, "{expected:?} is not there, or not in its place:\n{out}");
    }
    fixture.server.finish();
}

/// Row 0.30: Ctrl+C in the middle of a run of an hour. Messages in flight are acknowledged, the report covers all
/// messages, and without a failure the exit status is 0.
fn an_interrupt_ends_a_run_with_its_report(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut so_far = 0;
    for manner in ["", "--unconfirmed", "--per-message --window 1", "--unconfirmed --per-message --window 1"]
    {
        let generator = GeneratorProcess::start(&fixture, &format!("--json --seconds 3600 {manner}"));
        eventually("messages have come", || (stream(&fixture.server).0 > so_far + 100).then_some(()));
        generator.interrupt();
        let (status, report, stderr_text) = generator.ends();
        assert_eq!((status, stderr_text.as_str()), (Some(0), ""), "{manner}: {report}");
        let sent = balanced(&report);
        assert!(sent > 100, "{manner}: {report}");
        so_far += sent;
        assert_eq!(stream(&fixture.server), (so_far, 0), "{manner}: {report}");
    }
    fixture.server.finish();
}

/// Row 0.30: the time limit ends a run, whatever the number of messages.
fn seconds_end_a_run_with_its_report(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let mut so_far = 0;
    for manner in ["", "--unconfirmed", "--per-message --window 1", "-n 1000000000 --window 1"] {
        let (status, report, stderr_text) =
            GeneratorProcess::start(&fixture, &format!("--json --seconds 0.5 {manner}")).ends();
        assert_eq!((status, stderr_text.as_str()), (Some(0), ""), "{manner}: {report}");
        so_far += balanced(&report);
        assert_eq!(stream(&fixture.server), (so_far, 0), "{manner}: {report}");
    }
    fixture.server.finish();
}

/// Row 0.4: SIGKILL of the server during the run. The report names the failure and still balances, and the exit status
/// is 1.
fn a_run_reports_that_its_server_died(driver: DriverUnderTest) {
    let fixture = NatsServerFixture::start(driver, "");
    let generator = GeneratorProcess::start(&fixture, "--json --seconds 3600");
    // More than twice the window of all clients: a full window has been acknowledged.
    eventually("messages have come", || (stream(&fixture.server).0 > 2 * 4 * 256).then_some(()));
    let NatsServerFixture { server, data } = fixture;
    // The drop kills the server.
    drop(server);
    generator.interrupt();
    let (status, report, stderr_text) = generator.ends();
    assert_eq!(status, Some(1), "{report}{stderr_text}");
    let account = &report["accounting"];
    let count = |name: &str| account[name].as_u64().expect("a count");
    assert_eq!(count("queued"), count("sends") + count("fails"), "{report}");
    assert!(count("sends") >= 4 * 256 && report["failures_total"].as_u64() > Some(0), "{report}");
    assert!(stderr_text.starts_with("stilling: ") && stderr_text.contains("failures: "), "{stderr_text}");
    drop(data);
}
