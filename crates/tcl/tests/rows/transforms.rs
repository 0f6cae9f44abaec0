//! Transforms on top of sockets, copies by the core, and safe interpreters.

use crate::harness::{DRIVERS, run_on, run_on_all};
use crate::peer::ScriptedPeer;

/// `pair` returns the two ends of a connection, `exchange A B DATA` sends data both ways at once and returns whether
/// each side got it, as the receive mode of both says.
const TOOLS: &str = r#"
proc pair {{mode zero-byte}} {
    set listener [socket2 -server {apply {{channel args} { set ::accepted $channel }}} -myaddr 127.0.0.1 0]
    set client [socket2 127.0.0.1 [port_of $listener]]
    wait accepted
    close $listener
    foreach channel [list $client $::accepted] {
        fconfigure $channel -translation binary -blocking 0 -recvmode $mode
    }
    return [list $client $::accepted]
}
proc collect {channel size} {
    # The end of an encrypted stream may be an error.
    set ended [catch { append ::collected($channel) [read $channel] }]
    if {$ended || [string length $::collected($channel)] >= $size || [eof $channel]} {
        fileevent $channel readable {}
        incr ::complete
    }
}
proc exchange {first second data} {
    set ::complete 0
    foreach channel [list $first $second] {
        set ::collected($channel) {}
        fileevent $channel readable [list collect $channel [string length $data]]
    }
    foreach channel [list $first $second] {
        puts -nonewline $channel $data
        flush $channel
    }
    while {$::complete < 2} { vwait ::complete }
    list [expr {$::collected($first) eq $data}] [expr {$::collected($second) eq $data}]
}
set data {}
for {set i 0} {$i < 50000} {incr i} { append data [format %d, [expr {$i * $i}]] }
"#;

/// Less data: Tcl's transform loses bytes when a channel that does not block accepts only a part of a write.
const LESS_DATA: &str = "set data [string range $data 0 60000]\n";

#[test]
fn compressed_connections_carry_everything() {
    run_on_all(&format!(
        "{TOOLS}{LESS_DATA}{}",
        r#"
        foreach mode {zero-byte flow-controlled {burst-detection 4 8}} {
            lassign [pair $mode] client server
            check "plain" [exchange $client $server $data] {1 1}
            zlib push compress $client
            zlib push decompress $server
            puts -nonewline $client $data
            # The last bytes are written by the transform when it is closed.
            close $client
            fconfigure $server -blocking 1
            check "compressed in mode $mode" [expr {[read $server] eq $data}] 1
            check "the end in mode $mode" [eof $server] 1
            close $server
        }
        check "sockets" [lindex [iocp_stats] 2] 0
        "#
    ));
}

/// A transform may be removed from a live connection.
#[test]
fn a_transform_may_be_popped() {
    run_on_all(&format!(
        "{TOOLS}{LESS_DATA}{}",
        r#"
        lassign [pair] client server
        zlib push deflate $client
        zlib push inflate $server
        set ::complete 0
        set ::collected($server) {}
        fileevent $server readable [list collect $server [string length $data]]
        puts -nonewline $client $data
        chan pop $client
        vwait complete
        check "deflated" [expr {$::collected($server) eq $data}] 1
        chan pop $server
        check "plain" [exchange $client $server $data] {1 1}
        "#
    ));
}

/// `certificate` creates a key and a certificate, and removes them at the end.
const CERTIFICATE: &str = r#"
package require tls
# An end without a closing alert is reported so, on the core's sockets, too.
proc bgerror {message} { lappend ::alerts $message }
set folder [exec mktemp -d]
rename exit real_exit
proc exit {{code 0}} { file delete -force $::folder; real_exit $code }
set key [file join $folder key]
set certificate [file join $folder certificate]
exec openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 -keyout $key -out $certificate 2>/dev/null
proc shake {channel} {
    if {[catch {tls::handshake $channel} done]} {
        set ::failed($channel) $done
        set done 1
    }
    if {$done} { fileevent $channel readable {}; fileevent $channel writable {}; incr ::shaken }
}
proc shake_hands {args} {
    set ::shaken 0
    foreach channel $args {
        fileevent $channel readable [list shake $channel]
        fileevent $channel writable [list shake $channel]
    }
    while {$::shaken < [llength $args]} { vwait ::shaken }
}
proc encrypt {client server} {
    tls::import $server -server 1 -certfile $::certificate -keyfile $::key
    tls::import $client -server 0
    shake_hands $client $server
}
"#;

#[test]
fn encrypted_connections_carry_everything() {
    run_on_all(&format!(
        "{TOOLS}{CERTIFICATE}{}",
        r#"
        foreach mode {zero-byte flow-controlled {burst-detection 4 8}} {
            lassign [pair $mode] client server
            encrypt $client $server
            check "handshakes" [array names ::failed] {}
            foreach channel [list $client $server] { fconfigure $channel -translation binary -blocking 0 }
            check "encrypted in mode $mode" [exchange $client $server $data] {1 1}
            check "and again" [exchange $server $client $data] {1 1}
            set ::complete 0
            set ::collected($server) {}
            fileevent $server readable [list collect $server 10000000]
            puts -nonewline $client last
            close $client
            vwait complete
            check "the end in mode $mode" $::collected($server) last
            catch {close $server}
        }
        check "sockets" [lindex [iocp_stats] 2] 0
        "#
    ));
}

