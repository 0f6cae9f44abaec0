//! Many connections: what waits for a script is bounded, and memory returns.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Child;

use stilling_probe::HANG_TIMEOUT;

use crate::harness::{DRIVERS, finish, run_on, start_wrapped};
use crate::peer::ScriptedPeer;

/// A script that waits, without its event loop, as often as the test says.
struct SteppedScript {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    control: TcpStream,
}

impl SteppedScript {
    /// In the script, `pause TEXT` prints a line and blocks until [`resume`](Self::resume).
    fn start(driver: &str, script: &str) -> SteppedScript {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let prelude = format!(
            "set control [socket 127.0.0.1 {port}]\n\
             proc pause {{text}} {{ puts $text; flush stdout; gets $::control }}\n"
        );
        let mut child = start_wrapped(driver, &[], &(prelude + script));
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (control, _) = listener.accept().expect("the script connects");
        SteppedScript { child, output, control }
    }

    /// The text of the script's next pause.
    #[track_caller]
    fn pause(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    fn resume(&mut self) {
        self.control.write_all(b"\n").expect("the script waits");
    }

    #[track_caller]
    fn finish(self, driver: &str) {
        finish(driver, self.child);
    }
}

fn last_number(line: &str) -> usize {
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn connect(port: &str) -> TcpStream {
    let port: u16 = port.parse().expect("the script printed its port");
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the script listens");
    stream.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes a timeout");
    stream
}

/// Row 3.28: clients connect and send while a script runs for long; nothing of that waits for it.
#[test]
fn clients_connect_while_a_script_runs() {
    for driver in DRIVERS {
        let script = r#"
            proc accept {channel host port} {
                fconfigure $channel -blocking 0 -buffering line
                fileevent $channel readable [list answer $channel]
            }
            proc answer {channel} {
                if {[gets $channel line] >= 0} { puts $channel "answer $line" }
                if {[eof $channel]} { close $channel; if {[incr ::closed] == 100} { set ::done 1 } }
            }
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            # Neither `update` nor `vwait`: the shard has had no turn since it began to listen.
            pause [port_of $listener]
            check "all clients" [wait done] 1
        "#;
        let mut script = SteppedScript::start(driver, script);
        let port = script.pause();
        let mut clients: Vec<TcpStream> = (0..100).map(|_| connect(&port)).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(format!("client {number}\n").as_bytes()).expect("it is connected");
        }
        script.resume();
        for (number, client) in clients.into_iter().enumerate() {
            let mut line = String::new();
            let mut reader = BufReader::new(client);
            reader.read_line(&mut line).expect("an answer");
            assert_eq!(line.trim_end(), format!("answer client {number}"), "on {driver}");
        }
        script.finish(driver);
    }
}

/// Row 3.6: connections are accepted ahead of a slow script, up to a bound; the others wait in the system's queue, and
/// all are served. A ring accepts what is in that queue before it stops, and nothing after that.
#[test]
fn connections_accepted_ahead_are_bounded() {
    for driver in DRIVERS {
        let script = r#"
            set ::count 0
            set ::most 0
            proc accept {channel host port} {
                set ::most [expr {max($::most, [lindex [iocp_stats] 2])}]
                puts -nonewline $channel x
                close $channel
                incr ::count
            }
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            pause [port_of $listener]
            stilling::trace {apply {{line} {
                if {[string match *accept-paused* $line]} { lappend ::lines $line }
            }}}
            while {![info exists lines]} { vwait count }
            stilling::trace off
            # The pause itself is counted; the trace has it, too.
            check "pauses" [dict get [stilling::stats] accept_pauses] 1
            check "lines" [lsearch -inline $lines "*accept-paused - 1 times: no room*"] [lindex $lines 0]
            check "a line" [llength $lines] 1
            pause "accepted ahead: [dict get [stilling::stats] accepted]"
            while {$::count < 100} { vwait count }
            pause "accepted later: [dict get [stilling::stats] accepted]"
            while {$::count < 1700} { vwait count }
            if {[dict get [stilling::stats] driver] eq "poll"} {
                check "most sockets at a time: $::most" [expr {$::most > 400 && $::most < 800}] 1
            }
            check "sockets" [lindex [iocp_stats] 2] 1
        "#;
        let mut script = SteppedScript::start(driver, script);
        let port = script.pause();
        let mut clients: Vec<TcpStream> = (0..1500).map(|_| connect(&port)).collect();
        script.resume();
        let ahead = script.pause();
        let bounds = if driver == "poll" { 400..800 } else { 512..1501 };
        assert!(bounds.contains(&last_number(&ahead)), "on {driver}: {ahead}");
        clients.extend((0..200).map(|_| connect(&port)));
        script.resume();
        let later = script.pause();
        assert_eq!(last_number(&later), last_number(&ahead), "on {driver}");
        script.resume();
        for mut client in clients {
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).expect("an answer");
            assert_eq!(answer, b"x", "on {driver}");
        }
        script.finish(driver);
    }
}

/// Row 3.15: after traffic, idle connections hold no more than before it, in every mode; what Tcl keeps per channel is
/// one buffer of `-buffersize`.
#[test]
fn memory_returns_after_traffic() {
    for driver in DRIVERS {
        let peer = ScriptedPeer::start();
        let script = r#"
            proc resident {} {
                set file [open /proc/self/status]
                regexp {VmRSS:\s+(\d+)} [read $file] -> kilobytes
                close $file
                return $kilobytes
            }
            proc accept {channel host port} {
                fconfigure $channel -blocking 0 -translation binary -buffersize 1000
                fileevent $channel readable [list collect $channel]
                incr ::accepted
            }
            proc collect {channel} { incr ::received [string length [read $channel]] }
            set count 200
            foreach mode {zero-byte flow-controlled {burst-detection 20 30}} {
                set ::accepted 0
                set ::received 0
                set listener [socket2 -server accept -myaddr 127.0.0.1 0]
                fconfigure $listener -recvmode $mode
                for {set i 0} {$i < $count} {incr i} { peer connect c$i [port_of $listener] }
                while {$::accepted < $count} { vwait ::accepted }
                set pools [lrange [split [iocp_stats] \n] 3 4]
                set before [resident]
                for {set i 0} {$i < $count} {incr i} { peer write c$i 60000 }
                while {$::received < $count * 60000} { vwait ::received }
                check "the pools in mode $mode" [lrange [split [iocp_stats] \n] 3 4] $pools
                # 12 MB went through. Their memory is returned by the event loop, at most once per second.
                for {set i 0} {$i < 100 && [resident] - $before >= 1000} {incr i} {
                    after 50 {set ::waited 1}
                    wait waited
                }
                set growth [expr {[resident] - $before}]
                check "growth in kilobytes in mode $mode: $growth" [expr {$growth < 1000}] 1
                for {set i 0} {$i < $count} {incr i} { peer close c$i }
                foreach channel [file channels iocp*] { close $channel }
            }
        "#;
        run_on(driver, &format!("{}{script}", peer.prelude));
        peer.join();
    }
}
