//! The server process: started on a free port, killed on drop.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Metrics, MetricsClient, TestPeer, eventually};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverUnderTest {
    Uring,
    UringDirect,
    Poll,
}

impl DriverUnderTest {
    /// The name in the banner and in the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DriverUnderTest::Uring => "uring",
            DriverUnderTest::UringDirect => "uring-direct",
            DriverUnderTest::Poll => "poll",
        }
    }

    /// The options of `serve` that require it.
    pub(crate) fn options(self) -> &'static [&'static str] {
        match self {
            DriverUnderTest::Uring => &["--driver", "uring"],
            DriverUnderTest::UringDirect => &["--driver", "uring", "--direct-descriptors"],
            DriverUnderTest::Poll => &["--driver", "poll"],
        }
    }
}

pub(crate) fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_stilling"))
}

pub(crate) struct ServerUnderTest {
    child: Child,
    out: BufReader<ChildStdout>,
    banner: Vec<String>,
}

impl ServerUnderTest {
    /// Starts a server on a free port of 127.0.0.1 with further options, separated by blanks.
    pub(crate) fn start(driver: DriverUnderTest, options: &str) -> ServerUnderTest {
        Self::listening(driver, "127.0.0.1:0", options)
    }

    pub(crate) fn listening(driver: DriverUnderTest, listen: &str, options: &str) -> ServerUnderTest {
        let mut command = binary();
        command.args(["serve", "--listen", listen]).args(driver.options());
        command.args(options.split_whitespace());
        let server = Self::spawn(command);
        assert_eq!(server.banner_line("driver "), driver.name());
        server
    }

    /// Starts a server by the caller's command; adds `--verbose`.
    pub(crate) fn spawn(mut command: Command) -> ServerUnderTest {
        command.stdin(Stdio::null());
        Self::spawn_with_stdin(command)
    }

    /// The same, with the command's own standard input.
    pub(crate) fn spawn_with_stdin(mut command: Command) -> ServerUnderTest {
        let mut child = command
            .arg("--verbose")
            // Some tests panic on purpose; backtraces would hide real failures.
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut out = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut banner = Vec::new();
        let is_last = |line: &String| line.starts_with("shards ");
        while !banner.last().is_some_and(is_last) {
            let mut line = String::new();
            let read = out.read_line(&mut line).expect("a line of the banner");
            assert!(read > 0, "the server ended before it listened: {banner:?}");
            banner.push(line.trim_end().to_owned());
        }
        ServerUnderTest { child, out, banner }
    }

    /// The rest of the banner's line that begins with `start`.
    #[track_caller]
    pub(crate) fn banner_line(&self, start: &str) -> &str {
        let line = self.banner.iter().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("no line {start:?} in {:?}", self.banner))
    }

    /// The rest of each of the banner's lines that begin with `start`.
    pub(crate) fn banner_lines(&self, start: &str) -> Vec<&str> {
        self.banner.iter().filter_map(|line| line.strip_prefix(start)).collect()
    }

    /// HTTP addresses, in the order of the options.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let lines = self.banner_lines("listening http://").into_iter();
        lines.map(|address| address.parse().expect("the banner tells an address")).collect()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    pub(crate) fn connect(&self) -> TestPeer {
        TestPeer::connect(self.address())
    }

    /// A connection of its own for metrics.
    pub(crate) fn watch(&self) -> MetricsClient {
        let mut watcher = MetricsClient::new(self.connect());
        // Accepted from here on, whatever happens to other connections.
        watcher.fetch();
        watcher
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).expect("a child has a number")
    }

    /// A folder or file of the process under `/proc`.
    pub(crate) fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.child.id())
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(self.proc("fd")).expect("the process runs").count()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process takes signals");
    }

    #[track_caller]
    pub(crate) fn thread(&self, name: &str) {
        let is_it = |task: std::io::Result<std::fs::DirEntry>| {
            let its = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
            (its.trim_end() == name).then_some(())
        };
        eventually(name, || std::fs::read_dir(self.proc("task")).ok()?.find_map(is_it));
    }

    /// Waits until SIGSTOP has reached all its threads; those of a traced process are in state `t` then (proc(5)).
    #[track_caller]
    pub(crate) fn wait_until_stopped(&self) {
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            [") T ", ") t "].iter().any(|state| stat.contains(state)).then_some(())
        };
        eventually("all its threads stand still", || {
            std::fs::read_dir(self.proc("task")).ok()?.map(stands).collect::<Option<()>>()
        });
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits for the end. Returns the status and the last counters.
    #[track_caller]
    pub(crate) fn wait(mut self) -> (ExitStatus, Metrics) {
        // The last output fits into the pipe, so the server does not wait for its reader.
        let status =
            eventually("the server ends", || self.child.try_wait().expect("a child can be waited for"));
        let mut text = String::new();
        self.out.read_to_string(&mut text).expect("its last words");
        (status, Metrics::of(&text))
    }

    /// Ends the server with SIGTERM and checks that it ends cleanly: status 0, one close reason per connection, nothing
    /// held. Returns the last counters.
    #[track_caller]
    pub(crate) fn finish(self) -> Metrics {
        self.signal(Signal::TERM);
        self.expect_clean_end()
    }

    /// The second half of [`finish`](Self::finish).
    #[track_caller]
    pub(crate) fn expect_clean_end(self) -> Metrics {
        let (status, metrics) = self.wait();
        assert!(status.success(), "{status}");
        assert_eq!(metrics.balance(), Ok(()));
        for gauge in ["connections", "input_held_bytes", "output_held_bytes"] {
            assert_eq!(metrics.value(gauge), 0, "{gauge}");
        }
        metrics
    }
}

impl Drop for ServerUnderTest {
    fn drop(&mut self) {
        // For a test that failed, or that does not check how the server ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
