//! Tcl 9.0, which Debian 12 does not have: built from the source package of a later release, with Debian's thread
//! package beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::foreign_packages::ForeignPackages;
use super::toolchain::{TclToolchain, TclVersion, work_folder};
use crate::XtaskResult;
use crate::packages;
use crate::steps::run;

/// Debian's package with `Thread` for Tcl 9.0; its library runs on an older C library than that of its release.
const THREAD_PACKAGE: &str = "tcl9.0-thread";

/// File that names the sources of an installed build, written last.
const BUILT_MARKER: &str = ".built";

/// Builds Tcl 9.0 unless it is there.
///
/// # Errors
/// If the sources cannot be fetched or do not build.
pub(super) fn build() -> XtaskResult<TclToolchain> {
    let folder = work_folder()?;
    let prefix = folder.join("9.0");
    if !prefix.join(BUILT_MARKER).is_file() {
        packages::install(&packages::FOR_TCL_SOURCES)?;
        let source =
            ForeignPackages::in_folder(folder.clone()).source(TclVersion::V9.source_package(), None)?;
        build_from(&source, &folder.join("9.0-build"), &prefix)?;
    }
    let thread = ForeignPackages::in_folder(folder).binary(THREAD_PACKAGE)?;
    let library = prefix.join("lib");
    Ok(TclToolchain {
        version: TclVersion::V9,
        tclsh: prefix.join("bin/tclsh9.0"),
        include: prefix.join("include"),
        stub: library.join("libtclstub9.0.a"),
        script_folders: vec![library.join("tcl9.0"), library.join("tcl9")],
        package_folders: vec![thread_folder(&thread)?],
    })
}

/// Configures, builds and installs Tcl in `prefix`.
fn build_from(source: &Path, folder: &Path, prefix: &Path) -> XtaskResult {
    for folder in [folder, prefix] {
        if folder.is_dir() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
    }
    // Newer than the table it is made from; otherwise make needs a Tcl to make it again.
    let stubs = source.join("generic/tclStubInit.c");
    run(Command::new("touch").arg(&stubs))?;
    let mut configure = Command::new(source.join("unix/configure"));
    configure.arg(format!("--prefix={}", prefix.display()));
    // A script library of plain files: the tests append to one of them.
    configure.args(["--quiet", "--enable-shared", "--disable-zipfs", "--with-system-libtommath"]);
    run(configure.current_dir(folder))?;
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let make = |targets: &[&str]| {
        let mut make = Command::new("make");
        run(make.args(["--silent", &format!("-j{jobs}")]).args(targets).current_dir(folder))
    };
    make(&["binaries", "libraries"])?;
    make(&["install-binaries", "install-libraries", "install-headers"])?;
    fs::write(prefix.join(BUILT_MARKER), source.display().to_string())?;
    Ok(())
}

/// The folder of packages below `usr/lib/tcltk`, named after the architecture.
fn thread_folder(root: &Path) -> XtaskResult<PathBuf> {
    let folder = root.join("usr/lib/tcltk");
    let mut architectures = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    Ok(architectures.next().ok_or_else(|| format!("{} is empty", folder.display()))?)
}
