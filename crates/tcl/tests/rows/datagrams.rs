//! UDP sockets: `socket2 -udp`.

use std::net::UdpSocket;
use std::time::Duration;

use crate::harness::{DRIVERS, run_on_all, run_wrapped};

/// Row 3.33: a server that answers each sender, and connected clients, over IPv4, IPv6, and both.
#[test]
fn a_server_answers_each_sender() {
    run_on_all(
        r#"
        foreach {own host} {127.0.0.1 127.0.0.1 ::1 ::1 {} 127.0.0.1 {} ::1} {
            set server [socket2 -udp {*}[expr {$own eq "" ? {} : [list -myaddr $own]}]]
            check "type" [string match udp* $server] 1
            fconfigure $server -blocking 0
            fileevent $server readable [list answer $server]
            proc answer {server} {
                set datagram [read $server]
                if {$datagram eq ""} return
                fconfigure $server -remote [fconfigure $server -peer]
                puts -nonewline $server "<$datagram>"
            }
            set clients {}
            for {set i 0} {$i < 5} {incr i} {
                set client [socket2 -udp $host [fconfigure $server -myport]]
                lappend clients $client
                fconfigure $client -blocking 0
                puts -nonewline $client "datagram $i"
            }
            set i 0
            foreach client $clients {
                while {[set answer [read $client]] eq ""} { after 1; update }
                check "answer over $host" $answer "<datagram $i>"
                check "its sender" [fconfigure $client -peer] [list $host [fconfigure $server -myport]]
                check "the remote" [fconfigure $client -remote] [list $host [fconfigure $server -myport]]
                close $client
                incr i
            }
            close $server
        }
        "#,
    );
}

/// Row 3.33: every read returns one datagram, blocking or not, of any size; a script that reads less gets the rest.
#[test]
fn a_datagram_is_never_split_or_merged() {
    run_on_all(
        r#"
        set receiver [socket2 -udp -myaddr 127.0.0.1]
        set sender [socket2 -udp 127.0.0.1 [fconfigure $receiver -myport]]
        check "buffering" [fconfigure $receiver -buffering] none
        check "translation" [fconfigure $receiver -translation] {lf lf}
        # The second one is the name of Tcl 9.
        check "encoding" [expr {[fconfigure $receiver -encoding] in {binary iso8859-1}}] 1
        set sizes {1 100 65507 7 65506 4096 2 65507}
        foreach blocking {1 0} {
            fconfigure $receiver -blocking $blocking
            foreach buffer_size {65536 1000 10} {
                fconfigure $receiver -buffersize $buffer_size
                foreach size $sizes {
                    # Two that wait.
                    puts -nonewline $sender [string repeat a $size]
                    puts -nonewline $sender [string repeat b $size]
                    foreach letter {a b} {
                        set read [read $receiver]
                        check "$size by $buffer_size, blocking $blocking" [string length $read] $size
                        check "its bytes" [string trim $read $letter] {}
                    }
                }
                puts -nonewline $sender 0123456789
                puts -nonewline $sender next
                check "a part" [read $receiver 4] 0123
                check "another part" [read $receiver 4] 4567
                check "the rest alone" [read $receiver 100] 89
                check "the next one" [read $receiver 100] next
                puts -nonewline $sender abcd
                puts -nonewline $sender efgh
                check "exactly the datagram" [read $receiver 4] abcd
                check "exactly the next" [read $receiver 4] efgh
            }
        }
        check "nothing is left" [read $receiver] {}
        check "it is no end" [eof $receiver] 0
        "#,
    );
}

