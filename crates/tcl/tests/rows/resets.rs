//! Peers that reset their connection in every state of it: results and errors are those of the core's own `socket`.

use crate::harness::{DRIVERS, run_on};
use crate::peer::ScriptedPeer;

/// `compare SCENARIO` runs a procedure with a new connection of each command, and compares what it returns: with the
/// core's `socket`, `socket` of the extension, and `socket2` in every receive mode.
///
/// Where a receive mode has read the reset, a write reports a broken pipe: both are one.
const COMPARE: &str = r#"
rename socket stock
stilling::install
proc bgerror {message} { lappend ::background_errors $message }
set background_errors {}
proc attempt {script} {
    if {![catch {uplevel 1 $script} result]} { return [list ok $result] }
    regsub -all {\m(sock|iocp)[0-9a-f]+} $result CHANNEL result
    return [list failed $result [lrange $::errorCode 0 1]]
}
proc same_fault {outcome} {
    string map {"connection reset by peer" FAULT "broken pipe" FAULT ECONNRESET FAULT EPIPE FAULT} $outcome
}
proc connect_to_peer {command mode} {
    set channel [$command 127.0.0.1 $::peer_port]
    peer accept a
    fconfigure $channel -translation binary
    if {$mode ne ""} { fconfigure $channel -recvmode $mode }
    return $channel
}
proc compare {scenario} {
    set expected [$scenario [connect_to_peer stock {}]]
    foreach {command mode} {
        socket {} socket2 {} socket2 flow-controlled socket2 {burst-detection 4 5}
    } {
        set actual [$scenario [connect_to_peer $command $mode]]
        check "$scenario with $command $mode" [same_fault $actual] [same_fault $expected]
        if {$command eq "socket" && $scenario ne "copied"} { check "$scenario: the same fault" $actual $expected }
    }
    # A close in the background may still be going on.
    for {set i 0} {$i < 5000 && [lindex [iocp_stats] 2] != 0} {incr i} { after 1; update }
    check "background errors of $scenario" $::background_errors {}
    check "open after $scenario" [lindex [iocp_stats] 2] 0
}
# Lets events happen that may not be awaited one by one.
proc settle {} { for {set i 0} {$i < 10} {incr i} { after 1; update } }
set long [string repeat x 20000000]
"#;

fn run_comparison(script: &str) {
    for driver in DRIVERS {
        let peer = ScriptedPeer::start();
        run_on(driver, &format!("{}{COMPARE}{script}", peer.prelude));
        peer.join();
    }
}

#[test]
fn idle_connections() {
    run_comparison(
        r#"
        proc then_read {channel} {
            peer reset a
            list [attempt {read $channel}] [eof $channel] [attempt {read $channel}] [attempt {close $channel}]
        }
        proc then_written {channel} {
            peer reset a
            list [attempt {puts $channel x}] [attempt {flush $channel}] [attempt {puts $channel x; flush $channel}] \
                [attempt {close $channel}]
        }
        proc then_half_closed {channel} {
            peer reset a
            list [attempt {chan close $channel write}] [attempt {chan close $channel read}] [attempt {close $channel}]
        }
        proc then_asked_for_names {channel} {
            peer reset a
            set names [attempt {fconfigure $channel -peername}]
            lappend names [attempt {llength [fconfigure $channel -sockname]}]
            lappend names [attempt {dict exists [fconfigure $channel] -peername}] [attempt {read $channel}]
            lappend names [attempt {close $channel}]
        }
        foreach scenario {then_read then_written then_half_closed then_asked_for_names} { compare $scenario }
        "#,
    );
}

#[test]
fn connections_with_unread_data() {
    run_comparison(
        r#"
        proc then_read {channel} {
            fconfigure $channel -blocking 0
            peer write a 10
            settle
            peer reset a
            list [attempt {read $channel}] [eof $channel] [attempt {read $channel}] [attempt {close $channel}]
        }
        proc then_written {channel} {
            peer write a 10
            peer reset a
            list [attempt {puts $channel x; flush $channel}] [attempt {read $channel}] [eof $channel] \
                [attempt {close $channel}]
        }
        proc then_closed {channel} {
            peer write a 10
            peer reset a
            list [attempt {close $channel}]
        }
        foreach scenario {then_read then_written then_closed} { compare $scenario }
        "#,
    );
}

