//! Look-ups of host names in the background: `socket2 -async` and `socket2 -lookup`.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::harness::{DRIVERS, run_wrapped};

/// `hold`, `release` and `refuse` control the look-up of a name; `calls` counts those that have begun.
const PRELUDE: &str = r#"
proc write_file {name bytes} { set file [open $name.new w]; puts -nonewline $file $bytes; close $file; file rename $name.new $name }
proc release {name} { write_file $::env(HELD_LOOKUPS)/$name {} }
proc refuse {name} { write_file $::env(HELD_LOOKUPS)/$name x }
proc calls {name} { set file $::env(HELD_LOOKUPS)/$name.calls; expr {[file exists $file] ? [file size $file] : 0} }
proc wait_for_call {name} { while {[calls $name] == 0} { after 1 } }
proc sleep {milliseconds} { after $milliseconds {set ::slept 1}; wait slept }
proc accept {channel host port} {
    fconfigure $channel -blocking 0 -buffering line
    fileevent $channel readable [list echo $channel]
}
proc echo {channel} {
    if {[gets $channel line] >= 0} { puts $channel "echo $line" } elseif {[eof $channel]} { close $channel }
}
set listener [socket2 -server accept -myaddr 127.0.0.1 0]
set port [port_of $listener]
"#;

/// The library that holds look-ups.
fn held_resolver() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("held_resolver.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows/held_resolver.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
        assert!(compiler.status().expect("the extension needs a C compiler, too").success());
        library.to_str().expect("the path is text").to_owned()
    })
}

/// Runs a script on every driver with a resolver that it controls.
fn run_held(script: &str) {
    for driver in DRIVERS {
        let folder = tempfile::tempdir().expect("a folder for the names");
        let folder = folder.path().to_str().expect("the path is text");
        let environment = [format!("LD_PRELOAD={}", held_resolver()), format!("HELD_LOOKUPS={folder}")];
        let wrapper = ["env", &environment[0], &environment[1]];
        run_wrapped(driver, &wrapper, &format!("{PRELUDE}\n{script}"));
    }
}

/// Row 3.33: while a host is looked up the channel is connecting, and the event loop goes on.
#[test]
fn a_lookup_does_not_delay_the_event_loop() {
    run_held(
        r#"
        set client [socket2 -async held-one $port]
        check "connecting" [fconfigure $client -connecting] 1
        check "no error" [fconfigure $client -error] {}
        check "no addresses" [list [fconfigure $client -peername] [fconfigure $client -sockname]] {{} {}}
        check "all options" [dict get [fconfigure $client] -sendcap] {20 0}
        fconfigure $client -blocking 0 -buffering line -keepalive 1 -nagle 0
        check "early options" [list [fconfigure $client -keepalive] [fconfigure $client -nagle]] {1 0}
        check "nothing to read" [list [read $client] [fblocked $client] [eof $client]] {{} 1 0}
        fileevent $client writable {set ::connected 1}
        fileevent $client readable {set ::got [gets $client]}
        wait_for_call held-one
        # Another connection works meanwhile.
        set other [socket2 127.0.0.1 $port]
        fconfigure $other -blocking 0 -buffering line
        fileevent $other readable {set ::answer [gets $other]}
        for {set i 0} {$i < 300} {incr i} {
            puts $other $i
            check "an exchange meanwhile" [wait answer] "echo $i"
        }
        check "still connecting" [list [fconfigure $client -connecting] [info exists ::connected]] {1 0}
        puts $client "written while connecting"
        release held-one
        check "connected" [wait connected] 1
        fileevent $client writable {}
        # It may have come before: Tcl flushes first.
        if {![info exists ::got]} { wait got }
        check "the answer" $::got "echo written while connecting"
        check "no longer connecting" [fconfigure $client -connecting] 0
        check "peer" [lindex [fconfigure $client -peername] 2] $port
        check "options are kept" [list [fconfigure $client -keepalive] [fconfigure $client -nagle]] {1 0}
        check "one call" [calls held-one] 1
        "#,
    );
}