/// Peers that are no TLS clients, or reset during the handshake, cost their own connection only.
#[test]
fn failed_handshakes_cost_their_own_connection_only() {
    for driver in DRIVERS {
        let peer = ScriptedPeer::start();
        let script = r#"
            proc accept {channel host port} {
                fconfigure $channel -blocking 0
                tls::import $channel -server 1 -certfile $::certificate -keyfile $::key
                set ::accepted $channel
            }
            set listener [socket2 -server accept -myaddr 127.0.0.1 0]
            foreach step {{peer write a 100} {peer reset a} {peer close a} {peer shutdown a}} {
                peer connect a [port_of $listener]
                vwait accepted
                {*}$step
                shake_hands $accepted
                check "$step" [info exists ::failed($accepted)] 1
                catch {close $accepted}
                catch {peer close a}
            }
            check "the listener" [lindex [iocp_stats] 2] 1
        "#;
        run_on(driver, &format!("{}{CERTIFICATE}{script}", peer.prelude));
        peer.join();
    }
}

/// The core's `fcopy`: from a file to a socket, between sockets, and to a file; in the foreground and background, with
/// and without a size.
#[test]
fn the_core_copies_between_files_and_sockets() {
    run_on_all(&format!(
        "{TOOLS}{}",
        r#"
        set folder [exec mktemp -d]
        rename exit real_exit
        proc exit {{code 0}} { file delete -force $::folder; real_exit $code }
        proc contents {name} { set file [open $name rb]; set bytes [read $file]; close $file; return $bytes }
        set source [file join $folder source]
        set file [open $source wb]
        for {set i 0} {$i < 20} {incr i} { puts -nonewline $file $data }
        close $file
        set size [file size $source]
        foreach mode {zero-byte flow-controlled {burst-detection 4 8}} {
            # file -> a -> b -> c -> d -> file
            lassign [pair $mode] a b
            lassign [pair $mode] c d
            set from [open $source rb]
            set target [file join $folder target]
            set into [open $target wb]
            set ::copied {}
            fcopy $from $a -command {apply {{bytes args} { lappend ::copied $bytes; close $::a }}}
            fcopy $b $c -command {apply {{bytes args} { lappend ::copied $bytes; close $::c }}}
            fcopy $d $into -command {apply {{bytes args} { lappend ::copied $bytes }}}
            while {[llength $::copied] < 3} { vwait ::copied }
            close $into
            check "copied in mode $mode" $::copied [list $size $size $size]
            check "the bytes in mode $mode" [expr {[contents $target] eq [contents $source]}] 1
            foreach channel [list $from $b $d] { close $channel }
            # In the foreground, with a size.
            lassign [pair $mode] a b
            foreach channel [list $a $b] { fconfigure $channel -blocking 1 }
            set from [open $source rb]
            set into [open $target wb]
            check "bytes" [fcopy $from $a -size 50000] 50000
            flush $a
            check "bytes" [fcopy $b $into -size 50000] 50000
            close $into
            check "the first bytes" [expr {[contents $target] eq [string range [contents $source] 0 49999]}] 1
            foreach channel [list $from $a $b] { close $channel }
        }
        check "sockets" [lindex [iocp_stats] 2] 0
        "#
    ));
}

/// A safe interpreter gets no command for sockets by itself; its parent may give it `socket2`, or a socket.
#[test]
fn a_safe_interpreter_gets_sockets_from_its_parent() {
    run_on_all(
        r#"
        set safe [interp create -safe]
        load $library Stilling $safe
        foreach command {socket socket2 stilling::install stilling::stats stilling::fcopy iocp_stats stilling::onflood} {
            check "$command" [catch {$safe eval $command} message] 1
            check "$command: its text" $message "invalid command name \"$command\""
        }
        check "the package" [$safe eval {package provide Stilling}] [package provide Stilling]
        set listener [socket2 -server {apply {{channel args} { set ::accepted $channel }}} -myaddr 127.0.0.1 0]
        # Invoked by the parent, hidden.
        set client [$safe invokehidden socket2 127.0.0.1 [port_of $listener]]
        vwait accepted
        puts $::accepted hello
        flush $::accepted
        check "its socket" [$safe eval [list gets $client]] hello
        $safe eval [list close $client]
        # Exposed.
        $safe expose socket2
        set client [$safe eval [list socket2 127.0.0.1 [port_of $listener]]]
        close $::accepted
        vwait accepted
        # Given away.
        interp transfer {} $::accepted $safe
        check "the parent lost it" [catch {puts $::accepted hello}] 1
        $safe eval [list puts $::accepted hello]
        $safe eval [list flush $::accepted]
        check "its sockets" [$safe eval [list gets $client]] hello
        interp delete $safe
        update
        check "the listener remains" [lindex [iocp_stats] 2] 1
        "#,
    );
}
