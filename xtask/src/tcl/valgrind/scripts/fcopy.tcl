# Copies between files and sockets, in both manners, to their end and to an early one.

set folder [lindex $arguments 0]
set big [file join $folder big]
set file [open $big wb]
puts -nonewline $file [string repeat 0123456789 100000]
close $file
proc collect {channel} {
    incr ::received [string length [read $channel]]
    if {[eof $channel]} { fileevent $channel readable {}; set ::ended 1 }
}
proc done {args} { set ::done $args }

for {set i 0} {$i < 20} {incr i} {
    foreach copy {::fcopy ::stilling::fcopy} {
        lassign [pair] client server
        # From a file to a socket.
        set received 0
        set source [open $big rb]
        fileevent $server readable [list collect $server]
        $copy $source $client -size [lindex {1000 -1} [expr {$i % 2}]] -command done
        vwait done
        close $source
        chan close $client write
        vwait ended
        check "received" $received [lindex $done 0]
        # From a socket to a file.
        set target [open [file join $folder target] wb]
        set source [open $big rb]
        $copy $client $target -command done
        fcopy $source $server -command {set ::sent}
        vwait sent
        close $server
        vwait done
        check "copied" $done 1000000
        close $source
        close $target
        close $client
    }
}

# The source, the target, or both channels are closed during a copy.
for {set i 0} {$i < 30} {incr i} {
    lassign [pair] client server
    set source [open $big rb]
    stilling::fcopy $source $client -command done
    after 0 {set ::waited 1}
    vwait waited
    catch { stilling::fcopy $source $client -command done }
    switch [expr {$i % 3}] {
        0 { close $source; close $client }
        1 { close $client; close $source }
        2 { close $server; set server {}; vwait done; close $client; close $source }
    }
    if {$server ne ""} { close $server }
}

# Channels that block, and ones that the system cannot copy between.
for {set i 0} {$i < 10} {incr i} {
    lassign [pair flow-controlled] client server
    set source [open $big rb]
    fconfigure $client -blocking 1
    stilling::fcopy $source $client -size 1000
    fconfigure $server -blocking 1
    check "bytes" [string length [read $server 1000]] 1000
    catch { stilling::fcopy $server $server -bogus }
    catch { stilling::fcopy nothing $server }
    close $source
    close $client
    close $server
}