#[test]
fn connections_that_are_read() {
    run_comparison(
        r#"
        proc by_events {channel} {
            fconfigure $channel -blocking 0
            set ::bytes 0
            fileevent $channel readable [list read_some $channel]
            peer write a 3
            after 2 {peer reset a}
            wait done
        }
        proc read_some {channel} {
            incr ::bytes [string length [read $channel]]
            if {[eof $channel]} { set ::done [list $::bytes [attempt {close $channel}]] }
        }
        proc by_a_copy {channel} {
            set sink [open /dev/null wb]
            fconfigure $channel -blocking 0
            fcopy $channel $sink -command {apply {args {set ::done $args}}}
            peer write a 100
            after 2 {peer reset a}
            set copied [wait done]
            close $sink
            list $copied [attempt {close $channel}]
        }
        foreach scenario {by_events by_a_copy} { compare $scenario }
        "#,
    );
}

#[test]
fn connections_that_are_written() {
    run_comparison(
        r#"
        proc writable_only {channel} {
            fconfigure $channel -blocking 0
            puts -nonewline $channel $::long
            set ::events 0
            fileevent $channel writable { if {[incr ::events] == 5} { set ::done 1 } }
            settle
            set before $::events
            peer reset a
            wait done
            fileevent $channel writable {}
            list $before [attempt {puts $channel x; flush $channel}] [attempt {close $channel}]
        }
        proc with_full_buffers {channel} {
            fconfigure $channel -blocking 0
            puts -nonewline $channel $::long
            settle
            peer reset a
            settle
            list [attempt {puts $channel x}] [attempt {flush $channel}] [attempt {read $channel}] [eof $channel] \
                [attempt {close $channel}]
        }
        proc copied {channel} {
            set source [open /dev/zero rb]
            fconfigure $channel -blocking 0
            fcopy $source $channel -command {apply {args {set ::done $args}}}
            after 2 {peer reset a}
            set message [lindex [wait done] 1]
            close $source
            # Which of several failed writes is reported by which command depends on their order.
            catch {close $channel}
            regsub {\m(sock|iocp)[0-9a-f]+} $message CHANNEL
        }
        foreach scenario {writable_only with_full_buffers copied} { compare $scenario }
        "#,
    );
}

#[test]
fn connections_that_are_flushed_on_close() {
    run_comparison(
        r#"
        proc in_background {channel} {
            fconfigure $channel -blocking 0
            puts -nonewline $channel $::long
            set closed [attempt {close $channel}]
            settle
            peer reset a
            settle
            return $closed
        }
        proc at_once {channel} {
            puts -nonewline $channel [string repeat x 100]
            peer reset a
            attempt {close $channel}
        }
        foreach scenario {in_background at_once} { compare $scenario }
        "#,
    );
}

#[test]
fn half_closed_connections() {
    run_comparison(
        r#"
        proc closed_for_writing {channel} {
            set outcome [list [attempt {chan close $channel write}] [peer drain a]]
            peer write a 4
            lappend outcome [attempt {read $channel 4}]
            peer reset a
            lappend outcome [attempt {read $channel}] [eof $channel] [attempt {puts $channel x}] [attempt {close $channel}]
        }
        proc closed_for_reading {channel} {
            set outcome [list [attempt {chan close $channel read}]]
            lappend outcome [attempt {puts $channel x; flush $channel}] [peer read a 2]
            peer reset a
            lappend outcome [attempt {puts $channel x; flush $channel}] [attempt {puts $channel x; flush $channel}]
            lappend outcome [attempt {read $channel}] [attempt {close $channel}]
        }
        proc ended_by_the_peer {channel} {
            peer shutdown a
            set outcome [list [attempt {read $channel}] [eof $channel]]
            lappend outcome [attempt {puts $channel x; flush $channel}] [peer read a 2]
            peer reset a
            lappend outcome [attempt {puts $channel x; flush $channel}] [attempt {puts $channel x; flush $channel}]
            lappend outcome [attempt {read $channel}] [attempt {close $channel}]
        }
        foreach scenario {closed_for_writing closed_for_reading ended_by_the_peer} { compare $scenario }
        "#,
    );
}

/// Connections that end before the script of their listener runs, and connections of the script's own that their
/// listener never accepted.
#[test]
fn connections_that_were_not_accepted() {
    run_comparison(
        r#"
        proc accept {channel host port} { lappend ::accepted $channel }
        set ::accepted {}
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        foreach name {a b c d} { peer connect $name $port }
        foreach name {a c} { peer reset $name }
        update
        check "those that live are accepted" [llength $::accepted] 2
        check "the listener, and they" [lindex [iocp_stats] 2] 3
        set clients [list [socket2 127.0.0.1 $port] [socket2 127.0.0.1 $port]]
        close $listener
        foreach client $clients {
            fconfigure $client -blocking 0
            fileevent $client readable [list apply {{client} {
                if {[read $client] eq "" && [eof $client]} { close $client; incr ::ended }
            }} $client]
        }
        set ::ended 0
        while {$::ended < 2} { vwait ::ended }
        "#,
    );
}