/// Row 3.33: waiting datagrams are reported until they are read, each by an event.
#[test]
fn every_waiting_datagram_is_reported() {
    run_on_all(
        r#"
        set receiver [socket2 -udp -myaddr 127.0.0.1]
        set sender [socket2 -udp 127.0.0.1 [fconfigure $receiver -myport]]
        for {set i 0} {$i < 50} {incr i} { puts -nonewline $sender [binary format ca* $i \0\r\n\xff] }
        fconfigure $receiver -blocking 0
        set ::spurious 0
        set ::got {}
        fileevent $receiver readable {
            set datagram [read $receiver]
            if {$datagram eq ""} { incr ::spurious } else { lappend ::got $datagram }
            if {[llength $::got] == 50} { set ::done 1 }
        }
        check "all" [wait done] 1
        for {set i 0} {$i < 50} {incr i} {
            check "datagram $i" [lindex $::got $i] [binary format ca* $i \0\r\n\xff]
        }
        after 20 {set ::later 1}
        wait later
        check "no event without a datagram" $::spurious 0
        # A handler that reads nothing is called again.
        set ::count 0
        fileevent $receiver readable { if {[incr ::count] == 20} { set ::again 1 } }
        puts -nonewline $sender unread
        wait again
        fileevent $receiver readable {}
        check "still there" [read $receiver] unread
        "#,
    );
}

/// Answers every datagram with an empty one, for a script on one driver. Returns its port.
fn start_empty_answers() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket takes options");
    let port = socket.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        // It ends when the scripts have ended.
        while let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            let _ = socket.send_to(&[], from);
        }
    });
    port
}

/// Row 3.33: an empty datagram is no end of the stream: an event with a new sender and no bytes.
#[test]
fn an_empty_datagram_ends_nothing() {
    let script = r#"
        set receiver [socket2 -udp -myaddr 127.0.0.1]
        set port [fconfigure $receiver -myport]
        fconfigure $receiver -blocking 0 -remote {127.0.0.1 PORT}
        fileevent $receiver readable {
            lappend ::got [read $receiver] [eof $receiver] [lindex [fconfigure $receiver -peer] 1]
            set ::event 1
        }
        puts -nonewline $receiver "answer, please"
        wait event
        check "an event without bytes" $::got {{} 0 PORT}
        set sender [socket2 -udp 127.0.0.1 $port]
        puts -nonewline $sender more
        wait event
        check "the next one" [lrange $::got 3 4] {more 0}
        fileevent $receiver readable {}
        fconfigure $receiver -blocking 1
        puts -nonewline $receiver "answer, please"
        after 20 [list puts -nonewline $sender after]
        after 20 {set ::waited 1}
        wait waited
        check "a blocking read skips it" [read $receiver] after
    "#;
    run_on_all(&script.replace("PORT", &start_empty_answers().to_string()));
}

/// Row 3.33: what cannot be sent is an error of the write, and never two datagrams.
#[test]
fn a_datagram_that_cannot_be_sent_is_an_error() {
    run_on_all(
        r#"
        set receiver [socket2 -udp -myaddr 127.0.0.1]
        fconfigure $receiver -blocking 0
        set sender [socket2 -udp 127.0.0.1 [fconfigure $receiver -myport]]
        foreach size {65508 65535 65536 65537 100000 200000} {
            check "$size bytes" [catch {puts -nonewline $sender [string repeat x $size]} message] 1
            check "its text" $message "error writing \"$sender\": message too long"
            check "its code" [lrange $::errorCode 0 1] {POSIX EMSGSIZE}
        }
        fconfigure $sender -buffersize 100
        puts -nonewline $sender [string repeat x 99]
        check "more than a buffer" [catch {puts -nonewline $sender [string repeat x 150]}] 1
        check "the short one" [string length [read $receiver]] 99
        check "nothing of the long ones" [read $receiver] {}
        fconfigure $sender -buffersize 65536 -buffering full
        puts -nonewline $sender one
        puts -nonewline $sender two
        check "not yet" [read $receiver] {}
        flush $sender
        check "one datagram per flush" [read $receiver] onetwo
        set unconnected [socket2 -udp]
        check "no destination" [catch {puts -nonewline $unconnected x} message] 1
        check "its text" $message "error writing \"$unconnected\": destination address required"
        "#,
    );
}

