# An echo server that runs on either socket command:
#
#     tclsh echo.tcl ?socket|socket2? ?port?
#
# It returns the bytes of each client as they come. A client that sends without reading is not read either: the server
# reads the next bytes when the former ones have left its own buffer.

proc accept {channel address port} {
    fconfigure $channel -blocking 0 -translation binary -buffering full
    fileevent $channel readable [list echo $channel]
}

proc echo {channel} {
    # A connection that fails ends like one that the client closes.
    if {[catch {
        puts -nonewline $channel [read $channel 65536]
        flush $channel
    }] || [eof $channel]} {
        close $channel
        return
    }
    if {[chan pending output $channel] > 0} {
        fileevent $channel readable {}
        fileevent $channel writable [list resume $channel]
    }
}

proc resume {channel} {
    if {[chan pending output $channel] == 0} {
        fileevent $channel writable {}
        fileevent $channel readable [list echo $channel]
    }
}

lassign $argv command port
if {$command eq ""} { set command socket }
if {$port eq ""} { set port 5150 }
if {$command eq "socket2"} { package require Iocpsock }
set listener [$command -server accept -myaddr 127.0.0.1 $port]
puts "listening 127.0.0.1:[lindex [fconfigure $listener -sockname] 2]"
flush stdout
vwait forever
