//! Nothing grows with the number of connections that a process has had.

use crate::harness::{DRIVERS, run_on_all, run_wrapped};

/// `resident` is the resident memory in KiB.
const RESIDENT: &str = r#"
proc resident {} {
    set file [open /proc/self/status]
    regexp {VmRSS:\s+(\d+)} [read $file] -> kilobytes
    close $file
    return $kilobytes
}
"#;

/// `cycles COUNT` opens and closes connections, of which each carries a line in both directions, in all forms of a
/// close; every tenth is one that fails.
const CYCLES: &str = r#"
proc accept {channel host port} {
    fconfigure $channel -blocking 0 -buffering line
    fileevent $channel readable [list answer $channel]
}
proc answer {channel} {
    if {[gets $channel line] >= 0} { puts $channel $line } elseif {[eof $channel]} { close $channel; incr ::closed }
}
set listener [socket2 -server accept -myaddr 127.0.0.1 0]
set port [port_of $listener]
set refusing [socket2 -server list -myaddr 127.0.0.1 0]
set refused [port_of $refusing]
close $refusing
proc cycles {count} {
    set ::closed 0
    for {set i 0} {$i < $count} {incr i} {
        set mode [lindex {zero-byte flow-controlled {burst-detection 4 8}} [expr {$i % 3}]]
        fconfigure $::listener -recvmode $mode
        set client [socket2 -async 127.0.0.1 $::port]
        fconfigure $client -buffering line -recvmode $mode -blocking 0
        puts $client hello
        fileevent $client readable [list set ::got $i]
        vwait ::got
        if {$i % 2} { chan close $client write }
        close $client
        if {$i % 10 == 0} {
            set client [socket2 -async 127.0.0.1 $::refused]
            fileevent $client writable [list set ::got $i]
            vwait ::got
            catch {puts $client hello; flush $client}
            close $client
            catch {socket2 127.0.0.1 $::refused}
            catch {fconfigure $::listener -bogus}
        }
    }
    while {$::closed < $count} { vwait ::closed }
}
"#;

#[test]
fn descriptors_and_memory_do_not_grow() {
    run_on_all(&format!(
        "{RESIDENT}{CYCLES}{}",
        r#"
        cycles 500
        set descriptors [llength [glob /proc/self/fd/*]]
        set before [resident]
        cycles 3000
        check "descriptors" [llength [glob /proc/self/fd/*]] $descriptors
        set growth [expr {[resident] - $before}]
        check "growth in kilobytes: $growth" [expr {$growth < 500}] 1
        check "sockets" [lindex [iocp_stats] 2] 1
        "#
    ));
}

/// Bytes that nothing refers to at the end of a process with this number of cycles, by Valgrind. Invalid reads and
/// writes, and jumps that depend on uninitialised memory, fail the test.
fn lost_bytes(cycles: u32) -> u64 {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let log_option = format!("--log-file={}", log.path().display());
    let options =
        ["valgrind", "--error-exitcode=3", "--leak-check=full", "--errors-for-leak-kinds=none", &log_option];
    let script = format!("{CYCLES}\ncycles {cycles}\nclose $listener");
    run_wrapped("poll", &options, &script);
    let text = std::fs::read_to_string(log.path()).expect("valgrind has written it");
    if text.contains("All heap blocks were freed") {
        return 0;
    }
    let lost = text.lines().find_map(|line| line.split_once("definitely lost: ")).expect("a summary");
    lost.1
        .split(' ')
        .next()
        .map(|count| count.replace(',', ""))
        .and_then(|count| count.parse().ok())
        .expect("a count")
}

/// Tcl itself leaves blocks behind at exit; more cycles must not leave more.
#[test]
fn valgrind_finds_no_errors_and_no_growing_loss() {
    assert_eq!(lost_bytes(10), lost_bytes(60));
}

/// Rows 3.12, 3.14: the memory of an idle socket, with Tcl's own channel (1,100 to 1,600 bytes).
#[test]
fn an_idle_socket_costs_little_memory() {
    for driver in DRIVERS {
        run_wrapped(driver, &["prlimit", "--nofile=6000"], &format!("{RESIDENT}{IDLE}"));
    }
}

const IDLE: &str = r#"
    proc accept {channel host port} { lappend ::accepted $channel }
    proc open_pairs {count} {
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        for {set i 1} {$i <= $count} {incr i} {
            lappend ::clients [socket2 127.0.0.1 [port_of $listener]]
            if {$i % 50 == 0} { while {[llength $::accepted] < $i} { vwait ::accepted } }
        }
        close $listener
    }
    set accepted {}
    open_pairs 100
    foreach channel [concat $accepted $clients] { close $channel }
    set accepted {}
    set clients {}
    set before [resident]
    open_pairs 2000
    set bytes [expr {([resident] - $before) * 1024 / 4000}]
    check "bytes of an idle socket: $bytes" [expr {$bytes < 2500}] 1
    foreach channel [concat $accepted $clients] { close $channel }
"#;

/// Tcl 8.6 closes a channel whose output is written in the background without its close handlers.
#[test]
fn a_close_with_unwritten_output_frees_its_channel() {
    run_on_all(&format!(
        "{RESIDENT}{}",
        r#"
        proc accept {channel host port} {
            fconfigure $channel -blocking 0
            fileevent $channel readable [list collect $channel]
        }
        proc collect {channel} {
            read $channel
            if {[eof $channel]} { close $channel; incr ::closed }
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        # Each waits for its look-up when it is closed; at most 100 are open.
        proc cycles {count} {
            set ::closed 0
            for {set i 0} {$i < $count} {incr i} {
                set client [socket2 -async localhost [port_of $::listener]]
                fconfigure $client -blocking 0 -recvmode flow-controlled
                puts $client hello
                flush $client
                close $client
                while {$::closed < $i - 100} { vwait ::closed }
            }
            while {$::closed < $count} { vwait ::closed }
        }
        cycles 1000
        set before [resident]
        cycles 10000
        set growth [expr {[resident] - $before}]
        check "growth in kilobytes: $growth" [expr {$growth < 800}] 1
        check "sockets" [lindex [iocp_stats] 2] 1
        "#,
    ));
}
