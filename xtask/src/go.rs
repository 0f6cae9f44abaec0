//! Go programs used as real clients: built once from the Go module proxy, in versions pinned by a `go.sum`.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// The test client on nats.go, with its `go.mod`: the newest version that Debian 12's Go 1.19 builds.
pub(crate) const NATS_GO: &str = "crates/cli/tests/serve/nats/foreign/go";

/// A `go` command that needs no C compiler and no Go settings of the caller.
pub(crate) fn go<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .env("CGO_ENABLED", "0")
        .env_remove("GOFLAGS")
        .env_remove("GOOS")
        .env_remove("GOARCH");
    command
}

/// Builds the test client in the folder that cargo passes to tests as `CARGO_TARGET_TMPDIR`. Go itself detects changes.
///
/// # Errors
/// If there is no Go or the module proxy does not answer; the message gives the remedy.
pub(crate) fn build_nats_go() -> XtaskResult {
    let directory = directory();
    std::fs::create_dir_all(&directory)?;
    let client = directory.canonicalize()?.join("client");
    let mut build = go(["build", "-buildvcs=false", "-mod=readonly", "-o"]);
    build.arg(&client).arg(".").current_dir(tree::root().join(NATS_GO));
    steps::run(&mut build).map_err(|error| {
        format!(
            "{error}\nneeds Go 1.19 or newer (Debian: golang-go) and the Go module proxy; folder: {NATS_GO}"
        )
        .into()
    })
}

/// Folder of the built client.
pub(crate) fn directory() -> PathBuf {
    tree::target().join("tmp/nats-go")
}
