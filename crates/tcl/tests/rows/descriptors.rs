//! Exhausted descriptors.

use crate::harness::{DRIVERS, run_wrapped};
use crate::peer::ScriptedPeer;

/// The limit of open files of the scripts.
const WITH_LIMIT: [&str; 2] = ["prlimit", "--nofile=100"];

fn run_limited(script: &str) {
    for driver in DRIVERS {
        let peer = ScriptedPeer::start();
        run_wrapped(driver, &WITH_LIMIT, &format!("{}{script}", peer.prelude));
        peer.join();
    }
}

/// Row 3.27: a listener without descriptors refuses connections one by one, with a reserve, and goes on when there are
/// some again. Every client is served or refused.
#[test]
fn a_listener_survives_exhausted_descriptors() {
    run_limited(
        r#"
        proc accept {channel host port} {
            puts $channel hello
            flush $channel
            lappend ::accepted $channel
            incr ::count
        }
        proc refused {} { dict get [stilling::stats] refused_descriptors }
        # Lets the listener accept and refuse what it can.
        proc settle {} {
            set before -1
            while {$::count != $before} {
                set before $::count
                for {set i 0} {$i < 20} {incr i} { after 2; update }
            }
        }
        set count 0
        set accepted {}
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        for {set i 0} {$i < 150} {incr i} { peer connect c$i [port_of $listener] }
        settle
        if {[dict get [stilling::stats] driver] eq "uring-direct"} {
            # The limit is that of each ring's table, and more rings are added before one is full.
            check "accepted in two rings" $count 150
            check "refused" [refused] 0
        } else {
            check "accepted within the limit: $count" [expr {$count > 60 && $count <= 100}] 1
            check "the others are refused" [expr {[refused] > 0}] 1
        }
        check "an error counts each" [expr {[lindex [split [iocp_stats] \n] 1 end] >= [refused]}] 1
        check "the first client" [peer read c0 6] 6
        set turns [dict get [stilling::stats] turns]
        after 100 {set ::waited 1}
        wait waited
        set turns [expr {[dict get [stilling::stats] turns] - $turns}]
        # Tcl 9 rounds the wait for its own timer down, and asks repeatedly during the last millisecond.
        check "no busy loop: $turns turns" [expr {$turns < ([package vsatisfies [info patchlevel] 9] ? 2000 : 200)}] 1
        set limit $count
        while {$count + [refused] < 150} {
            foreach channel $accepted { close $channel }
            set accepted {}
            settle
        }
        check "accepting has resumed: $count" [expr {$count > $limit || $limit + [refused] == 150}] 1
        foreach channel $accepted { close $channel }
        set served 0
        for {set i 1} {$i < 150} {incr i} { if {[peer drain c$i] == 7} { incr served } }
        check "served clients" $served [expr {$count - 1}]
        peer connect last [port_of $listener]
        vwait accepted
        check "the next client" [peer read last 6] 6
        "#,
    );
}

/// Row 3.5: sockets leave the descriptors that Tcl 8.6 can wait for to the script's files and pipes.
#[test]
fn a_pipe_beside_more_than_a_thousand_sockets_is_readable() {
    const SCRIPT: &str = r#"
        proc accept {channel host port} { lappend ::accepted $channel }
        set accepted {}
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        for {set i 0} {$i < 600} {incr i} {
            lappend clients [socket2 127.0.0.1 [port_of $listener]]
            if {$i % 100 == 99} { while {[llength $accepted] <= $i} { vwait accepted } }
        }
        lappend clients [socket2 -async 127.0.0.1 [port_of $listener]] [socket2 -udp]
        set pipe [open |cat r+]
        fconfigure $pipe -buffering line
        fileevent $pipe readable { set answer [gets $pipe] }
        puts $pipe hello
        check "the pipe's line" [wait answer] hello
        puts [lindex $clients 0] hello
        flush [lindex $clients 0]
        check "the socket's line" [gets [lindex $accepted 0]] hello
        foreach channel [concat $clients $accepted] { close $channel }
    "#;
    for driver in DRIVERS {
        run_wrapped(driver, &["prlimit", "--nofile=3000"], SCRIPT);
    }
}

