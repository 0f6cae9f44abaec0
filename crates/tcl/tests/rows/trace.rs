//! The trace of socket events: `stilling::trace`.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use socket2::SockRef;

use crate::harness::{DRIVERS, finish, run_on_all, start_on, start_wrapped};

/// `log` collects lines without their times; `expect` waits for a line that matches.
const PRELUDE: &str = r#"
set ::lines {}
proc log {line} {
    check "a time" [regexp {^\d+\.\d{6} (.*)$} $line -> rest] 1
    lappend ::lines $rest
}
proc expect {pattern} {
    for {set i 0} {$i < 2000} {incr i} {
        set at [lsearch $::lines $pattern]
        if {$at >= 0} { set line [lindex $::lines $at]; set ::lines [lreplace $::lines $at $at]; return $line }
        after 5 {set ::tick 1}
        vwait ::tick
    }
    puts stderr "no line $pattern in:\n[join $::lines \n]"
    exit 1
}
"#;

fn run_traced(script: &str) {
    run_on_all(&format!("{PRELUDE}\n{script}"));
}

/// Row 3.33: the events of listeners, connections and UDP sockets, with the reasons of their ends.
#[test]
fn every_event_has_a_line() {
    run_traced(
        r#"
        set ::accepted {}
        proc accept {channel host port} { lappend ::accepted $channel }
        proc await_accepted {count} {
            while {[llength $::accepted] < $count} { after 5 {set ::tick 1}; vwait ::tick }
        }
        stilling::trace log
        check "what is set" [stilling::trace] log
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        expect "open $listener listening at 127.0.0.1:$port"
        set client [socket2 127.0.0.1 $port]
        await_accepted 1
        expect "connect - to 127.0.0.1:$port"
        expect "connected -"
        expect "open $client to 127.0.0.1 $port, connected"
        expect "accept [lindex $::accepted 0] from 127.0.0.1:* by $listener"
        fconfigure $listener -backlog 77
        expect "backlog $listener 77, by the script"
        close $client
        expect "close $client by this side"
        after 20 {set ::slept 1}
        wait slept
        close [lindex $::accepted 0]
        expect "close [lindex $::accepted 0] the peer had ended"
        set client [socket2 -async 127.0.0.1 $port]
        fileevent $client writable {set ::connected 1}
        expect "open $client to 127.0.0.1 $port, connecting"
        expect "connected $client"
        await_accepted 2
        puts [lindex $::accepted 1] unread
        flush [lindex $::accepted 1]
        after 20 {set ::slept 1}
        wait slept
        close $client
        after 20 {set ::slept 1}
        wait slept
        close [lindex $::accepted 1]
        expect "close [lindex $::accepted 1] the connection had ended or was reset"
        close $listener
        expect "close $listener 0 accepted connections had no script yet"
        check "refused" [catch {socket2 127.0.0.1 $port}] 1
        expect "connect-failed - to 127.0.0.1:$port: connection refused"
        set client [socket2 -async 127.0.0.1 $port]
        expect "connect-failed $client to 127.0.0.1:$port: connection refused"
        close $client
        expect "close $client the connect had failed"
        set udp [socket2 -udp -myaddr 127.0.0.1]
        expect "open $udp at 127.0.0.1:[fconfigure $udp -myport]"
        set other [socket2 -udp 127.0.0.1 $port]
        expect "open $other at 127.0.0.1:*, connected to 127.0.0.1:$port"
        fconfigure $other -blocking 0
        puts -nonewline $other x
        after 20 {set ::slept 1}
        wait slept
        read $other
        expect "error $other connection refused"
        close $udp
        expect "close $udp"
        stilling::trace off
        check "off" [stilling::trace] off
        set ::lines {}
        close [socket2 -udp]
        after 20 {set ::slept 1}
        wait slept
        check "nothing more" $::lines {}
        "#,
    );
}

