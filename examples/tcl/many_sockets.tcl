# Connects many sockets, prints what they cost on both sides, and closes them one by one:
#
#     TCLLIBPATH=target/tcl/8.6 tclsh many_sockets.tcl ?count? ?pause?
#
# The listener is a second process that runs this script. The limit of open files must permit the sockets (ulimit -n),
# except with STILLING_TCL_DRIVER=direct: those sockets have no descriptors of the process.

package require Iocpsock

proc serve {} {
    set ::accepted 0
    proc accept {channel address port} { incr ::accepted }
    set listener [socket2 -server accept -myaddr 127.0.0.1 0]
    fconfigure stdin -blocking 0 -buffering line
    fconfigure stdout -buffering line
    fileevent stdin readable { if {[gets stdin] ne ""} { report } elseif {[eof stdin]} { exit } }
    puts [lindex [fconfigure $listener -sockname] 2]
    vwait forever
}

# Prints the statistics of this process and an empty line.
proc report {} {
    puts "accepted $::accepted"
    puts [iocp_stats]
}

proc report_of {server} {
    puts $server report
    set lines {}
    while {[gets $server line] > 0} { lappend lines $line }
    return $lines
}

lassign $argv count pause
if {$count eq "listen"} serve
if {$count eq ""} { set count 10000 }
if {$pause eq ""} { set pause 5 }

set server [open |[list [info nameofexecutable] [info script] listen] r+]
fconfigure $server -buffering line
set port [gets $server]

for {set i 0} {$i < $count} {incr i} { socket2 localhost $port }
set lines {}
while {[lindex $lines 0] ne "accepted $count"} {
    set lines [report_of $server]
    after 10
}
puts "this process\n[iocp_stats]"
puts "the process with the listener\n[join $lines \n]\n"

foreach s [file channels] { if {[string match iocp* $s]} { close $s; after $pause } }
puts "closed\n[iocp_stats]"
close $server
