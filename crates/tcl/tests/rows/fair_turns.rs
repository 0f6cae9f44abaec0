//! Other sources of events beside sockets that always have some.

use crate::harness::run_on_all;

/// Row 3.6: timers, pipes and messages of other threads are served beside sockets that are always ready. (Idle callbacks
/// are not, as in the core.)
#[test]
fn sockets_that_are_always_ready_leave_room_for_other_events() {
    run_on_all(
        r#"
        package require Thread
        proc accept {channel host port} { set ::accepted $channel }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set clients {}
        for {set i 0} {$i < 20} {incr i} {
            set client [socket2 127.0.0.1 [port_of $listener]]
            fconfigure $client -blocking 0
            fileevent $client writable {incr ::writable}
            lappend clients $client
        }
        wait writable
        after 5 { set ::timer 1 }
        wait timer
        set pipe [open |cat r+]
        fconfigure $pipe -blocking 0 -buffering line
        fileevent $pipe readable { gets $::pipe ::line }
        puts $pipe hello
        wait line
        check "from the pipe" $line hello
        thread::send -async [thread::create] [list thread::send -async [thread::id] {set ::message 1}]
        wait message
        check "the sockets were served meanwhile" [expr {$writable > 100}] 1
        close $pipe
        foreach client $clients { close $client }
        "#,
    );
}