/// Row 3.36: a connection that is reset before its script runs has a line, and no channel.
#[test]
fn a_dropped_connection_has_a_line() {
    for driver in DRIVERS {
        let script = format!(
            r#"{PRELUDE}
            set listener [socket2 -server unexpected -myaddr 127.0.0.1 0]
            stilling::trace log
            puts [port_of $listener]
            flush stdout
            # Connected and reset meanwhile.
            after 500
            expect "accept-dropped $listener the peer has gone"
            "#
        );
        let mut child = start_on(driver, &script);
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("the script prints its port");
        let client =
            TcpStream::connect(("127.0.0.1", line.trim().parse().expect("a port"))).expect("it listens");
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
        drop(client);
        finish(driver, child);
    }
}

/// Row 3.33: look-ups, and connections that move to another thread.
#[test]
fn lookups_and_moves_have_lines() {
    run_traced(
        r#"
        package require Thread
        stilling::trace log
        check "a look-up" [socket2 -lookup 127.0.0.1] 127.0.0.1
        expect "looked-up - 127.0.0.1: 127.0.0.1"
        socket2 -lookup localhost -command list
        expect "look-up - localhost"
        expect "looked-up - localhost: *127.0.0.1*"
        set listener [socket2 -server list -myaddr 127.0.0.1 0]
        set client [socket2 -async localhost [port_of $listener]]
        expect "look-up - localhost"
        expect "open $client looking up its host"
        expect "looked-up $client localhost: *127.0.0.1*"
        expect "connect $client to 127.0.0.1:[port_of $listener]"
        expect "connected $client"
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        check "of another thread" [thread::send $worker stilling::trace] off
        thread::send $worker {set ::lines {}; proc log {line} { lappend ::lines $line }}
        thread::send $worker {stilling::trace log}
        thread::transfer $worker $client
        expect "leave $client"
        thread::send $worker {after 20 {set ::slept 1}; vwait ::slept}
        check "in the other thread" [string match "* enter $client" [lindex [thread::send $worker {set ::lines}] 0]] 1
        thread::send $worker {set ::lines {}}
        thread::transfer $worker $listener
        expect "leave $listener"
        thread::send $worker {after 20 {set ::slept 1}; vwait ::slept}
        check "in the other thread" [string match "* enter $listener" [lindex [thread::send $worker {set ::lines}] 0]] 1
        thread::release $worker
        "#,
    );
}

/// Characters that Tcl encodes in its own way are so encoded in a line: it is equal to that of a script, byte by byte.
#[test]
fn lines_have_any_characters() {
    run_traced(
        r#"
        stilling::trace {lappend ::raw}
        # U+0000, and in Tcl 8.6 a character beyond U+FFFF, which is two there.
        foreach name [list "a\u0000b" [expr {[package vsatisfies [info patchlevel] 9] ? "\U1f600" : "\ud83d\ude00"}]] {
            set ::raw {}
            socket2 -lookup $name -command list
            while {[llength $::raw] < 2} { vwait ::raw }
            set line [lindex $::raw 0]
            check $line [string equal $line "[lindex [split $line] 0] look-up - $name"] 1
        }
        "#,
    );
}

