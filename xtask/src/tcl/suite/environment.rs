//! The environment of a test file: the tests' sources, a copy of Tcl's script library that replaces `::socket`, a
//! scratch folder.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::TclDriver;
use super::files::SuiteFile;
use super::results::FileResults;
use crate::XtaskResult;
use crate::steps::run;
use crate::tcl::extension::LIBRARY;
use crate::tcl::foreign_packages::{ForeignPackages, installed_version};
use crate::tcl::toolchain::{TclToolchain, TclVersion, work_folder};

/// Most seconds of one file; the slowest takes half a minute.
const FILE_SECONDS_MAX: u32 = 300;

/// Repetitions of a test that failed by a race of its own: with Tcl's sockets, one of 13 runs fails.
const RACE_REPETITIONS: u32 = 4;

/// Exit status of `timeout` when the time is over.
const TIMED_OUT: i32 = 124;

/// User and group of tests as an ordinary user: without any files.
const ORDINARY_USER: &str = "65534";

/// Names in the private `/etc/hosts`.
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";

/// Runs a command with another `/etc/hosts` ($0) as another user ($1).
const AS_ORDINARY_USER: &str = r#"mount --bind "$0" /etc/hosts && user=$1 && shift &&
exec setpriv "--reuid=$user" "--regid=$user" --clear-groups -- "$@""#;

/// Prints 1 for each interpreter with the replaced command: this one, a child of it, one of a child process.
const CHECK_REPLACEMENT: &str = "\
set is {llength [info commands ::stilling::install]}
interp create child
set file [open script w]
puts $file \"puts \\[$is\\]\"
close $file
puts [list [eval $is] [child eval $is] [exec [info nameofexecutable] script]]
";

/// The sockets under test.
#[derive(Clone, Copy)]
pub(super) enum Sockets<'a> {
    /// Tcl's own.
    Stock,
    /// Those of the extension, loaded by this script library.
    Extension { library: &'a Path, driver: Option<TclDriver> },
}

pub(super) struct SuiteEnvironment<'a> {
    toolchain: &'a TclToolchain,
    tests: PathBuf,
    as_ordinary_user: bool,
}

impl<'a> SuiteEnvironment<'a> {
    /// Fetches the tests of the installed version.
    pub(super) fn prepare(toolchain: &'a TclToolchain, as_ordinary_user: bool) -> XtaskResult<Self> {
        let package = toolchain.version.source_package();
        let version = match toolchain.version {
            TclVersion::V8 => Some(installed_version(package)?),
            // Built from the same sources.
            TclVersion::V9 => None,
        };
        let source = ForeignPackages::in_folder(work_folder()?).source(package, version.as_deref())?;
        Ok(SuiteEnvironment { toolchain, tests: source.join("tests"), as_ordinary_user })
    }

    pub(super) fn has(&self, file: &SuiteFile) -> bool {
        self.path(file).is_file()
    }

    fn path(&self, file: &SuiteFile) -> PathBuf {
        self.tests.join(format!("{}.test", file.name))
    }

    /// A copy of the script library with an `init.tcl` that loads the extension and replaces `::socket`.
    pub(super) fn library_with(&self, packages: &Path) -> XtaskResult<PathBuf> {
        let folder = work_folder()?.join(format!("library-{}", self.toolchain.version.number()));
        if folder.is_dir() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        for scripts in &self.toolchain.script_folders {
            run(Command::new("cp").args(["-rL"]).arg(scripts).arg(&folder))?;
        }
        let init = self.toolchain.init_script();
        let scripts = init.parent().and_then(Path::file_name).ok_or("init.tcl is in a folder")?;
        let library = folder.join(scripts);
        let mut file = fs::OpenOptions::new().append(true).open(library.join("init.tcl"))?;
        file.write_all(replacement(&packages.join(LIBRARY)).as_bytes())?;
        Ok(library)
    }

    /// Checks that the replacement reaches every interpreter: an error in `init.tcl` does not end a shell.
    pub(super) fn check_replacement(&self, sockets: Sockets) -> XtaskResult {
        let scratch = scratch_folder()?;
        let script = scratch.path().join("check.tcl");
        fs::write(&script, CHECK_REPLACEMENT)?;
        let mut command = self.shell(sockets, scratch.path())?;
        let output = command.arg(&script).output()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if printed.trim() == "1 1 1" {
            return Ok(());
        }
        let error = String::from_utf8_lossy(&output.stderr);
        Err(format!("`::socket` is not replaced in every interpreter ({}): {error}", printed.trim()).into())
    }

