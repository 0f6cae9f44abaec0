# One connection over a slow link:
#
#     tclsh link.tcl COMMAND receive HOST BYTES
#     tclsh link.tcl COMMAND send HOST BYTES PORT
#
# COMMAND is `socket` or `socket2`. The receiver prints its address, and answers when it has all bytes. The sender prints
# the microseconds from its first byte to the answer, and the ticks of CPU time that it used.

proc accept {channel address port} {
    fconfigure $channel -blocking 0 -translation binary -buffersize 4096
    fileevent $channel readable [list receive $channel]
    set ::received 0
}

proc receive {channel} {
    incr ::received [string length [read $channel]]
    if {$::received >= $::bytes} {
        puts $channel $::received
        close $channel
        set ::received 0
    }
}

proc send {channel} {
    global block bytes sent
    puts -nonewline $channel $block
    incr sent [string length $block]
    if {$sent >= $bytes} { fileevent $channel writable {} }
}

lassign $argv command role host bytes port
if {$command eq "socket2"} { package require Iocpsock }
if {$role eq "receive"} {
    set listener [$command -server accept -myaddr $host 0]
    puts "listening http://$host:[lindex [fconfigure $listener -sockname] 2]"
    flush stdout
    vwait forever
}
set block [string repeat x 4096]
set sent 0
set channel [$command $host $port]
fconfigure $channel -blocking 0 -translation binary -buffersize 4096
if {$command eq "socket2"} { fconfigure $channel -sendcap 12 }
set start [clock microseconds]
fileevent $channel writable [list send $channel]
fileevent $channel readable { set answer [gets $channel] }
vwait answer
set took [expr {[clock microseconds] - $start}]
if {$answer < $bytes} { error "the receiver got $answer of $bytes bytes" }
set stat [open /proc/self/stat]
puts "$took [expr [join [lrange [read $stat] 13 14] +]]"