/// Row 3.33: a refused datagram is an error of the next write or of `-error`, once; it ends nothing.
#[test]
fn a_refused_datagram_is_reported_once() {
    run_on_all(
        r#"
        set receiver [socket2 -udp -myaddr 127.0.0.1]
        set port [fconfigure $receiver -myport]
        close $receiver
        set sender [socket2 -udp 127.0.0.1 $port]
        fconfigure $sender -blocking 0
        set ::events 0
        fileevent $sender readable { incr ::events; lappend ::got [read $sender]; set ::event 1 }
        puts -nonewline $sender x
        wait event
        check "-error" [fconfigure $sender -error] {111 ECONNREFUSED {connection refused}}
        check "it is read once" [fconfigure $sender -error] {}
        puts -nonewline $sender x
        wait event
        check "the next write" [catch {puts -nonewline $sender x} message] 1
        check "its text" $message "error writing \"$sender\": connection refused"
        after 30 {set ::later 1}
        wait later
        check "no more events" $::events 2
        check "no bytes" $::got {{} {}}
        set receiver [socket2 -udp -myaddr 127.0.0.1 -myport $port]
        puts -nonewline $sender later
        check "the socket still works" [read $receiver] later
        close $receiver
        fileevent $sender readable {}
        fconfigure $sender -blocking 1
        puts -nonewline $sender x
        check "a blocking read" [catch {read $sender} message] 1
        check "its text" $message "error reading \"$sender\": connection refused"
        close $sender
        # An ignored error ends nothing either.
        set sender [socket2 -udp 127.0.0.1 $port]
        fconfigure $sender -blocking 0
        puts -nonewline $sender x
        check "the error of a direct write" [catch {puts -nonewline $sender x}] 1
        close $sender
        "#,
    );
}

/// Row 3.33: the options, of sockets that are connected or not.
#[test]
fn options_are_readable_and_settable() {
    run_on_all(
        r#"
        set socket [socket2 -udp -myaddr 127.0.0.1]
        check "names" [lrange [dict keys [fconfigure $socket]] end-7 end] \
            {-remote -peer -myport -broadcast -mcastgroups -mcastloop -ttl -sockname}
        check "no remote" [fconfigure $socket -remote] {}
        check "no peer" [fconfigure $socket -peer] {}
        check "sockname" [lindex [fconfigure $socket -sockname] 0] 127.0.0.1
        check "port" [lindex [fconfigure $socket -sockname] 2] [fconfigure $socket -myport]
        check "broadcast" [fconfigure $socket -broadcast] 0
        fconfigure $socket -broadcast yes
        check "broadcast is set" [fconfigure $socket -broadcast] 1
        fconfigure $socket -ttl 3 -mcastloop 0
        check "ttl, loop" [list [fconfigure $socket -ttl] [fconfigure $socket -mcastloop]] {3 0}
        fconfigure $socket -remote {localhost 4000}
        check "remote by name" [fconfigure $socket -remote] {127.0.0.1 4000}
        fconfigure $socket -remote {}
        check "no remote again" [fconfigure $socket -remote] {}
        # A destination filters nothing; a connection does.
        set other [socket2 -udp -myaddr 127.0.0.1]
        set third [socket2 -udp -myaddr 127.0.0.1]
        set connected [socket2 -udp 127.0.0.1 [fconfigure $other -myport]]
        fconfigure $connected -blocking 0
        fconfigure $socket -blocking 0 -remote [list 127.0.0.1 [fconfigure $other -myport]]
        foreach to [list $socket $connected] {
            fconfigure $third -remote [list 127.0.0.1 [fconfigure $to -myport]]
            puts -nonewline $third stranger
        }
        check "a destination" [read $socket] stranger
        check "a connection" [read $connected] {}
        set port [fconfigure $connected -myport]
        fconfigure $connected -remote {}
        check "without a remote address it keeps its port" [fconfigure $connected -myport] $port
        fconfigure $third -remote [list 127.0.0.1 $port]
        puts -nonewline $third anyone
        check "it receives from all" [read $connected] anyone
        fconfigure $connected -remote [list 127.0.0.1 [fconfigure $third -myport]]
        puts -nonewline $third stranger
        check "connected anew" [read $connected] stranger
        check "peer" [fconfigure $connected -peer] [list 127.0.0.1 [fconfigure $third -myport]]
        "#,
    );
}

