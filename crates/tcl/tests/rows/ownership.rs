//! Channels that change their thread or end while their own script runs, and their handles.

use crate::harness::run_on_all;

/// A channel that its own event script passes to another thread is served there.
#[test]
fn a_script_may_pass_its_own_channel_to_a_thread() {
    run_on_all(
        r#"
        package require Thread
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        thread::send $worker {
            proc serve {channel} {
                fconfigure $channel -blocking 0 -buffering line
                fileevent $channel readable [list answer $channel]
            }
            proc answer {channel} {
                if {[gets $channel line] >= 0} { puts $channel "thread $line" }
            }
        }
        proc accept {channel host port} {
            fconfigure $channel -blocking 0 -buffering line
            fileevent $channel readable [list pass $channel]
        }
        proc pass {channel} {
            gets $channel
            fileevent $channel readable {}
            thread::transfer $::worker $channel
            thread::send -async $::worker [list serve $channel]
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        for {set round 0} {$round < 20} {incr round} {
            set client [socket2 127.0.0.1 [port_of $listener]]
            fconfigure $client -buffering line -blocking 0
            puts $client first
            fileevent $client readable {set ::got [gets $client]}
            update
            puts $client second
            check "the answer of the thread" [wait got] "thread second"
            close $client
        }
        thread::release $worker
        "#,
    );
}

/// A listener in another thread runs nothing in its former one. Here the new interpreter does not know the procedure, so
/// the connections are closed.
#[test]
fn a_listener_that_moved_leaves_its_former_thread_alone() {
    run_on_all(
        r#"
        package require Thread
        proc accept {args} { incr ::accepted }
        set ::accepted 0
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        # It waits for its script when the listener moves.
        set early [socket2 127.0.0.1 $port]
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        thread::transfer $worker $listener
        set late [socket2 127.0.0.1 $port]
        foreach client [list $early $late] {
            fconfigure $client -blocking 0
            fileevent $client readable [list check_end $client]
        }
        proc check_end {client} {
            if {[read $client] eq "" && [eof $client]} { close $client; incr ::ended; set ::one 1 }
        }
        set ::ended 0
        while {$::ended < 2} { wait one }
        check "scripts run in the former thread" $::accepted 0
        thread::release $worker
        "#,
    );
}

/// A connect that will not end holds up neither `close` nor `exit`.
#[test]
fn a_pending_connect_can_be_closed() {
    run_on_all(
        r#"
        # A full backlog: further connects stay pending.
        set stuck [open |[list python3 -c "
import socket, sys
s = socket.socket()
s.bind(('127.0.0.1', 0))
s.listen(0)
print(s.getsockname()\[1\], flush=True)
sys.stdin.read()
"] r+]
        set port [gets $stuck]
        for {set i 0} {$i < 4} {incr i} { lappend clients [socket2 -async 127.0.0.1 $port] }
        update
        set pending 0
        foreach client $clients { incr pending [fconfigure $client -connecting] }
        check "some are pending" [expr {$pending > 0}] 1
        foreach client $clients { close $client }
        # And one at exit.
        for {set i 0} {$i < 4} {incr i} { socket2 -async 127.0.0.1 $port }
        "#,
    );
}

/// `exec` gets a usable descriptor, which waits as the script's channel does.
#[test]
fn a_program_can_use_the_descriptor() {
    run_on_all(
        r#"
        proc accept {channel host port} {
            after 100 [list puts -nonewline $channel hello]
            after 101 [list flush $channel]
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        set reader [open "|head -c 5 <@$client"]
        fileevent $reader readable {set ::got [read $reader]}
        check "read by the program" [wait got] hello
        close $reader
        close $client
        "#,
    );
}

/// A raised `-sendcap` takes effect on a socket that has reached the lower one.
#[test]
fn a_raised_send_cap_takes_effect() {
    run_on_all(
        r#"
        proc accept {channel host port} { set ::accepted $channel }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        wait accepted
        fconfigure $client -sendcap 1 -blocking 0 -buffersize 4096 -translation binary
        puts -nonewline $client [string repeat x 20000000]
        while {[lindex [fconfigure $client -sendcap] 1] < 1} { after 1; update }
        fconfigure $client -sendcap 9
        while {[lindex [fconfigure $client -sendcap] 1] < 9} { after 1; update }
        close $::accepted
        "#,
    );
}

/// A safe interpreter has no sockets until its parent exposes them.
#[test]
fn a_safe_interpreter_gets_sockets_from_its_parent_only() {
    run_on_all(
        r#"
        set child [interp create -safe]
        load $library Stilling $child
        check "hidden" [catch {$child eval {socket2 127.0.0.1 1}} message] 1
        check "its text" $message {invalid command name "socket2"}
        check "no other way" [$child eval {info commands stilling::*}] {}
        $child expose socket2
        check "exposed" [catch {$child eval {socket2 127.0.0.1 1}} message] 1
        check "its text" $message {couldn't open socket: connection refused}
        "#,
    );
}
