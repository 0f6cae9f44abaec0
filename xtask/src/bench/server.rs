//! A server under measurement: started for one run on a free loopback port, ended with the run, and observed from
//! outside through `/proc`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::figures::BARE;
use crate::XtaskResult;
use crate::steps::command_text;

/// Clock ticks per second in `/proc`: the same on every common Linux (`getconf CLK_TCK`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Timeout of the start and the end of a server.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// A confirmable GET without options, which every CoAP server answers in some way.
const COAP_PROBE: [u8; 4] = [0x40, 1, 0x12, 0x34];

/// Wait for the answer before the request is sent again.
const COAP_PROBE_TIMEOUT: Duration = Duration::from_millis(100);

/// Connections per nginx worker; the idle measurement needs 10,000 in total.
const NGINX_CONNECTIONS: u32 = 16_384;

/// Requests per send of the pipelined workload.
pub(super) const PIPELINE: u32 = 16;

/// A running server; dropping it ends it.
pub(crate) struct BenchServer {
    /// Name in the tables.
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) command: String,
    child: Child,
    /// Its children are an app, which is not measured.
    has_app: bool,
    /// Kept open, so that later output of the server does not meet a closed pipe.
    _stdout: Option<BufReader<ChildStdout>>,
}

/// Path of the ordinary inline route.
pub(super) const CONSTANT: &str = "/constant";

