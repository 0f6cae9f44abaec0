# The process ends with everything open and in progress.

package require Thread
set listener [socket2 -server list -myaddr 127.0.0.1 0]
set port [port_of $listener]
foreach mode $modes {
    lassign [pair $mode] client server
    puts -nonewline $client [string repeat x 3000000]
    flush $client
    fileevent $server readable [list set ::readable 1]
    vwait readable
    fileevent $client writable list
    puts $server unsent
    lassign [pair $mode] client server
    zlib push compress $client
    puts $client hello
}
# Fewer than the limit of equal blocks that may remain.
for {set i 0} {$i < 5} {incr i} {
    socket2 -async 127.0.0.1 $port
    socket2 -async 127.0.0.1 [refusing_port]
    socket2 -async localhost $port
    socket2 -lookup localhost -command list
    socket2 -udp 127.0.0.1 $port
}
lassign [pair] client server
set file [open [lindex $arguments 0]/file wb]
stilling::fcopy $server $file -command list
interp create child
interp eval child [list set auto_path $auto_path]
interp eval child { package require Stilling; socket2 -server list -myaddr 127.0.0.1 0 }
set worker [thread::create]
thread::send $worker [list set auto_path $auto_path]
thread::send $worker {package require Stilling}
thread::send $worker {socket2 -server list -myaddr 127.0.0.1 0}
stilling::trace list
stilling::onflood list
exit 0
