//! The manual page names everything that exists, and renders without a warning.

use std::path::Path;
use std::process::Command;

use crate::harness::run_on;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tcl/stilling.n");
    std::fs::read_to_string(path).expect("the page exists")
}

/// Commands, options and keys of statistics, as a script finds them.
const NAMES: &str = r#"
    foreach command [concat socket2 iocp_stats [info commands ::stilling::*]] {
        puts [string trimleft $command :]
    }
    set listener [socket2 -server list -myaddr 127.0.0.1 0]
    set client [socket2 127.0.0.1 [port_of $listener]]
    foreach channel [list $listener $client] {
        catch {fconfigure $channel -bogus} message
        puts [join [regexp -all -inline -- {-\w+(?=[, ]|$)} [regsub {.*-translation} $message ""]] \n]
    }
    set datagrams [socket2 -udp -myaddr 127.0.0.1]
    foreach words {{-bogus} {-bogus 1}} {
        catch {fconfigure $datagrams {*}$words} message
        puts [join [regexp -all -inline -- {-\w+(?=[, ]|$)} [regsub {.*-translation} $message ""]] \n]
    }
    set stats [stilling::stats]
    puts [join [dict keys $stats] \n]
    puts [join [dict keys [dict get $stats floods]] \n]
    puts [join [dict keys [dict get $stats stages]] \n]
    puts [join [dict keys [dict get $stats stages wait]] \n]
    puts [join [dict keys [lindex [dict get $stats floods listeners] 0]] \n]
    foreach line [split [string trim [iocp_stats]] \n] { puts [string range $line 0 [string last : $line]] }
"#;

#[test]
fn the_manual_names_every_command_option_and_key() {
    let page = page().replace("\\-", "-");
    let names = run_on("poll", NAMES);
    assert!(names.lines().count() > 30, "{names}");
    let missing: Vec<&str> =
        names.lines().filter(|name| !name.is_empty() && !page.contains(&format!("\\fB{name}\\fR"))).collect();
    assert!(missing.is_empty(), "the manual does not name {missing:?}");
}

/// The server of the section of examples starts, and its script accepts the words of a flood.
#[test]
fn the_example_of_the_manual_runs() {
    let page = page().replace("\\-", "-");
    let section = page.split_once(".SH EXAMPLES").expect("the section").1;
    let example =
        section.split_once(".nf\n").expect("the example").1.split_once("vwait forever").expect("its end").0;
    assert!(example.contains("socket -server accept 5150"), "{example}");
    let example = example.replace("5150", "-myaddr 127.0.0.1 0");
    let script = format!(
        "{example}\neval \"[stilling::onflood] began {{unanswered 64 cookies 1}}\"\nclose $listener\n"
    );
    assert_eq!(run_on("poll", &script), "SYN flood began: unanswered 64 cookies 1\n");
}

#[test]
fn the_manual_renders_without_a_warning() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tcl/stilling.n");
    let outcome = Command::new("groff")
        .args(["-man", "-Tutf8", "-ww"])
        .arg(page)
        .output()
        .expect("groff is installed: cargo xtask test installs it");
    assert!(outcome.status.success());
    assert_eq!(String::from_utf8_lossy(&outcome.stderr), "");
    assert!(String::from_utf8_lossy(&outcome.stdout).contains("socket, server, backlog"));
}