impl BenchServer {
    /// Stilling on one of its drivers, with further options.
    pub(crate) fn stilling(binary: &Path, driver: BenchDriver, options: &[&str]) -> XtaskResult<BenchServer> {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.option()]).args(options);
        let command_line =
            ["stilling serve --driver", driver.option()].into_iter().chain(options.iter().copied());
        BenchServer::announcing_address(driver.name(), command_line.collect::<Vec<_>>().join(" "), command)
    }

    /// A server on the library, with [`CONSTANT`] as an ordinary inline route.
    pub(super) fn inline_route(example: &Path, driver: BenchDriver) -> XtaskResult<BenchServer> {
        let mut command = Command::new(example);
        command.args(["127.0.0.1:0", driver.option()]);
        let command_line = format!("the example `constant` with an inline route ({})", driver.option());
        let server = BenchServer::announcing_address("stilling uring, inline route", command_line, command)?;
        server.answers(CONSTANT)?;
        Ok(server)
    }

    /// The peer on hyper, with `workers` threads for slow work of `slow_ms`.
    pub(super) fn hyper(binary: &Path, workers: u64, slow_ms: u64) -> XtaskResult<BenchServer> {
        let mut command = Command::new(binary);
        command.args([workers.to_string(), slow_ms.to_string()]);
        let command_line = format!(
            "stilling-peer-hyper {workers} {slow_ms} (a thread per core and {workers} for slow work)"
        );
        BenchServer::announcing_address("hyper", command_line, command)
    }

    /// The peer that does only the I/O, with `threads` threads.
    pub(super) fn bare(binary: &Path, threads: usize) -> XtaskResult<BenchServer> {
        let mut command = Command::new(binary);
        command.args(["http", "127.0.0.1:0", &threads.to_string()]);
        BenchServer::announcing_address(
            BARE,
            format!("stilling-peer-bare http 127.0.0.1:0 {threads}"),
            command,
        )
    }

    /// Starts a server that announces its address in its first line, and checks its response.
    pub(super) fn announcing_address(
        name: &'static str,
        command_line: String,
        command: Command,
    ) -> XtaskResult<BenchServer> {
        let server = BenchServer::announced(name, command_line, command)?;
        server.answers("/test/fast")?;
        Ok(server)
    }

    /// Like [`announcing_address`](Self::announcing_address), without a check of the response.
    pub(crate) fn announced(
        name: &'static str,
        command_line: String,
        mut command: Command,
    ) -> XtaskResult<BenchServer> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening http://").and_then(|address| address.parse().ok());
        let address =
            address.ok_or_else(|| format!("`{}` printed {line:?} first", command_text(&command)))?;
        Ok(BenchServer { name, address, command: command_line, child, has_app: false, _stdout: Some(stdout) })
    }

    /// Starts a server with a given address and returns once it listens; its response is not checked.
    pub(super) fn with_address(
        name: &'static str,
        command_line: String,
        address: SocketAddr,
        mut command: Command,
    ) -> XtaskResult<BenchServer> {
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("`{}`: {error}", command_text(&command)))?;
        let server =
            BenchServer { name, address, command: command_line, child, has_app: false, _stdout: None };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if start.elapsed() > READY_TIMEOUT {
                return Err(format!("{name} does not listen on {address}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Starts a CoAP server with a given address and returns once it answers a request.
    pub(super) fn with_datagrams(
        name: &'static str,
        command_line: String,
        address: SocketAddr,
        mut command: Command,
    ) -> XtaskResult<BenchServer> {
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("`{}`: {error}", command_text(&command)))?;
        let server =
            BenchServer { name, address, command: command_line, child, has_app: false, _stdout: None };
        let probe = UdpSocket::bind("127.0.0.1:0")?;
        probe.connect(address)?;
        probe.set_read_timeout(Some(COAP_PROBE_TIMEOUT))?;
        let start = Instant::now();
        while probe.send(&COAP_PROBE).and_then(|_| probe.recv(&mut [0; 64])).is_err() {
            if start.elapsed() > READY_TIMEOUT {
                return Err(format!("{name} does not answer on {address}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Marks the server's children as an app, which is not measured.
    pub(super) fn with_app(mut self) -> BenchServer {
        self.has_app = true;
        self
    }

    /// nginx with a worker per core and minimal features; `/test/slow` is forwarded to `slow`, because nginx has no
    /// slow work of its own, at most `slow_rate` such requests per second.
    pub(super) fn nginx(
        folder: &Path,
        cores: usize,
        slow: Option<SocketAddr>,
        slow_rate: Option<u32>,
    ) -> XtaskResult<BenchServer> {
        let command_line = format!("nginx, {cores} workers, reuseport, no access log");
        let config = |address| nginx_slow_config(folder, cores, address, slow, slow_rate);
        let server = BenchServer::nginx_with("nginx", command_line, folder, config)?;
        server.answers("/test/fast")?;
        Ok(server)
    }

    /// nginx with a configuration for a free port.
    pub(super) fn nginx_with(
        name: &'static str,
        command_line: String,
        folder: &Path,
        config: impl FnOnce(SocketAddr) -> String,
    ) -> XtaskResult<BenchServer> {
        // nginx cannot report the port it took, so a free one is found here.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let file = folder.join(format!("nginx-{}.conf", address.port()));
        fs::write(&file, config(address))?;
        let mut command = Command::new(nginx_binary());
        command.arg("-q").arg("-p").arg(folder).arg("-c").arg(&file);
        BenchServer::with_address(name, command_line, address, command)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Checks that the server answers 200 with an empty body, alone and pipelined: a rate of anything else is
    /// meaningless.
    fn answers(&self, path: &str) -> XtaskResult {
        let host = self.address;
        let kept = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let last = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        for count in [1, PIPELINE as usize] {
            let mut stream = TcpStream::connect(host)?;
            stream.set_read_timeout(Some(READY_TIMEOUT))?;
            stream.write_all((kept.repeat(count - 1) + &last).as_bytes())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            let answer = String::from_utf8_lossy(&answer);
            if !are_empty_oks(&answer, count) {
                return Err(format!("{} answers {count} of {path} with {answer:?}", self.name).into());
            }
        }
        Ok(())
    }

    pub(crate) fn first_process(&self) -> u32 {
        self.child.id()
    }

    /// The processes of the server: the started one, and its children unless they are an app.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let parent = self.child.id();
        if self.has_app {
            return vec![parent];
        }
        let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_child = |id: &u32| ProcessStat::of(*id).is_some_and(|stat| stat.parent == parent);
        std::iter::once(parent).chain(ids.filter(is_child)).collect()
    }

    /// Open descriptors of the server's first process.
    pub(crate) fn descriptors(&self) -> XtaskResult<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// CPU seconds used by the server so far, user and kernel, all threads of all processes.
    pub(crate) fn cpu_s(&self) -> f64 {
        self.processes()
            .into_iter()
            .filter_map(ProcessStat::of)
            .map(|stat| stat.cpu_ticks as f64 / TICKS_PER_SECOND)
            .sum()
    }

    /// Context switches, voluntary or not, of the server's current threads since their start, including kernel threads
    /// that work for a process.
    pub(crate) fn context_switches(&self) -> ContextSwitches {
        let threads = |id: u32| fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        let of_threads = self.processes().into_iter().flat_map(threads);
        ContextSwitches(
            of_threads
                .filter_map(|thread| {
                    let status = fs::read_to_string(thread.path().join("status")).ok()?;
                    Some((thread.file_name(), switches(&status)))
                })
                .collect(),
        )
    }

    /// Bytes of memory of the server; memory shared by its processes counts once (`Pss`).
    pub(crate) fn memory(&self) -> u64 {
        let of = |id: u32| pss(&fs::read_to_string(format!("/proc/{id}/smaps_rollup")).unwrap_or_default());
        self.processes().into_iter().filter_map(of).sum()
    }

    /// Resident bytes of the server's first process, with all of what it shares (`Rss`): other processes do not change
    /// the figure.
    pub(crate) fn resident(&self) -> u64 {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()));
        bytes_of("Rss:", &rollup.unwrap_or_default()).unwrap_or(0)
    }
}

impl BenchServer {
    /// Largest resident memory of the server so far in bytes, the sum of its current processes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let of =
            |id: u32| peak_resident(&fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default());
        self.processes().into_iter().filter_map(of).sum()
    }
}

/// Context switches by thread number.
#[derive(Debug, Default)]
pub(crate) struct ContextSwitches(BTreeMap<OsString, u64>);

impl ContextSwitches {
    /// Context switches since `before`, including all of threads started later; `None` if a thread has ended and its
    /// count is lost, or if a lower count shows that its number was reused.
    pub(crate) fn since(&self, before: &ContextSwitches) -> Option<u64> {
        let is_new = |(thread, _): &(&OsString, &u64)| !before.0.contains_key(*thread);
        let of_new_threads: u64 = self.0.iter().filter(is_new).map(|(_, count)| count).sum();
        before.0.iter().try_fold(of_new_threads, |total, (thread, count)| {
            Some(total + self.0.get(thread)?.checked_sub(*count)?)
        })
    }
}

impl BenchServer {
    /// Stops the server; returns whether it ended with success.
    pub(crate) fn end(mut self) -> bool {
        self.stop().is_some_and(|status| status.success())
    }

    /// Waits for a server that ends by itself; returns whether it ended with success.
    pub(crate) fn ends_by_itself(mut self) -> bool {
        self.wait().is_some_and(|status| status.success())
    }

    fn stop(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        // SIGTERM, because a killed nginx would leave its workers behind.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        self.wait()
    }

    fn wait(&mut self) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < READY_TIMEOUT {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        if self.stop().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BenchDriver {
    Uring,
    Poll,
}

impl BenchDriver {
    pub(crate) fn option(self) -> &'static str {
        match self {
            BenchDriver::Uring => "uring",
            BenchDriver::Poll => "poll",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            BenchDriver::Uring => "stilling uring",
            BenchDriver::Poll => "stilling poll",
        }
    }
}

fn nginx_binary() -> PathBuf {
    // Debian installs it outside the path of ordinary users.
    let debian = Path::new("/usr/sbin/nginx");
    if debian.is_file() { debian.to_owned() } else { "nginx".into() }
}

/// Requests beyond `limit_req`'s rate that nginx admits at once: those of 50 ms.
fn burst(rate: u32) -> u32 {
    rate / 20
}

/// A configuration of nginx: a measurement's additions to `http` and its `locations`, with the common parts.
pub(super) fn nginx_config(
    folder: &Path,
    cores: usize,
    address: SocketAddr,
    http: &str,
    locations: &str,
) -> String {
    let (folder, port) = (folder.display(), address.port());
    format!(
        "daemon off;\nworker_processes {cores};\npid {folder}/nginx-{port}.pid;\nerror_log {folder}/nginx-{port}.log;\n\
         events {{ worker_connections {NGINX_CONNECTIONS}; }}\n\
         http {{\n access_log off; server_tokens off; keepalive_requests 1000000000;\n\
         \x20client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;\n\
         \x20uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n{http}\
         \x20server {{\n  listen {address} reuseport backlog=4096;\n{locations} }}\n}}\n"
    )
}

fn nginx_slow_config(
    folder: &Path,
    cores: usize,
    address: SocketAddr,
    slow: Option<SocketAddr>,
    slow_rate: Option<u32>,
) -> String {
    // One key for all clients: the limit applies to the server's load, not to each client.
    let (zone, limit) = slow_rate.map_or_else(Default::default, |rate| {
        let zone = format!(" limit_req_zone $server_port zone=slow:64k rate={rate}r/s;\n limit_req_status 503;\n limit_req_log_level info;\n");
        (zone, format!("limit_req zone=slow burst={} nodelay; ", burst(rate)))
    });
    let (upstream, location) = match slow {
        Some(slow) => (
            format!(" upstream slow {{ server {slow}; keepalive 512; keepalive_requests 1000000000; }}\n"),
            "  location = /test/slow { LIMITproxy_pass http://slow; proxy_http_version 1.1; proxy_set_header Connection \"\"; }\n",
        ),
        None => (String::new(), ""),
    };
    let location = location.replace("LIMIT", &limit);
    let locations = format!("  location = /test/fast {{ return 200 \"\"; }}\n{location}");
    nginx_config(folder, cores, address, &format!("{zone}{upstream}"), &locations)
}

/// Whether `answers` consists of exactly `count` responses, each 200 and empty.
fn are_empty_oks(answers: &str, count: usize) -> bool {
    let heads: Vec<&str> = answers.split_terminator("\r\n\r\n").collect();
    let is_empty_ok = |head: &&str| {
        head.starts_with("HTTP/1.1 200 ")
            && head.lines().any(|line| line.eq_ignore_ascii_case("content-length: 0"))
    };
    answers.ends_with("\r\n\r\n") && heads.len() == count && heads.iter().all(is_empty_ok)
}

/// Fields of `/proc/PID/stat`.
#[derive(PartialEq, Eq, Debug)]
struct ProcessStat {
    parent: u32,
    cpu_ticks: u64,
}

impl ProcessStat {
    fn of(id: u32) -> Option<ProcessStat> {
        ProcessStat::parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    /// Parses the file. proc(5): the name is in brackets and may contain anything, so fields are counted after the last
    /// bracket.
    fn parse(stat: &str) -> Option<ProcessStat> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(ProcessStat { parent: fields.get(1)?.parse().ok()?, cpu_ticks: ticks(11)? + ticks(12)? })
    }
}

/// The `Pss` of a process in bytes, from `/proc/PID/smaps_rollup`.
fn pss(rollup: &str) -> Option<u64> {
    bytes_of("Pss:", rollup)
}

/// The largest resident memory of a process in bytes, from `/proc/PID/status`.
fn peak_resident(status: &str) -> Option<u64> {
    bytes_of("VmHWM:", status)
}

/// A figure of a file in `/proc` that gives it in units of 1,024 bytes.
fn bytes_of(label: &str, text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// All context switches of a thread, from `/proc/PID/task/TID/status`.
fn switches(status: &str) -> u64 {
    let count = |line: &str| line.split_once("voluntary_ctxt_switches:")?.1.trim().parse::<u64>().ok();
    status.lines().filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_as_the_manual_says() {
        let stat = "42 (a ) b) S 7 42 42 0 -1 4194304 100 0 0 0 250 150 3 4 20 0 5 0 100 1 2";
        assert_eq!(ProcessStat::parse(stat), Some(ProcessStat { parent: 7, cpu_ticks: 400 }));
        assert_eq!(ProcessStat::parse("42 (a"), None);
        assert_eq!(pss("Rss:      900 kB\nPss:      123 kB\nPss_Anon: 5 kB\n"), Some(123 * 1024));
        assert_eq!(pss("Rss: 900 kB\n"), None);
        assert_eq!(peak_resident("Name:\ta\nVmHWM:\t     512 kB\nVmRSS:\t 5 kB\n"), Some(512 * 1024));
        assert_eq!(switches("Name:\ta\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t12\n"), 42);
    }

    #[test]
    fn context_switches_are_those_of_each_thread_since_the_reading_before() {
        let of = |threads: &[(&str, u64)]| {
            ContextSwitches(threads.iter().map(|(thread, count)| (OsString::from(*thread), *count)).collect())
        };
        let before = of(&[("1", 100), ("2", 40)]);
        for (what, now, since) in [
            ("the same threads", of(&[("1", 103), ("2", 40)]), Some(3)),
            ("a new thread", of(&[("1", 103), ("2", 45), ("3", 7)]), Some(15)),
            ("an ended thread", of(&[("1", 103)]), None),
            ("a new and an ended thread", of(&[("1", 103), ("3", 70)]), None),
            ("a reused number, sum lower", of(&[("1", 103), ("2", 5)]), None),
            ("a reused number, sum higher", of(&[("1", 203), ("2", 5)]), None),
            ("no thread", of(&[]), None),
        ] {
            assert_eq!(now.since(&before), since, "{what}");
        }
        assert_eq!(before.since(&of(&[])), Some(140));
    }

    #[test]
    fn only_empty_200s_are_worth_measuring() {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert!(are_empty_oks(ok, 1) && are_empty_oks(&ok.repeat(16), 16));
        assert!(!are_empty_oks(&ok.repeat(15), 16) && !are_empty_oks(&ok.repeat(17), 16));
        assert!(!are_empty_oks(&format!("{ok}x"), 1));
        assert!(!are_empty_oks(&ok.replace("200", "404"), 1));
        assert!(!are_empty_oks(&ok.replace(": 0", ": 1"), 1));
    }

    #[test]
    fn nginx_forwards_slow_work_only_with_a_server_behind_it() {
        let address = SocketAddr::from(([127, 0, 0, 1], 81));
        let config = |slow| nginx_slow_config(Path::new("a"), 3, address, slow, None);
        assert!(config(None).contains("worker_processes 3;") && !config(None).contains("upstream"));
        assert!(config(Some(address)).contains("upstream slow { server 127.0.0.1:81;"));
        assert!(!config(Some(address)).contains("limit_req"));
        let limited = nginx_slow_config(Path::new("a"), 3, address, Some(address), Some(800));
        assert!(
            limited.contains("rate=800r/s;")
                && limited.contains("{ limit_req zone=slow burst=40 nodelay; proxy")
        );
    }
}
