//! Row 3.29: where the time goes.

use crate::harness::run_on_all;

/// A slow script shows as time of scripts, a waiting process as waiting; both layers count their calls.
#[test]
fn time_of_scripts_is_apart_from_time_of_sockets() {
    run_on_all(
        r#"
        proc stage {name key} { dict get [stilling::stats] stages $name $key }
        proc exchange {work} {
            set listener [socket2 -server [list accept $work] -myaddr 127.0.0.1 0]
            set client [socket2 127.0.0.1 [port_of $listener]]
            fconfigure $client -blocking 0 -buffering none -translation binary
            fileevent $client readable [list answered $client]
            set ::left 100
            puts -nonewline $client x
            wait done
            close $client
            close $listener
        }
        proc accept {work channel args} {
            fconfigure $channel -blocking 0 -buffering none -translation binary
            fileevent $channel readable [list serve $work $channel]
        }
        proc serve {work channel} {
            eval $work
            puts -nonewline $channel [read $channel]
            if {[eof $channel]} { close $channel }
        }
        proc answered {client} {
            read $client
            if {[incr ::left -1] == 0} { set ::done 1 } else { puts -nonewline $client x }
        }
        check "off" [dict get [stilling::stats] stages on] 0
        exchange {}
        check "nothing is measured" [stage script count] 0
        check "on" [dict get [stilling::stats -stages on] stages on] 1
        exchange {after 1}
        check "scripts" [expr {[stage script count] >= 200}] 1
        check "receives" [expr {[stage receive count] >= 200}] 1
        check "sends" [expr {[stage send count] >= 200}] 1
        check "turns" [expr {[stage turn count] >= 1}] 1
        check "the script sleeps" [expr {[stage script nanoseconds] >= 100 * 1000000}] 1
        foreach name {turn receive send} {
            check "$name takes time" [expr {[stage $name nanoseconds] > 0}] 1
        }
        set before [stage wait nanoseconds]
        after 5 {set ::waited 1}
        vwait ::waited
        check "the wait" [expr {[stage wait nanoseconds] > $before}] 1
        stilling::stats -stages off
        set before [stage script count]
        exchange {}
        check "off again" [stage script count] $before
        check "a bad value" [catch {stilling::stats -stages maybe} message] 1
        check "its text" $message {expected boolean value but got "maybe"}
        check "a bad option" [catch {stilling::stats -bogus 1} message] 1
        check "its text" $message {bad option "-bogus": must be -stages}
        check "a bad count" [catch {stilling::stats -stages} message] 1
        check "its text" $message {wrong # args: should be "stilling::stats ?-stages boolean?"}
        "#,
    );
}
