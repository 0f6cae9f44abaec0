//! Two network namespaces of a test's own, joined by a pair of virtual Ethernet devices.
//!
//! The test runs again in a process of its own in the first namespace, where it starts its server; threads that act as
//! clients enter the second. User namespaces make this possible without privileges. Nothing is visible outside, and
//! everything ends with the test.

use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Set in the process that runs inside.
const INSIDE: &str = "STILLING_TEST_NETWORK";

/// The address of the server's namespace.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The address of the clients' namespace.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Addresses of the network that no host has. Few, because the system's table of neighbours is bounded.
pub fn unused_addresses() -> impl Iterator<Item = Ipv4Addr> {
    (200..250).map(|host| Ipv4Addr::new(10, 77, 0, host))
}

/// The two namespaces, seen from a test in the first.
#[derive(Debug)]
pub struct TestNetwork {
    /// A process that holds the clients' namespace; ends with this process, at the latest.
    holder: Child,
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl TestNetwork {
    /// Runs the test `name`, its path in the test binary, again in a network namespace of its own. Returns the network
    /// inside, and `None` outside when the test has passed there.
    #[track_caller]
    pub fn enter(name: &str) -> Option<TestNetwork> {
        if std::env::var_os(INSIDE).is_some() {
            return Some(TestNetwork::new());
        }
        let mut command = inside_command();
        command.arg(std::env::current_exe().expect("the test binary has a path"));
        command.args(["--exact", name, "--nocapture", "--test-threads", "1"]);
        let outcome = command.output().expect("util-linux is installed");
        let [output, errors] = [&outcome.stdout, &outcome.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(outcome.status.success(), "{output}\n{errors}");
        assert!(output.contains("1 passed"), "there is a test {name}: {output}");
        print_measurements(&output);
        None
    }

    /// Runs this program again, with the same arguments, in a network namespace of its own. Returns the network inside,
    /// and `None` outside when the program has succeeded there. Its output is this program's.
    ///
    /// # Errors
    /// If `unshare` does not start, or the program inside fails.
    pub fn enter_program() -> io::Result<Option<TestNetwork>> {
        if std::env::var_os(INSIDE).is_some() {
            return Ok(Some(TestNetwork::new()));
        }
        let mut command = inside_command();
        command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
        let status = command.status()?;
        let failed = || io::Error::other(format!("in the network namespace: {status}"));
        if status.success() { Ok(None) } else { Err(failed()) }
    }

    fn new() -> TestNetwork {
        let mut holder = Command::new("unshare");
        // It runs until its input ends.
        holder.args(["--net", "sh", "-c", "echo ready && exec cat >/dev/null"]);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare starts");
        let mut line = [0; 6];
        holder.stdout.as_mut().expect("it is piped").read_exact(&mut line).expect("it has its namespace");
        let network = TestNetwork { holder };
        let pid = network.holder.id();
        run(&format!(
            "ip link set lo up && ip link add server type veth peer name client netns {pid} && \
             ip address add {SERVER}/24 dev server && ip link set server up"
        ));
        network.in_clients(|| {
            run(&format!(
                "ip link set lo up && ip address add {CLIENT}/24 dev client && ip link set client up"
            ));
        });
        network
    }

    /// Sets a parameter of the server's namespace, such as `net/core/somaxconn`.
    #[track_caller]
    pub fn set_server_parameter(&self, name: &str, value: u64) {
        std::fs::write(format!("/proc/sys/{name}"), value.to_string()).expect("the namespace is our own");
    }

    /// Moves the calling thread into the clients' namespace: its sockets and its child processes are there.
    pub fn enter_clients(&self) {
        let namespace = File::open(format!("/proc/{}/ns/net", self.holder.id())).expect("the holder runs");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("the namespace is our own");
    }

    /// Runs `action` in a thread in the clients' namespace.
    #[track_caller]
    pub fn in_clients<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter_clients();
                action()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// A command that runs its further arguments in a network namespace of their own.
fn inside_command() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--"]).env(INSIDE, "1");
    command
}

/// A counter of the group `TcpExt` in the network namespace of the calling thread.
#[must_use]
#[track_caller]
pub fn tcp_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("the system has counters");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(known, _)| *known == name).expect("the system knows the counter");
    value.parse().expect("a counter is a number")
}

#[track_caller]
fn run(script: &str) {
    let outcome = Command::new("sh").args(["-c", script]).output().expect("a shell runs");
    assert!(outcome.status.success(), "{script}: {}", String::from_utf8_lossy(&outcome.stderr));
}

/// Passes measurements on: the rest of a line after `measured: `, before which the test harness may have printed.
#[allow(clippy::print_stdout, reason = "the output of a test")]
fn print_measurements(output: &str) {
    let measured = output.lines().filter_map(|line| line.split_once("measured: "));
    measured.for_each(|(_, rest)| println!("measured: {rest}"));
}
