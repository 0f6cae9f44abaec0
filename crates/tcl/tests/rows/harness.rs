//! Runs scripts with the extension loaded.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The drivers, as `STILLING_TCL_DRIVER` names them.
pub(crate) const DRIVERS: [&str; 3] = ["poll", "uring", "direct"];

/// Seconds until a script that hangs is ended.
const SCRIPT_SECONDS: &str = "60";

/// Defined for every script, beside `library`, the file of the extension: `check` ends it with a message unless two
/// values are equal; `wait` runs the event loop until a global variable is set, and fails after 20 s.
const PRELUDE: &str = r#"
proc check {what actual expected} {
    if {$actual ne $expected} {
        puts stderr "$what: got \"$actual\", expected \"$expected\""
        exit 1
    }
}
proc wait {name} {
    set timer [after 20000 [list wait_failed $name]]
    vwait ::$name
    after cancel $timer
    return [set ::$name]
}
proc wait_failed {name} {
    puts stderr "$name was not set in 20 s"
    exit 1
}
proc bgerror {message} {
    puts stderr "background error: $message\n$::errorInfo"
    exit 1
}
proc port_of {listener} { lindex [fconfigure $listener -sockname] 2 }
"#;

/// The extension, which cargo builds for the tests of its crate.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().expect("a test is in a folder");
    let library = folder.join("libstilling_tcl.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// The shell, which `STILLING_TCLSH` names for tests with another version of Tcl.
pub(crate) fn tclsh() -> OsString {
    std::env::var_os("STILLING_TCLSH").unwrap_or_else(|| "tclsh8.6".into())
}

/// Runs a command in a network of its own that has only loopback addresses: no name is looked up elsewhere, and its
/// ports are its own.
pub(crate) const IN_NAMESPACE: [&str; 8] =
    ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];

/// Runs a script on one driver. It must end with status 0; returns its standard output.
pub(crate) fn run_on(driver: &str, script: &str) -> String {
    run_wrapped(driver, &[], script)
}

/// As [`run_on`], with a command before tclsh that runs it.
pub(crate) fn run_wrapped(driver: &str, wrapper: &[&str], script: &str) -> String {
    finish(driver, start_wrapped(driver, wrapper, script))
}

/// Starts a script on one driver, with its standard output and errors piped.
pub(crate) fn start_on(driver: &str, script: &str) -> Child {
    start_wrapped(driver, &[], script)
}

/// Starts a script, whose end [`finish`] awaits.
pub(crate) fn start_wrapped(driver: &str, wrapper: &[&str], script: &str) -> Child {
    let mut child = Command::new("timeout")
        .args(["--kill-after=5", SCRIPT_SECONDS])
        .args(wrapper)
        // As a file, so that an error ends the script.
        .args([tclsh(), "/dev/stdin".into()])
        .env("STILLING_TCL_DRIVER", driver)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("timeout is installed");
    let library = library();
    let library = library.display();
    let whole = format!("set library {{{library}}}\nload $library Stilling\n{PRELUDE}\n{script}\nexit 0\n");
    let mut input = child.stdin.take().expect("it is piped");
    // A script that ends early reports its own error.
    let _ = input.write_all(whole.as_bytes());
    drop(input);
    child
}

/// Waits for the end of a script, which must have status 0; returns the rest of its standard output.
#[track_caller]
pub(crate) fn finish(driver: &str, child: Child) -> String {
    let output = child.wait_with_output().expect("the child can be waited for");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "on {driver}: {}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a script on every driver; its checks are in the script.
pub(crate) fn run_on_all(script: &str) {
    for driver in DRIVERS {
        run_on(driver, script);
    }
}
