//! Connections and listeners that move between threads.

use crate::harness::{DRIVERS, run_on, run_on_all};
use crate::peer::ScriptedPeer;

/// Loads the extension in a new thread. `move_to THREAD CHANNEL` moves a channel there.
const WORKER: &str = r#"
package require Thread
proc worker {script} {
    set worker [thread::create]
    thread::send $worker [list load $::library Stilling]
    thread::send $worker [list set main [thread::id]]
    thread::send $worker $script
    return $worker
}
proc move_to {thread channel} { thread::transfer $thread $channel }
"#;

fn run_with_peer(script: &str) {
    for driver in DRIVERS {
        let peer = ScriptedPeer::start();
        run_on(driver, &format!("{}{WORKER}{script}", peer.prelude));
        peer.join();
    }
}

/// Row 3.33: a connection that sends and receives goes to another thread and back 1,000 times; no byte is lost,
/// repeated or out of order.
#[test]
fn a_connection_moves_a_thousand_times_mid_stream() {
    run_on_all(&format!(
        r#"{WORKER}
        set count 1000
        proc accept {{channel host port}} {{ set ::accepted $channel }}
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        vwait accepted
        fconfigure $client -buffering line -blocking 0
        # Each side that holds the channel answers one line, then passes it on.
        set step {{
            proc step {{channel to}} {{
                fconfigure $channel -blocking 1 -buffering line
                puts $channel "seen [gets $channel]"
                thread::transfer $to $channel
                thread::send -async $to [list take $channel]
            }}
        }}
        set worker [worker "package require Thread; $step; proc take {{channel}} {{ step \$channel \$::main }}"]
        eval $step
        proc take {{channel}} {{
            if {{[incr ::moves 2] >= $::count}} {{ set ::moved $channel }} else {{ step $channel $::worker }}
        }}
        proc hear {{}} {{
            while {{[gets $::client line] >= 0}} {{ lappend ::heard $line }}
        }}
        fileevent $client readable hear
        for {{set i 0}} {{$i < $count}} {{incr i}} {{ puts $client "line $i" }}
        step $accepted $worker
        wait moved
        set expected {{}}
        for {{set i 0}} {{$i < $count}} {{incr i}} {{ lappend expected "seen line $i" }}
        while {{[llength $::heard] < $count}} {{ vwait heard }}
        check "lines" $::heard $expected
        close $moved
        close $client
        close $listener
        thread::release $worker
        "#
    ));
}

/// Unread data in Tcl's buffer, in a receive mode's buffers and in the kernel arrives in order after a move, and so
/// does the end of the stream.
#[test]
fn unread_data_moves_with_its_connection() {
    run_with_peer(
        r#"
        set worker [worker {
            proc count {channel} {
                fconfigure $channel -blocking 0
                fileevent $channel readable [list take $channel]
                set ::taken {}
            }
            proc take {channel} {
                append ::taken [read $channel]
                if {[eof $channel]} { close $channel; set ::done $::taken }
            }
            proc await {} {
                while {![info exists ::done]} { vwait done }
                set taken $::done
                unset ::done
                return $taken
            }
        }]
        foreach mode {zero-byte flow-controlled {burst-detection 4 8}} {
            set channel [socket2 127.0.0.1 $peer_port]
            fconfigure $channel -translation binary -blocking 0 -recvmode $mode
            peer accept a
            peer write a 60000
            after 20 {set ::waited 1}
            wait waited
            set first [string length [read $channel 100]]
            set second [string length [read $channel 100]]
            peer write a 60000
            peer shutdown a
            move_to $worker $channel
            thread::send $worker [list count $channel]
            set rest [string length [thread::send $worker await]]
            check "bytes in mode $mode" [expr {$first + $second + $rest}] 120000
            peer close a
        }
        check "held" [lindex [split [iocp_stats] \n] 4] "Special pool bytes in use: 0"
        thread::release $worker
        "#,
    );
}

