//! Wrong arguments, options and values: results and error codes are those of the core's own `socket`.

use crate::harness::{DRIVERS, IN_NAMESPACE, run_wrapped};

/// Two interpreters, `stock` with the core's command and `ours` with that of the extension. `compare` runs a script in
/// both and collects differences; names of channels and numbers of ports do not count.
const COMPARE: &str = r#"
interp create stock
interp create ours
ours eval [list load $::library Stilling]
ours eval stilling::install
foreach interp {stock ours} {
    $interp eval {
        proc outcome {script} {
            set ::errorCode none
            set code [catch {uplevel #0 $script} result]
            if {$code == 0 && [string match sock* $result]} { close $result }
            regsub -all {\ysock[0-9a-f]+} [list $code $result $::errorCode] CHANNEL outcome
            regsub -all {\m[0-9]{4,5}\M} $outcome NUMBER outcome
            return $outcome
        }
    }
}
set compared 0
set differences {}
proc compare {script} {
    incr ::compared
    set expected [stock eval [list outcome $script]]
    set actual [ours eval [list outcome $script]]
    if {$actual ne $expected} {
        append ::differences "\n$script\n  core: $expected\n  here: $actual"
    }
}
proc check_compared {at_least} {
    check "differences" $::differences {}
    check "scripts compared: $::compared, at least $at_least" [expr {$::compared >= $at_least}] 1
}
"#;

fn run_comparison(script: &str) {
    for driver in DRIVERS {
        run_wrapped(driver, &IN_NAMESPACE, &format!("{COMPARE}{script}"));
    }
}

/// Ports out of range, hosts that do not exist, wrong switches, and texts that are no ASCII.
#[test]
fn bad_command_lines_fail_as_those_of_the_core() {
    run_comparison(
        r#"
        # Each interpreter has a port that listens, since one that was used in a connect from a fixed port rests.
        foreach interp {stock ours} {
            $interp eval {
                set listener [socket -server list -myaddr 127.0.0.1 0]
                set busy [lindex [fconfigure $listener -sockname] 2]
            }
        }
        set closed [ours eval {
            set listener [socket -server list -myaddr 127.0.0.1 0]
            set port [lindex [fconfigure $listener -sockname] 2]
            close $listener
            set port
        }]
        proc compare_words {args} {
            set words {}
            foreach word $args { lappend words [expr {$word eq "BUSY" ? {$busy} : [list $word]}] }
            compare "socket [join $words]"
        }
        set ports [list $closed BUSY {} 0 -1 -0 1 65535 65536 65537 99999 2147483647 2147483648 4294967296 \
            99999999999999999999 -65536 -2147483648 -2147483649 0x50 0b11 0o17 010 08 1e3 1.5 " $closed" "$closed " \
            "$closed x" +$closed http HTTP no-such-service abc "a b" -async - -- "\{" "8\u00000" \u0661 true 1_000]
        foreach port $ports {
            compare_words 127.0.0.1 $port
            compare_words -server list $port
            compare_words -server list -myaddr 127.0.0.1 $port
            compare_words -myport $port 127.0.0.1 $closed
            compare_words -myport $port 127.0.0.1 BUSY
            compare_words -server list -myport $port 0
            compare_words -myport $port -server list 0
        }
        set hosts [list 127.0.0.1 localhost {} 127.1 0x7f000001 2130706433 300.1.1.1 1.2.3.4.5 ::1 {[::1]} 0.0.0.0 :: \
            127.0.0.1:80 "127.0.0.1 " " 127.0.0.1" "127.0.0.1\u0000x" "\u0000" no-such-name.invalid "bad host" \
            \u00fc.invalid [string repeat a 64].invalid [string repeat a 300] [string repeat a.b 2000] 255.255.255.255 \
            224.0.0.1 -x -1 "\{" fe80::1 fe80::1%lo ::ffff:127.0.0.1]
        foreach host $hosts {
            compare_words $host $closed
            compare_words $host BUSY
            compare_words -myaddr $host 127.0.0.1 $closed
            compare_words -myaddr $host 127.0.0.1 BUSY
            compare_words -myaddr $host ::1 $closed
            compare_words -server list -myaddr $host 0
            compare_words -server list -myaddr $host BUSY
            compare_words -async -myaddr $host 127.0.0.1 $closed
        }
        set words {-async -myaddr -myport -server -backlog -reuseaddr -a -my -s {} - -x 0 127.0.0.1 list}
        compare_words
        foreach first $words {
            compare_words $first
            foreach second $words {
                compare_words $first $second
                foreach third $words { compare_words $first $second $third }
            }
        }
        foreach line {
            {-server list -async 0} {-async -server list 0} {-server list 0 0} {-server {} 0} {127.0.0.1 BUSY x}
            {-myaddr 127.0.0.1 -myaddr 127.0.0.2 127.0.0.1 BUSY} {-myport 1 -myport 2 127.0.0.1 BUSY}
            {-server a -server b 0} {-server \{ 0}
        } { compare_words {*}$line }
        # With surrogates the core of Tcl 9 ends the process.
        set surrogates [expr {[package vsatisfies [info patchlevel] 9] ? {} : "-\ud83d\ude00"}]
        foreach text [list -\u00fc -\u20ac {*}$surrogates -a\u0000b "-a b" -\{ -\" -\\ "-\n"] {
            compare_words $text
            compare_words -server list $text
            compare_words 127.0.0.1 $text
            compare_words 127.0.0.1 a$text
            compare_words a$text 80
            compare_words -myaddr $text 127.0.0.1 80
        }
        check_compared 4000
        "#,
    );
}

/// Options that do not exist, are abbreviated, cannot be set or belong to another kind of channel, and operations that
/// the kind of channel does not have.
#[test]
fn bad_options_fail_as_those_of_the_core() {
    run_comparison(
        r#"
        foreach interp {stock ours} {
            $interp eval {
                proc accept {channel host port} { set ::accepted $channel }
                set listener [socket -server accept -myaddr 127.0.0.1 0]
                set client [socket 127.0.0.1 [lindex [fconfigure $listener -sockname] 2]]
                vwait accepted
                set both [socket -server list 0]
                set refusing [socket -server list -myaddr 127.0.0.1 0]
                set port [lindex [fconfigure $refusing -sockname] 2]
                close $refusing
                set failed [socket -async 127.0.0.1 $port]
                fileevent $failed writable {set ::is_failed 1}
                vwait ::is_failed
                fileevent $failed writable {}
            }
        }
        set names {}
        foreach name {-connecting -error -peername -sockname -bogus -blocking} {
            for {set i 0} {$i < [string length $name]} {incr i} { lappend names [string range $name 0 $i] }
        }
        lappend names {} -Peername -PEERNAME -sockname2 "-sockname " " -sockname" \u00fc -\u20ac -a\u0000 -- sockname \
            "-a b" "\{" "-\{"
        set operations {
            {gets @} {read @ 0} {puts @ x} {flush @} {eof @} {fblocked @} {seek @ 0} {tell @} {chan truncate @}
            {chan close @ read} {chan close @ write} {chan close @ bogus} {fileevent @ readable} {fileevent @ writable}
            {fileevent @ readable list} {fileevent @ writable list} {chan pending input @} {chan pending output @}
            {close @} {close @}
        }
        foreach channel {listener both client accepted failed} {
            compare "dict keys \[fconfigure \$$channel]"
            foreach name $names {
                # The core keeps the socket of a failed connect, and its address.
                if {$channel ne "failed" || ![string match -s* $name] && $name ne ""} {
                    compare "fconfigure \$$channel [list $name]"
                }
                if {[string match -b* $name]} continue
                foreach value {{} 0 1 maybe -1 x "\{" \u00fc} { compare "fconfigure \$$channel [list $name $value]" }
            }
            foreach operation $operations {
                # A blocking gets would wait for a line.
                if {$operation eq "gets @" && $channel in {client accepted}} continue
                compare [string map [list @ \$$channel] $operation]
            }
        }
        check_compared 2400
        "#,
    );
}

/// A socket whose connect has failed lists its options, as in the core.
#[test]
fn the_options_of_a_failed_socket_are_no_error() {
    crate::harness::run_on_all(
        r#"
        set listener [socket2 -server list -myaddr 127.0.0.1 0]
        set port [port_of $listener]
        close $listener
        rename socket stock
        stilling::install
        foreach command {socket socket2} {
            set failed [$command -async 127.0.0.1 $port]
            fileevent $failed writable {set ::is_failed 1}
            wait is_failed
            fileevent $failed writable {}
            check "$command: no address" [dict get [fconfigure $failed] -sockname] {}
            check "$command: no peer" [dict exists [fconfigure $failed] -peername] 0
            check "$command: no address by name" [fconfigure $failed -sockname] {}
            check "$command: no peer by name" [catch {fconfigure $failed -peername} message] 1
            set reason [expr {[package vsatisfies [info patchlevel] 9] ? "transport endpoint" : "socket"}]
            check "$command: its text" $message "can't get peername: $reason is not connected"
            close $failed
        }
        "#,
    );
}

/// A driver that does not exist is named by the first socket or look-up.
#[test]
fn an_unknown_driver_is_named() {
    check_unusable_driver("pol", &[], "must be poll, uring or direct");
}

/// Row 5.2: a driver that the system does not permit is named by the first socket or look-up, with the reason.
#[test]
fn a_driver_that_is_not_permitted_is_named() {
    for (error, reason) in [("EPERM", "Operation not permitted"), ("ENOSYS", "Function not implemented")] {
        let inject = format!("inject=io_uring_setup:error={error}");
        let refused =
            ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=io_uring_setup", "-e", &inject];
        for driver in ["uring", "direct"] {
            check_unusable_driver(driver, &refused, &format!("io_uring is not available here: {reason}*"));
        }
    }
}

/// Every use of a driver fails with a reason that matches a pattern.
fn check_unusable_driver(driver: &str, wrapper: &[&str], reason: &str) {
    let pattern = format!("cannot use STILLING_TCL_DRIVER={driver}: {reason}");
    let script = r#"
        proc check_match {what text expected} {
            if {![string match $expected $text]} { check $what $text $expected }
        }
        foreach arguments {{127.0.0.1 1} {-async localhost 1} {-server list 0} -udp} {
            check $arguments [catch {socket2 {*}$arguments} message] 1
            check_match $arguments $message "couldn't open socket: $pattern"
        }
        check "a look-up" [catch {socket2 -lookup localhost -command list} message] 1
        check_match "a look-up" $message "couldn't look up \"localhost\": $pattern"
        check_match "the statistics" [dict get [stilling::stats] driver] $pattern
    "#;
    run_wrapped(driver, wrapper, &format!("set pattern {{{pattern}}}\n{script}"));
}
