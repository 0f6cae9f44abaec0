# A server for measurements during a SYN flood: tclsh flood.tcl COMMAND ADDRESS
#
# It returns each line. On socket2 it prints a line when a flood begins or ends.

proc accept {channel address port} {
    fconfigure $channel -blocking 0 -buffering line -translation lf
    fileevent $channel readable [list echo $channel]
}

proc echo {channel} {
    if {[catch {gets $channel line} count] || ($count < 0 && [eof $channel])} {
        catch {close $channel}
    } elseif {$count >= 0} {
        catch {puts $channel $line}
    }
}

proc flood {kind details} {
    puts "flood $kind $details"
    flush stdout
}

lassign $argv command address
if {$command eq "socket2"} {
    package require Iocpsock
    stilling::onflood flood
}
set listener [$command -server accept -myaddr $address 0]
puts "listening http://$address:[lindex [fconfigure $listener -sockname] 2]"
flush stdout
vwait forever
