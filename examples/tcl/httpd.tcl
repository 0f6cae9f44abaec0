# A small HTTP server that runs on either socket command:
#
#     tclsh httpd.tcl ?socket|socket2? ?port? ?root?
#
# It serves the files below root, and `/hello` without a file. Like tclhttpd it is one event loop: channels do not
# block, a request is read line by line, one `gets` per event, and a timer closes silent connections.
#
# With socket2 (TCLLIBPATH=target/tcl/8.6) it holds more connections than the 1,024 descriptors of select(2).

namespace eval httpd {
    # Milliseconds until a silent connection is closed.
    variable timeout 120000
    # Requests per connection.
    variable requests_max 25
    # Bytes of a request line and of a header line.
    variable line_max 8192
    variable root ""
    # By channel: the request so far, as a dictionary.
    variable requests
    array set requests {}
    variable timers
    array set timers {}
}

proc httpd::accept {channel address port} {
    fconfigure $channel -blocking 0 -buffersize 16384 -translation {auto crlf}
    await_request $channel 0
    fileevent $channel readable [list httpd::read_line $channel]
}

# Starts a request; `served` is the number of earlier ones on this connection.
proc httpd::await_request {channel served} {
    variable requests
    set requests($channel) [dict create served $served line "" keep 0]
    restart_timer $channel
}

proc httpd::restart_timer {channel} {
    variable timers
    variable timeout
    if {[info exists timers($channel)]} { after cancel $timers($channel) }
    set timers($channel) [after $timeout [list httpd::finish $channel]]
}

# Reads one line. An empty one ends the request.
proc httpd::read_line {channel} {
    variable requests
    variable line_max
    if {[catch {gets $channel line} length]} {
        finish $channel
        return
    }
    if {$length < 0} {
        # Data without the end of a line, or the end of the stream.
        if {[eof $channel] || [chan pending input $channel] > $line_max} { finish $channel }
        return
    }
    set request $requests($channel)
    if {[dict get $request line] eq ""} {
        # RFC 9112, section 2.2: empty lines before a request line are ignored.
        if {$line eq ""} return
        dict set requests($channel) line $line
        dict set requests($channel) keep [string match "*HTTP/1.1" $line]
    } elseif {$line ne ""} {
        header $channel $line
    } else {
        answer $channel $requests($channel)
    }
}

proc httpd::header {channel line} {
    variable requests
    if {[regexp -nocase {^connection:\s*(\S+)\s*$} $line -> value]} {
        switch [string tolower $value] {
            close { dict set requests($channel) keep 0 }
            keep-alive { dict set requests($channel) keep 1 }
        }
    }
}

proc httpd::answer {channel request} {
    variable requests_max
    set served [expr {[dict get $request served] + 1}]
    set keep [expr {[dict get $request keep] && $served < $requests_max}]
    set words [split [dict get $request line]]
    lassign $words method path version
    if {[llength $words] != 3 || ![string match HTTP/1.? $version]} {
        set keep 0
        respond $channel "400 Bad Request" text/plain "not a request\n" $keep
    } elseif {$method ne "GET"} {
        # A body would be taken for the next request.
        set keep 0
        respond $channel "405 Method Not Allowed" text/plain "only GET\n" $keep
    } else {
        lassign [resource $path] status type body
        respond $channel $status $type $body $keep
    }
    if {$keep} {
        await_request $channel $served
    } else {
        finish $channel
    }
}

# Status, type and body of a path.
proc httpd::resource {path} {
    variable root
    if {$path eq "/hello"} { return [list "200 OK" text/plain "hello\n"] }
    set path [lindex [split $path ?] 0]
    set file [file normalize [file join $root [string trimleft $path /]]]
    if {$root eq "" || [string first $root/ $file] != 0 || ![file isfile $file] || [catch {
        set source [open $file rb]
        set body [read $source]
        close $source
    }]} {
        return [list "404 Not Found" text/plain "no such page\n"]
    }
    set types {.html text/html .txt text/plain .css text/css .png image/png .svg image/svg+xml}
    set type application/octet-stream
    catch {set type [dict get $types [file extension $file]]}
    return [list "200 OK" $type $body]
}

proc httpd::respond {channel status type body keep} {
    set connection [expr {$keep ? "keep-alive" : "close"}]
    set length [string length $body]
    # A peer that has gone is found here or by the next gets.
    catch {
        puts $channel "HTTP/1.1 $status\nContent-Type: $type\nContent-Length: $length\nConnection: $connection\n"
        fconfigure $channel -translation {auto binary}
        puts -nonewline $channel $body
        flush $channel
        fconfigure $channel -translation {auto crlf}
    }
}

proc httpd::finish {channel} {
    variable requests
    variable timers
    if {[info exists timers($channel)]} { after cancel $timers($channel) }
    unset -nocomplain timers($channel) requests($channel)
    # What is still in the channel's buffer is sent in the background.
    catch {close $channel}
}

proc httpd::start {command port folder} {
    variable root
    set root [expr {$folder eq "" ? "" : [file normalize $folder]}]
    if {$command eq "socket2"} { package require Iocpsock }
    set listener [$command -server httpd::accept -myaddr 127.0.0.1 $port]
    puts "listening http://127.0.0.1:[lindex [fconfigure $listener -sockname] 2]"
    flush stdout
}

lassign $argv command port root
httpd::start [expr {$command eq "" ? "socket" : $command}] [expr {$port eq "" ? 8015 : $port}] $root
vwait forever
