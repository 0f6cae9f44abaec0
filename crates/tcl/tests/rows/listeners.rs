//! Listeners: their scripts, their order, their bad input.

use crate::harness::run_on_all;

/// Row 3.35: accepts and other events take turns, one accept per turn.
#[test]
fn accepts_take_turns_with_other_events() {
    run_on_all(
        r#"
        set ::order {}
        proc accept {channel host port} {
            lappend ::order accept
            after 0 [list lappend ::order timer]
            lappend ::channels $channel
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        for {set i 0} {$i < 10} {incr i} {
            lappend ::clients [socket2 127.0.0.1 [port_of $listener]]
        }
        update
        check "all ten are accepted in one update" [llength [lsearch -all $::order accept]] 10
        check "three accepts in a row" [regexp {accept accept accept} [join $::order]] 0
        "#,
    );
}

/// Row 3.36: a connection that is gone before its script runs never reaches the script.
#[test]
fn connections_that_are_gone_do_not_reach_the_script() {
    run_on_all(
        r#"
        proc accept {channel host port} { lappend ::accepted $channel }
        set ::accepted {}
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        set resetting [open |[list python3 -c "
import socket, struct
for _ in range(5):
    s = socket.create_connection(('127.0.0.1', $port))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    s.close()
"]]
        read $resetting
        close $resetting
        update
        check "scripts run for duds" $::accepted {}
        set client [socket2 127.0.0.1 $port]
        update
        check "a live one is accepted" [llength $::accepted] 1
        "#,
    );
}

/// A script that fails is reported, and its connection closed; the listener goes on.
#[test]
fn a_failing_script_costs_its_own_connection_only() {
    run_on_all(
        r#"
        proc bgerror {message} { set ::reported $message }
        proc accept {channel host port} {
            if {![info exists ::reported]} { error "no" }
            set ::accepted $channel
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set first [socket2 127.0.0.1 [port_of $listener]]
        check "the report" [wait reported] no
        fconfigure $first -blocking 0
        fileevent $first readable { if {[read $first] eq "" && [eof $first]} { set ::closed 1 } }
        check "the connection is closed" [wait closed] 1
        set second [socket2 127.0.0.1 [port_of $listener]]
        wait accepted
        "#,
    );
}

/// A listener that its own script closes refuses the next connection; the accepted one lives.
#[test]
fn a_script_may_close_its_listener() {
    run_on_all(
        r#"
        proc accept {channel host port} {
            close $::listener
            fconfigure $channel -buffering none
            puts -nonewline $channel alive
            set ::accepted $channel
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        set client [socket2 127.0.0.1 $port]
        wait accepted
        check "the next one" [catch {socket2 127.0.0.1 $port} message] 1
        check "its error" $message "couldn't open socket: connection refused"
        check "the accepted one" [read $client 5] alive
        "#,
    );
}

/// An interpreter is deleted with its listener and connections open: other interpreters go on.
#[test]
fn an_interpreter_may_be_deleted_with_open_sockets() {
    run_on_all(
        r#"
        interp create other
        other eval [list load $library Stilling]
        other eval {
            proc accept {args} {}
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        }
        set port [other eval {lindex [fconfigure $listener -sockname] 2}]
        set client [socket2 127.0.0.1 $port]
        interp delete other
        update
        check "its listener is closed" [catch {socket2 127.0.0.1 $port}] 1
        fconfigure $client -blocking 0
        fileevent $client readable { if {[read $client] eq "" && [eof $client]} { set ::closed 1 } }
        check "its connection is closed" [wait closed] 1
        check "sockets open" [lindex [iocp_stats] 2] 1
        close $client
        check "sockets open" [lindex [iocp_stats] 2] 0
        "#,
    );
}

/// Row 3.2: the five counts, as text and as rows of a table.
#[test]
fn iocp_stats_has_five_counts_in_two_forms() {
    run_on_all(
        r#"
        set keys {
            {Sockets open:} {AcceptEx calls that returned an error:} {Unreplaced AcceptEx calls:}
            {General pool bytes in use:} {Special pool bytes in use:}
        }
        set lines [lrange [split [iocp_stats] \n] 0 end-1]
        set rows [lrange [split [iocp_stats 1] \n] 0 end-1]
        check "lines" [llength $lines] 5
        check "rows" [llength $rows] 5
        foreach key $keys line $lines row $rows {
            check "line $key" [regexp "^$key \[0-9\]+\$" $line] 1
            check "row $key" [regexp "^<tr><td>$key</td><td>\[0-9\]+</td></tr>\$" $row] 1
        }
        check "bad boolean" [catch {iocp_stats maybe} message] 1
        check "its text" $message {expected boolean value but got "maybe"}
        "#,
    );
}

/// In Tcl 9, a negative `-backlog` is the system's maximum, as in the core; the watch does not lower it.
#[test]
fn a_negative_backlog_is_the_maximum() {
    run_on_all(
        r#"
        if {![package vsatisfies [info patchlevel] 9]} exit
        stilling::install
        set listeners [list [socket -server list -myaddr 127.0.0.1 0] [socket -server list -backlog -1 -myaddr 127.0.0.1 0]]
        foreach report [dict get [stilling::stats] floods listeners] { lappend configured [dict get $report configured] }
        check "both are alike" [lindex $configured 0] [lindex $configured 1]
        check "not 0" [expr {[lindex $configured 1] > 0}] 1
        "#,
    );
}

/// The listening sockets of a thread are bounded; the error says so.
#[test]
fn the_listeners_of_a_thread_are_bounded() {
    run_on_all(
        r#"
        while {![catch {socket2 -server list -myaddr 127.0.0.1 0} result]} { lappend listeners $result }
        check "listeners" [llength $listeners] 1024
        check "its text" $result "couldn't open socket: a thread has at most 1024 listening sockets"
        close [lindex $listeners 0]
        close [socket2 -server list -myaddr 127.0.0.1 0]
        "#,
    );
}
