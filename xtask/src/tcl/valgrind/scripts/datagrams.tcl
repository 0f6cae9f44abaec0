# UDP sockets: servers, connected ones, refused datagrams, multicast, options and errors.

for {set i 0} {$i < 300} {incr i} {
    set address [lindex {127.0.0.1 ::1} [expr {$i % 2}]]
    set server [socket2 -udp -myaddr $address]
    set client [socket2 -udp $address [fconfigure $server -myport]]
    fconfigure $server -blocking 0
    puts -nonewline $client [string repeat x [lindex {1 1000 65000} [expr {$i % 3}]]]
    fileevent $server readable { set ::datagram [read $server] }
    vwait datagram
    fconfigure $server -remote [fconfigure $server -peer]
    puts -nonewline $server answer
    check answer [read $client] answer
    close $client
    # Unread: the rest of a datagram, and a datagram.
    set client [socket2 -udp $address [fconfigure $server -myport]]
    fileevent $server readable {}
    puts -nonewline $client 0123456789
    puts -nonewline $client next
    if {$i % 2} { read $server 4 }
    close $client
    close $server
}

set gone [socket2 -udp -myaddr 127.0.0.1]
set port [fconfigure $gone -myport]
close $gone
for {set i 0} {$i < 50} {incr i} {
    set client [socket2 -udp 127.0.0.1 $port]
    fconfigure $client -blocking [expr {$i % 2}]
    puts -nonewline $client refused
    catch { read $client }
    catch { puts -nonewline $client again }
    fconfigure $client -error
    close $client
}

for {set i 0} {$i < 20} {incr i} {
    set socket [socket2 -udp -myaddr 127.0.0.1 -reuseaddr 1]
    foreach {option value} {
        -broadcast 1 -ttl 3 -mcastadd {239.1.2.3 127.0.0.1} -mcastloop 1 -mcastif 127.0.0.1
        -mcastdrop {239.1.2.3 127.0.0.1} -mcastadd bad -remote {127.0.0.1 9} -remote {} -ttl 1000 -bogus 1
    } { catch { fconfigure $socket $option $value } }
    foreach option {-mcastgroups -peer -remote -sockname -myport -error -bogus} {
        catch { fconfigure $socket $option }
    }
    fconfigure $socket
    catch { puts -nonewline $socket "no address" }
    catch { puts -nonewline $socket [string repeat x 70000] }
    close $socket
}
foreach arguments {{-udp} {-udp -bogus 1} {-udp 127.0.0.1} {-udp 127.0.0.1 x y} {-udp -myaddr 192.0.2.1}} {
    catch { close [socket2 {*}$arguments] }
}
