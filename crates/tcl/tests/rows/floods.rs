//! SYN floods and full accept queues, at a script's listener in network namespaces of the test's own.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddrV4, TcpStream};
use std::process::{Child, ChildStdout};
use std::thread;
use std::time::Duration;

use stilling_probe::network::{SERVER, TestNetwork, unused_addresses};
use stilling_probe::syn_flood::SynGenerator;
use stilling_probe::{HANG_TIMEOUT, line_client};

use crate::harness::{finish, run_on_all, start_on};

/// The largest backlog that the system grants.
const BACKLOG_MAX: u64 = 512;

/// Clients that connect during the flood, one after the other.
const CLIENTS: usize = 60;

/// A listener with a backlog of 64 that returns each line; `finish` ends the script. Prints its port, and each change.
const SERVER_SCRIPT: &str = r#"
    fconfigure stdout -buffering line
    set ::accepts 0
    proc accept {channel host port} {
        incr ::accepts
        fconfigure $channel -blocking 0 -buffering line -translation lf
        fileevent $channel readable [list serve $channel]
    }
    proc serve {channel} {
        if {[gets $channel line] >= 0} {
            if {$line eq "finish"} { set ::finished 1 }
            puts $channel $line
        } elseif {[eof $channel]} { close $channel }
    }
    proc flood {tag kind details} { puts "$tag $kind $details" }
    proc await {condition} {
        for {set i 0} {$i < 4000} {incr i} {
            if {[uplevel #0 [list expr $condition]]} return
            after 5 {set ::tick 1}
            vwait ::tick
        }
        error "not reached: $condition"
    }
    proc floods {key} { dict get [stilling::stats] floods $key }
    set listener [socket2 -server accept -myaddr 10.77.0.1 0]
    fconfigure $listener -backlog 64
    stilling::onflood {flood a}
    check "the script" [stilling::onflood] {flood a}
    interp create other
    load $::library Stilling other
    other alias flood flood
    other eval {stilling::onflood {flood other}}
    await {[floods samples] >= 2}
    puts [port_of $listener]
"#;

struct ScriptServer {
    driver: &'static str,
    child: Child,
    output: BufReader<ChildStdout>,
    address: SocketAddrV4,
}

impl ScriptServer {
    fn start(driver: &'static str, script: &str) -> ScriptServer {
        let mut child = start_on(driver, &format!("{SERVER_SCRIPT}\n{script}"));
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        let Ok(port) = line.trim().parse() else {
            finish(driver, child);
            panic!("no port: {line}");
        };
        ScriptServer { driver, child, output, address: SocketAddrV4::new(SERVER, port) }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim().to_owned()
    }

    fn end(self) {
        finish(self.driver, self.child);
    }
}

fn exchange(server: SocketAddrV4, line: &str) {
    line_client::exchange(server.into(), line).expect("valid clients connect and are answered");
}

fn flood(network: &TestNetwork, server: SocketAddrV4) {
    network.enter_clients();
    SynGenerator::new(server, unused_addresses()).flood(60);
}

/// Rows 3.7, 3.9, 3.10: all valid clients connect during a flood; the backlog is raised while it lasts and lowered
/// afterwards; each interpreter's script is called at its begin and end; no accept is caused by a SYN.
fn a_flood_harms_nothing(driver: &'static str, name: &str) {
    let Some(network) = TestNetwork::enter(name) else { return };
    network.set_server_parameter("net/core/somaxconn", BACKLOG_MAX);
    let mut server = ScriptServer::start(
        driver,
        r#"
        await {[floods flood_now]}
        await {[lindex [fconfigure $listener -backlog] 0] == 512}
        check "raises" [expr {[floods raises] >= 3}] 1
        check "cookies" [expr {[floods cookies_sent] > 0}] 1
        # The configured backlog is where it returns to.
        fconfigure $listener -backlog 100
        check "still raised" [lindex [fconfigure $listener -backlog] 0] 512
        vwait ::finished
        await {[lindex [fconfigure $listener -backlog] 0] == 100}
        foreach {key value} {floods 1 flood_now 0 lowers 1} { check $key [floods $key] $value }
        set of [lindex [floods listeners] 0]
        check "of the listener" [dict get $of configured] 100
        check "its address" "[dict get $of address] [dict get $of port]" "10.77.0.1 [port_of $listener]"
        check "accepts" $::accepts 61
        check "sockets open" [dict get [stilling::stats] sockets_open] 1
        check "accepted" [dict get [stilling::stats] accepted] 61
        interp delete other
        stilling::onflood {}
        check "no script" [stilling::onflood] {}
        "#,
    );
    let address = server.address;
    thread::scope(|scope| {
        scope.spawn(|| flood(&network, address));
        network.in_clients(|| {
            for number in 0..CLIENTS {
                exchange(address, &number.to_string());
                thread::sleep(Duration::from_millis(50));
            }
        });
        let mut began = [server.line(), server.line()];
        began.sort();
        assert!(began[0].starts_with("a began unanswered ") && began[0].ends_with(" cookies 1"), "{began:?}");
        assert!(began[1].starts_with("other began unanswered "), "{began:?}");
    });
    let mut ended = [server.line(), server.line()];
    ended.sort();
    assert!(ended[0].starts_with("a ended lasted_ms "), "{ended:?}");
    assert!(ended[1].starts_with("other ended lasted_ms "), "{ended:?}");
    network.in_clients(|| exchange(address, "finish"));
    server.end();
}

#[test]
fn a_flood_harms_nothing_on_poll() {
    a_flood_harms_nothing("poll", "floods::a_flood_harms_nothing_on_poll");
}

#[test]
fn a_flood_harms_nothing_on_uring() {
    a_flood_harms_nothing("uring", "floods::a_flood_harms_nothing_on_uring");
}

#[test]
fn a_flood_harms_nothing_on_direct() {
    a_flood_harms_nothing("direct", "floods::a_flood_harms_nothing_on_direct");
}

/// Clients that connect at once while the script is busy.
const BURST: usize = 400;

/// Row 3.9: a burst of clients at a busy script is no flood, but raises the backlog; all clients are served.
#[test]
fn a_burst_raises_the_backlog_without_alarm() {
    let Some(network) = TestNetwork::enter("floods::a_burst_raises_the_backlog_without_alarm") else {
        return;
    };
    network.set_server_parameter("net/core/somaxconn", BACKLOG_MAX);
    for driver in crate::harness::DRIVERS {
        let mut server = ScriptServer::start(
            driver,
            r#"
            vwait ::accepts
            puts busy
            # Nothing is accepted meanwhile.
            after 1500
            vwait ::finished
            check "accepts" $::accepts 402
            foreach {key value} {floods 0 flood_now 0} { check $key [floods $key] $value }
            check "raises" [expr {[floods raises] >= 1}] 1
            check "queue" [expr {[dict get [lindex [floods listeners] 0] queue_max] >= 64}] 1
            "#,
        );
        let address = server.address;
        network.in_clients(|| exchange_begun(address));
        assert_eq!(server.line(), "busy");
        network.in_clients(|| {
            thread::scope(|scope| {
                for _ in 0..BURST {
                    scope.spawn(|| {
                        network.enter_clients();
                        exchange(address, "x");
                    });
                }
            });
            exchange(address, "finish");
        });
        server.end();
    }
}

/// Connects, and closes without an answer.
fn exchange_begun(server: SocketAddrV4) {
    drop(TcpStream::connect_timeout(&server.into(), HANG_TIMEOUT).expect("it connects"));
}

/// Every listening socket is watched from its opening to its close, and a closed listener refuses at once.
#[test]
fn listeners_are_watched_until_they_are_closed() {
    run_on_all(
        r#"
        proc watched {} { dict get [stilling::stats] floods listeners }
        for {set i 0} {$i < 20} {incr i} {
            set listener [socket2 -server list -myaddr 127.0.0.1 0]
            set port [port_of $listener]
            check "one is watched" [llength [watched]] 1
            check "its port" [dict get [lindex [watched] 0] port] $port
            fconfigure $listener -backlog 77
            check "configured" [dict get [lindex [watched] 0] configured] 77
            check "in effect" [fconfigure $listener -backlog] {77 0}
            close $listener
            check "refused" [catch {socket2 127.0.0.1 $port} message] 1
            check "none is watched" [watched] {}
        }
        stilling::install
        set both [socket -server list 0]
        check "one per address family" [llength [watched]] [expr {[llength [fconfigure $both -sockname]] / 3}]
        close $both
        "#,
    );
}

/// A listener that moves to another thread keeps its registration and its counts.
#[test]
fn a_listener_is_watched_across_threads() {
    run_on_all(
        r#"
        package require Thread
        proc watched {} { dict get [stilling::stats] floods listeners }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        fconfigure $listener -backlog 300
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        thread::send $worker {proc accept {channel host port} { puts $channel moved; close $channel }}
        thread::transfer $worker $listener
        check "watched" [dict get [lindex [watched] 0] configured] 300
        thread::send $worker [list fconfigure $listener -backlog 200]
        check "by the other thread" [dict get [lindex [watched] 0] backlog] 200
        thread::send $worker [list close $listener]
        check "refused" [catch {socket2 127.0.0.1 $port}] 1
        check "none is watched" [watched] {}
        thread::release $worker
        "#,
    );
}

/// The command's errors.
#[test]
fn onflood_checks_its_words() {
    run_on_all(
        r#"
        check "none" [stilling::onflood] {}
        check "too many" [catch {stilling::onflood a b} message] 1
        check "its text" $message {wrong # args: should be "stilling::onflood ?script?"}
        interp create child
        load $::library Stilling child
        child eval {stilling::onflood {puts x}}
        check "one per interpreter" [stilling::onflood] {}
        interp delete child
        "#,
    );
}
