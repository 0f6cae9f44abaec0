# Connects that are refused, closed before their outcome, or fail in other ways.

set port [refusing_port]
for {set i 0} {$i < 300} {incr i} {
    catch { socket2 127.0.0.1 $port }
    # `localhost` may have several addresses, each of which refuses.
    catch { socket2 localhost $port }
    set client [socket2 -async 127.0.0.1 $port]
    fconfigure $client -blocking 0 -recvmode [lindex $modes [expr {$i % 3}]]
    fileevent $client writable {set ::failed 1}
    catch { puts $client hello; flush $client }
    vwait failed
    fconfigure $client -connecting
    fconfigure $client -error
    fconfigure $client
    catch { read $client }
    catch { puts $client hello; flush $client }
    catch { close $client }
    close [socket2 -async 127.0.0.1 $port]
    # A channel that blocks waits for the outcome in a read or a write.
    set client [socket2 -async 127.0.0.1 $port]
    if {$i % 2} { catch { gets $client } } else { catch { puts $client hello; flush $client } }
    catch { close $client }
}
foreach arguments {
    {} {x} {127.0.0.1} {-bogus 1} {-async -server list 0} {-server} {-server list} {-server list -myport 1 0}
    {-myaddr 192.0.2.1 127.0.0.1 9} {-myaddr a..b 127.0.0.1 9} {127.0.0.1 no-such-service} {127.0.0.1 70000}
    {-server list -myaddr 192.0.2.1 0} {-server list 70000} {a..b 9} {-async a..b 9} {-myport x 127.0.0.1 9}
} {
    for {set i 0} {$i < 5} {incr i} { catch { close [socket2 {*}$arguments] } }
}
# Two listeners with one port.
set listener [socket2 -server list -myaddr 127.0.0.1 0]
for {set i 0} {$i < 20} {incr i} { catch { socket2 -server list -myaddr 127.0.0.1 [port_of $listener] } }
close $listener
