//! Programs that send messages while the server is killed and restarted; those with NATS libraries are in
//! `nats/foreign`. Each test is a row of the table in README.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::nats::{own_address, records};
use crate::support::{DriverUnderTest, ServerUnderTest, Tool, binary, eventually};

on_both_drivers! {
    curl_reports_that_the_server_is_down_or_retries_until_it_is_back,
    a_request_that_was_cut_off_is_sent_again_without_a_second_record,
    logger_works_over_tcp_alone,
    rsyslog_keeps_what_it_has_until_the_server_is_back,
    stilling_pub_delivers_everything_once,
}

/// A server with all its listeners, at addresses that stay after a kill.
struct OutageFixture {
    driver: DriverUnderTest,
    data: TempDir,
    /// HTTP, NATS, syslog over UDP, syslog over TCP.
    addresses: [String; 4],
    server: Option<ServerUnderTest>,
}

impl OutageFixture {
    fn start(driver: DriverUnderTest) -> OutageFixture {
        // No other test uses a port of this address while the server is down.
        let place = format!("{}:0", own_address());
        let data = tempfile::tempdir().expect("a folder");
        let mut fixture =
            OutageFixture { driver, data, addresses: [(); 4].map(|()| place.clone()), server: None };
        fixture.start_again();
        let server = fixture.server.as_ref().expect("it runs");
        let names =
            ["listening http://", "listening nats://", "listening syslog-udp://", "listening syslog-tcp://"];
        fixture.addresses = names.map(|name| server.banner_line(name).to_owned());
        fixture
    }

    fn start_again(&mut self) {
        let [http, nats, udp, tcp] = &self.addresses;
        let options = format!(
            "--nats {nats} --syslog-udp {udp} --syslog-tcp {tcp} --syslog-unix {} --data {}",
            self.unix(),
            self.data.path().join("streams").display()
        );
        self.server = Some(ServerUnderTest::listening(self.driver, http, &options));
    }

    fn kill(&mut self) {
        // SIGKILL. The kernel closes the descriptors of an io_uring a little later.
        self.server = None;
        eventually("its doors are shut", || {
            let is_shut =
                [self.at(0), self.at(1), self.at(3)].iter().all(|at| TcpStream::connect(at).is_err());
            let local = UnixDatagram::unbound().ok()?;
            (is_shut && local.connect(self.unix()).is_err()).then_some(())
        });
    }

    fn unix(&self) -> String {
        self.data.path().join("log").display().to_string()
    }

    fn at(&self, place: usize) -> SocketAddr {
        self.addresses[place].to_socket_addrs().expect("an address").next().expect("one")
    }

    fn url(&self) -> String {
        format!("http://{}/publish/events.a", self.addresses[0])
    }

    /// Waits until the stream has `count` records, and returns their payloads.
    fn payloads(&self, count: usize) -> Vec<String> {
        let (records, behind) = records(self.at(1), "events", count);
        assert_eq!(behind, 0, "{records:?}");
        records.into_iter().map(|(_, payload)| payload).collect()
    }

    fn finish(mut self) {
        self.server.take().expect("it runs").finish();
    }
}

struct ToolProcess(Child);

impl Drop for ToolProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn started(command: &mut Command) -> ToolProcess {
    ToolProcess(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("`cargo xtask test` installs it"),
    )
}

fn exit_status(tool: Tool) -> ExitStatus {
    let mut command = tool.into_command();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs")
}

fn curl(fixture: &OutageFixture, options: &str) -> Tool {
    Tool::new("curl", &format!("--silent --show-error --max-time 60 {options}")).arg(fixture.url())
}

