# A server that reads more slowly than its clients send: tclsh firehose.tcl COMMAND MODE
#
# COMMAND is `socket2`, MODE a value of its option -recvmode. Clients send the bytes 0 to 255, again and again. Each
# connection is read once per 10 ms, 4 KiB at most. The announced address is that of a connection of Tcl's own sockets,
# which carries one command per line, each answered with one line:
#
#   port    the port of the clients' listener
#   drain   from now on, reads everything that comes
#   stats   a dictionary of counts and of what was received ahead
#   exit    ends the process

package require Iocpsock

set read_size 4096
set interval_ms 10
# From each of 256 offsets a block as long as the longest read begins.
set pattern [string repeat [binary format c* [lsearch -all [lrepeat 256 x] x]] 257]
set reader receive_slowly
set wrong 0
set total 0

proc accept {channel address port} {
    fconfigure $channel -blocking 0 -translation binary -buffersize $::read_size
    set ::offset($channel) 0
    fileevent $channel readable [list $::reader $channel]
}

# Reads and compares; returns whether the connection is still open.
proc receive {channel size} {
    set data [read $channel $size]
    set count [string length $data]
    set first $::offset($channel)
    if {$data ne [string range $::pattern $first [expr {$first + $count - 1}]]} { incr ::wrong }
    set ::offset($channel) [expr {($first + $count) % 256}]
    incr ::total $count
    if {![eof $channel]} { return 1 }
    unset ::offset($channel)
    close $channel
    return 0
}

proc receive_slowly {channel} {
    if {[receive $channel $::read_size]} {
        fileevent $channel readable {}
        after $::interval_ms [list resume $channel]
    }
}

proc resume {channel} {
    if {[info exists ::offset($channel)]} { fileevent $channel readable [list $::reader $channel] }
}

proc receive_all {channel} { receive $channel 65536 }

proc bgerror {message} {
    puts stderr "background error: $message\n$::errorInfo"
    exit 1
}

proc answer {control} {
    if {[gets $control line] < 0} {
        if {[eof $control]} { exit 1 }
        return
    }
    switch $line {
        port { puts $control [lindex [fconfigure $::listener -sockname] 2] }
        drain {
            set ::reader receive_all
            foreach channel [array names ::offset] { resume $channel }
            puts $control ok
        }
        stats { puts $control [stats] }
        exit { exit 0 }
    }
}

# `outstanding`: receives at once, and buffers that wait for the script, of all connections in the mode burst-detection.
proc stats {} {
    set outstanding 0
    set pending 0
    foreach channel [array names ::offset] {
        set mode [fconfigure $channel -recvmode]
        if {[llength $mode] == 5} {
            incr outstanding [lindex $mode 2]
            incr pending [lindex $mode 4]
        }
    }
    set pools [split [iocp_stats] \n]
    return [list open [array size ::offset] received $::total wrong $::wrong outstanding $outstanding \
        pending $pending special [lindex $pools 4 end]]
}

set listener [[lindex $argv 0] -server accept -myaddr 127.0.0.1 0]
fconfigure $listener -recvmode [lindex $argv 1]
proc control {channel address port} {
    fconfigure $channel -blocking 0 -buffering line
    fileevent $channel readable [list answer $channel]
}
set controls [socket -server control -myaddr 127.0.0.1 0]
puts "listening http://127.0.0.1:[lindex [fconfigure $controls -sockname] 2]"
flush stdout
vwait forever
