//! Hot restart of a server with worker processes: no client waits for processes that are still starting.

use std::path::Path;

use super::*;
use crate::support::eventually;

on_both_drivers!(
    a_successor_takes_over_when_a_process_is_ready,
    a_successor_whose_processes_do_not_start_takes_over_nothing,
    a_successor_that_is_left_alone_accepts_before_its_processes_are_ready,
);

/// A server with a fake process that starts only when a file exists at `gate`.
fn behind_a_gate(driver: DriverUnderTest, gate: &Path, options: &str) -> ServerUnderTest {
    let gate = gate.display();
    let command = format!("until [ -e '{gate}' ]; do sleep 0.01; done; {}", fake());
    before(driver, &command, options)
}

/// Row 4.37: until then the old server answers, and no connection reaches the new one.
fn a_successor_takes_over_when_a_process_is_ready(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("gate");
    let options = format!("-A 2 --take-over {}", folder.path().join("control").display());
    let (mut old, _) = before_fakes(driver, &options);
    let address = old.address();
    let new = behind_a_gate(driver, &gate, &options);
    assert_eq!(new.address(), address);
    new.thread("shard-1");
    for _ in 0..40 {
        assert_eq!(TestPeer::connect(address).ask(get("/pid")).status, 200);
    }
    assert!(!old.has_ended());
    std::fs::write(&gate, "").expect("our folder");
    old.expect_clean_end();
    assert_eq!(TestPeer::connect(address).ask(get("/pid")).status, 200);
    new.finish();
}

/// Row 4.37: both servers report the reason, and the old server continues.
fn a_successor_whose_processes_do_not_start_takes_over_nothing(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let control = folder.path().join("control");
    let (old, _) = before_fakes(driver, &format!("--take-over {}", control.display()));
    let mut command = binary();
    command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--app", "exec sleep 600"]);
    command.args(["--app-start-timeout", "0.3", "--take-over"]).arg(&control);
    let outcome = command.output().expect("the binary starts");
    let stderr_text = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{stderr_text}");
    let wanted = "stilling: cannot take over: no worker process (--app) became ready within 0.3 seconds, so the old server continues\n";
    assert!(stderr_text.ends_with(wanted), "{stderr_text}");
    assert_eq!(old.connect().ask(get("/pid")).status, 200);
    let (new, _) = before_fakes(driver, &format!("--take-over {}", control.display()));
    old.expect_clean_end();
    new.finish();
}

/// Row 4.37: the old server ends while it waits; later clients wait for the new server's processes.
fn a_successor_that_is_left_alone_accepts_before_its_processes_are_ready(driver: DriverUnderTest) {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("gate");
    let options = format!("--take-over {}", folder.path().join("control").display());
    let (old, _) = before_fakes(driver, &options);
    let new = behind_a_gate(driver, &gate, &options);
    old.finish();
    let mut early = new.connect();
    early.send(get("/pid"));
    // The server itself answers its pages.
    eventually("it accepts", || Some(new.connect().ask(get("/livez")).status == 200));
    assert!(early.is_silent());
    std::fs::write(&gate, "").expect("our folder");
    assert_eq!(early.answer().status, 200);
    new.finish();
}
