//! Options of `socket2`, and what `socket` shows of them.

use crate::harness::run_on_all;

/// Row 3.8: the accept queue's maximum can be changed while the listener is live.
#[test]
fn the_backlog_is_live() {
    run_on_all(
        r#"
        set listener [socket2 -server list -myaddr 127.0.0.1 0]
        fconfigure $listener -backlog 300
        check "backlog" [fconfigure $listener -backlog] {300 0}
        check "a short one" [catch {fconfigure $listener -backlog 5} message] 1
        check "its text" $message "only a positive integer not less than 20 is recommended"
        check "it is set" [fconfigure $listener -backlog] {5 0}
        check "zero" [catch {fconfigure $listener -backlog 0}] 1
        check "no number" [catch {fconfigure $listener -backlog many}] 1
        check "unchanged" [fconfigure $listener -backlog] {5 0}
        "#,
    );
}

/// Row 3.31: options of a listener are those of its connections.
#[test]
fn connections_inherit_options() {
    run_on_all(
        r#"
        proc accept {channel host port} { set ::accepted $channel }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        fconfigure $listener -keepalive 1 -nagle 0 -sendcap 7 -recvmode {burst-detection 20 30}
        set client [socket2 127.0.0.1 [port_of $listener]]
        wait accepted
        check "-keepalive" [fconfigure $::accepted -keepalive] 1
        check "-nagle" [fconfigure $::accepted -nagle] 0
        check "-sendcap" [fconfigure $::accepted -sendcap] {7 0}
        check "-recvmode" [fconfigure $::accepted -recvmode] {burst-detection 20 1 30 0}
        check "defaults" [list [fconfigure $client -keepalive] [fconfigure $client -nagle] \
            [fconfigure $client -sendcap] [fconfigure $client -recvmode]] {0 1 {20 0} zero-byte}
        "#,
    );
}

/// Row 3.31: unsent sends are limited to the cap, and the writer waits for room.
#[test]
fn the_send_cap_limits_unsent_data() {
    run_on_all(
        r#"
        proc accept {channel host port} { set ::accepted $channel }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        wait accepted
        fconfigure $client -sendcap 3 -blocking 0 -buffersize 4096 -translation binary
        puts -nonewline $client [string repeat x 20000000]
        # Until the receive window of the peer is closed.
        while {[lindex [fconfigure $client -sendcap] 1] < 3} { after 1; update }
        lassign [fconfigure $client -sendcap] cap in_use
        check "cap" $cap 3
        check "in use" $in_use 3
        fconfigure $::accepted -blocking 0 -translation binary
        set ::count 0
        fileevent $::accepted readable {
            incr ::count [string length [read $::accepted]]
            if {$::count >= 20000000} { set ::done $::count }
        }
        check "everything arrives" [wait done] 20000000
        "#,
    );
}

/// Rows 3.21, 3.22, 3.15: every receive mode delivers all bytes in order, and holds nothing afterwards.
#[test]
fn every_receive_mode_delivers_everything() {
    run_on_all(
        r#"
        foreach mode {zero-byte flow-controlled {burst-detection 20 30}} {
            proc accept {channel host port} {
                fconfigure $channel -blocking 0 -translation binary
                fileevent $channel readable [list collect $channel]
            }
            proc collect {channel} {
                append ::received [read $channel 1000]
                if {[eof $channel]} { close $channel; set ::done 1 }
            }
            set ::received {}
            set sent {}
            for {set i 0} {$i < 20000} {incr i} { append sent "line $i\n" }
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            fconfigure $listener -recvmode $mode
            set client [socket2 127.0.0.1 [port_of $listener]]
            fconfigure $client -translation binary -blocking 0
            puts -nonewline $client $sent
            close $client
            check "the end in $mode" [wait done] 1
            check "the bytes in $mode" [expr {$::received eq $sent}] 1
            close $listener
            check "special pool after $mode" [lindex [split [iocp_stats] \n] 4] "Special pool bytes in use: 0"
        }
        "#,
    );
}

/// Rows 3.21, 3.23: a script that does not read stops the sender; what is received ahead is bounded.
#[test]
fn receiving_ahead_is_bounded() {
    run_on_all(
        r#"
        foreach {mode bound} {zero-byte 0 flow-controlled 4096 {burst-detection 20 5} 20480} {
            proc accept {channel host port} { set ::accepted $channel }
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            fconfigure $listener -recvmode $mode
            set client [socket2 127.0.0.1 [port_of $listener]]
            fconfigure $client -translation binary -blocking 0 -sendcap 1
            wait accepted
            puts -nonewline $client [string repeat x 30000000]
            for {set i 0} {$i < 50} {incr i} { after 2; update }
            set held [lindex [split [iocp_stats] \n] 4 end]
            check "held in $mode: $held" [expr {$held <= $bound}] 1
            check "the sender is stopped" [lindex [fconfigure $client -sendcap] 1] 1
            close $::accepted
            catch {close $client}
            close $listener
        }
        "#,
    );
}

/// Bad values have clear errors and change nothing.
#[test]
fn bad_values_are_refused() {
    run_on_all(
        r#"
        set listener [socket2 -server list -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        foreach {name value} {
            -keepalive maybe -nagle 7x -sendcap 0 -sendcap -1 -sendcap x
            -recvmode fast -recvmode {burst-detection 1} -recvmode {burst-detection 0 1} -recvmode "\{"
        } {
            check "$name $value" [catch {fconfigure $client $name $value} message] 1
            check "$name $value has a message" [expr {$message ne ""}] 1
        }
        check "unchanged" [fconfigure $client -recvmode] zero-byte
        check "unknown" [catch {fconfigure $client -bogus} message] 1
        # Tcl 9 has one more option for every channel.
        set message [string map {"-profile, " ""} $message]
        check "its text" $message {bad option "-bogus": should be one of -blocking, -buffering, -buffersize, -encoding, -eofchar, -translation, -keepalive, -nagle, -sendcap, -recvmode, -peername, or -sockname}
        "#,
    );
}

/// The form that replaces the core's command lists what the core lists, and has the other options by name.
#[test]
fn the_core_form_hides_the_other_options() {
    run_on_all(
        r#"
        set core_listener [socket -server list -myaddr 127.0.0.1 0]
        set core_client [socket 127.0.0.1 [port_of $core_listener]]
        stilling::install
        set listener [socket -server list -myaddr 127.0.0.1 0]
        set client [socket 127.0.0.1 [port_of $listener]]
        check "listener" [dict keys [fconfigure $listener]] [dict keys [fconfigure $core_listener]]
        check "client" [dict keys [fconfigure $client]] [dict keys [fconfigure $core_client]]
        check "by name" [fconfigure $client -recvmode] zero-byte
        check "unknown" [catch {fconfigure $client -bogus} message] 1
        check "unknown to the core" [catch {fconfigure $core_client -bogus} expected] 1
        check "its text" $message $expected
        "#,
    );
}