fn curl_reports_that_the_server_is_down_or_retries_until_it_is_back(driver: DriverUnderTest) {
    let mut fixture = OutageFixture::start(driver);
    assert_eq!(curl(&fixture, "--data one").output(), "{\"stream\":\"events\",\"first\":1,\"last\":1}\n");
    fixture.kill();
    // Could not connect.
    assert_eq!(exit_status(curl(&fixture, "--data lost")).code(), Some(7));
    let tries = "--data two --retry 50 --retry-connrefused --retry-delay 1 --max-time 60";
    let mut patient =
        started(Tool::new("curl", tries).arg(fixture.url()).into_command().stdin(Stdio::null()));
    let mut log_lines =
        BufReader::new(patient.0.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
    // It has been refused once.
    assert!(log_lines.any(|line| line.contains("Will retry")), "it tries again");
    fixture.start_again();
    assert!(patient.0.wait().expect("it is ours").success());
    assert_eq!(fixture.payloads(2), ["one", "two"]);
    fixture.finish();
}

/// After a lost answer the client does not know whether its message is stored; with an id it need not know.
fn a_request_that_was_cut_off_is_sent_again_without_a_second_record(driver: DriverUnderTest) {
    let mut fixture = OutageFixture::start(driver);
    let server = fixture.server.as_ref().expect("it runs");
    server.signal(rustix::process::Signal::STOP);
    server.wait_until_stopped();
    let ask = |more: &str| curl(&fixture, &format!("--data once --header Nats-Msg-Id:7 {more}"));
    let mut command = ask("--trace-ascii -").into_command();
    let mut cut = started(command.stdin(Stdio::null()));
    let mut log_lines =
        BufReader::new(cut.0.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    assert!(log_lines.any(|line| line.starts_with("=> Send data, 4 bytes")), "it sends");
    fixture.kill();
    // No answer, or the connection was reset.
    let status = cut.0.wait().expect("it is ours");
    assert!(matches!(status.code(), Some(52 | 56)), "{status}");
    fixture.start_again();
    for _ in 0..2 {
        let responses = curl(&fixture, "--data once --header Nats-Msg-Id:7").output();
        assert!(responses.starts_with("{\"stream\":\"events\",\"first\":1,\"last\":1"), "{responses}");
    }
    fixture.kill();
    fixture.start_again();
    let responses = curl(&fixture, "--data once --header Nats-Msg-Id:7").output();
    assert!(responses.starts_with("{\"stream\":\"events\",\"first\":1,\"last\":1"), "{responses}");
    assert_eq!(fixture.payloads(1), ["once"]);
    fixture.finish();
}

fn logger_works_over_tcp_alone(driver: DriverUnderTest) {
    let mut fixture = OutageFixture::start(driver);
    let remote = |way: &str, place: SocketAddr, text: &str| {
        Tool::new("logger", &format!("{way} -n {} -P {} -t door {text}", place.ip(), place.port()))
    };
    let local =
        |unix: &str, more: &str, text: &str| Tool::new("logger", &format!("{more} -u {unix} -t door {text}"));
    let all = |fixture: &OutageFixture, text: &str| {
        vec![
            remote("-d", fixture.at(2), text),
            remote("-T", fixture.at(3), text),
            remote("-T --octet-count", fixture.at(3), text),
            local(&fixture.unix(), "", text),
            local(&fixture.unix(), "--socket-errors=on", text),
        ]
    };
    for tool in all(&fixture, "before") {
        assert!(exit_status(tool).success());
    }
    let before = fixture.payloads_of(5);
    assert!(before.iter().all(|payload| payload.ends_with("before")), "{before:?}");
    fixture.kill();
    let responses: Vec<bool> =
        all(&fixture, "meanwhile").into_iter().map(|tool| exit_status(tool).success()).collect();
    // Lost datagrams cause no error, unless the program checks socket errors.
    assert_eq!(responses, [true, false, false, true, false]);
    fixture.start_again();
    for tool in all(&fixture, "afterwards") {
        assert!(exit_status(tool).success());
    }
    let payloads = fixture.payloads_of(10);
    assert_eq!(payloads[..5], before);
    assert!(payloads[5..].iter().all(|payload| payload.ends_with("afterwards")), "{payloads:?}");
    fixture.finish();
}

impl OutageFixture {
    /// The payloads once there are `count`: unacknowledged messages may still be on their way to the stream.
    fn payloads_of(&self, count: usize) -> Vec<String> {
        let mut server = self.server.as_ref().expect("it runs").watch();
        server.until("all are stored", |metrics| {
            metrics.value("hub_stream_visible_sequence{stream=\"events\"}") >= count as u64
        });
        self.payloads(count)
    }
}

fn rsyslog(folder: &Path, input: &Path, to: SocketAddr) -> ToolProcess {
    let file = folder.join("conf");
    let text = format!(
        "global(workDirectory=\"{}\")\nmodule(load=\"imuxsock\" SysSock.Use=\"off\")\n\
         input(type=\"imuxsock\" Socket=\"{}\")\n\
         action(type=\"omfwd\" target=\"{}\" port=\"{}\" protocol=\"tcp\"\n\
         action.resumeRetryCount=\"-1\" action.resumeInterval=\"1\" queue.type=\"LinkedList\")\n",
        folder.display(),
        input.display(),
        to.ip(),
        to.port(),
    );
    fs::write(&file, text).expect("a file");
    // Not in every user's path.
    let name = ["/usr/sbin/rsyslogd", "rsyslogd"].into_iter().find(|name| Path::new(name).exists());
    let mut command = Command::new(name.unwrap_or("rsyslogd"));
    command.arg("-n").arg("-f").arg(&file).arg("-i").arg(folder.join("pid")).stdin(Stdio::null());
    let running = started(&mut command);
    eventually("rsyslog listens", || UnixDatagram::unbound().ok()?.connect(input).ok());
    running
}

/// Returns whether this machine has a connection to `to`, alive or not.
fn is_connected(to: SocketAddr) -> bool {
    let IpAddr::V4(ip) = to.ip() else { panic!("it is IPv4") };
    let wanted = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), to.port());
    let table = fs::read_to_string("/proc/net/tcp").expect("the system tells");
    table.lines().any(|line| line.split_whitespace().nth(2) == Some(&wanted))
}

