//! Row 3.33: `stilling::fcopy` while scripts use, move or end its channels.

use crate::fcopy::{TOOLS, run};
use crate::harness::{DRIVERS, run_wrapped};

/// A script that writes a channel during a copy in the background inserts bytes; the copy goes on.
#[test]
fn writes_during_a_copy_do_not_stop_it() {
    run(r#"
        lassign [pair] client server
        set file [open $big rb]
        set ::collected ""
        fconfigure $client -buffering full
        stilling::fcopy $file $client -command done
        for {set i 0} {$i < 20} {incr i} { after 1; update }
        puts -nonewline $client INSERTED
        fileevent $server readable [list collect $server]
        check "to a socket" [wait done] 6000000
        close $client
        close $file
        wait ended
        check "inserted" [regexp -all INSERTED $::collected] 1
        check "the bytes" [expr {[string map {INSERTED {}} $::collected] eq [contents $big]}] 1

        lassign [pair] client server
        set target [open [file join $folder target] wb]
        fconfigure $target -buffering full
        stilling::fcopy $server $target -command done
        puts -nonewline $client first
        flush $client
        for {set i 0} {$i < 20} {incr i} { after 1; update }
        puts -nonewline $target INSERTED
        puts -nonewline $client second
        close $client
        check "from a socket" [wait done] 11
        close $target
        check "the bytes" [contents [file join $folder target]] firstINSERTEDsecond
    "#);
}

/// A script that reads a channel during a copy takes bytes; what Tcl has read beyond them is copied in its place.
#[test]
fn reads_during_a_copy_keep_the_order() {
    run(r#"
        lassign [pair] client server
        set target [open [file join $folder target] wb]
        stilling::fcopy $server $target -command done
        update
        set source [open $big rb]
        set bytes "a line\n[read $source]"
        puts -nonewline $client $bytes
        fconfigure $client -blocking 0
        close $client
        after 20
        set line [gets $server]
        check "a whole line" $line "a line"
        check "from a socket" [wait done] 6000000
        close $target
        check "the bytes" [expr {[contents [file join $folder target]] eq [contents $big]}] 1

        lassign [pair] client server
        seek $source 0
        set ::collected ""
        stilling::fcopy $source $client -command done
        for {set i 0} {$i < 20} {incr i} { after 1; update }
        set position [tell $source]
        read $source 10
        fileevent $server readable [list collect $server]
        check "to a socket" [wait done] 5999990
        close $client
        wait ended
        check "the bytes to a socket" [expr {$::collected eq
            [string replace [contents $big] $position [expr {$position + 9}]]}] 1
    "#);
}

/// A receive mode that a script sets during a copy holds from then on, and no byte is lost.
#[test]
fn a_receive_mode_can_change_during_a_copy() {
    run(r#"
        foreach mode {flow-controlled {burst-detection 10 6}} {
            lassign [pair] client server
            set target [open [file join $folder target] wb]
            stilling::fcopy $server $target -command done
            puts -nonewline $client HEAD
            flush $client
            for {set i 0} {$i < 20} {incr i} { after 1; update }
            fconfigure $server -recvmode $mode
            set source [open $big rb]
            stilling::fcopy $source $client -size 3000000 -command {set ::sent}
            check "sent" [wait sent] 3000000
            fconfigure $server -recvmode zero-byte
            stilling::fcopy $source $client -command {set ::sent}
            check "sent" [wait sent] 3000000
            close $client
            check "$mode: done" [wait done] 6000004
            close $target
            close $server
            check "$mode: the bytes" [expr {[contents [file join $folder target]] eq "HEAD[contents $big]"}] 1
        }
    "#);
}

/// Translations and transforms that a script sets during a copy hold for the bytes from then on.
#[test]
fn channels_can_be_configured_during_a_copy() {
    run(r#"
        set lines [file join $folder lines]
        set file [open $lines wb]
        puts -nonewline $file [string repeat "a line\n" 500000]
        close $file
        proc spin {} { for {set i 0} {$i < 20} {incr i} { after 1; update } }

        lassign [pair] client server
        set file [open $lines rb]
        set ::collected ""
        stilling::fcopy $file $client -command done
        spin
        fconfigure $client -translation crlf -blocking 1
        fileevent $server readable [list collect $server]
        check "to a translation" [wait done] 3500000
        check "it blocks as set" [fconfigure $client -blocking] 1
        close $client
        wait ended
        check "some are translated" [regexp {\r} $::collected] 1
        check "the lines" [expr {[string map {\r {}} $::collected] eq [contents $lines]}] 1

        lassign [pair] client server
        set target [open [file join $folder target] wb]
        stilling::fcopy $server $target -command done
        puts -nonewline $client HEAD
        flush $client
        spin
        zlib push gunzip $server
        puts -nonewline $client [zlib gzip [contents $lines]]
        fconfigure $client -blocking 0
        close $client
        check "from a transform" [wait done] 3500004
        close $target
        check "the bytes" [expr {[contents [file join $folder target]] eq "HEAD[contents $lines]"}] 1
    "#);
}

/// A copy from a socket ends with the last byte of its size: nothing needs to follow.
#[test]
fn a_size_of_whole_turns_ends_the_copy() {
    run(r#"
        foreach size {1048576 2097152 4194304} {
            lassign [pair] client server
            set target [open [file join $folder target] wb]
            set source [open $big rb]
            stilling::fcopy $server $target -size $size -command done
            stilling::fcopy $source $client -size $size -command {set ::sent}
            check "sent" [result_of sent] $size
            check "done" [result_of done] $size
            close $client
            close $server
        }
    "#);
}

/// Both directions of a socket are in use by a copy each, as the core permits.
#[test]
fn a_socket_is_copied_in_both_directions_at_once() {
    run(r#"
        foreach direction {core extension} {
            if {$direction eq "extension"} { stilling::install -fcopy }
            set before [direct]
            lassign [pair] client server
            set file [open $big rb]
            set target [open [file join $folder target] wb]
            set back [open [file join $folder back] wb]
            fcopy $file $client -command {set ::sent}
            fcopy $client $back -command {set ::received}
            check "the input is busy" [catch {fcopy $file $client -command done} message] 1
            check "its text" $message "channel \"$file\" is busy"
            set other [open $big rb]
            check "the output is busy" [catch {fcopy $other $client -command done} message] 1
            check "its text" $message "channel \"$client\" is busy"
            check "the input is busy" [catch {fcopy $client $target -command done} message] 1
            check "its text" $message "channel \"$client\" is busy"
            fcopy $server $target -command done
            fcopy $other $server -size 2000000 -command {set ::answered}
            check "sent" [result_of sent] 6000000
            check "answered" [result_of answered] 2000000
            close $client write
            close $server write
            check "done" [result_of done] 6000000
            check "received" [result_of received] 2000000
            close $client
            close $server
            foreach channel {file target back other} { close [set $channel] }
            check "the bytes" [expr {[contents [file join $folder target]] eq [contents $big]}] 1
            check "the bytes back" [expr {[contents [file join $folder back]] eq
                [string range [contents $big] 0 1999999]}] 1
        }
        check "by the system" [expr {[direct] - $before > 15900000}] 1
        # A socket goes to another one, by the core, while it receives a file.
        lassign [pair] client server
        lassign [pair] next peer
        set file [open $big rb]
        fcopy $file $server -command {set ::sent}
        fcopy $server $next -size 4 -command done
        puts -nonewline $client abcd
        flush $client
        check "to another socket" [result_of done] 4
        set ::collected ""
        fileevent $client readable [list collect $client]
        check "sent" [result_of sent] 6000000
    "#);
}

/// The last copy of a channel restores its blocking mode.
#[test]
fn a_channel_blocks_again_after_its_last_copy() {
    run(r#"
        lassign [pair] client server
        fconfigure $client -blocking 1
        set file [open $big rb]
        set back [open [file join $folder back] wb]
        stilling::fcopy $file $client -size 10 -command {set ::sent}
        stilling::fcopy $client $back -command {set ::received}
        check "sent" [result_of sent] 10
        check "beside the other copy" [fconfigure $client -blocking] 0
        fconfigure $server -blocking 1
        check "the server has all" [string length [read $server 10]] 10
        close $server
        check "received" [result_of received] 0
        check "after both" [fconfigure $client -blocking] 1
    "#);
}

/// The end of the process or of a thread ends the copies while Tcl can still release their values.
#[test]
fn an_exit_ends_the_copies() {
    let script = format!(
        "{TOOLS}\n{}",
        r#"
        package require Thread
        set start {
            set listener [socket2 -server {apply {{channel args} { set ::accepted $channel }}} -myaddr 127.0.0.1 0]
            for {set i 0} {$i < 10} {incr i} {
                set client [socket2 127.0.0.1 [lindex [fconfigure $listener -sockname] 2]]
                vwait ::accepted
                fconfigure $client -translation binary
                fconfigure $::accepted -translation binary
                set file [open $::big rb]
                set target [open $::big.copy$i wb]
                stilling::fcopy $file $client -command [list error "a command: $i" [dict create a $i]]
                stilling::fcopy $client $target -command [list error "another command: $i"]
            }
            update
        }
        set worker [thread::create -joinable]
        thread::send $worker [list load $::library Stilling]
        thread::send $worker [list set ::big $big]
        thread::send $worker $start
        thread::release $worker
        thread::join $worker
        eval $start
    "#
    );
    for driver in DRIVERS {
        run_wrapped(driver, &["env", "-u", "TCL_FINALIZE_ON_EXIT"], &script);
        run_wrapped(driver, &["env", "TCL_FINALIZE_ON_EXIT=1"], &script);
    }
}

/// A file that another interpreter of the thread gets is copied on, and the channels block again at the end.
#[test]
fn a_copy_goes_on_when_another_interpreter_gets_the_file() {
    run(r#"
        foreach copy {fcopy stilling::fcopy} {
            interp create other
            lassign [pair] client server
            set file [open $big rb]
            fconfigure $client -blocking 1
            $copy $file $client -command done
            for {set i 0} {$i < 10} {incr i} { after 1; update }
            interp transfer {} $file other
            set ::collected ""
            fileevent $server readable [list collect $server]
            check "$copy: to a socket" [wait done] 6000000
            check "$copy: it blocks again" [fconfigure $client -blocking] 1
            check "$copy: the file blocks again" [other eval [list fconfigure $file -blocking]] 1
            close $client
            wait ended
            check "$copy: the bytes" [expr {$::collected eq [contents $big]}] 1
            other eval [list close $file]

            lassign [pair] client server
            set target [open [file join $folder target] wb]
            $copy $server $target -command done
            puts -nonewline $client abc
            flush $client
            for {set i 0} {$i < 10} {incr i} { after 1; update }
            interp transfer {} $target other
            puts -nonewline $client def
            close $client
            check "$copy: from a socket" [wait done] 6
            close $server
            other eval [list close $target]
            check "$copy: the bytes" [contents [file join $folder target]] abcdef

            lassign [pair] client server
            fconfigure $client -blocking 1
            set file [open $big rb]
            $copy $file $client -command {error never}
            interp transfer {} $file other
            update
            interp delete other
            check "$copy: a close in the other one" [fconfigure $client -blocking] 1
            # The core has bytes in its buffers, whose flush would wait for the peer.
            close $server
            catch {close $client}
        }
    "#);
}

/// A socket that is closed with unsent output ends its copy without a callback, also before the output is sent.
#[test]
fn a_close_with_unsent_output_ends_the_copy() {
    run(r#"
        lassign [pair] client server
        puts -nonewline $server [string repeat x 20000000]
        set target [open [file join $folder target] wb]
        stilling::fcopy $server $target -command done
        close $server
        # Without input, which the socket would not read: the system would reset the connection then, and lose output.
        chan close $client write
        for {set i 0} {$i < 50} {incr i} { after 2; update }
        check "a callback before the end" [info exists ::done] 0
        set ::collected ""
        fileevent $client readable [list collect $client]
        wait ended
        check "the output" [string length $::collected] 20000000
        update
        check "a callback" [info exists ::done] 0
        close $target
    "#);
}

/// A channel that is closed while Tcl writes its output in the background ends its copies; the output is still written.
#[test]
fn a_close_during_a_flush_ends_the_copy() {
    run(r#"
        foreach {blocking is_file_closed} {0 0 1 0 1 1} {
            lassign [pair] client server
            set name [file join $folder target]
            set target [open $name wb]
            fconfigure $client -blocking $blocking
            unset -nocomplain ::done
            stilling::fcopy $client $target -command done
            puts -nonewline $client [string repeat x 20000000]
            close $client
            if {$is_file_closed} { close $target } else { puts -nonewline $server hello; flush $server }
            for {set i 0} {$i < 20} {incr i} { after 1; update }
            set ::collected ""
            fileevent $server readable [list collect $server]
            check "the end" [wait ended] 1
            # Input that is not read makes the system reset the connection, which may lose the last bytes.
            if {$is_file_closed} { check "the output" [string length $::collected] 20000000 }
            for {set i 0} {$i < 20} {incr i} { after 1; update }
            check "no callback" [info exists ::done] 0
            if {!$is_file_closed} { close $target }
            check "nothing is copied" [contents $name] ""
        }
    "#);
}

/// A script that closes one direction of the socket during copies: writes fail, and reads are at the end. The copy of
/// the other direction is not disturbed.
#[test]
fn a_half_close_ends_the_copy_of_its_direction() {
    run(r#"
        proc received {args} { set ::received $args }
        # More than sockets hold.
        set name [file join $folder source]
        set source [open $name wb]
        chan truncate $source 40000000
        close $source
        foreach direction {write read} {
            lassign [pair] client server
            set source [open $name rb]
            set target [open [file join $folder target] wb]
            stilling::fcopy $source $client -command done
            stilling::fcopy $client $target -command received
            puts -nonewline $server abc
            flush $server
            for {set i 0} {$i < 20} {incr i} { after 1; update }
            check "both go on" [list [info exists ::done] [info exists ::received]] {0 0}
            chan close $client $direction
            set ::collected ""
            fileevent $server readable [list collect $server]
            if {$direction eq "write"} {
                lassign [result_of done] total message
                check "why" $message "error writing \"$client\": broken pipe"
                result_of ended
                check "its total" $total [string length $::collected]
                check "the other direction" [result_of received] 3
            } else {
                check "received" [result_of received] 3
                check "the other direction" [result_of done] 40000000
                close $client
                result_of ended
                check "all bytes" [string length $::collected] 40000000
            }
            catch {close $client}
            close $source
            close $target
            check "received bytes" [contents [file join $folder target]] abc
        }
    "#);
}

/// A script that makes the sockets block during a copy, which the core forbids: the copy does not wait, and the sockets
/// block afterwards.
#[test]
fn a_socket_that_a_script_makes_block_does_not_stop_a_copy() {
    run(r#"
        lassign [pair] client server
        set source [open $big rb]
        set target [open [file join $folder target] wb]
        stilling::fcopy $source $client -command {set ::sent}
        stilling::fcopy $server $target -command {set ::received}
        foreach channel [list $client $server] { fconfigure $channel -blocking 1 }
        check "sent" [result_of sent] 6000000
        close $client
        check "received" [result_of received] 6000000
        check "it blocks" [fconfigure $server -blocking] 1
        close $target
        check "the bytes" [expr {[contents [file join $folder target]] eq [contents $big]}] 1

        # Output that a script has buffered, more than the full socket takes: the reader is in this thread.
        lassign [pair] client server
        set source [open $big rb]
        stilling::fcopy $source $client -command {set ::sent}
        for {set i 0} {$i < 20} {incr i} { after 1; update }
        fconfigure $client -blocking 1 -buffering full -buffersize 1000000
        puts -nonewline $client [string repeat x 900000]
        set ::collected ""
        fileevent $server readable [list collect $server]
        check "sent beside output" [result_of sent] 6000000
        check "it blocks again" [fconfigure $client -blocking] 1
        fconfigure $client -blocking 0
        close $client
        result_of ended
        check "all bytes" [string length $::collected] 6900000
    "#);
}

/// A child that has the socket makes it block during a copy: the copy still does not wait for it.
#[test]
fn a_child_cannot_make_a_copy_wait() {
    run(r#"
        set name [file join $folder child.tcl]
        set script [open $name w]
        puts $script {fconfigure stdin -blocking 0; fconfigure stdin -blocking 1}
        close $script
        lassign [pair] client server
        set file [open $big rb]
        set target [open [file join $folder target] wb]
        stilling::fcopy $client $target -command {set ::received}
        exec [info nameofexecutable] $name <@$client
        stilling::fcopy $file $client -command done
        exec [info nameofexecutable] $name <@$client
        for {set i 0} {$i < 20} {incr i} { after 1; update }
        puts -nonewline $server abc
        flush $server
        for {set i 0} {$i < 20} {incr i} { after 1; update }
        set ::collected ""
        fileevent $server readable [list collect $server]
        check "sent" [wait done] 6000000
        close $client write
        wait ended
        check "received" [wait received] 3
        check "the bytes" [expr {$::collected eq [contents $big]}] 1
    "#);
}
