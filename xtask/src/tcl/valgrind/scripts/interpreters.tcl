# Interpreters that end with open sockets, also in their own scripts, and safe ones.

proc child {} {
    set child [interp create]
    interp eval $child [list set auto_path $::auto_path]
    interp eval $child {
        package require Stilling
        proc port_of {listener} { lindex [fconfigure $listener -sockname] 2 }
        proc accept {channel host port} {
            fconfigure $channel -blocking 0 -buffering line
            fileevent $channel readable [list answer $channel]
            lappend ::accepted $channel
        }
        proc answer {channel} {
            if {[gets $channel line] >= 0} { puts $channel $line }
        }
        set listener [socket2 -server accept -myaddr 127.0.0.1 0]
        set port [port_of $listener]
    }
    return $child
}

# Deleted with everything open, from outside.
for {set i 0} {$i < 50} {incr i} {
    set child [child]
    set port [interp eval $child {set port}]
    set client [socket2 127.0.0.1 $port]
    fconfigure $client -buffering line -blocking 0
    fileevent $client readable { gets $client; set ::got 1 }
    puts $client hello
    vwait got
    interp eval $child {
        set pending [socket2 -async 127.0.0.1 $port]
        set datagrams [socket2 -udp]
        fileevent $datagrams readable list
        stilling::onflood list
        if {[catch {stilling::trace list}]} { error $::errorInfo }
    }
    interp delete $child
    close $client
}

# Deleted by the script of its own listener or connection.
foreach procedure {accept answer} {
    for {set i 0} {$i < 50} {incr i} {
        set child [child]
        set deleted 0
        proc delete_child {} { interp delete $::child; set ::deleted 1 }
        interp alias $child delete_child {} delete_child
        interp eval $child [list proc $procedure args delete_child]
        set client [socket2 127.0.0.1 [interp eval $child {set port}]]
        puts $client hello
        flush $client
        while {!$deleted} { vwait deleted }
        close $client
    }
}

# Deleted by an accept script that closes its listener first, and fails.
proc failing_accept {args} {
    close $::listener
    delete_child
    error "after the end"
}
for {set i 0} {$i < 50} {incr i} {
    set child [child]
    set deleted 0
    interp alias $child delete_child {} delete_child
    interp eval $child [list proc accept args [info body failing_accept]]
    set client [socket2 127.0.0.1 [interp eval $child {set port}]]
    while {!$deleted} { vwait deleted }
    close $client
}

# A channel that two interpreters share, or that changes its interpreter.
for {set i 0} {$i < 20} {incr i} {
    set child [child]
    lassign [pair] client server
    interp share {} $client $child
    interp transfer {} $server $child
    interp eval $child [list fileevent $server readable list]
    fileevent $client readable list
    puts $client hello
    flush $client
    interp delete $child
    close $client
}

# A safe interpreter.
for {set i 0} {$i < 20} {incr i} {
    set child [interp create -safe]
    load [lindex [info loaded] 0 0] Stilling $child
    interp expose $child socket2
    interp eval $child { set listener [socket2 -server list -myaddr 127.0.0.1 0] }
    interp delete $child
}

# The command of the core, replaced and gone.
for {set i 0} {$i < 20} {incr i} {
    set child [child]
    interp eval $child {
        stilling::install -fcopy
        set replaced [socket -server list -myaddr 127.0.0.1 0]
        set client [socket 127.0.0.1 [port_of $replaced]]
        rename socket {}
        rename socket2 {}
    }
    interp delete $child
}