/// A channel that is closed while its output is written in the background has one line, at the end; it is closed like any
/// other.
#[test]
fn a_close_with_unwritten_output_has_a_line() {
    run_traced(
        r#"
        set listener [socket2 -server {lappend ::accepted} -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        wait accepted
        set channel [lindex $::accepted 0]
        stilling::trace log
        fconfigure $channel -blocking 0 -translation binary
        puts -nonewline $channel [string repeat x 20000000]
        close $channel
        fconfigure $client -blocking 0 -translation binary
        fileevent $client readable {
            incr ::received [string length [read $client]]
            if {[eof $client]} { set ::ended $::received }
        }
        check "bytes" [wait ended] 20000000
        expect "close $channel by this side"
        check "no other line" $::lines {}
        check "detached" [dict get [stilling::stats] closed detached] 0
        "#,
    );
}

/// Row 3.33: a script that opens sockets is not called for them, and what waits for it is bounded.
#[test]
fn a_script_does_not_feed_itself() {
    run_traced(
        r#"
        set listener [socket2 -server list -myaddr 127.0.0.1 0]
        set ::calls 0
        set ::opened {}
        proc open_more {line} {
            incr ::calls
            lappend ::opened [socket2 -async 127.0.0.1 1] [socket2 -udp] [socket2 -server list -myaddr 127.0.0.1 0]
            catch {socket2 127.0.0.1 1}
            socket2 -lookup localhost -command {lappend ::looked_up}
        }
        stilling::trace open_more
        set udp [socket2 -udp]
        while {$::calls == 0} { after 1 {set ::tick 1}; vwait ::tick }
        foreach channel $::opened { catch {fconfigure $channel -error} }
        after 100 {set ::slept 1}
        wait slept
        check "the look-up is over" [info exists ::looked_up] 1
        check "one line, one call" $::calls 1
        foreach channel $::opened { close $channel }
        after 20 {set ::slept 1}
        wait slept
        check "no calls for them" $::calls 1
        # No script runs in a command; lines beyond the bound are counted.
        stilling::trace log
        for {set i 0} {$i < 800} {incr i} { close [socket2 -udp -myaddr 127.0.0.1] }
        check "no script in a command" $::lines {}
        expect "lost - 600 lines"
        check "the others" [llength $::lines] 1000
        # A script that waits for events.
        set ::lines {}
        proc waiting {line} { log $line; after 10 {set ::tick 1}; vwait ::tick }
        stilling::trace waiting
        close [socket2 -udp]
        expect "open udp*"
        expect "close udp*"
        check "nothing else" $::lines {}
        # One that fails is not called again.
        proc bgerror {message} { set ::background $message }
        stilling::trace {error "in script:"}
        close [socket2 -udp]
        check "background error" [wait background] "in script:"
        check "off" [stilling::trace] off
        # One that ends the trace, or replaces it.
        set ::calls 0
        stilling::trace {incr ::calls; stilling::trace off; list}
        close [socket2 -udp]
        after 20 {set ::slept 1}
        wait slept
        check "called once" $::calls 1
        # Its interpreter ends.
        set child [interp create]
        $child eval [list load $::library Stilling]
        $child eval {stilling::trace unknown}
        check "of the thread" [stilling::trace] unknown
        close [socket2 -udp]
        interp delete $child
        check "ends with the interpreter" [stilling::trace] off
        update
        check "usage" [list [catch {stilling::trace a b} message] $message] \
            {1 {wrong # args: should be "stilling::trace ?on|off|script?"}}
        # The thread ends while it is on, with lines that wait.
        stilling::trace log
        socket2 -udp
        "#,
    );
}

/// Row 3.33: on standard error lines appear at once.
#[test]
fn lines_go_to_standard_error() {
    for driver in DRIVERS {
        let script = r#"
            stilling::trace on
            check "what is set" [stilling::trace] on
            close [socket2 -server list -myaddr 127.0.0.1 0]
            exit 0
        "#;
        let output = start_on(driver, script).wait_with_output().expect("the script ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines.len(), 2, "on {driver}: {errors}");
        assert!(
            lines[0].starts_with("stilling: ") && lines[0].contains(" open iocp1 listening at 127.0.0.1:")
        );
        assert!(lines[1].contains(" close iocp1 "), "{errors}");
    }
}

/// Row 3.27: a lack of descriptors has a line.
#[test]
fn a_lack_of_descriptors_has_a_line() {
    for driver in ["poll", "uring"] {
        let script = format!(
            r#"{PRELUDE}
            set ::accepted 0
            proc accept {{channel host port}} {{ incr ::accepted }}
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            stilling::trace log
            set clients [open |[list [info nameofexecutable]] r+]
            fconfigure $clients -buffering line
            puts $clients "for {{set i 0}} {{\$i < 100}} {{incr i}} {{ lappend all \[socket 127.0.0.1 [port_of $listener]\] }}"
            expect "accept-* - *descriptors"
            puts $clients exit
            "#
        );
        let limited = ["sh", "-c", "ulimit -n 60 && exec \"$@\"", "sh"];
        finish(driver, start_wrapped(driver, &limited, &script));
    }
}
