//! The extension: build of the crate, and its layout as Tcl packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{TclToolchain, TclVersion};
use crate::XtaskResult;
use crate::steps::{cargo, run};
use crate::tree;

pub(super) const CRATE: &str = "stilling-tcl";

pub(super) const LIBRARY: &str = "libstilling_tcl.so";

const INDEX: &str = "pkgIndex.tcl";

/// Link to the library for its second entry point: Tcl loads a file for one package only, the system's loader a file only
/// once, whatever its names.
const IOCPSOCK_LINK: &str = "libiocpsock.so";

/// Version of the package that programs written for IOCPSOCK require.
const IOCPSOCK_VERSION: &str = "3.0";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PackageBuild {
    Debug,
    Release,
}

impl PackageBuild {
    pub(crate) fn selected(is_debug: bool) -> PackageBuild {
        if is_debug { PackageBuild::Debug } else { PackageBuild::Release }
    }

    /// Folder of cargo's results.
    fn folder(self) -> &'static str {
        match self {
            PackageBuild::Debug => "debug",
            PackageBuild::Release => "release",
        }
    }
}

/// Folder of the packages for a version of Tcl.
fn package_directory(version: TclVersion) -> PathBuf {
    tree::target().join("tcl").join(version.number())
}

/// Whether the sources of the extension are part of this tree.
pub(super) fn has_crate() -> bool {
    tree::root().join("crates/tcl/Cargo.toml").is_file()
}

impl TclToolchain {
    /// Whether this tree has the sources of the extension.
    pub(crate) fn has_extension(&self) -> bool {
        has_crate()
    }

    /// Folder of the packages if they are built.
    pub(crate) fn packages(&self) -> Option<PathBuf> {
        let directory = package_directory(self.version);
        (has_crate() && directory.join(LIBRARY).is_file()).then_some(directory)
    }

    /// Builds the extension for this installation; returns the folder of the packages.
    ///
    /// # Errors
    /// If the build fails.
    pub(crate) fn build_packages(&self, build: PackageBuild) -> XtaskResult<PathBuf> {
        if !has_crate() {
            return Err(format!("this tree has no package `{CRATE}` (crates/tcl)").into());
        }
        let mut command = cargo(["build", "-p", CRATE]);
        if build == PackageBuild::Release {
            command.arg("--release");
        }
        self.select_for_cargo(&mut command);
        run(&mut command)?;
        let directory = package_directory(self.version);
        fs::create_dir_all(&directory)?;
        let directory = directory.canonicalize()?;
        install(&self.cargo_target().join(build.folder()).join(LIBRARY), &directory.join(LIBRARY))?;
        link(&directory)?;
        fs::write(directory.join(INDEX), package_index(env!("CARGO_PKG_VERSION")))?;
        Ok(directory)
    }

    /// Makes a cargo command build the extension for this installation.
    pub(super) fn select_for_cargo(&self, command: &mut Command) {
        if self.version != TclVersion::V8 {
            // The defaults of the build script are those of Tcl 8.6. Without the variables, its build is that of
            // `cargo test --workspace`.
            command.env("STILLING_TCL_INCLUDE", &self.include).env("STILLING_TCL_STUB", &self.stub);
            command.arg("--target-dir").arg(self.cargo_target());
        }
    }

    /// The cargo folder of a version of Tcl, so that the versions do not rebuild each other.
    fn cargo_target(&self) -> PathBuf {
        match self.version {
            TclVersion::V8 => tree::target(),
            TclVersion::V9 => tree::target().join("tcl9"),
        }
    }
}

/// Replaces the library by renaming, because a running shell may have the old one mapped.
fn install(from: &Path, to: &Path) -> XtaskResult {
    let new = to.with_extension("new");
    fs::copy(from, &new).map_err(|error| format!("{}: {error}", from.display()))?;
    fs::rename(new, to)?;
    Ok(())
}

/// Makes the link to the library in its folder.
fn link(directory: &Path) -> XtaskResult {
    let link = directory.join(IOCPSOCK_LINK);
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    Ok(symlink(LIBRARY, link)?)
}

/// Copies built packages into a new folder.
pub(crate) fn copy_packages(from: &Path, to: &Path) -> XtaskResult {
    fs::create_dir_all(to)?;
    for file in [LIBRARY, INDEX] {
        fs::copy(from.join(file), to.join(file))?;
    }
    link(to)
}

/// `pkgIndex.tcl` of both packages, which are one library with two entry points.
fn package_index(version: &str) -> String {
    let entry = |package: &str, version: &str, file: &str| {
        format!("package ifneeded {package} {version} [list load [file join $dir {file}] {package}]\n")
    };
    entry("Stilling", version, LIBRARY) + &entry("Iocpsock", IOCPSOCK_VERSION, IOCPSOCK_LINK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_packages_are_indexed_with_their_entry_point() {
        assert_eq!(
            package_index("1.2.3"),
            "package ifneeded Stilling 1.2.3 [list load [file join $dir libstilling_tcl.so] Stilling]\n\
             package ifneeded Iocpsock 3.0 [list load [file join $dir libiocpsock.so] Iocpsock]\n"
        );
    }

    #[test]
    fn an_installed_library_replaces_the_old_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("a"), folder.path().join("b.so"));
        fs::write(&to, "old").expect("a file");
        fs::write(&from, "new").expect("a file");
        install(&from, &to).expect("it is replaced");
        assert_eq!(fs::read_to_string(&to).expect("a file"), "new");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }

    #[test]
    fn copied_packages_are_still_one_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir(&from).expect("a folder");
        for file in [LIBRARY, INDEX] {
            fs::write(from.join(file), file).expect("a file");
        }
        for _ in 0..2 {
            copy_packages(&from, &to).expect("copied");
            assert_eq!(fs::read_link(to.join(IOCPSOCK_LINK)).expect("a link"), Path::new(LIBRARY));
        }
    }
}
