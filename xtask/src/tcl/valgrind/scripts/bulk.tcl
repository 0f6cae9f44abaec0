# Bulk data in both directions at once, in all receive modes, with small and large buffers.

set data [string repeat 0123456789abcdef 20000]
proc collect {channel} {
    append ::collected($channel) [read $channel]
    if {[string length $::collected($channel)] >= [string length $::data]} {
        fileevent $channel readable {}
        incr ::complete
    }
}
foreach mode $modes {
    foreach size {10 1000 65536} {
        set ends [pair $mode]
        set complete 0
        foreach channel $ends {
            fconfigure $channel -buffersize $size -sendcap 3
            set collected($channel) {}
            fileevent $channel readable [list collect $channel]
        }
        foreach channel $ends { puts -nonewline $channel $data; flush $channel }
        while {$complete < 2} { vwait complete }
        foreach channel $ends {
            check "bytes in mode $mode" [expr {$collected($channel) eq $data}] 1
            close $channel
        }
    }
}

# Unread data of a receive mode is dropped with its channel.
for {set i 0} {$i < 30} {incr i} {
    lassign [pair [lindex $modes [expr {$i % 3}]]] client server
    puts -nonewline $client $data
    flush $client
    fileevent $server readable {set ::readable 1}
    vwait readable
    read $server 5
    if {$i % 2} { fconfigure $server -recvmode zero-byte }
    close $server
    close $client
}

# Transforms on top of sockets.
for {set i 0} {$i < 20} {incr i} {
    lassign [pair] client server
    zlib push compress $client
    zlib push decompress $server
    puts $client hello
    if {$i % 2} { close $client; close $server } else { close $server; close $client }
}
