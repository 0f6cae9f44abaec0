# A chat: each line of a client goes to all others. It runs on either socket command:
#
#     tclsh chat.tcl ?socket|socket2? ?port?        # then: nc 127.0.0.1 5151
#
# A client that does not read what the others write loses its connection: what waits for it in the server is bounded.

namespace eval chat {
    # Bytes that may wait for one client.
    variable pending_max 65536
    # Characters of a line.
    variable line_max 1000
    # Names by channel.
    variable names
    array set names {}
    variable next 1
}

proc chat::accept {channel address port} {
    variable names
    variable next
    fconfigure $channel -blocking 0 -buffering line -encoding utf-8
    set names($channel) guest$next
    incr next
    fileevent $channel readable [list chat::read_line $channel]
    send_line $channel "* you are $names($channel); /name changes that"
    broadcast $channel "* $names($channel) is here"
}

proc chat::read_line {channel} {
    variable line_max
    if {[catch {gets $channel line} length]} {
        leave $channel
    } elseif {$length >= 0} {
        handle $channel [string range $line 0 [expr {$line_max - 1}]]
    } elseif {[eof $channel] || [chan pending input $channel] > 4 * $line_max} {
        leave $channel
    }
}

proc chat::handle {channel line} {
    variable names
    if {[regexp {^/name (\w{1,20})$} $line -> name]} {
        broadcast $channel "* $names($channel) is now $name"
        set names($channel) $name
    } elseif {$line ne ""} {
        broadcast $channel "$names($channel): $line"
    }
}

proc chat::broadcast {from line} {
    variable names
    foreach channel [array names names] {
        if {$channel ne $from} { send_line $channel $line }
    }
}

proc chat::send_line {channel line} {
    variable pending_max
    if {[catch {puts $channel $line}] || [chan pending output $channel] > $pending_max} {
        # Not here: the caller still goes through the list of channels.
        after idle [list chat::leave $channel]
    }
}

proc chat::leave {channel} {
    variable names
    if {![info exists names($channel)]} return
    set name $names($channel)
    unset names($channel)
    # Tcl keeps what still waits for the client until the client takes it or ends the connection.
    catch {close $channel}
    broadcast {} "* $name has left"
}

lassign $argv command port
if {$command eq ""} { set command socket }
if {$port eq ""} { set port 5151 }
if {$command eq "socket2"} { package require Iocpsock }
set listener [$command -server chat::accept -myaddr 127.0.0.1 $port]
puts "listening 127.0.0.1:[lindex [fconfigure $listener -sockname] 2]"
flush stdout
vwait forever