/// With a queue and endless retries. TCP syslog has no acknowledgements: messages sent before the sender detects the
/// dead connection are lost.
fn rsyslog_keeps_what_it_has_until_the_server_is_back(driver: DriverUnderTest) {
    let mut fixture = OutageFixture::start(driver);
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in");
    let rsyslog = rsyslog(folder.path(), &input, fixture.at(3));
    let log = |text: &str| {
        Tool::new("logger", "--socket-errors=on -t app -u").arg(&input).arg(text).output();
    };
    log("before");
    assert!(fixture.payloads_of(1)[0].ends_with("before"));
    fixture.kill();
    eventually("it finds the connection dead", || {
        log("perhaps");
        (!is_connected(fixture.at(3))).then_some(())
    });
    for number in 0..20 {
        log(&format!("meanwhile {number}"));
    }
    fixture.start_again();
    log("afterwards");
    // More messages than are certain to be stored.
    let mut watcher = fixture.server.as_ref().expect("it runs").watch();
    let mut there = Vec::new();
    while !there.last().is_some_and(|last: &String| last.ends_with("afterwards")) {
        let count = there.len() + 1;
        watcher.until("more comes", |metrics| {
            metrics.value("hub_stream_visible_sequence{stream=\"events\"}") >= count as u64
        });
        there = records(fixture.at(1), "events", count).0.into_iter().map(|(_, payload)| payload).collect();
    }
    let numbers: Vec<u32> =
        there.iter().filter_map(|line| line.rsplit_once("meanwhile ")?.1.parse().ok()).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "{there:?}");
    drop((rsyslog, watcher));
    fixture.finish();
}

fn stilling_pub_delivers_everything_once(driver: DriverUnderTest) {
    const BEFORE: usize = 200;
    const ALL: usize = 400;
    let mut fixture = OutageFixture::start(driver);
    let mut command = binary();
    command.args([
        "pub",
        "--server",
        &format!("nats://{}", fixture.addresses[1]),
        "--timeout",
        "60",
        "--lines",
        "events.a",
    ]);
    let mut publisher = started(command.stdin(Stdio::piped()));
    let mut input = publisher.0.stdin.take().expect("it is piped");
    let mut feed = |range: std::ops::Range<usize>| {
        for number in range {
            writeln!(input, "{number}").expect("it reads");
        }
    };
    feed(0..BEFORE);
    assert_eq!(fixture.payloads_of(BEFORE).len(), BEFORE);
    fixture.kill();
    feed(BEFORE..ALL - 100);
    fixture.start_again();
    feed(ALL - 100..ALL);
    drop(input);
    let status = publisher.0.wait().expect("it is ours");
    assert!(status.success(), "{status}");
    let expected: Vec<String> = (0..ALL).map(|number| number.to_string()).collect();
    assert_eq!(fixture.payloads(ALL), expected);
    fixture.finish();
}
