//! Go programs used as real clients: built once from the Go module proxy, in versions pinned by a `go.sum`.

use std::path::PathBuf;
use std::process::Command;

use crate::XtaskResult;
use crate::steps;
use crate::tree;

/// A test client with its `go.mod`.
pub(crate) struct GoClient {
    /// Folder of the sources.
    pub(crate) sources: &'static str,
    /// Folder name of the built client, beside other build folders.
    folder: &'static str,
}

/// The test client on nats.go: the newest version that Debian 12's Go 1.19 builds.
pub(crate) const NATS_GO: GoClient =
    GoClient { sources: "crates/cli/tests/serve/nats/foreign/go", folder: "nats-go" };

/// The test client on go-coap: the newest version that Debian 12's Go 1.19 builds.
pub(crate) const GO_COAP: GoClient =
    GoClient { sources: "crates/cli/tests/serve/coap_clients/go", folder: "go-coap" };

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

impl GoClient {
    /// Builds the client in the folder that cargo passes to tests as `CARGO_TARGET_TMPDIR`. Go itself detects changes.
    ///
    /// # Errors
    /// If there is no Go or the module proxy does not answer; the message gives the remedy.
    pub(crate) fn build(&self) -> XtaskResult {
        let directory = self.directory();
        std::fs::create_dir_all(&directory)?;
        let client = directory.canonicalize()?.join("client");
        let mut build = go(["build", "-buildvcs=false", "-mod=readonly", "-o"]);
        build.arg(&client).arg(".").current_dir(tree::root().join(self.sources));
        steps::run(&mut build).map_err(|error| {
            let sources = self.sources;
            format!(
                "{error}\nneeds Go 1.19 or newer (Debian: golang-go) and the Go module proxy; folder: {sources}"
            )
            .into()
        })
    }

    /// Folder of the built client.
    pub(crate) fn directory(&self) -> PathBuf {
        tree::target().join("tmp").join(self.folder)
    }
}
