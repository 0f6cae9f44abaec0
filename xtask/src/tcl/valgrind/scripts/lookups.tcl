# Look-ups of names, with and without their answer, and connects by name.

proc accept {channel host port} { close $channel }
set listener [socket2 -server accept -myaddr 127.0.0.1 0]
set port [port_of $listener]
proc looked_up {args} { incr ::answers }
set answers 0
for {set i 0} {$i < 100} {incr i} {
    socket2 -lookup localhost
    catch { socket2 -lookup a..b }
    catch { socket2 -lookup "" }
    socket2 -lookup localhost -command looked_up
    socket2 -lookup a..b -command looked_up
    socket2 -lookup 127.0.0.1 -command looked_up
    # The connect waits for its name, is closed before, or fails.
    set client [socket2 -async localhost $port]
    fconfigure $client -blocking 0
    fileevent $client readable [list set ::ended $client]
    close [socket2 -async localhost $port]
    # Closed while its output waits for the name.
    set unwritten [socket2 -async localhost $port]
    fconfigure $unwritten -blocking 0
    puts $unwritten hello
    flush $unwritten
    close $unwritten
    vwait ended
    close $client
    set client [socket2 -async a..b $port]
    fileevent $client writable [list set ::ended $client]
    vwait ended
    fconfigure $client -error
    close $client
}
while {$answers < 300} { vwait answers }
close $listener

# Interpreters with look-ups end.
for {set i 0} {$i < 20} {incr i} {
    interp create child
    interp eval child [list set auto_path $auto_path]
    interp eval child {
        package require Stilling
        socket2 -lookup localhost -command list
        socket2 -async localhost 9
    }
    interp delete child
}
