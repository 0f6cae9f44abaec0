//! Row 3.33: `stilling::fcopy`, beside the core's `fcopy`.

use crate::harness::run_on_all;

/// A pair of connected sockets, a file with 6 MB of bytes that differ, and `direct`: the bytes that the system copied.
pub(crate) const TOOLS: &str = r#"
    proc direct {} { dict get [stilling::stats] fcopy_bytes }
    proc pair {} {
        set listener [socket2 -server {apply {{channel args} { set ::accepted $channel }}} -myaddr 127.0.0.1 0]
        set client [socket2 127.0.0.1 [port_of $listener]]
        wait accepted
        close $listener
        foreach channel [list $client $::accepted] { fconfigure $channel -translation binary -blocking 0 }
        return [list $client $::accepted]
    }
    proc contents {name} {
        set file [open $name rb]
        set bytes [read $file]
        close $file
        return $bytes
    }
    proc collect {channel} {
        append ::collected [read $channel]
        if {[eof $channel]} { close $channel; set ::ended 1 }
    }
    proc done {args} { set ::done $args }
    # The value of a variable that a callback sets, now or later.
    proc result_of {name} {
        if {![info exists ::$name]} { wait $name }
        set value [set ::$name]
        unset ::$name
        return $value
    }
    set folder [exec mktemp -d]
    set big [file join $folder big]
    set file [open $big wb]
    for {set i 0} {$i < 60000} {incr i} { puts -nonewline $file [format %0100d $i] }
    close $file
    rename exit real_exit
    proc exit {{code 0}} { file delete -force $::folder; real_exit $code }
"#;

pub(crate) fn run(script: &str) {
    run_on_all(&format!("{TOOLS}\n{script}"));
}

