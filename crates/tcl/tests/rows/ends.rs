//! Processes, threads and interpreters that end with sockets in every state.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::harness::{DRIVERS, finish, run_on, start_wrapped};
use crate::peer::ScriptedPeer;

/// A listener that accepts no more: connects to it stay pending.
struct FullListener {
    address: SocketAddr,
    _sockets: Vec<Socket>,
}

impl FullListener {
    fn open() -> FullListener {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let listener = socket();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
        // The system queues one connection more than that.
        listener.listen(0).expect("it listens");
        let address =
            listener.local_addr().ok().and_then(|address| address.as_socket()).expect("it is bound");
        let mut sockets = vec![listener];
        for _ in 0..2 {
            let filler = socket();
            filler.set_nonblocking(true).expect("a socket takes options");
            let _ = filler.connect(&address.into());
            sockets.push(filler);
        }
        FullListener { address, _sockets: sockets }
    }
}

/// Opens a socket in every state, in an interpreter or thread that has loaded the extension: a listener with a
/// connection that its script has not got, a pending connect, both ends of a connection, unread data, half-closed ones,
/// and one with output in the background.
const OPEN_ALL: &str = r#"
    proc open_all {full_port drain_port output_bytes} {
        set ::listener [socket2 -server {lappend ::accepted} -myaddr 127.0.0.1 0]
        set port [lindex [fconfigure $::listener -sockname] 2]
        set ::client [socket2 127.0.0.1 $port]
        set ::written [socket2 127.0.0.1 $port]
        vwait ::accepted
        puts $::written unread
        flush $::written
        set ::waiting [socket2 127.0.0.1 $port]
        set ::connecting [socket2 -async 127.0.0.1 $full_port]
        set ::watched [socket2 -async 127.0.0.1 $full_port]
        fileevent $::watched writable list
        fileevent $::client readable list
        set ::half [socket2 127.0.0.1 $port]
        chan close $::half write
        set ::flushing [socket2 127.0.0.1 $drain_port]
        fconfigure $::flushing -blocking 0 -translation binary
        puts -nonewline $::flushing [string repeat x $output_bytes]
        return $port
    }
"#;

/// Tcl's variable for an exit that waits until the output of nonblocking channels is written (TIP 398). Without it, what
/// the system does not accept at once is lost.
const FLUSH_ON_EXIT: [&str; 2] = ["env", "TCL_FLUSH_NONBLOCKING_ON_EXIT=1"];

/// Bytes that the system accepts at once; whole buffers of Tcl, which does not write others on exit.
const ACCEPTED_AT_ONCE: usize = 70 * 4096;

/// A script ends its process by `ending`: a peer gets all output of it, and the process does end.
#[track_caller]
fn assert_ends(ending: &str) {
    for driver in DRIVERS {
        assert_ends_on(driver, &FLUSH_ON_EXIT, 5_000_000, ending);
        assert_ends_on(driver, &[], ACCEPTED_AT_ONCE, ending);
    }
}

#[track_caller]
fn assert_ends_on(driver: &str, wrapper: &[&str], output_bytes: usize, ending: &str) {
    let full = FullListener::open();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let drain_port = listener.local_addr().expect("it is bound").port();
    let open = format!("open_all {} {drain_port} {output_bytes}", full.address.port());
    let child = start_wrapped(driver, wrapper, &format!("{OPEN_ALL}\n{open}\n{ending}"));
    let (mut stream, _) = listener.accept().expect("the script connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket takes options");
    let mut output = Vec::new();
    stream.read_to_end(&mut output).expect("the script sends, then its socket ends");
    assert_eq!(output.len(), output_bytes, "on {driver}, after {ending}");
    finish(driver, child);
}

#[test]
fn a_process_may_exit_with_everything_pending() {
    assert_ends("exit 0");
}

#[test]
fn a_process_may_exit_with_closed_sockets_that_are_flushed() {
    assert_ends("foreach name {flushing client half watched} { close [set ::$name] }; exit 0");
}

#[test]
fn a_process_may_exit_in_an_accept_script() {
    assert_ends(
        "proc leave {args} { exit 0 }; close [socket2 127.0.0.1 [port_of [socket2 -server leave 0]]]; vwait x",
    );
}

#[test]
fn a_process_may_exit_in_a_file_event() {
    assert_ends("fileevent $::written writable { exit 0 }; vwait x");
}

#[test]
fn a_process_may_exit_in_another_interpreter() {
    assert_ends("interp create other; interp share {} $::flushing other; other eval exit");
}

