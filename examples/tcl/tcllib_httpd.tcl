# The HTTP server of tcllib (package httpd), unmodified, on either socket command:
#
#     tclsh tcllib_httpd.tcl ?socket|socket2? ?port? ?root?
#
# It serves the files below root, and `/hello` without a file. The package calls `socket`; with socket2
# (TCLLIBPATH=target/tcl/8.6) stilling::install replaces it before, and `/stats` shows the counts of iocp_stats.

lassign $argv command port root
if {$command eq "socket2"} {
    package require Iocpsock
    stilling::install
}
package require httpd 4

httpd::server create server myaddr 127.0.0.1 port [expr {$port eq "" ? 8015 : $port}] doc_root $root
server plugin dict_dispatch
server uri direct * /hello {} {
    my puts "Hello"
}
if {$command eq "socket2"} {
    server uri direct * /stats {} {
        my puts "<table>[iocp_stats 1]</table>"
    }
}
# With port 0 the system chooses one.
set listener [lindex [set [info object namespace server]::socklist] 0]
puts "listening http://127.0.0.1:[lindex [fconfigure $listener -sockname] 2]"
flush stdout
vwait forever