/// A network of its own with an interface `groups` that carries IPv6 multicast, which loopback does not.
const WITH_MULTICAST: [&str; 8] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "sh",
    "-c",
    "ip link set lo up && ip link add groups type veth peer name others && ip link set others up && \
     ip link set groups up && ip -6 address add fd00::1/64 dev groups nodad && exec \"$@\"",
    "sh",
];

/// Row 3.33: groups are joined and left, on an interface.
#[test]
fn multicast_groups_can_be_joined() {
    const SCRIPT: &str = r#"
        foreach {own group interface} {
            {} 239.1.2.3 127.0.0.1  0.0.0.0 239.1.2.4 lo  {} ff02::1:2345 groups  :: ff02::1:2346 groups
        } {
            set receiver [socket2 -udp -reuseaddr 1 {*}[expr {$own eq "" ? {} : [list -myaddr $own]}]]
            set port [fconfigure $receiver -myport]
            set again [socket2 -udp -reuseaddr 1 {*}[expr {$own eq "" ? {} : [list -myaddr $own]}] -myport $port]
            foreach socket [list $receiver $again] {
                fconfigure $socket -blocking 0
                fconfigure $socket -mcastadd [list $group $interface]
                check "groups" [fconfigure $socket -mcastgroups] [list [list $group $interface]]
            }
            set sender [socket2 -udp -myaddr [expr {[string match *:* $group] ? "::" : "0.0.0.0"}]]
            fconfigure $sender -mcastif [expr {[string match *:* $group] ? "groups" : "127.0.0.1"}]
            fconfigure $sender -ttl 1 -remote [list $group $port]
            puts -nonewline $sender all
            foreach socket [list $receiver $again] {
                for {set i 0} {$i < 1000 && [set got [read $socket]] eq ""} {incr i} { after 2 }
                check "a member of $group gets it" $got all
            }
            fconfigure $again -mcastdrop [list $group $interface]
            check "no groups" [fconfigure $again -mcastgroups] {}
            check "not twice" [catch {fconfigure $again -mcastdrop [list $group $interface]}] 1
            foreach socket [list $receiver $again $sender] { close $socket }
        }
        "#;
    for driver in DRIVERS {
        run_wrapped(driver, &WITH_MULTICAST, SCRIPT);
    }
}

