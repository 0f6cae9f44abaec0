//! `cargo xtask tcl-valgrind`: scripts on the Tcl extension under Valgrind's memcheck.
//!
//! With Tcl 8.6 and the driver poll: memcheck does not see what the kernel writes for `io_uring`. Tcl serves small blocks
//! from blocks of its own, of which memcheck sees the outside only; what the extension loses of them, `cargo xtask soak
//! tcl` finds in the growth of a process.

mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;

use super::extension::LIBRARY;
use super::{PackageBuild, TclToolchain, TclVersion, install_programs};
use crate::bench::enter_namespace;
use crate::steps::run;
use crate::{XtaskResult, packages, tree};
use report::{KEPT_BLOCKS_MAX, MemcheckReport, MemcheckVerdict};

/// Folder of this command's files.
const FOLDER: &str = "xtask/src/tcl/valgrind";

/// Scripts in `scripts`, without their suffix.
const SCRIPTS: [&str; 11] = [
    "connections",
    "bulk",
    "datagrams",
    "lookups",
    "fcopy",
    "threads",
    "interpreters",
    "refused",
    "resets",
    "options",
    "exit",
];

/// Options of Valgrind. The stacks must reach the library. Without `--run-libc-freeres=no`, the resolver of the C library
/// loses the block that a look-up thread uses when the process ends.
const OPTIONS: [&str; 6] = [
    "--leak-check=full",
    "--show-leak-kinds=all",
    "--num-callers=50",
    "--keep-debuginfo=yes",
    "--run-libc-freeres=no",
    "--xml=yes",
];

/// Seconds until a script that hangs is ended.
const SCRIPT_SECONDS: &str = "600";

/// An extension with faults, and its package name.
const FAULTS_LIBRARY: &str = "libfaults.so";
const FAULTS_PACKAGE: &str = "Faults";

#[derive(Args)]
pub(crate) struct TclValgrindArguments {
    /// Only these scripts, without their suffix, for example connections,resets
    #[arg(long, value_name = "SCRIPT", value_delimiter = ',', value_parser = SCRIPTS)]
    scripts: Vec<String>,
}

/// The programs, and a folder for files of one run.
struct ValgrindEnvironment {
    toolchain: TclToolchain,
    packages: PathBuf,
    folder: tempfile::TempDir,
}

fn prepare() -> XtaskResult {
    packages::install(&packages::FOR_TCL_VALGRIND)?;
    install_programs()?;
    TclToolchain::find(TclVersion::V8)?.build_packages(PackageBuild::Release)?;
    Ok(())
}

impl TclValgrindArguments {
    pub(crate) fn run(self) -> XtaskResult {
        enter_namespace(prepare)?;
        let toolchain = TclToolchain::find(TclVersion::V8)?;
        let packages = toolchain.packages().ok_or("the extension is not built")?;
        let environment = ValgrindEnvironment { toolchain, packages, folder: tempfile::tempdir()? };
        environment.check_faults()?;
        let mut findings = 0;
        let is_wanted =
            |script: &&str| self.scripts.is_empty() || self.scripts.iter().any(|name| name == script);
        for script in SCRIPTS.into_iter().filter(is_wanted) {
            let start = Instant::now();
            let verdict = environment.run_script(script)?;
            println!("{}", summary(script, &verdict, start.elapsed().as_secs_f64()));
            for finding in &verdict.findings {
                println!("{finding}\n");
            }
            findings += verdict.findings.len();
        }
        match findings {
            0 => Ok(()),
            count => Err(format!("Valgrind has {count} findings").into()),
        }
    }
}

impl ValgrindEnvironment {
    /// Checks that faults of an extension are found on this machine.
    fn check_faults(&self) -> XtaskResult {
        let library = self.folder.path().join(FAULTS_LIBRARY);
        let source = tree::root().join(FOLDER).join("faults.c");
        // Not optimised, so that the faults stay.
        run(Command::new("cc").args(["-shared", "-fPIC", "-g", "-O0", "-o"]).arg(&library).arg(source))?;
        let script = self.folder.path().join("faults.tcl");
        fs::write(&script, format!("load {{{}}} {FAULTS_PACKAGE}\nexit 0\n", library.display()))?;
        let verdict = self.memcheck("faults", &[&script])?.judge(FAULTS_LIBRARY);
        if verdict.faults >= 2 && verdict.lost_bytes > 0 && verdict.kept_most > KEPT_BLOCKS_MAX {
            println!("{}", summary("faults.c, as expected", &verdict, 0.0));
            return Ok(());
        }
        Err(format!("Valgrind does not report the faults of faults.c: {verdict:?}").into())
    }

    fn run_script(&self, name: &str) -> XtaskResult<MemcheckVerdict> {
        let scripts = tree::root().join(FOLDER).join("scripts");
        let files = [scripts.join("prelude.tcl"), scripts.join(format!("{name}.tcl")), self.scratch(name)?];
        let words: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        Ok(self.memcheck(name, &words)?.judge(LIBRARY))
    }

    /// A new folder for files of a script.
    fn scratch(&self, name: &str) -> XtaskResult<PathBuf> {
        let scratch = self.folder.path().join(name);
        fs::create_dir(&scratch)?;
        Ok(scratch)
    }

    /// Runs tclsh with these words under Valgrind. It must end with status 0.
    fn memcheck(&self, name: &str, words: &[&Path]) -> XtaskResult<MemcheckReport> {
        let file = self.folder.path().join(format!("{name}.xml"));
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SCRIPT_SECONDS, "valgrind"]).args(OPTIONS);
        command.arg(format!("--xml-file={}", file.display())).arg(&self.toolchain.tclsh).args(words);
        command.env("TCLLIBPATH", &self.packages).env("STILLING_TCL_DRIVER", "poll");
        run(&mut command)?;
        let report = MemcheckReport::parse(&fs::read_to_string(&file)?);
        Ok(report.ok_or_else(|| format!("the report of {name} is incomplete"))?)
    }
}

fn summary(script: &str, verdict: &MemcheckVerdict, seconds: f64) -> String {
    format!(
        "{script}: {} invalid accesses or uses of uninitialised values, {} bytes lost ({} elsewhere), at most {} blocks of \
         one allocation left (limit {KEPT_BLOCKS_MAX}), {seconds:.0} s",
        verdict.faults, verdict.lost_bytes, verdict.lost_elsewhere, verdict.kept_most
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_in_the_list() {
        let mut files: Vec<_> = fs::read_dir(tree::root().join(FOLDER).join("scripts"))
            .expect("the folder")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".tcl").map(str::to_owned))
            .filter(|name| name != "prelude")
            .collect();
        files.sort_unstable();
        let mut listed = SCRIPTS.to_vec();
        listed.sort_unstable();
        assert_eq!(files, listed);
    }
}