/// The extension's thread sockets and its waiter end with a thread; the process goes on.
#[test]
fn a_thread_may_end_with_everything_pending() {
    for driver in DRIVERS {
        let (full, peer) = (FullListener::open(), ScriptedPeer::start());
        let script = format!(
            r#"
            package require Thread
            # Without the pipe of Tcl's notifier, and the files of the watch of listeners, which ends some time after them.
            proc descriptors {{}} {{
                set links [lmap name [glob /proc/self/fd/*] {{expr {{[catch {{file readlink $name}} link] ? "" : $link}}}}]
                return [llength [concat [lsearch -all $links socket:*] [lsearch -all $links anon_inode:*]]]
            }}
            # This thread's own descriptors stay.
            close [socket2 -server list -myaddr 127.0.0.1 0]
            after 1 {{set ::waited 1}}
            vwait ::waited
            set before [descriptors]
            for {{set round 0}} {{$round < 5}} {{incr round}} {{
                set worker [thread::create]
                thread::send $worker [list load $library Stilling]
                thread::send $worker {{{OPEN_ALL}}}
                set port [thread::send $worker [list open_all {} $peer_port {ACCEPTED_AT_ONCE}]]
                peer accept a
                check "sockets of the thread" [expr {{[lindex [iocp_stats] 2] >= 8}}] 1
                thread::release $worker
                check "its output" [peer drain a] {ACCEPTED_AT_ONCE}
                # The thread has ended when it is not known any more, and soon after.
                while {{$worker in [thread::names] || [lindex [iocp_stats] 2] != 0}} {{ after 2 }}
                check "its listener is closed" [catch {{socket2 127.0.0.1 $port}}] 1
            }}
            for {{set i 0}} {{$i < 2000 && [descriptors] > $before}} {{incr i}} {{ after 2 }}
            check "descriptors: [descriptors], $before before" [expr {{[descriptors] <= $before}}] 1
            "#,
            full.address.port()
        );
        run_on(driver, &format!("{}{script}", peer.prelude));
        peer.join();
    }
}

#[test]
fn an_interpreter_may_be_deleted_with_everything_pending() {
    for driver in DRIVERS {
        let (full, peer) = (FullListener::open(), ScriptedPeer::start());
        let script = format!(
            r#"
            for {{set round 0}} {{$round < 3}} {{incr round}} {{
                interp create other
                other eval [list load $library Stilling]
                other eval {{{OPEN_ALL}}}
                set port [other eval [list open_all {} $peer_port 5000000]]
                peer accept a
                # Tcl itself does not close a channel whose interpreter is deleted during a flush in the background.
                other eval {{close $::flushing}}
                interp delete other
                # The output is written by this thread's event loop.
                set control $peer_control
                fconfigure $control -blocking 0
                puts $control "drain a"
                flush $control
                fileevent $control readable {{set ::answer [gets $control]}}
                check "its output" [wait answer] 5000000
                fconfigure $control -blocking 1
                fileevent $control readable {{}}
                update
                check "sockets open" [lindex [iocp_stats] 2] 0
                check "its listener is closed" [catch {{socket2 127.0.0.1 $port}}] 1
            }}
            "#,
            full.address.port()
        );
        run_on(driver, &format!("{}{script}", peer.prelude));
        peer.join();
    }
}

/// A script that runs because of a socket may delete its own interpreter.
#[test]
fn an_interpreter_may_be_deleted_by_its_own_scripts() {
    crate::harness::run_on_all(
        r#"
        proc create {} {
            interp create other
            interp alias other leave {} leave
            other eval [list load $::library Stilling]
        }
        proc leave {args} { interp delete other; set ::left 1 }
        create
        other eval {
            set listener [socket2 -server leave -myaddr 127.0.0.1 0]
            set clients [list [socket2 127.0.0.1 [lindex [fconfigure $listener -sockname] 2]] \
                [socket2 127.0.0.1 [lindex [fconfigure $listener -sockname] 2]]]
        }
        wait left
        update
        check "after an accept" [lindex [iocp_stats] 2] 0
        create
        other eval {
            proc fail {args} { close $::listener; leave; error "after the end of its listener and interpreter" }
            set listener [socket2 -server fail -myaddr 127.0.0.1 0]
            set client [socket2 127.0.0.1 [lindex [fconfigure $listener -sockname] 2]]
        }
        unset left
        wait left
        update
        check "after an accept that closed its listener" [lindex [iocp_stats] 2] 0
        create
        other eval {
            set listener [socket2 -server list -myaddr 127.0.0.1 0]
            set client [socket2 127.0.0.1 [lindex [fconfigure $listener -sockname] 2]]
            fileevent $client writable leave
        }
        unset left
        wait left
        update
        check "after a file event" [lindex [iocp_stats] 2] 0
        "#,
    );
}
