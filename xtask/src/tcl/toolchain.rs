//! The Tcl installations that the extension is built for and tested with.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::tcl9;
use crate::XtaskResult;
use crate::tree;

/// Folder of Debian's headers of Tcl 8.6.
const INCLUDE_8: &str = "/usr/include/tcl8.6";

/// Stub library of Debian's Tcl 8.6, below the folder of the architecture.
const STUB_8: &str = "libtclstub8.6.a";

/// Script library of Debian's Tcl 8.6, including its modules.
const SCRIPTS_8: &str = "/usr/share/tcltk/tcl8.6";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TclVersion {
    /// 8.6, from Debian packages.
    V8,
    /// 9.0, built from Debian's source package.
    V9,
}

/// One installation of Tcl.
pub(crate) struct TclToolchain {
    pub(crate) version: TclVersion,
    /// The shell.
    pub(crate) tclsh: PathBuf,
    /// Folder of `tcl.h`.
    pub(crate) include: PathBuf,
    /// Stub library.
    pub(crate) stub: PathBuf,
    /// Folders of the script library: the first one has `init.tcl`, the others belong beside it.
    pub(crate) script_folders: Vec<PathBuf>,
    /// Folders of further packages, for `TCLLIBPATH`.
    pub(crate) package_folders: Vec<PathBuf>,
}

impl TclVersion {
    pub(crate) fn selected(is_9: bool) -> TclVersion {
        if is_9 { TclVersion::V9 } else { TclVersion::V8 }
    }

    pub(crate) fn number(self) -> &'static str {
        match self {
            TclVersion::V8 => "8.6",
            TclVersion::V9 => "9.0",
        }
    }

    /// Name of Debian's source package.
    pub(super) fn source_package(self) -> &'static str {
        match self {
            TclVersion::V8 => "tcl8.6",
            TclVersion::V9 => "tcl9.0",
        }
    }
}

impl TclToolchain {
    /// The installation of a version; Tcl 9.0 is built if it is not there.
    ///
    /// # Errors
    /// If files are missing or the build fails.
    pub(crate) fn find(version: TclVersion) -> XtaskResult<TclToolchain> {
        let toolchain = match version {
            TclVersion::V8 => installed_8()?,
            TclVersion::V9 => tcl9::build()?,
        };
        for file in [toolchain.include.join("tcl.h"), toolchain.stub.clone(), toolchain.init_script()] {
            if !file.is_file() {
                return Err(format!("Tcl {} has no {}", version.number(), file.display()).into());
            }
        }
        Ok(toolchain)
    }

    /// The script that every interpreter runs first.
    pub(super) fn init_script(&self) -> PathBuf {
        self.script_folders[0].join("init.tcl")
    }

    /// Value of `TCLLIBPATH` that finds the further packages: a Tcl list.
    pub(crate) fn library_path(&self) -> String {
        let folders = self.package_folders.iter().map(|folder| format!("{{{}}}", folder.display()));
        folders.collect::<Vec<_>>().join(" ")
    }

    /// The output of a script.
    ///
    /// # Errors
    /// If the shell does not start or the script fails.
    pub(crate) fn evaluate(&self, script: &str) -> XtaskResult<String> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), script)?;
        let output = Command::new(&self.tclsh).arg(file.path()).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

fn installed_8() -> XtaskResult<TclToolchain> {
    Ok(TclToolchain {
        version: TclVersion::V8,
        tclsh: "tclsh8.6".into(),
        include: INCLUDE_8.into(),
        stub: stub_8(Path::new("/usr/lib"))?,
        script_folders: vec![SCRIPTS_8.into()],
        package_folders: Vec::new(),
    })
}

/// The stub library in the folder of this machine's architecture.
fn stub_8(libraries: &Path) -> XtaskResult<PathBuf> {
    let folders = std::fs::read_dir(libraries)?.flatten().map(|entry| entry.path().join(STUB_8));
    let missing = || format!("no {STUB_8} below {}; Debian package: tcl8.6-dev", libraries.display());
    Ok(folders.into_iter().find(|file| file.is_file()).ok_or_else(missing)?)
}

/// Folder of sources and builds of Tcl; never part of the repository.
pub(super) fn work_folder() -> XtaskResult<PathBuf> {
    let folder = tree::target().join("tmp").join("tcl");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.canonicalize()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stub_library_is_found_in_the_folder_of_the_architecture() {
        let libraries = tempfile::tempdir().expect("a folder");
        let folder = libraries.path().join("riscv64-linux-gnu");
        std::fs::create_dir(&folder).expect("a folder");
        let error = stub_8(libraries.path()).expect_err("it is not there").to_string();
        assert!(error.ends_with("Debian package: tcl8.6-dev"), "{error}");
        std::fs::write(folder.join(STUB_8), "").expect("a file");
        assert_eq!(stub_8(libraries.path()).expect("it is there"), folder.join(STUB_8));
    }

    #[test]
    fn the_library_path_is_a_list_of_tcl() {
        let toolchain = TclToolchain {
            version: TclVersion::V9,
            tclsh: "tclsh".into(),
            include: "include".into(),
            stub: "stub".into(),
            script_folders: vec!["scripts".into()],
            package_folders: vec!["a folder".into(), "b".into()],
        };
        assert_eq!(toolchain.library_path(), "{a folder} {b}");
        assert_eq!(toolchain.init_script(), Path::new("scripts/init.tcl"));
    }
}
