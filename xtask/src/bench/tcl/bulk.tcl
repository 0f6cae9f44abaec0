# A server for measurements of bulk data: tclsh bulk.tcl COMMAND MODE ?FILE?
#
# COMMAND is `socket` or `socket2`. MODE is `sink` (reads everything and answers with the number of bytes), `memory`
# (writes one block again and again), `file` (copies FILE again and again) or `sendfile` (the same; `socket2` by
# `stilling::fcopy`).

proc accept {channel address port} {
    global mode received
    fconfigure $channel -blocking 0 -translation binary -buffersize 65536
    switch $mode {
        sink {
            set received($channel) 0
            fileevent $channel readable [list receive $channel]
        }
        memory { fileevent $channel writable [list send $channel] }
        file - sendfile {
            set source [open $::file rb]
            fconfigure $source -buffersize 65536
            copy $channel $source
        }
    }
}

proc receive {channel} {
    global received
    if {[catch {incr received($channel) [string length [read $channel 65536]]}]} {
        close $channel
    } elseif {[eof $channel]} {
        puts $channel $received($channel)
        close $channel
    }
}

proc send {channel} {
    global block
    if {[catch {puts -nonewline $channel $block}]} {
        catch {close $channel}
    }
}

proc copy {channel source args} {
    # The arguments of the callback: the number of bytes, and an error if there is one.
    if {[llength $args] > 1 || [eof $channel] || [catch {
        seek $source 0
        fcopy $source $channel -command [list copy $channel $source]
    }]} {
        catch {close $channel}
        catch {close $source}
    }
}

lassign $argv command mode file
set bytes {}
for {set byte 0} {$byte < 256} {incr byte} { append bytes [binary format c $byte] }
set block [string repeat $bytes 256]
if {$command eq "socket2"} {
    package require Iocpsock
    if {$mode eq "sendfile"} { stilling::install -fcopy }
}
set listener [$command -server accept -myaddr 127.0.0.1 0]
puts "listening http://127.0.0.1:[lindex [fconfigure $listener -sockname] 2]"
flush stdout
vwait forever
