# Connections that are reset, because their peer is closed with unread data, in every state and receive mode.

set long [string repeat x 3000000]
proc bgerror {message} { incr ::background_errors }

# Resets the other end of `server`.
proc reset {client server} {
    puts -nonewline $server unread
    flush $server
    fileevent $client readable {set ::readable 1}
    vwait readable
    close $client
}
# What a script may do then.
set actions {
    {catch { read $server }}
    {catch { puts $server x; flush $server }; catch { puts $server x; flush $server }}
    {fileevent $server readable {set ::event [read $server]}; vwait event; eof $server}
    {fileevent $server writable {set ::event 1}; vwait event}
    {catch { chan close $server write }; catch { chan close $server read }}
    {catch { puts -nonewline $server $long; flush $server }}
    {fconfigure $server; fconfigure $server -error; fconfigure $server -recvmode zero-byte}
    {fconfigure $server -blocking 1; catch { gets $server }}
}
for {set i 0} {$i < 10} {incr i} {
    foreach mode $modes {
        foreach action $actions {
            lassign [pair $mode] client server
            reset $client $server
            eval $action
            catch { close $server }
        }
        # Output waits for the peer when it resets the connection.
        lassign [pair $mode] client server
        puts -nonewline $server $long
        flush $server
        if {$i % 2} { close $server; close $client } else { close $client; catch { close $server } }
        # Reset before the script of the listener has run.
        set listener [socket2 -server {apply {{channel args} { close $channel }}} -myaddr 127.0.0.1 0]
        fconfigure $listener -recvmode $mode
        close [socket2 127.0.0.1 [port_of $listener]]
        update
        close $listener
    }
}
