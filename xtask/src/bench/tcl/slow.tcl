# A server for measurements with a script that blocks its event loop: tclsh slow.tcl COMMAND LISTENER
#
# Again and again a script blocks the first thread for 500 ms and leaves 100 ms for other events. LISTENER is `blocked`
# (one of that thread) or `other` (one of another thread, which has nothing else to do). Both return what they receive.

set listen {
    proc accept {channel address port} {
        fconfigure $channel -blocking 0 -translation binary -buffering none
        fileevent $channel readable [list echo $channel]
    }
    proc echo {channel} {
        if {[catch { puts -nonewline $channel [read $channel] }] || [eof $channel]} {
            catch {close $channel}
        }
    }
    proc listen {command} {
        if {$command eq "socket2"} { package require Iocpsock }
        set listener [$command -server accept -myaddr 127.0.0.1 0]
        lindex [fconfigure $listener -sockname] 2
    }
}

proc block {} {
    after 500
    after 100 block
}

lassign $argv command listener
if {$listener eq "other"} {
    package require Thread
    set other [thread::create]
    thread::send $other $listen
    set port [thread::send $other [list listen $command]]
} else {
    eval $listen
    set port [listen $command]
}
puts "listening http://127.0.0.1:$port"
flush stdout
block
vwait forever