/// A file goes to a socket in the background, after the bytes in both buffers, while other events take turns.
#[test]
fn a_file_goes_to_a_socket_in_the_background() {
    run(r#"
        lassign [pair] client server
        set file [open $big rb]
        check "the first bytes" [read $file 50] [string repeat 0 50]
        set ::collected ""
        fileevent $server readable [list collect $server]
        fconfigure $client -blocking 1
        puts -nonewline $client HEAD
        set before [direct]
        set ::ticks 0
        proc tick {} { incr ::ticks; set ::timer [after 0 tick] }
        tick
        check "the result" [stilling::fcopy $file $client -command {done x}] {}
        check "done" [wait done] {x 5999950}
        after cancel $::timer
        check "other events" [expr {$::ticks > 5}] 1
        check "by the system" [expr {[direct] - $before > 5900000}] 1
        check "the end" [eof $file] 1
        check "the position" [tell $file] 6000000
        check "it blocks again" [fconfigure $client -blocking] 1
        close $client
        wait ended
        check "the bytes" [expr {$::collected eq "HEAD[string range [contents $big] 50 end]"}] 1
    "#);
}

/// Parts of a file, one after the other, with the position where the core leaves it.
#[test]
fn a_size_limits_the_copy() {
    run(r#"
        foreach copy {::fcopy ::stilling::fcopy} {
            lassign [pair] client server
            set file [open $big rb]
            set ::collected ""
            fileevent $server readable [list collect $server]
            foreach size {1 100 70000 2000000 -5} {
                $copy $file $client -size $size -command done
                lappend totals [wait done]
                lappend ends [eof $file]
            }
            close $client
            wait ended
            check "the bytes" [expr {$::collected eq [contents $big]}] 1
            close $file
        }
        check "totals" $totals {1 100 70000 2000000 3929899 1 100 70000 2000000 3929899}
        check "ends" $ends {0 0 0 0 1 0 0 0 0 1}
        set file [open $big rb]
        lassign [pair] client server
        check "zero" [stilling::fcopy $file $client -size 0] 0
        stilling::fcopy $file $client -size 0 -command done
        check "zero in the background" [wait done] 0
    "#);
}

/// What a socket receives goes to a file, after what was buffered.
#[test]
fn a_socket_goes_to_a_file_in_the_background() {
    run(r#"
        foreach {copy rest} {::fcopy 0 ::stilling::fcopy 1} {
            lassign [pair] client server
            puts $client "a line"
            puts -nonewline $client "the rest"
            flush $client
            fileevent $server readable { set ::line [gets $server] }
            check "a line" [wait line] "a line"
            fileevent $server readable {}
            set target [open [file join $folder target] wb]
            puts -nonewline $target before
            set before [direct]
            $copy $server $target -command done
            set source [open $big rb]
            $copy $source $client -command {set ::sent}
            check "sent" [wait sent] 6000000
            close $client
            check "done" [wait done] 6000008
            check "by the system" [expr {[direct] - $before >= 11900000}] $rest
            check "the end" [eof $server] 1
            check "the position" [tell $target] 6000014
            close $server
            close $target
            close $source
            check "the bytes" [expr {[contents [file join $folder target]] eq "beforethe rest[contents $big]"}] 1
        }
    "#);
}

/// A size stops the copy from a socket; what follows is for the script.
#[test]
fn a_size_leaves_the_rest_of_a_socket_to_the_script() {
    run(r#"
        lassign [pair] client server
        set target [open [file join $folder target] wb]
        puts -nonewline $client [string repeat a 1000][string repeat b 500]
        flush $client
        stilling::fcopy $server $target -size 1000 -command done
        check "done" [wait done] 1000
        flush $target
        check "the bytes" [contents [file join $folder target]] [string repeat a 1000]
        fileevent $server readable { set ::rest [read $server] }
        check "the rest" [wait rest] [string repeat b 500]
        fileevent $server readable {}
        # Bytes in the buffer are more than the size.
        puts $client "line"
        puts -nonewline $client abcdef
        flush $client
        fileevent $server readable { set ::line [gets $server] }
        wait line
        fileevent $server readable {}
        stilling::fcopy $server $target -size 4 -command done
        check "done" [wait done] 4
        check "the buffer's rest" [read $server] ef
    "#);
}

/// Without a callback the command blocks until everything is copied.
#[test]
fn a_copy_can_block() {
    run(r#"
        set peer {
            lassign $argv mode name
            proc accept {channel args} {
                fconfigure $channel -translation binary
                set file [open $::name [expr {$::mode eq "send" ? "rb" : "wb"}]]
                fconfigure $file -translation binary
                if {$::mode eq "send"} { fcopy $file $channel } else { fcopy $channel $file }
                close $file
                close $channel
                exit
            }
            puts [lindex [fconfigure [socket -server accept -myaddr 127.0.0.1 0] -sockname] 2]
            flush stdout
            vwait forever
        }
        set script [open [file join $folder peer.tcl] w]
        puts $script $peer
        close $script
        proc start {mode name} {
            set ::pipe [open |[list [info nameofexecutable] [file join $::folder peer.tcl] $mode $name]]
            set channel [socket2 127.0.0.1 [gets $::pipe]]
            fconfigure $channel -translation binary
            return $channel
        }
        foreach copy {fcopy stilling::fcopy} {
            set before [direct]
            set target [file join $folder target]
            set channel [start receive $target]
            set file [open $big rb]
            puts -nonewline $channel head
            lappend totals [$copy $file $channel] [$copy $file $channel]
            lappend ends [eof $file]
            close $channel
            read $pipe
            close $pipe
            check "received by the peer" [expr {[contents $target] eq "head[contents $big]"}] 1
            close $file

            set channel [start send $big]
            set file [open $target wb]
            lappend totals [$copy $channel $file -size 5] [$copy $channel $file]
            lappend ends [eof $channel]
            close $channel
            close $file
            close $pipe
            check "sent by the peer" [expr {[contents $target] eq [contents $big]}] 1
        }
        check "totals" $totals {6000000 0 5 5999995 6000000 0 5 5999995}
        check "ends" $ends {1 1 1 1}
        check "by the system" [expr {[direct] - $before >= 11900000}] 1
    "#);
}

/// What the system cannot copy is copied by the core, with the same result.
#[test]
fn other_channels_are_left_to_the_core() {
    run(r#"
        proc send {copy prepare} {
            lassign [pair] client server
            set file [open $::big r]
            fconfigure $file -translation binary
            set ::collected ""
            fileevent $server readable [list collect $server]
            eval $prepare
            $copy $file $client -size 20000 -command done
            set total [wait done]
            close $client
            wait ended
            close $file
            return [list $total $::collected]
        }
        set packed [file join $folder packed]
        set file [open $packed wb]
        puts -nonewline $file [zlib gzip [string repeat "a line\n" 5000]]
        close $file
        set before [direct]
        foreach prepare {
            {fconfigure $client -translation crlf}
            {fconfigure $client -encoding utf-8}
            {fconfigure $file -translation auto}
            {fconfigure $file -eofchar 7}
            {zlib push compress $client}
            {close $file; set file [open $::packed rb]; zlib push gunzip $file}
        } {
            check $prepare [expr {[send fcopy $prepare] eq [send stilling::fcopy $prepare]}] 1
        }
        lassign [pair] client server
        puts -nonewline $client abc
        close $client
        set target [open [file join $folder appended] ab]
        puts $target first
        stilling::fcopy $server $target -command done
        check "to an appended file" [wait done] 3
        close $target
        check "its bytes" [contents [file join $folder appended]] "first\nabc"
        lassign [pair] client server
        fconfigure $server -recvmode flow-controlled
        puts -nonewline $client abc
        close $client
        set target [open [file join $folder ahead] wb]
        stilling::fcopy $server $target -command done
        check "received ahead" [wait done] 3
        set pipe [open "|printf 12345" rb]
        set target [open [file join $folder piped] wb]
        check "from a pipe" [stilling::fcopy $pipe $target] 5
        check "nothing by the system" [direct] $before
    "#);
}

/// The messages are the core's.
#[test]
fn errors_in_the_words_are_those_of_the_core() {
    run(r#"
        lassign [pair] client server
        set file [open $big rb]
        set target [open [file join $folder target] wb]
        foreach words {
            {} {a} {$file} {$file $client -size} {$file $client -size 1 -command} {nothing $client} {$file nothing}
            {$target $client} {$client $file} {$file $client -bogus 1} {$file $client -size many}
            {$file $client - 1} {$file $client -size 1 -command done extra}
        } {
            set words [subst $words]
            set texts {}
            foreach copy {fcopy stilling::fcopy} {
                check "$words fails" [catch {$copy {*}$words} message] 1
                lappend texts [string map [list $copy COPY] $message] [string map [list $copy COPY] $::errorCode]
            }
            check $words [lrange $texts 2 3] [lrange $texts 0 1]
        }
        foreach first {fcopy stilling::fcopy} {
            lassign [pair] client server
            set file [open $big rb]
            $first $file $client -command done
            check "$first is busy" [catch {stilling::fcopy $file $client} message] 1
            check "its text" $message "channel \"$file\" is busy"
            close $client
            close $server
            close $file
        }
        check "install" [catch {stilling::install -bogus} message] 1
        check "its text" $message {bad option "-bogus": must be -fcopy}
        stilling::install -fcopy
        check "replaced" [catch {fcopy} message] 1
        check "its name" $message {wrong # args: should be "fcopy input output ?-size size? ?-command callback?"}
        lassign [pair] client server
        set file [open $big rb]
        set before [direct]
        fcopy $file $client -size 1000 -command done
        check "a copy" [wait done] 1000
        check "by the system" [expr {[direct] - $before}] 1000
    "#);
}

/// A peer that goes fails the copy as it does in the core.
#[test]
fn a_failure_is_passed_to_the_callback() {
    run(r#"
        foreach copy {fcopy stilling::fcopy} {
            lassign [pair] client server
            set file [open $big rb]
            $copy $file $client -command done
            after 20 [list close $server]
            set words [wait done]
            check "$copy: words" [llength $words] 2
            check "$copy: fewer bytes" [expr {[lindex $words 0] < 6000000}] 1
            check "$copy: text: $words" [regexp "^error writing \"$client\": (broken pipe|connection reset by peer)$" \
                [lindex $words 1]] 1
            # It may report the reset, too.
            catch {close $client}
            close $file
        }
        proc bgerror {message} { set ::reported $message }
        lassign [pair] client server
        set file [open $big rb]
        stilling::fcopy $file $client -size 10 -command {error "in the callback"}
        wait reported
        check "an error of the callback" [string range $::reported 0 14] "in the callback"
    "#);
}

/// A channel that is closed, an interpreter that is deleted, a channel that moves: no callback, and no harm.
#[test]
fn an_early_end_has_no_callback() {
    run(r#"
        package require Thread
        foreach copy {fcopy stilling::fcopy} {
            foreach closed {client file} {
                lassign [pair] client server
                set file [open $big rb]
                unset -nocomplain ::done
                fconfigure $client -blocking 1
                $copy $file $client -command done
                after 10 [list set ::waited 1]
                wait waited
                close [set $closed]
                after 20 [list set ::waited 1]
                wait waited
                check "$copy: no callback for $closed" [info exists ::done] 0
                if {$closed eq "file"} { check "$copy: it blocks again" [fconfigure $client -blocking] 1 }
                close $server
                catch {close $client}
                catch {close $file}
            }
        }
        lassign [pair] client server
        interp create other
        load $::library Stilling other
        interp transfer {} $client other
        set file [other eval [list open $big rb]]
        other eval [list stilling::fcopy $file $client -command {error never}]
        after 5 {set ::waited 1}
        wait waited
        interp delete other
        fileevent $server readable [list collect $server]
        check "the peer sees the end" [wait ended] 1

        set worker [thread::create]
        thread::send $worker [list load $::library Stilling]
        foreach moved {client file} {
            lassign [pair] client server
            set file [open $big rb]
            stilling::fcopy $file $client -command {error never}
            after 5 {set ::waited 1}
            wait waited
            thread::transfer $worker [set $moved]
            set ::collected ""
            fileevent $server readable [list collect $server]
            after 20 {set ::waited 1}
            wait waited
            thread::send $worker [list close [set $moved]]
            catch {close $client}
            catch {close $file}
            wait ended
            check "an early end: $moved" [expr {[string length $::collected] < 6000000}] 1
        }
        thread::release $worker
    "#);
}

/// The end of a connection by a reset is the end of the input, as for a read.
#[test]
fn a_reset_ends_the_copy() {
    run(r#"
        lassign [pair] client server
        puts -nonewline $server unread
        flush $server
        set target [open [file join $folder target] wb]
        stilling::fcopy $server $target -command done
        after 5 {set ::waited 1}
        wait waited
        close $client
        check "the end" [wait done] 0
        check "it is the end" [eof $server] 1
    "#);
}

/// A send cap holds for a copy, too, and delays nothing else.
#[test]
fn a_send_cap_holds() {
    run(r#"
        lassign [pair] client server
        fconfigure $client -sendcap 1
        set file [open $big rb]
        stilling::fcopy $file $client -command done
        for {set i 0} {$i < 50} {incr i} { after 1; update }
        check "unsent" [expr {[lindex [fconfigure $client -sendcap] 1] <= 1}] 1
        set ::collected ""
        fileevent $server readable [list collect $server]
        check "done" [wait done] 6000000
        close $client
        wait ended
        check "the bytes" [expr {$::collected eq [contents $big]}] 1
    "#);
}

/// Many copies at once end all, each with its own bytes.
#[test]
fn many_copies_run_at_once() {
    run(r#"
        set count 0
        proc finished {total args} { incr ::count; if {$::count == 40} { set ::all 1 } }
        for {set i 0} {$i < 20} {incr i} {
            lassign [pair] client server
            set file [open $big rb]
            seek $file [expr {$i * 100}]
            set name [file join $folder out$i]
            set target [open $name wb]
            stilling::fcopy $file $client -size 300000 \
                -command [list apply {{channel args} { close $channel; finished {*}$args }} $client]
            stilling::fcopy $server $target \
                -command [list apply {{channel args} { close $channel; finished {*}$args }} $target]
        }
        wait all
        set bytes [contents $big]
        for {set i 0} {$i < 20} {incr i} {
            set from [expr {$i * 100}]
            check "copy $i" [expr {[contents [file join $folder out$i]] eq
                [string range $bytes $from [expr {$from + 299999}]]}] 1
        }
    "#);
}