/// Row 3.33: a look-up that fails is like a connect that fails.
#[test]
fn a_failed_lookup_is_a_failed_connect() {
    run_held(
        r#"
        refuse held-none
        foreach interest {readable writable both} {
            set client [socket2 -async held-none $port]
            fconfigure $client -blocking 0
            set ::events {}
            foreach event [expr {$interest eq "both" ? "readable writable" : $interest}] {
                fileevent $client $event [list note $event]
            }
            proc note {event} { lappend ::events $event; set ::event 1 }
            wait event
            if {$interest eq "both"} { wait event; check "both" [lsort -unique $::events] {readable writable} }
            check "no longer connecting" [fconfigure $client -connecting] 0
            check "-error" [fconfigure $client -error] {-2 EAI_NONAME {Name or service not known}}
            check "once" [fconfigure $client -error] {}
            check "read" [catch {read $client} message] 1
            check "its text" [string match "error reading \"$client\": * is not connected" $message] 1
            close $client
        }
        # Without the event loop, too.
        set client [socket2 -async held-none $port]
        while {[set error [fconfigure $client -error]] eq ""} { after 1 }
        check "by asking" [lindex $error 1] EAI_NONAME
        close $client
        # The connect after the look-up fails as ever.
        release held-gone
        close $listener
        set client [socket2 -async held-gone $port]
        fileevent $client writable {set ::failed 1}
        wait failed
        check "refused" [lindex [fconfigure $client -error] 1] ECONNREFUSED
        "#,
    );
}

/// Row 3.33: a blocking read waits for look-up and connect, and runs nothing meanwhile.
#[test]
fn a_blocking_read_waits_for_the_lookup() {
    run_held(
        r#"
        close $listener
        set server [open |[list [info nameofexecutable]] r+]
        fconfigure $server -buffering line
        puts $server {
            proc accept {channel host port} { puts $channel hello; close $channel }
            puts [lindex [fconfigure [socket -server accept -myaddr 127.0.0.1 0] -sockname] 2]
            flush stdout
            vwait forever
        }
        set port [gets $server]
        foreach {name answer} {held-blocking hello held-refused {}} {
            set client [socket2 -async $name $port]
            set ::ran 0
            after 1 {set ::ran 1}
            set command [expr {$name eq "held-refused" ? "printf x" : "printf ''"}]
            # Renamed when it is whole: the resolver reads it as soon as it is there.
            set file $::env(HELD_LOOKUPS)/$name
            exec sh -c "sleep 0.2; $command >$file.new; mv $file.new $file" &
            check "the outcome" [catch {gets $client} line] [expr {$answer eq ""}]
            check "no other handler" $::ran 0
            if {$answer ne ""} { check "the line" $line $answer }
            close $client
            update
            check "they run afterwards" $::ran 1
        }
        exec kill [pid $server]
        "#,
    );
}

/// Row 3.33: a channel that closes during its look-up leaves nothing, also when the process ends.
#[test]
fn a_close_during_the_lookup_is_safe() {
    run_held(
        r#"
        for {set i 0} {$i < 50} {incr i} {
            set client [socket2 -async held-[expr {$i % 7}] $port]
            fileevent $client writable {set ::unexpected 1}
            if {$i % 3 == 0} { update }
            close $client
        }
        for {set i 0} {$i < 7} {incr i} { release held-$i }
        sleep 50
        check "no event" [info exists ::unexpected] 0
        check "sockets" [lindex [split [iocp_stats] \n] 0] "Sockets open: 1"
        set client [socket2 -async held-1 $port]
        fileevent $client writable {set ::connected 1}
        check "the next one" [wait connected] 1
        # These are pending at the end of the process.
        for {set i 0} {$i < 20} {incr i} { socket2 -async held-forever-$i $port }
        socket2 -lookup held-forever -command list
        "#,
    );
}

/// Row 3.33: look-ups move with their channels, and threads and interpreters may end meanwhile.
#[test]
fn threads_and_interpreters_may_end_during_lookups() {
    run_held(
        r#"
        package require Thread
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        foreach when {before after} {
            set client [socket2 -async held-moving-$when $port]
            fconfigure $client -blocking 0 -buffering line
            wait_for_call held-moving-$when
            if {$when eq "before"} { release held-moving-$when }
            thread::transfer $worker $client
            thread::send $worker [list set client $client]
            thread::send $worker [list set main [thread::id]]
            thread::send $worker {
                proc on_line {} { thread::send -async $::main [list set ::got [gets $::client]] }
                fileevent $client readable on_line
                puts $client moved
            }
            if {$when eq "after"} { release held-moving-$when }
            check "released $when the move" [wait got] "echo moved"
            thread::send $worker {close $client}
        }
        thread::release $worker
        # A thread that ends with look-ups under way.
        set ending [thread::create]
        thread::send $ending [list load $library Stilling]
        thread::send $ending [list socket2 -async held-ending $port]
        thread::send $ending {socket2 -lookup held-ending-script -command list}
        wait_for_call held-ending
        wait_for_call held-ending-script
        thread::release -wait $ending
        # An interpreter that ends.
        set child [interp create]
        $child eval [list load $library Stilling]
        $child eval {socket2 -lookup held-deleted -command unexpected}
        $child eval [list socket2 -async held-deleted $port]
        interp delete $child
        foreach name {ending ending-script deleted} { release held-$name }
        sleep 50
        check "sockets" [lindex [split [iocp_stats] \n] 0] "Sockets open: 1"
        "#,
    );
}

