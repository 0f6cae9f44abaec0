//! Connections: both sides, ends, half-close, threads.

use crate::harness::run_on_all;

/// Row 3.3: listener, accepted and outgoing connections.
#[test]
fn both_sides_exchange_lines() {
    run_on_all(
        r#"
        proc accept {channel host port} {
            fconfigure $channel -blocking 0 -buffering line
            fileevent $channel readable [list echo $channel]
        }
        proc echo {channel} {
            if {[gets $channel line] >= 0} {
                puts $channel "echo $line"
            } elseif {[eof $channel]} {
                close $channel
                set ::closed 1
            }
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        fconfigure $client -blocking 0 -buffering line
        fileevent $client readable {set ::got [gets $client]}
        puts $client hello
        check "answer" [wait got] "echo hello"
        close $client
        check "the server sees the end" [wait closed] 1
        "#,
    );
}

/// Row 3.32: the end of the stream and unread data are reported until they are served.
#[test]
fn the_end_and_unread_data_repeat() {
    run_on_all(
        r#"
        proc accept {channel host port} {
            puts -nonewline $channel abc
            close $channel
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        fconfigure $client -blocking 0
        set count 0
        fileevent $client readable { if {[incr count] == 20} { set ::unread 1 } }
        check "unread data repeats" [wait unread] 1
        check "the data" [read $client] abc
        set count 0
        fileevent $client readable { if {[incr count] == 20} { set ::ended 1 } }
        check "the end repeats" [wait ended] 1
        check "nothing follows" [read $client] {}
        check "it is the end" [eof $client] 1
        unset ::ended
        set count 0
        check "it still repeats" [wait ended] 1
        close $client
        "#,
    );
}

/// Row 3.33: half-close in both directions.
#[test]
fn one_direction_can_be_closed() {
    run_on_all(
        r#"
        proc accept {channel host port} {
            fconfigure $channel -blocking 0
            fileevent $channel readable [list collect $channel]
        }
        proc collect {channel} {
            append ::received [read $channel]
            if {[eof $channel]} {
                puts -nonewline $channel "got $::received"
                close $channel
            }
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        puts -nonewline $client request
        chan close $client write
        fconfigure $client -blocking 0
        fileevent $client readable {
            append ::answer [read $client]
            if {[eof $client]} { set ::ended 1 }
        }
        check "the end arrives" [wait ended] 1
        check "the answer" $::answer "got request"
        close $client
        "#,
    );
}

/// Row 3.30: errors in both forms.
#[test]
fn errors_have_a_code_and_a_text() {
    run_on_all(
        r#"
        set listener [socket2 -server list -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        close $listener
        check "refused" [catch {socket2 127.0.0.1 $port} message] 1
        check "its text" $message "couldn't open socket: connection refused"
        check "its code" $::errorCode {POSIX ECONNREFUSED {connection refused}}
        set client [socket2 -async 127.0.0.1 $port]
        fileevent $client writable {set ::failed 1}
        wait failed
        fileevent $client writable {}
        check "-error of socket2" [fconfigure $client -error] {111 ECONNREFUSED {connection refused}}
        check "it is read once" [fconfigure $client -error] {}
        close $client
        stilling::install
        set client [socket -async 127.0.0.1 $port]
        fileevent $client writable {set ::failed_again 1}
        wait failed_again
        check "-error of socket" [fconfigure $client -error] {connection refused}
        close $client
        "#,
    );
}

/// Row 3.33: a connection moves to another thread with its unread data.
#[test]
fn a_connection_moves_between_threads() {
    run_on_all(
        r#"
        package require Thread
        proc accept {channel host port} { set ::accepted $channel }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        fconfigure $client -buffering line -blocking 0
        puts $client first
        wait accepted
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
        thread::transfer $worker $::accepted
        thread::send $worker [list serve $::accepted]
        fileevent $client readable {set ::got [gets $client]}
        check "data from before the move" [wait got] "thread first"
        puts $client second
        check "data from after the move" [wait got] "thread second"
        close $client
        thread::release $worker
        "#,
    );
}

/// A peer's reset reads as the end, as in Tcl's core.
#[test]
fn a_reset_reads_as_the_end() {
    run_on_all(
        r#"
        proc accept {channel host port} { close $channel }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        fconfigure $client -blocking 0 -buffering none
        # The peer closes with this unread, so the system resets the connection.
        puts $client unread
        fileevent $client readable { if {[read $client] eq "" && [eof $client]} { set ::ended 1 } }
        check "the end" [wait ended] 1
        close $client
        "#,
    );
}