/// Every bad switch and value has a message and changes nothing.
#[test]
fn bad_input_is_refused() {
    run_on_all(
        r#"
        foreach {words expected} {
            {-udp host} {wrong # args: should be "socket2 -udp ?-myaddr addr? ?-myport port? ?-reuseaddr boolean? ?host port?"}
            {-udp 127.0.0.1 1 2} {wrong # args: should be "socket2 -udp ?-myaddr addr? ?-myport port? ?-reuseaddr boolean? ?host port?"}
            {-udp -myport} {no argument given for -myport option}
            {-udp -myport 65536} {bad port "65536": must be an integer from 0 to 65535, or the name of a UDP service}
            {-udp -myport -1} {bad port "-1": must be an integer from 0 to 65535, or the name of a UDP service}
            {-myport x -udp} {bad port "x": must be an integer from 0 to 65535, or the name of a UDP service}
            {-udp 127.0.0.1 0} {bad port "0": must be an integer from 1 to 65535, or the name of a UDP service}
            {-udp -reuseaddr maybe} {expected boolean value but got "maybe"}
            {-udp -async 127.0.0.1 1} {bad option "-async": must be -myaddr, -myport, -reuseaddr, or -udp}
            {-server x -udp 1} {bad option "-server": must be -myaddr, -myport, -reuseaddr, or -udp}
            {-udp -myaddr 192.0.2.1} {couldn't open socket: cannot assign requested address}
        } {
            check "$words" [catch {socket2 {*}$words} message] 1
            check "text of $words" $message $expected
        }
        check "a host without an address" [catch {socket2 -udp no.such.host.invalid 1} message] 1
        check "its text" [string match "couldn't open socket: ?*" $message] 1
        set socket [socket2 -udp -myaddr 127.0.0.1]
        check "in use" [catch {socket2 -udp -myaddr 127.0.0.1 -myport [fconfigure $socket -myport]} message] 1
        check "its text" $message {couldn't open socket: address already in use}
        foreach {name value} {
            -remote x -remote {a b c} -remote {127.0.0.1 0} -remote {::1 5} -remote "\{" -remote {127.0.0.1 x}
            -ttl 0 -ttl 256 -ttl x -broadcast maybe -mcastloop x -mcastadd 127.0.0.1 -mcastadd x -mcastadd {}
            -mcastadd ff02::1 -mcastadd {239.0.0.1 no.such.interface} -mcastdrop {239.0.0.1 1 2} -mcastif no.such.interface
            -peer x -myport 5 -bogus 1
        } {
            check "$name $value" [catch {fconfigure $socket $name $value} message] 1
            check "$name $value has a message" [expr {$message ne ""}] 1
        }
        check "unchanged" [fconfigure $socket -remote] {}
        check "unknown" [catch {fconfigure $socket -bogus} message] 1
        check "its text" [string match {bad option "-bogus": should be one of *-remote*} $message] 1
        check "half-close" [catch {close $socket write}] 1
        "#,
    );
}

/// Row 3.33: a socket moves to another thread with its waiting datagrams and options.
#[test]
fn a_udp_socket_moves_between_threads() {
    run_on_all(
        r#"
        package require Thread
        set server [socket2 -udp -myaddr 127.0.0.1]
        set client [socket2 -udp 127.0.0.1 [fconfigure $server -myport]]
        fconfigure $server -blocking 0
        fileevent $server readable {set ::arrived 1}
        puts -nonewline $client first
        wait arrived
        fileevent $server readable {}
        set worker [thread::create]
        thread::send $worker [list load $library Stilling]
        thread::send $worker {
            proc serve {channel} { fileevent $channel readable [list answer $channel] }
            proc answer {channel} {
                set datagram [read $channel]
                fconfigure $channel -remote [fconfigure $channel -peer]
                puts -nonewline $channel "thread $datagram"
            }
        }
        thread::transfer $worker $server
        thread::send $worker [list serve $server]
        fconfigure $client -blocking 0
        fileevent $client readable {set ::got [read $client]}
        check "a datagram from before the move" [wait got] "thread first"
        puts -nonewline $client second
        check "a datagram from after the move" [wait got] "thread second"
        close $client
        thread::release $worker
        "#,
    );
}

/// Row 3.33: sockets that are closed leave nothing, in whatever state they are.
#[test]
fn closed_udp_sockets_leave_nothing() {
    run_on_all(
        r#"
        proc descriptors {} { llength [glob /proc/self/fd/*] }
        # Tcl's notifier has descriptors from the first wait on.
        close [socket2 -udp]
        after 1 {set ::waited 1}
        wait waited
        set before [descriptors]
        for {set i 0} {$i < 200} {incr i} {
            set receiver [socket2 -udp -myaddr 127.0.0.1]
            set sender [socket2 -udp 127.0.0.1 [fconfigure $receiver -myport]]
            fconfigure $receiver -blocking 0
            fileevent $receiver readable {set ::event 1}
            fileevent $sender writable {set ::event 1}
            puts -nonewline $sender x
            if {$i % 3 == 0} { wait event }
            close $receiver
            if {$i % 2 == 0} { wait event }
            close $sender
        }
        check "descriptors" [descriptors] $before
        check "sockets" [lindex [split [iocp_stats] \n] 0] "Sockets open: 0"
        "#,
    );
}
