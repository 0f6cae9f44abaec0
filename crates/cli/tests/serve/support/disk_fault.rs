//! A disk that hangs or fails: strace attaches to the thread that writes a server's streams.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use stilling_probe::eventually;

use super::ServerUnderTest;

const WRITES: &str = "pwrite64,pwritev,pwritev2,fdatasync,fsync";

/// Numbers of these calls on x86-64; strace affects no other call.
const NUMBERS: [&str; 5] = ["18", "74", "75", "296", "328"];

/// Affects the writes of a server's journal thread until it is dropped.
pub(crate) struct DiskFault {
    strace: Child,
    /// The folders of the server's threads and of this one under `/proc`.
    tasks: PathBuf,
    task: PathBuf,
}

fn name(task: &Path) -> String {
    std::fs::read_to_string(task.join("comm")).unwrap_or_default().trim_end().to_owned()
}

/// Whether a thread is in a call that writes files.
fn is_in_write(task: &Path) -> bool {
    let call = std::fs::read_to_string(task.join("syscall")).unwrap_or_default();
    NUMBERS.contains(&call.split(' ').next().expect("a word"))
}

fn threads(tasks: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(tasks).expect("the server runs").flatten().map(|task| task.path())
}

impl DiskFault {
    /// Writes hang.
    pub(crate) fn hang(server: &ServerUnderTest) -> DiskFault {
        DiskFault::inject(server, "delay_enter=3600s")
    }

    /// Writes and syncs fail.
    pub(crate) fn fail(server: &ServerUnderTest) -> DiskFault {
        DiskFault::inject(server, "error=EIO")
    }

    fn inject(server: &ServerUnderTest, fault: &str) -> DiskFault {
        let tasks = PathBuf::from(server.proc("task"));
        let task = threads(&tasks).find(|task| name(task) == "journal").expect("it writes streams");
        let thread = task.file_name().expect("a number").to_owned();
        let mut command = Command::new("strace");
        command.args(["-qq", "-o", "/dev/null", "-e", &format!("trace={WRITES}")]);
        command.args(["-e", &format!("inject={WRITES}:{fault}"), "-p"]).arg(thread);
        let strace = command.spawn().expect("strace runs; install it (`cargo xtask test` does)");
        let fault = DiskFault { strace, tasks, task };
        eventually("strace is attached", || {
            let status = std::fs::read_to_string(fault.task.join("status")).unwrap_or_default();
            let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
            tracer.is_some_and(|tracer| tracer.trim() != "0").then_some(())
        });
        fault
    }

    /// Waits until the thread hangs in such a call.
    #[track_caller]
    pub(crate) fn hangs(&self) {
        eventually("the disk hangs", || {
            let stat = std::fs::read_to_string(self.task.join("stat")).unwrap_or_default();
            (is_in_write(&self.task) && stat.contains(") t ")).then_some(())
        });
    }

    /// Names of all threads of the server that are in a call that writes files.
    pub(crate) fn writing_threads(&self) -> Vec<String> {
        threads(&self.tasks).filter(|task| is_in_write(task)).map(|task| name(&task)).collect()
    }
}

impl Drop for DiskFault {
    fn drop(&mut self) {
        // The kernel resumes the thread when its tracer ends.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}
