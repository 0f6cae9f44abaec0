# Runs a server script of socket2 with its stages measured: tclsh stages.tcl COMMAND PORT SCRIPT ?argument …?
#
# SCRIPT gets COMMAND and the further arguments. A connection to PORT gets a line for each stage, with its name, its count
# and its nanoseconds, and is closed.

proc report {channel address port} {
    dict for {name stage} [dict remove [dict get [stilling::stats] stages] on] {
        puts $channel "$name [dict get $stage count] [dict get $stage nanoseconds]"
    }
    close $channel
}

set arguments [lassign $argv command port script]
package require Iocpsock
stilling::stats -stages on
socket2 -server report -myaddr 127.0.0.1 $port
set argv [list $command {*}$arguments]
source $script