/// Row 3.33: the list of addresses, at once or for a script.
#[test]
fn addresses_are_looked_up_for_scripts() {
    run_held(
        r#"
        release held-known
        refuse held-unknown
        check "a number" [socket2 -lookup 127.0.0.1] 127.0.0.1
        check "an IPv6 number" [socket2 -lookup ::1] ::1
        check "a name" [socket2 -lookup held-known] 127.0.0.1
        check "unknown" [catch {socket2 -lookup held-unknown} message] 1
        check "its text" $message {couldn't look up "held-unknown": Name or service not known}
        check "its code" $::errorCode {STILLING LOOKUP EAI_NONAME {Name or service not known}}
        proc found {extra addresses {error {}}} { set ::found [list $extra $addresses $error] }
        foreach {name expected} {
            held-known {{a b} 127.0.0.1 {}}
            127.0.0.1 {{a b} 127.0.0.1 {}}
            held-unknown {{a b} {} {Name or service not known}}
        } {
            set ::found {}
            check "no result yet" [socket2 -lookup $name -command {found {a b}}] {}
            check "it is called later" $::found {}
            check "for $name" [wait found] $expected
        }
        # The timer runs while the look-up is under way.
        socket2 -command {found held} -lookup held-later
        wait_for_call held-later
        set ::found {}
        sleep 5
        check "not yet" $::found {}
        release held-later
        check "later" [wait found] {held 127.0.0.1 {}}
        # An error of the script is a background error.
        proc bgerror {message} { set ::background $message }
        socket2 -lookup held-known -command {error "in script:"}
        check "background error" [wait background] "in script:"
        "#,
    );
}

/// Row 3.33: look-ups at once and waiting ones are bounded, equal ones are shared, and numbers need none.
#[test]
fn lookups_are_bounded_and_shared() {
    run_held(
        r#"
        for {set i 0} {$i < 12} {incr i} {
            foreach copy {1 2 3} {
                set client [socket2 -async held-bounded-$i $port]
                fileevent $client writable [list connected $client]
                lappend clients $client
            }
        }
        proc connected {client} {
            fileevent $client writable {}
            if {[incr ::connected] == 36} { set ::all 1 }
        }
        sleep 50
        proc begun {} { llength [glob -nocomplain $::env(HELD_LOOKUPS)/*.calls] }
        check "four at once" [begun] 4
        set direct [socket2 -async 127.0.0.1 $port]
        fileevent $direct writable {set ::is_direct 1}
        check "a number connects meanwhile" [wait is_direct] 1
        fileevent $direct writable {}
        for {set i 12} {[catch {socket2 -async held-bounded-$i $port} client] == 0 && $i < 2000} {incr i} {
            lappend waiting $client
        }
        check "queued" [llength $waiting] [expr {1000 - 12 + 4}]
        check "its text" $client {couldn't open socket: 1000 look-ups of other host names are waiting}
        check "the script form" [catch {socket2 -lookup held-too-many -command list} message] 1
        check "its text" $message {couldn't look up "held-too-many": 1000 look-ups of other host names are waiting}
        foreach client $waiting { close $client }
        for {set i 0} {$i < 12} {incr i} { release held-bounded-$i }
        check "all connect" [wait all] 1
        for {set i 0} {$i < 12} {incr i} { check "shared" [calls held-bounded-$i] 1 }
        check "left before they began" [begun] 12
        "#,
    );
}

/// The form that replaces the core's command looks up at once.
#[test]
fn the_core_form_looks_up_at_once() {
    run_held(
        r#"
        stilling::install
        refuse held-core
        release held-found
        check "an error of the command" [catch {socket -async held-core $port} message] 1
        check "its text" $message {couldn't open socket: Name or service not known}
        set client [socket -async held-found $port]
        fileevent $client writable {set ::connected 1}
        check "connected" [wait connected] 1
        "#,
    );
}

#[test]
fn bad_input_is_refused() {
    run_held(
        r#"
        set usage {wrong # args: should be "socket2 -lookup name ?-command script?"}
        foreach {words expected} [list \
            {-lookup} {no argument given for -lookup option} \
            {-lookup a b} $usage \
            {-lookup a -command} {no argument given for -command option} \
            {-lookup a -command b c} $usage \
            {-lookup a -server b} {bad option "-server": must be -command, or -lookup} \
            {-async -lookup a} {bad option "-async": must be -command, or -lookup} \
        ] {
            check "$words" [list [catch {socket2 {*}$words} message] $message] [list 1 $expected]
        }
        check "an empty name" [catch {socket2 -lookup {}}] 1
        "#,
    );
}
