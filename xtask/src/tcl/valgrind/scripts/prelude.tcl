# Runs one script under Valgrind: tclsh prelude.tcl SCRIPT ?ARGUMENT…?
#
# When the script ends, no socket may be open, unless it ends the process itself. An error, also in the background, ends
# it with status 1. A time limit is the caller's.

package require Stilling

proc check {what actual expected} {
    if {$actual ne $expected} { error "$what: got \"$actual\", expected \"$expected\"" }
}
proc bgerror {message} {
    puts stderr "background error: $message\n$::errorInfo"
    exit 1
}
proc port_of {listener} { lindex [fconfigure $listener -sockname] 2 }
proc sockets_open {} { lindex [iocp_stats] 2 }

# Lets events happen until all sockets but `count` are closed.
proc wait_for_sockets {count} {
    while {[sockets_open] > $count} { after 1 {set ::waited 1}; vwait ::waited }
}

# Two ends of a connection that do not block.
proc pair {{mode zero-byte}} {
    set listener [socket2 -server {apply {{channel args} { set ::paired $channel }}} -myaddr 127.0.0.1 0]
    fconfigure $listener -recvmode $mode
    set client [socket2 127.0.0.1 [port_of $listener]]
    vwait ::paired
    close $listener
    fconfigure $client -recvmode $mode
    foreach channel [list $client $::paired] { fconfigure $channel -translation binary -blocking 0 }
    return [list $client $::paired]
}

# A port that refuses connections.
proc refusing_port {} {
    set listener [socket2 -server list -myaddr 127.0.0.1 0]
    set port [port_of $listener]
    close $listener
    return $port
}

set modes {zero-byte flow-controlled {burst-detection 4 8}}
set arguments [lassign $argv script]
if {[catch {source $script} message]} {
    puts stderr $::errorInfo
    exit 1
}
wait_for_sockets 0
exit 0
