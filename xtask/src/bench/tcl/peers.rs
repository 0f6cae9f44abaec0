//! The sockets under comparison, and Tcl servers on them.

use std::path::PathBuf;
use std::process::Command;

use super::TclBench;
use crate::XtaskResult;
use crate::bench::copy_binary;
use crate::bench::harness::NamedServer;
use crate::bench::server::BenchServer;
use crate::tcl::{TclToolchain, TclVersion, copy_packages};
use crate::tree;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TclPeer {
    /// Tcl's own.
    Stock,
    Uring,
    Poll,
    /// `io_uring` with sockets in the descriptor table of its ring.
    Direct,
}

/// The peers of the tables with rounds.
pub(super) const COMPARED: [TclPeer; 3] = [TclPeer::Stock, TclPeer::Uring, TclPeer::Poll];

/// The extension's peers among them.
pub(super) const OWN: [TclPeer; 2] = [TclPeer::Uring, TclPeer::Poll];

impl TclPeer {
    pub(super) fn name(self) -> &'static str {
        match self {
            TclPeer::Stock => "socket",
            TclPeer::Uring => "socket2 uring",
            TclPeer::Poll => "socket2 poll",
            TclPeer::Direct => "socket2 direct",
        }
    }

    /// The Tcl command.
    fn command(self) -> &'static str {
        if self == TclPeer::Stock { "socket" } else { "socket2" }
    }

    /// Value of `STILLING_TCL_DRIVER`.
    pub(crate) fn driver(self) -> Option<&'static str> {
        match self {
            TclPeer::Stock => None,
            TclPeer::Uring => Some("uring"),
            TclPeer::Poll => Some("poll"),
            TclPeer::Direct => Some("direct"),
        }
    }
}

impl NamedServer for TclPeer {
    fn name(&self) -> &'static str {
        TclPeer::name(*self)
    }
}

/// The programs, with a folder that is removed with its guard.
pub(crate) struct TclPrograms {
    pub(super) folder: PathBuf,
    pub(super) generator: PathBuf,
    /// The example of the engine that moves bulk data.
    pub(super) engine_bulk: PathBuf,
    /// Valid clients during a SYN flood.
    pub(super) syn_flood: PathBuf,
    pub(crate) patch_level: String,
    toolchain: TclToolchain,
    /// Folder of a copy of the packages, so that a build during a long run does not change them.
    packages: Option<PathBuf>,
}

impl TclPrograms {
    pub(crate) fn find(version: TclVersion) -> XtaskResult<(tempfile::TempDir, TclPrograms)> {
        let guard = tempfile::tempdir()?;
        let folder = guard.path().to_owned();
        let toolchain = TclToolchain::find(version)?;
        let packages = toolchain.packages().map(|built| {
            let copy = folder.join("packages");
            copy_packages(&built, &copy).map(|()| copy)
        });
        let programs = TclPrograms {
            generator: copy_binary("examples/tcp", &folder)?,
            engine_bulk: copy_binary("examples/bulk", &folder)?,
            syn_flood: copy_binary("examples/syn_flood", &folder)?,
            patch_level: toolchain.evaluate("puts [info patchlevel]")?,
            packages: packages.transpose()?,
            toolchain,
            folder,
        };
        Ok((guard, programs))
    }

    /// Version of a package of Tcl scripts; `None` if it does not load.
    pub(super) fn package_version(&self, name: &str) -> Option<String> {
        self.toolchain.evaluate(&format!("puts [package require {name}]")).ok()
    }

    pub(super) fn has_extension(&self) -> bool {
        self.packages.is_some()
    }
}

/// A server as a Tcl script: its path from the root, and its arguments after the command.
#[derive(Clone, Copy)]
pub(crate) struct TclServer<'a> {
    pub(crate) script: &'static str,
    pub(crate) arguments: &'a [&'a str],
}

impl TclBench {
    /// The peers of this tree, of `all`.
    pub(super) fn available(&self, all: &[TclPeer]) -> Vec<TclPeer> {
        let is_available = |peer: &TclPeer| *peer == TclPeer::Stock || self.programs.has_extension();
        all.iter().copied().filter(is_available).collect()
    }
}

impl TclPrograms {
    /// Starts a server, which announces its address.
    pub(crate) fn start(&self, peer: TclPeer, server: TclServer) -> XtaskResult<BenchServer> {
        let mut command = self.script(peer, server.script);
        command.args(server.arguments);
        let command_line = format!("tclsh {} {}", server.script, peer.command());
        BenchServer::announced(peer.name(), command_line, command)
    }

    /// A script, with the peer's command as its first argument.
    pub(super) fn script(&self, peer: TclPeer, script: &str) -> Command {
        let mut command = Command::new(&self.toolchain.tclsh);
        command.arg(tree::root().join(script)).arg(peer.command());
        if let Some(packages) = &self.packages {
            let others = self.toolchain.library_path();
            command.env("TCLLIBPATH", format!("{{{}}} {others}", packages.display()));
        }
        if let Some(driver) = peer.driver() {
            command.env("STILLING_TCL_DRIVER", driver);
        }
        command
    }
}

/// A program that starts a script, given as the program's last arguments.
pub(super) fn wrapped(mut program: Command, script: &Command) -> Command {
    program.arg(script.get_program()).args(script.get_args());
    for (name, value) in script.get_envs() {
        program.env(name, value.expect("no variable is removed"));
    }
    program
}
