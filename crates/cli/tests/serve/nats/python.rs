//! nats-py, a client that we did not write. If it is missing that is a failure, never a skip.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Hub;
use crate::support::Driver;

on_both_drivers! {
    nats_py_does_everything_that_it_can,
}

/// Where `cargo xtask test` has installed it.
fn python() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nats-py/bin/python");
    assert!(place.exists(), "{} is missing; `cargo xtask test` installs it", place.display());
    place
}

fn nats_py_does_everything_that_it_can(driver: Driver) {
    let hub = Hub::start(driver, "--stream events=events.> --stream memory=memory.>:memory");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/nats/client.py");
    let outcome = Command::new(python())
        .args([program, &format!("nats://{}", hub.nats())])
        .stdin(Stdio::null())
        .output()
        .expect("python runs");
    let (out, err) = (String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
    assert!(outcome.status.success(), "{out}\n{err}");
    assert!(out.ends_with("all of it\n"), "{out}\n{err}");
    hub.server.finish();
}