    /// Runs a file to its end; repeats tests that failed by a race of their own.
    pub(super) fn run(&self, file: &'static SuiteFile, sockets: Sockets) -> XtaskResult<FileResults> {
        let kind = if matches!(sockets, Sockets::Stock) { "Tcl's sockets" } else { "the extension" };
        let mut results = self.run_tests(file, &file.tests.join(" "), sockets)?;
        println!("{} with {kind}: {} passed in {:.1} s", file.name, results.passed(), results.seconds);
        for name in results.failed_by_race() {
            let mut passed = false;
            for _ in 0..RACE_REPETITIONS {
                passed = passed || self.run_tests(file, &name, sockets)?.passed() > 0;
            }
            if passed {
                println!("{name} with {kind} failed by a race of the test and passed when repeated");
                results.accept_repeated(&name);
            }
        }
        Ok(results)
    }

    /// Runs the tests of a file that match a list of patterns; all if it is empty.
    fn run_tests(&self, file: &SuiteFile, patterns: &str, sockets: Sockets) -> XtaskResult<FileResults> {
        let scratch = scratch_folder()?;
        let mut command = self.shell(sockets, scratch.path())?;
        command.arg(self.path(file)).args(["-verbose", "bpse"]);
        if !patterns.is_empty() {
            command.args(["-match", patterns]);
        }
        let start = Instant::now();
        // One file for both: failures are on standard output, errors of the shell itself on the other.
        let mut printed = tempfile::NamedTempFile::new()?;
        command.stdin(Stdio::null()).stdout(printed.reopen()?).stderr(printed.reopen()?);
        let status = command.status()?;
        if status.code() == Some(TIMED_OUT) {
            writeln!(printed.as_file_mut(), "ended after {FILE_SECONDS_MAX} seconds")?;
        }
        let output = fs::read(printed.path())?;
        let mut results = FileResults::parse(file.name, &String::from_utf8_lossy(&output), status.success());
        results.seconds = start.elapsed().as_secs_f64();
        Ok(results)
    }

    /// A shell with a bound on its time, in a folder that is its own, because some tests write to it.
    fn shell(&self, sockets: Sockets, scratch: &Path) -> XtaskResult<Command> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &FILE_SECONDS_MAX.to_string()]);
        if self.as_ordinary_user {
            let hosts = work_folder()?.join("hosts");
            fs::write(&hosts, HOSTS)?;
            command.args(["unshare", "--mount", "sh", "-c", AS_ORDINARY_USER]).arg(hosts).arg(ORDINARY_USER);
        }
        command.arg(&self.toolchain.tclsh).current_dir(scratch);
        command.env("TCLLIBPATH", self.toolchain.library_path());
        command.env_remove("TCL_LIBRARY").env_remove("STILLING_TCL_DRIVER");
        if let Sockets::Extension { library, driver } = sockets {
            // Inherited by child processes.
            command.env("TCL_LIBRARY", library);
            if let Some(driver) = driver {
                command.env("STILLING_TCL_DRIVER", driver.option());
            }
        }
        Ok(command)
    }
}

/// A folder that every user can write to.
fn scratch_folder() -> XtaskResult<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    Ok(folder)
}

/// Lines at the end of `init.tcl`. A safe interpreter has no `::socket` and is left alone.
fn replacement(library: &Path) -> String {
    let library = library.display();
    format!(
        "\nif {{[llength [info commands ::stilling::install]] == 0 && [llength [info commands ::socket]]}} {{\n\
         \x20   load {{{library}}} Stilling\n    ::stilling::install\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replacement_happens_once_per_interpreter() {
        let lines = replacement(Path::new("/a b/x.so"));
        assert!(lines.starts_with("\nif {[llength [info commands ::stilling::install]] == 0 && "), "{lines}");
        assert!(lines.contains("    load {/a b/x.so} Stilling\n    ::stilling::install\n}\n"), "{lines}");
    }
}
