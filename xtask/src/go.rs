//! Programs in Go that people really use: built once, from the Go module proxy, in versions that a `go.sum` pins.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// The test client on nats.go, with its `go.mod`: the newest version that Debian 12's Go 1.19 builds.
pub(crate) const NATS_GO: &str = "crates/cli/tests/serve/nats/foreign/go";

/// A `go` command that needs no C compiler and nothing of whoever calls it.
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

/// Builds the test client; cargo tells tests the folder as `CARGO_TARGET_TMPDIR`. Go knows by itself what has changed.
///
/// # Errors
/// If there is no Go, or the module proxy does not answer; the message says what to do.
pub(crate) fn build_nats_go() -> XtaskResult {
    let place = place();
    std::fs::create_dir_all(&place)?;
    let client = place.canonicalize()?.join("client");
    let mut build = go(["build", "-buildvcs=false", "-mod=readonly", "-o"]);
    build.arg(&client).arg(".").current_dir(tree::root().join(NATS_GO));
    steps::run(&mut build).map_err(|error| {
        format!("{error}\nit takes Go 1.19 or newer (Debian: golang-go) and the Go module proxy, in the folder {NATS_GO}").into()
    })
}

/// Where the client is built.
pub(crate) fn place() -> PathBuf {
    tree::target().join("tmp/nats-go")
}
