# An echo server for measurements: tclsh echo.tcl COMMAND ?stats?
#
# COMMAND is `socket` or `socket2`. With `stats`, the line "stats" is not sent back but answered with the number of
# accepted connections and, for socket2, with iocp_stats; a line "end" follows.

proc accept {channel address port} {
    global answer accepted
    incr accepted
    fconfigure $channel -blocking 0 -translation binary -buffering none
    fileevent $channel readable [list $answer $channel]
}

proc echo {channel} {
    if {[catch {
        set data [read $channel]
        if {$data ne ""} { puts -nonewline $channel $data }
    }] || [eof $channel]} {
        catch {close $channel}
    }
}

proc echo_or_stats {channel} {
    global accepted command
    if {[catch {
        set data [read $channel]
        if {$data eq "stats\n"} {
            set data "accepted $accepted\n"
            if {$command eq "socket2"} { append data [iocp_stats] }
            append data "end\n"
        }
        if {$data ne ""} { puts -nonewline $channel $data }
    }] || [eof $channel]} {
        catch {close $channel}
    }
}

set command [lindex $argv 0]
set answer [expr {[lindex $argv 1] eq "stats" ? "echo_or_stats" : "echo"}]
set accepted 0
if {$command eq "socket2"} { package require Iocpsock }
set listener [$command -server accept -myaddr 127.0.0.1 0]
puts "listening http://127.0.0.1:[lindex [fconfigure $listener -sockname] 2]"
flush stdout
vwait forever
