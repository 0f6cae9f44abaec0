//! The order of bytes of each connection, with several shards.

use crate::harness::{run_on_all, run_wrapped};

/// Clients in the main thread send numbered lines in pieces of changing size; the echo must be the same lines.
/// `serve CHANNEL` echoes what arrives, in the order of the lines that it verifies.
const CLIENTS: &str = r#"
set serving {
    proc serve {channel} {
        fconfigure $channel -blocking 0 -translation binary
        set ::next($channel) 0
        fileevent $channel readable [list echo $channel]
    }
    proc echo {channel} {
        while {[gets $channel line] >= 0} {
            if {$line ne "line $::next($channel)"} {
                puts stderr "$channel: $line, expected $::next($channel)"
                exit 1
            }
            incr ::next($channel)
            puts $channel $line
        }
        if {[eof $channel]} { close $channel } else { flush $channel }
    }
}
set lines 300
set text {}
for {set i 0} {$i < $lines} {incr i} { append text "line $i\n" }
proc start_client {port mode} {
    set client [socket2 127.0.0.1 $port]
    fconfigure $client -blocking 0 -translation binary -recvmode $mode -buffering none
    set ::echoed($client) {}
    send_piece $client 0
    fileevent $client readable [list hear $client]
}
proc send_piece {client from} {
    set size [expr {1 + ($from * 7 + [string length $client]) % 61}]
    puts -nonewline $client [string range $::text $from [expr {$from + $size - 1}]]
    incr from $size
    if {$from < [string length $::text]} { after 0 [list send_piece $client $from] }
}
proc hear {client} {
    append ::echoed($client) [read $client]
    check "the end of $client" [eof $client] 0
    if {[string length $::echoed($client)] >= [string length $::text]} {
        check "the echo of $client" $::echoed($client) $::text
        close $client
        incr ::finished
    }
}
proc run_clients {count port} {
    set ::finished 0
    for {set i 0} {$i < $count} {incr i} {
        start_client $port [lindex {zero-byte flow-controlled {burst-detection 4 8}} [expr {$i % 3}]]
    }
    while {$::finished < $count} { vwait ::finished }
}
"#;

/// Row 3.34: connections are served by the shards of four threads.
#[test]
fn the_order_is_kept_with_several_threads() {
    run_on_all(&format!(
        "{CLIENTS}{}",
        r#"
        package require Thread
        for {set i 0} {$i < 4} {incr i} {
            set worker [thread::create]
            thread::send $worker [list load $library Stilling]
            thread::send $worker $serving
            lappend workers $worker
        }
        proc accept {channel host port} {
            set worker [lindex $::workers [expr {[incr ::accepted] % 4}]]
            # The modes of the receiving side take turns, too.
            fconfigure $channel -recvmode \
                [lindex {{burst-detection 4 8} zero-byte flow-controlled} [expr {$::accepted % 3}]]
            # A channel is shared as long as its accept script runs.
            after 0 [list pass $channel $worker]
        }
        proc pass {channel worker} {
            thread::transfer $worker $channel
            thread::send -async $worker [list serve $channel]
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        run_clients 24 [port_of $listener]
        check "each thread has its shard" [expr {[dict get [stilling::stats] adopted] >= 24}] 1
        foreach worker $workers { thread::release $worker }
        "#
    ));
}

/// Row 3.34: the shards of one thread, of which each has the table of a ring: more connections than one table holds.
#[test]
fn the_order_is_kept_with_several_rings_of_one_thread() {
    run_wrapped(
        "direct",
        &["prlimit", "--nofile=64"],
        &format!(
            "{CLIENTS}{}",
            r#"
            eval $serving
            proc accept {channel host port} { serve $channel }
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            run_clients 80 [port_of $listener]
            check "connections at a time" [expr {[dict get [stilling::stats] connections_open_max] > 64}] 1
            "#
        ),
    );
}

/// Row 3.11: outgoing connections fill the table of a ring, so the listener changes to another one and accepts there,
/// although the thread has nothing else to do.
#[test]
fn a_listener_that_changes_its_ring_accepts_there() {
    let peer = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = peer.local_addr().expect("it is bound").port();
    run_wrapped(
        "direct",
        &["prlimit", "--nofile=64"],
        &format!(
            r#"
            proc accept {{channel host port}} {{ puts $channel hello; close $channel }}
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            set most [open |[list [info nameofexecutable]] r+]
            fconfigure $most -blocking 0
            # Seven eighths of the table.
            for {{set i 0}} {{$i < 56}} {{incr i}} {{ lappend clients [socket2 127.0.0.1 {port}] }}
            fileevent $most readable {{ gets $most ::line }}
            puts $most "after 300; puts \[gets \[socket 127.0.0.1 [port_of $listener]\]\]; exit"
            flush $most
            wait line
            check "from the listener" $line hello
            "#
        ),
    );
}