/// Output that waits for its peer arrives after a move, also when the channel was closed by its new thread.
#[test]
fn unsent_output_moves_with_its_connection() {
    run_with_peer(
        r#"
        set worker [worker {}]
        foreach close_first {0 1} {
            set channel [socket2 127.0.0.1 $peer_port]
            fconfigure $channel -translation binary -blocking 0
            peer accept a
            puts -nonewline $channel [string repeat x 5000000]
            move_to $worker $channel
            if {$close_first} { thread::send $worker [list close $channel] }
            check "the first part" [peer read a 1000000] 1000000
            if {!$close_first} { thread::send $worker [list close $channel] }
            check "the rest" [peer drain a] 4000000
        }
        thread::release $worker
        "#,
    );
}

/// Connects in the background that succeed, fail or stay pending move to another thread, before and after their end.
#[test]
fn a_connect_moves_to_another_thread() {
    run_with_peer(
        r#"
        set worker [worker {
            proc await {channel} {
                fileevent $channel writable [list set ::done $channel]
                while {![info exists ::done]} { vwait done }
                unset ::done
                fileevent $channel writable {}
                set error [fconfigure $channel -error]
                if {$error eq ""} { puts $channel hello }
                close $channel
                return [lindex $error 1]
            }
        }]
        set listener [socket2 -server list -myaddr 127.0.0.1 0]
        set closed [port_of $listener]
        close $listener
        for {set i 0} {$i < 20} {incr i} {
            foreach updates {0 1} {
                set channel [socket2 -async 127.0.0.1 $peer_port]
                if {$updates} { after 2; update }
                move_to $worker $channel
                check "connected" [thread::send $worker [list await $channel]] {}
                # A connect that moves begins anew: the peer may have accepted the former one.
                peer accept a
                if {[peer drain a] == 0} {
                    peer accept a
                    check "hello" [peer drain a] 7
                }
                set channel [socket2 -async 127.0.0.1 $closed]
                if {$updates} { after 2; update }
                move_to $worker $channel
                check "refused" [thread::send $worker [list await $channel]] ECONNREFUSED
            }
        }
        check "sockets" [lindex [iocp_stats] 2] 0
        thread::release $worker
        "#,
    );
}

/// A listener moves with the connections that wait for its script; later ones are accepted by the new thread.
#[test]
fn a_listener_moves_with_waiting_connections() {
    run_with_peer(
        r#"
        set script {
            proc accept {channel host port} {
                puts $channel [thread::id]
                close $channel
                incr ::count
            }
            proc await {count} {
                while {$::count < $count} { vwait ::count }
                set ::count 0
            }
            set count 0
        }
        set worker [worker "package require Thread; $script"]
        eval $script
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        for {set round 0} {$round < 20} {incr round} {
            foreach name {a b c} { peer connect $name $port }
            # Some are accepted by the system only, some by the shard; one script has run here.
            if {$round % 2} { vwait count }
            set here $count
            set count 0
            move_to $worker $listener
            foreach name {d e} { peer connect $name $port }
            thread::send $worker [list await [expr {5 - $here}]]
            foreach name {a b c d e} { check "$name" [expr {[peer drain $name] > 0}] 1; peer close $name }
            check "its port" [thread::send $worker [list fconfigure $listener -sockname]] \
                [list 127.0.0.1 localhost $port]
            # A transfer waits for this thread's event loop.
            thread::send -async $worker [list thread::transfer [thread::id] $listener]
            while {$listener ni [file channels]} { after 1; update }
            # The extension Thread may crash if this thread ends before the transfer does in the other one.
            thread::send $worker list
        }
        close $listener
        check "sockets" [lindex [iocp_stats] 2] 0
        thread::release $worker
        "#,
    );
}

