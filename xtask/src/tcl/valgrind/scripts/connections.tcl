# 2,000 outgoing and 2,000 accepted connections with an exchange each, in all receive modes and forms of a close.

proc accept {channel host port} {
    fconfigure $channel -blocking 0 -buffering line
    fileevent $channel readable [list answer $channel]
}
proc answer {channel} {
    if {[gets $channel line] >= 0} { puts $channel $line } elseif {[eof $channel]} { close $channel; incr ::closed }
}
set listener [socket2 -server accept -myaddr 127.0.0.1 0]
set closed 0
for {set i 0} {$i < 2000} {incr i} {
    set mode [lindex $modes [expr {$i % 3}]]
    fconfigure $listener -recvmode $mode
    set client [socket2 {*}[expr {$i % 4 ? "-async" : ""}] 127.0.0.1 [port_of $listener]]
    fconfigure $client -buffering line -recvmode $mode -blocking 0
    puts $client hello
    fileevent $client readable { set ::got [gets $client] }
    vwait got
    check answer $got hello
    if {$i % 2} { chan close $client write }
    close $client
}
while {$closed < 2000} { vwait closed }

# Connections that wait for a script that never runs.
for {set i 0} {$i < 100} {incr i} { lappend clients [socket2 -async 127.0.0.1 [port_of $listener]] }
foreach client $clients { fconfigure $client -connecting }
close $listener
foreach client $clients { close $client }
