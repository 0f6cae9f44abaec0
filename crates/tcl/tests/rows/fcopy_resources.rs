//! Row 3.33: `stilling::fcopy` with files that the system refuses to copy, full disks and no descriptors.

use crate::fcopy::{TOOLS, run};
use crate::harness::{DRIVERS, run_wrapped};

/// Runs a command with a disk of 131,072 bytes at `/mnt`, which only it sees.
const WITH_SMALL_DISK: [&str; 7] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs -o size=128k tmpfs /mnt && exec \"$0\" \"$@\"",
];

/// A file for which the system refuses to copy is read or written by the extension, with the same result.
#[test]
fn a_refused_file_is_copied_through_memory() {
    run(r#"
        set before [direct]
        # procfs has no splice for these two.
        set environment [contents /proc/self/environ]
        foreach background {0 1} {
            lassign [pair] client server
            fconfigure $client -blocking 1
            set file [open /proc/self/environ rb]
            if {$background} {
                stilling::fcopy $file $client -command done
                set total [wait done]
            } else {
                set total [stilling::fcopy $file $client]
            }
            check "from procfs" $total [string length $environment]
            check "the end" [eof $file] 1
            close $file
            close $client
            set ::collected ""
            fileevent $server readable [list collect $server]
            wait ended
            check "the bytes" [expr {$::collected eq $environment}] 1
        }
        lassign [pair] client server
        set file [open /proc/self/comm wb]
        stilling::fcopy $server $file -command done
        foreach name {first-name another-name} {
            puts -nonewline $client $name
            flush $client
            for {set i 0} {$i < 1000 && [contents /proc/self/comm] ne "$name\n"} {incr i} { after 1; update }
            check "to procfs" [contents /proc/self/comm] "$name\n"
        }
        close $client
        check "done" [wait done] 22
        check "nothing by the system" [direct] $before
    "#);
}

/// Files in memory and devices: the former are copied by the system, the latter by the core.
#[test]
fn files_in_memory_and_devices_are_copied() {
    run(r#"
        set before [direct]
        lassign [pair] client server
        set name /dev/shm/stilling-[pid]
        set target [open $name w+b]
        file delete $name
        set source [open $big rb]
        stilling::fcopy $server $target -command done
        stilling::fcopy $source $client -command {set ::sent}
        check "sent" [wait sent] 6000000
        close $client
        check "to a file in memory" [result_of done] 6000000
        check "by the system" [expr {[direct] - $before >= 11900000}] 1
        seek $target 0
        lassign [pair] client server
        set ::collected ""
        fileevent $server readable [list collect $server]
        stilling::fcopy $target $client -command done
        check "from a file in memory" [wait done] 6000000
        close $client
        wait ended
        check "the bytes" [expr {$::collected eq [contents $big]}] 1

        set before [direct]
        lassign [pair] client server
        set zero [open /dev/zero rb]
        set ::collected ""
        fileevent $server readable [list collect $server]
        stilling::fcopy $zero $client -size 100000 -command done
        check "from a device" [wait done] 100000
        close $client
        wait ended
        check "its bytes" [expr {$::collected eq [string repeat \0 100000]}] 1
        check "by the core" [direct] $before
    "#);
}

/// Copies take no descriptors of their own: a thread has one pipe for all of them.
#[test]
fn copies_share_their_descriptors() {
    run(r#"
        proc descriptors {} { llength [glob -directory /proc/self/fd *] }
        for {set i 0} {$i < 20} {incr i} {
            lassign [pair] client server
            lappend jobs $server $client [open $big rb] [open [file join $folder target$i] wb]
        }
        set before [descriptors]
        set ::totals {}
        foreach {server client file target} $jobs {
            stilling::fcopy $server $target -command {lappend ::totals}
            stilling::fcopy $file $client -size 100000 -command {set ::sent}
            result_of sent
        }
        check "descriptors during copies" [expr {[descriptors] <= $before + 2}] 1
        foreach {server client file target} $jobs { close $client }
        for {set i 0} {$i < 1000 && [llength $::totals] < 20} {incr i} { after 1; update }
        check "totals" $::totals [lrepeat 20 100000]
    "#);
}

/// A file at the limit of the process fails the copy, after the bytes that it took. The next copy has none of the others.
#[test]
fn a_full_file_fails_the_copy() {
    // In a shell that ignores the signal, which ends the process otherwise.
    check_full(
        &["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"],
        r#"
        exec prlimit --pid [pid] --fsize=100000:
        set name [file join $folder target]
        set room 100000
        set code EFBIG
        set text "file too large"
        "#,
    );
}

/// A full disk fails the copy, after the bytes that it took. When there is room again, the next copy succeeds.
#[test]
fn a_full_disk_fails_the_copy() {
    check_full(
        &WITH_SMALL_DISK,
        r#"
        set name /mnt/target
        set room 131072
        set code ENOSPC
        set text "no space left on device"
        "#,
    );
}

/// Copies more than fits to the file `name`, which has `room` bytes.
fn check_full(wrapper: &[&str], setup: &str) {
    const SCRIPT: &str = r#"
        set source [open $big rb]
        foreach background {0 1} {
            lassign [pair] client server
            fconfigure $server -blocking 1
            set target [open $name wb]
            seek $source 1000
            stilling::fcopy $source $client -size 150000 -command {set ::sent}
            check "sent" [result_of sent] 150000
            close $client
            if {$background} {
                stilling::fcopy $server $target -command done
                lassign [result_of done] total message
                check "its total" $total $room
            } else {
                check "it fails" [catch {stilling::fcopy $server $target} message] 1
                check "errorCode" [lrange $::errorCode 0 1] [list POSIX $code]
            }
            check "the message" $message "error writing \"$target\": $text"
            set expected [string range [contents $big] 1000 [expr {1000 + $room - 1}]]
            check "the bytes" [expr {[contents $name] eq $expected}] 1
            close $server
            close $target
            file delete $name

            lassign [pair] client server
            set target [open $name wb]
            puts -nonewline $client abc
            close $client
            stilling::fcopy $server $target -command done
            check "the next copy" [result_of done] 3
            close $target
            check "its bytes" [contents $name] abc
        }
    "#;
    for driver in DRIVERS {
        run_wrapped(driver, wrapper, &format!("{TOOLS}\n{setup}\n{SCRIPT}"));
    }
}

/// Copies go on through memory while the process has no descriptors: those of direct descriptors need some otherwise.
#[test]
fn copies_go_on_without_descriptors() {
    let script = format!(
        "{TOOLS}\n{}",
        r#"
        foreach round {1 2} {
            lassign [pair] client server
            set source [open $big rb]
            set target [open [file join $folder target] wb]
            stilling::fcopy $server $target -command done
            stilling::fcopy $source $client -command {set ::sent}
            lassign [pair] other_client other_server
            set other_target [open [file join $folder other] wb]
            stilling::fcopy $other_server $other_target -command {set ::other}
            after 1
            update
            set taken {}
            while {![catch {open /dev/null} channel]} { lappend taken $channel }
            check "no descriptors" [string match "*too many open files" $channel] 1
            check "sent" [result_of sent] 6000000
            check "the other goes on" [info exists ::other] 0
            chan close $other_server read
            check "closed for reading" [result_of other] 0
            close $client
            check "done" [result_of done] 6000000
            foreach channel $taken { close $channel }
            close $target
            check "the bytes" [expr {[contents [file join $folder target]] eq [contents $big]}] 1
        }
        "#
    );
    for driver in DRIVERS {
        run_wrapped(driver, &["prlimit", "--nofile=200"], &script);
    }
}
