# Connections, connects and listeners that move between threads, and threads that end with open sockets.

package require Thread
proc worker {script} {
    set worker [thread::create]
    thread::send $worker [list set auto_path $::auto_path]
    thread::send $worker {package require Stilling; package require Thread}
    thread::send $worker [list set main [thread::id]]
    thread::send $worker $script
    return $worker
}

# A connection goes there and back with unread data.
set worker [worker {
    proc take {channel} {
        fconfigure $channel -blocking 1 -buffering line
        puts $channel "thread [gets $channel]"
        thread::transfer $::main $channel
        thread::send -async $::main [list set ::back $channel]
    }
    proc accept {channel host port} { puts $channel accepted; close $channel }
}]
foreach mode $modes {
    lassign [pair $mode] client server
    fconfigure $client -buffering line
    for {set i 0} {$i < 30} {incr i} {
        puts $client "line $i"
        thread::transfer $worker $server
        thread::send -async $worker [list take $server]
        vwait back
        set server $back
        fconfigure $client -blocking 1
        check "answer" [gets $client] "thread line $i"
    }
    close $client
    close $server
}

# A listener with connections that wait, and a connect in progress.
for {set i 0} {$i < 20} {incr i} {
    set listener [socket2 -server accept -myaddr 127.0.0.1 0]
    set port [port_of $listener]
    set early [socket2 127.0.0.1 $port]
    set moving [socket2 -async 127.0.0.1 $port]
    thread::transfer $worker $listener
    thread::transfer $worker $moving
    set late [socket2 127.0.0.1 $port]
    foreach client [list $early $late] { check "accepted" [gets $client] accepted; close $client }
    thread::send $worker [list close $moving]
    thread::send $worker [list close $listener]
}

# Between two calls a channel belongs to no thread.
for {set i 0} {$i < 20} {incr i} {
    lassign [pair] client server
    thread::detach $server
    close $client
    thread::attach $server
    close $server
}

# Threads end with listeners, connections, connects and look-ups.
set accepted {}
set listener [socket2 -server {apply {{channel args} { lappend ::accepted $channel }}} -myaddr 127.0.0.1 0]
for {set i 0} {$i < 12} {incr i} {
    set ending [worker {}]
    thread::send $ending {
        proc connect {port} {
            set ::listener [socket2 -server list -myaddr 127.0.0.1 0]
            set ::open [socket2 127.0.0.1 $port]
            fileevent $::open readable {list}
            puts $::open unsent
            set ::connecting [socket2 -async 127.0.0.1 $port]
            socket2 -lookup localhost -command list
            set ::datagrams [socket2 -udp]
        }
    }
    thread::send $ending [list connect [port_of $listener]]
    thread::release -wait $ending
}
thread::release -wait $worker
close $listener
after 20 {set ::waited 1}
vwait waited
foreach channel $accepted { close $channel }
