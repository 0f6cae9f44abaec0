# Options, their errors, statistics and the trace.

set listener [socket2 -server {apply {{channel args} { set ::accepted $channel }}} -myaddr 127.0.0.1 0]
proc traced {line} { incr ::lines }
stilling::trace traced
stilling::stats -stages on
for {set i 0} {$i < 100} {incr i} {
    set client [socket2 127.0.0.1 [port_of $listener]]
    vwait accepted
    foreach channel [list $listener $client $accepted] {
        fconfigure $channel
        foreach option {
            -keepalive -nagle -nodelay -backlog -sendcap -recvmode -peername -sockname -error -connecting -bogus -k
        } { catch { fconfigure $channel $option } }
        foreach {option value} {
            -keepalive 1 -keepalive maybe -nagle 0 -nodelay 1 -backlog 100 -backlog 5 -backlog x -sendcap 3 -sendcap 0
            -recvmode flow-controlled -recvmode {burst-detection 3 4} -recvmode {burst-detection 0 4} -recvmode zero-byte
            -recvmode bogus -bogus 1 -peername x -buffersize 17
        } { catch { fconfigure $channel $option $value } }
    }
    iocp_stats
    iocp_stats 1
    catch { iocp_stats x }
    stilling::stats
    foreach command {
        {stilling::stats -bogus 1} {stilling::onflood x y} {stilling::trace x y} {stilling::install x} {stilling::fcopy}
    } { catch $command }
    stilling::onflood [list list $i]
    stilling::onflood
    close $client
    close $accepted
}
update
check "lines of the trace" [expr {$lines > 100}] 1
stilling::trace off
stilling::onflood {}
close $listener