/// Connections that a ring has accepted during reads and writes of a script, which dispatch no event, move with their
/// listener.
#[test]
fn connections_accepted_during_a_read_move_with_their_listener() {
    run_with_peer(
        r#"
        proc accept {channel host port} { set ::accepted $channel }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        set client [socket2 127.0.0.1 $port]
        vwait accepted
        fconfigure $accepted -blocking 0
        fconfigure $client -buffering none
        set worker [worker {
            proc accept {channel host port} { puts $channel hello; close $channel; incr ::count }
            set count 0
        }]
        for {set round 1} {$round <= 20} {incr round} {
            foreach name {a b c d} {
                peer connect $name $port
                puts -nonewline $client x
                read $accepted
            }
            move_to $worker $listener
            thread::send $worker "while {\$::count < 4 * $round} { vwait ::count }"
            foreach name {a b c d} { check "$name in round $round" [peer drain $name] 7; peer close $name }
            thread::send -async $worker [list thread::transfer [thread::id] $listener]
            while {$listener ni [file channels]} { after 1; update }
            thread::send $worker list
        }
        foreach channel [list $listener $client $accepted] { close $channel }
        check "sockets" [lindex [iocp_stats] 2] 0
        thread::release $worker
        "#,
    );
}

/// A channel that is between threads, or in one that ends, costs the process nothing.
#[test]
fn a_thread_may_end_with_moved_channels() {
    run_with_peer(
        r#"
        for {set i 0} {$i < 10} {incr i} {
            set worker [worker {}]
            set channel [socket2 127.0.0.1 $peer_port]
            set listener [socket2 -server list -myaddr 127.0.0.1 0]
            peer accept a
            move_to $worker $channel
            move_to $worker $listener
            thread::release $worker
            check "the end" [peer drain a] 0
            peer close a
        }
        for {set i 0} {$i < 2000 && [lindex [iocp_stats] 2] != 0} {incr i} { after 2 }
        check "sockets" [lindex [iocp_stats] 2] 0
        "#,
    );
}

/// A listener that has stopped accepting, because too many connections wait for its script, does not accept more when it
/// moves; its new thread serves all.
#[test]
fn a_listener_with_many_waiting_connections_moves_without_accepting_more() {
    run_on_all(&format!(
        r#"{WORKER}
        set worker [worker {{
            proc accept {{channel host port}} {{ close $channel; incr ::served }}
            proc serve {{count}} {{
                while {{$::served < $count}} {{ vwait ::served }}
                return $::served
            }}
            set served 0
        }}]
        proc accepted {{}} {{ dict get [stilling::stats] accepted }}
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        fconfigure $listener -backlog 2000
        for {{set i 0}} {{$i < 1000}} {{incr i}} {{ lappend clients [socket2 127.0.0.1 [port_of $listener]] }}
        set before [accepted]
        check "it has stopped: $before" [expr {{$before >= 512 && $before < 700}}] 1
        move_to $worker $listener
        check "not more" [accepted] $before
        check "served" [thread::send $worker {{serve 1000}}] 1000
        check "accepted" [accepted] 1000
        thread::send $worker [list close $listener]
        thread::release $worker
        "#
    ));
}

/// A child process that has a moved connection's descriptor keeps the socket open: what arrives for it after the close
/// does not wake the thread.
#[test]
fn a_shared_connection_is_forgotten_after_its_move_and_close() {
    run_with_peer(
        r#"
        set worker [worker {}]
        set channel [socket2 127.0.0.1 $peer_port]
        peer accept a
        set child [exec sleep 100 <@$channel >/dev/null 2>/dev/null &]
        move_to $worker $channel
        thread::send $worker [list fileevent $channel readable list]
        thread::send $worker update
        thread::send $worker [list close $channel]
        set before [dict get [stilling::stats] turns]
        for {set i 0} {$i < 20} {incr i} {
            peer write a 1
            after 5
        }
        set turns [expr {[dict get [stilling::stats] turns] - $before}]
        exec kill $child
        check "turns: $turns" [expr {$turns < 3}] 1
        thread::release $worker
        "#,
    );
}