/// A connect without a descriptor, in the foreground or background, is an error of the command that says why.
#[test]
fn a_connect_without_descriptors_is_an_error() {
    run_limited(
        r#"
        set listener [socket2 -server {lappend ::accepted} -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        set client [socket2 127.0.0.1 $port]
        vwait accepted
        while {![catch {open /dev/null} file]} { lappend files $file }
        foreach arguments [list [list 127.0.0.1 $port] [list -async 127.0.0.1 $port] [list -server list 0]] {
            set code [catch {socket2 {*}$arguments} message]
            if {$code == 0} {
                # With direct descriptors sockets are created later, in a table of their own.
                check "$arguments: the driver" [dict get [stilling::stats] driver] uring-direct
                catch {close $message}
                continue
            }
            check "$arguments: its text" $message "couldn't open socket: too many open files"
            check "$arguments: its code" $::errorCode {POSIX EMFILE {too many open files}}
        }
        puts $client hello
        flush $client
        check "open connections work" [gets [lindex $::accepted 0]] hello
        foreach file $files { close $file }
        close [socket2 127.0.0.1 $port]
        check "open sockets" [expr {[lindex [iocp_stats] 2] >= 3}] 1
        "#,
    );
}

/// Scripts use their channels without descriptors as with them: blocking reads and writes wait for the peer, and one
/// direction or both close.
#[test]
fn open_channels_work_without_descriptors() {
    run_limited(
        r#"
        proc start_peer {args} { puts $::peer_control $args; flush $::peer_control }
        set channel [socket2 127.0.0.1 $peer_port]
        fconfigure $channel -translation binary
        peer accept a
        set other [socket2 127.0.0.1 $peer_port]
        peer accept b
        set last [socket2 127.0.0.1 $peer_port]
        peer accept c
        fconfigure $last -translation binary
        while {![catch {open /dev/null} file]} { lappend files $file }
        foreach mode {zero-byte flow-controlled {burst-detection 4 8}} {
            fconfigure $channel -recvmode $mode
            start_peer write a 20000000
            check "$mode: a read" [string length [read $channel 20000000]] 20000000
            gets $peer_control
            start_peer write a 5
            check "$mode: a short read" [read $channel 5] xxxxx
            gets $peer_control
        }
        start_peer read a 20000000
        puts -nonewline $channel [string repeat x 20000000]
        flush $channel
        check "a write" [gets $peer_control] 20000000
        chan close $channel write
        check "its end" [peer drain a] 0
        peer write a 5
        check "the other direction" [read $channel 5] xxxxx
        chan close $channel read
        start_peer reset b
        check "a reset" [read $other 1] {}
        gets $peer_control
        foreach file $files { close $file }
        start_peer write c 20000000
        check "a read with descriptors again" [string length [read $last 20000000]] 20000000
        gets $peer_control
        close $last
        close $other
        check "the last end" [peer drain c] 0
        check "sockets" [lindex [iocp_stats] 2] 0
        "#,
    );
}

/// The first socket of a process needs some descriptors of its own.
#[test]
fn a_process_without_descriptors_has_an_error() {
    run_limited(
        r#"
        while {![catch {open /dev/null} file]} { lappend files $file }
        foreach file $files {
            if {![catch {socket2 -server list -myaddr 127.0.0.1 0} message]} break
            check "its text" $message "couldn't open socket: too many open files"
            close $file
            incr closed
        }
        check "some descriptors suffice: $closed" [expr {$closed > 0 && $closed < 20}] 1
        foreach file [lrange $files $closed end] { close $file }
        close [socket2 127.0.0.1 [port_of $message]]
        update
        "#,
    );
}

/// A thread without descriptors for its sockets has a clear error, and works when there are some again.
#[test]
fn a_thread_without_descriptors_has_an_error() {
    run_limited(
        r#"
        package require Thread
        close [socket2 -server list -myaddr 127.0.0.1 0]
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        while {![catch {open /dev/null} file]} { lappend files $file }
        set open {socket2 -server list -myaddr 127.0.0.1 0}
        check "no descriptors" [catch {thread::send $worker $open} message] 1
        check "its text" $message "couldn't open socket: too many open files"
        foreach file $files { close $file }
        thread::send $worker "close \[$open\]"
        thread::release $worker
        "#,
    );
}

/// Channels that move to a thread without descriptors for its sockets are lost; every use of them is an error, and
/// another thread can have them closed.
#[test]
fn channels_moved_to_a_thread_without_descriptors_report_errors() {
    run_limited(
        r#"
        package require Thread
        set listener [socket2 -server {lappend ::accepted} -myaddr 127.0.0.1 0]
        foreach name {client ahead} {
            set $name [socket2 127.0.0.1 [port_of $listener]]
            vwait accepted
        }
        fconfigure $ahead -recvmode {burst-detection 4 8}
        set datagrams [socket2 -udp]
        set channels [list $client $ahead $listener $datagrams]
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        thread::send $worker {
            proc use {channel} {
                set texts {}
                foreach option {-error -peername -sockname -recvmode -sendcap -backlog -keepalive -remote} {
                    catch {fconfigure $channel $option}
                }
                catch {fconfigure $channel}
                foreach {option value} {-keepalive 1 -sendcap 3 -recvmode zero-byte -backlog 300 -ttl 3} {
                    catch {fconfigure $channel $option $value}
                }
                catch {fconfigure $channel -blocking 0}
                catch {fileevent $channel readable {set ready 1}}
                update
                foreach command {{read $channel 1} {puts -nonewline $channel x; flush $channel}} {
                    lappend texts [catch $command]
                }
                catch {close $channel w}
                return $texts
            }
        }
        foreach channel $channels {
            # A lost socket leaves its descriptor.
            while {![catch {open /dev/null} file]} { lappend files $file }
            thread::transfer $worker $channel
        }
        foreach channel $channels { check "$channel" [thread::send $worker [list use $channel]] {1 1} }
        check "the client's end" [read [lindex $accepted 0]] {}
        # On to another thread, where it is closed.
        thread::send -async $worker [list thread::transfer [thread::id] $client]
        while {$client ni [file channels]} { after 1; update }
        check "its peer" [catch {fconfigure $client -peername} text] 1
        set reason [expr {[package vsatisfies [info patchlevel] 9] ? "transport endpoint" : "socket"}]
        check "why" $text "can't get peername: $reason is not connected"
        close $client
        foreach channel [list $ahead $datagrams] { thread::send $worker [list catch [list close $channel]] }
        # The thread's end closes the listener.
        thread::send $worker list
        thread::release $worker
        foreach file $files { close $file }
        foreach {channel host port} $accepted { close $channel }
        for {set i 0} {$i < 2000 && [lindex [iocp_stats] 2] != 0} {incr i} { after 2 }
        check "sockets" [lindex [iocp_stats] 2] 0
        "#,
    );
}

/// A listener moves without a descriptor, and accepts in its new thread when there are some again. A thread that cannot
/// take it over closes it, and reports that: clients do not wait for ever.
#[test]
fn a_listener_moves_without_descriptors() {
    run_limited(
        r#"
        package require Thread
        proc exhaust {} { while {![catch {open /dev/null} file]} { lappend ::files $file } }
        proc relax {} { foreach file $::files { close $file }; set ::files {} }
        proc start_worker {} {
            set worker [thread::create]
            thread::send $worker [list load $::library Stilling]
            thread::send $worker {proc accept {channel host port} { puts $channel hello; close $channel }}
            return $worker
        }
        set able [start_worker]
        thread::send $able {close [socket2 -server list -myaddr 127.0.0.1 0]}
        set unable [start_worker]
        set first [socket2 -server accept -myaddr 127.0.0.1 0]
        set second [socket2 -server accept -myaddr 127.0.0.1 0]
        set first_port [port_of $first]
        set second_port [port_of $second]
        peer connect waiting $second_port
        exhaust
        thread::transfer $able $first
        peer connect early $first_port
        thread::transfer $unable $second
        check "a client in the queue" [peer drain waiting] 0
        check "the address" [thread::send $unable [list catch [list fconfigure $second -sockname]]] 1
        check "the reason" [lindex [thread::send $unable [list fconfigure $second -error]] 1] EMFILE
        check "reported once" [thread::send $unable [list fconfigure $second -error]] {}
        relax
        peer connect late $first_port
        check "served: one of two" [expr {[peer drain early] in {0 7}}] 1
        check "served" [peer drain late] 7
        check "refused" [catch {socket2 127.0.0.1 $second_port} text] 1
        check "text" $text "couldn't open socket: connection refused"
        thread::send $able [list close $first]
        thread::send $unable [list close $second]
        check "sockets" [lindex [iocp_stats] 2] 0
        thread::release $able
        thread::release $unable
        "#,
    );
}

/// With direct descriptors a connection needs an ordinary one for the query of its peer's address: it waits for that.
#[test]
fn an_accepted_connection_waits_for_a_descriptor() {
    let peer = ScriptedPeer::start();
    let script = r#"
        proc accept {channel host port} { puts $channel hello; close $channel; incr ::count }
        proc failed {} { dict get [stilling::stats] accept_errors }
        set count 0
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        while {![catch {open /dev/null} file]} { lappend files $file }
        foreach name {a b c} { peer connect $name $port }
        while {[failed] < 2} { after 1 {set ::waited 1}; vwait waited }
        set turns [dict get [stilling::stats] turns]
        set before [failed]
        after 200 {set ::waited 1}
        wait waited
        set turns [expr {[dict get [stilling::stats] turns] - $turns}]
        check "no busy loop: $turns turns" [expr {$turns < ([package vsatisfies [info patchlevel] 9] ? 2000 : 200)}] 1
        check "it tries again" [expr {[failed] > $before}] 1
        check "none without an address" $count 0
        foreach file $files { close $file }
        while {$count < 3} { vwait count }
        foreach name {a b c} { check $name [peer drain $name] 7 }
        check "sockets" [lindex [iocp_stats] 2] 1
    "#;
    run_wrapped("direct", &WITH_LIMIT, &format!("{}{script}", peer.prelude));
    peer.join();
}

/// A channel that lost its socket in a move is readable and writable in its new thread, where a read reports why.
#[test]
fn a_lost_channel_is_reported_to_scripts() {
    run_limited(
        r#"
        package require Thread
        set listener [socket2 -server {lappend ::accepted} -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        vwait accepted
        set datagrams [socket2 -udp]
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        thread::send $worker {
            proc use {channel} {
                set ::code {}
                fconfigure $channel -blocking 0
                fileevent $channel readable [list failed $channel]
                set timer [after 20000 {set ::code late}]
                vwait ::code
                after cancel $timer
                catch {close $channel}
                return $::code
            }
            proc failed {channel} {
                catch {read $channel 1} text options
                set ::code [lrange [dict get $options -errorcode] 0 1]
            }
        }
        foreach channel [list $client $datagrams] {
            while {![catch {open /dev/null} file]} { lappend files $file }
            thread::transfer $worker $channel
        }
        foreach file $files { close $file }
        foreach channel [list $client $datagrams] {
            check "$channel" [thread::send $worker [list use $channel]] {POSIX ENOTCONN}
        }
        thread::release $worker
        close [lindex $accepted 0]
        close $listener
        check "sockets" [lindex [iocp_stats] 2] 0
        "#,
    );
}

/// What was received ahead of the script is read also when the channel loses its socket in a move.
#[test]
fn a_lost_channel_keeps_what_was_received_ahead() {
    run_limited(
        r#"
        package require Thread
        set channel [socket2 127.0.0.1 $peer_port]
        fconfigure $channel -blocking 0 -recvmode {burst-detection 4 8}
        peer accept a
        peer write a 5
        while {[lindex [split [iocp_stats] \n] 4 end] == 0} { after 1 {set ::waited 1}; vwait waited }
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        while {![catch {open /dev/null} file]} { lappend files $file }
        thread::transfer $worker $channel
        check "received ahead" [thread::send $worker [list read $channel 5]] xxxxx
        check "then" [catch {thread::send $worker [list read $channel 5]}] 1
        thread::send $worker [list close $channel]
        foreach file $files { close $file }
        thread::release $worker
        "#,
    );
}
