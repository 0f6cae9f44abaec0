//! The reaper: a tiny process that kills all worker processes when this process is gone, for whatever reason.
//!
//! A process killed with `SIGKILL` cannot clean up, and its children keep running. The kernel's remedy
//! (`PR_SET_PDEATHSIG`) reaches the child but not the child's children, and ends when the forking thread ends. The
//! reaper is a shell that reads the current process groups from a pipe that only this process holds open. At the end of
//! the pipe it kills the groups of the last complete line, and removes the processes' folder. A group started just
//! before the end, and not yet written to the pipe, escapes.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

/// The reaper's script; its argument is the folder to remove, if any. It ignores the signals that usually end this
/// process.
const SCRIPT: &str = "trap '' INT TERM HUP QUIT\n\
    groups=\n\
    while read -r line; do groups=$line; done\n\
    for group in $groups; do kill -s KILL -- \"-$group\"; done\n\
    if [ -n \"$1\" ]; then rm -rf -- \"$1\"; fi";

#[derive(Debug)]
pub(super) struct Reaper {
    child: Child,
    /// The groups last written to the pipe.
    groups: Vec<Pid>,
}

impl Reaper {
    pub(super) fn start(folder: Option<&Path>) -> io::Result<Reaper> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "reaper"]);
        if let Some(folder) = folder {
            command.arg(folder);
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let reaper = Reaper { child, groups: Vec::new() };
        if let Some(pipe) = &reaper.child.stdin {
            // A stopped reaper reads nothing, and must not block the supervisor.
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(reaper)
    }

    /// Replaces the set of groups to kill.
    ///
    /// # Errors
    /// The reaper is gone, or does not read: a new one is needed.
    pub(super) fn set_groups(&mut self, groups: impl Iterator<Item = Pid>) -> io::Result<()> {
        self.groups.clear();
        self.groups.extend(groups);
        let mut line = String::new();
        for group in &self.groups {
            line += &format!("{} ", group.as_raw_nonzero());
        }
        line.push('\n');
        let Some(pipe) = &mut self.child.stdin else { return Err(io::ErrorKind::BrokenPipe.into()) };
        pipe.write_all(line.as_bytes())
    }

    /// Ends the reaper without killing the groups: another reaper is responsible for them.
    pub(super) fn detach(mut self) {
        self.groups.clear();
    }

    #[cfg(test)]
    pub(super) fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Reaper {
    /// Kills the groups directly, since a stopped reaper would do so only when continued; and kills the reaper, which
    /// also ends a stopped one.
    fn drop(&mut self) {
        for group in self.groups.drain(..).chain([Pid::from_child(&self.child)]) {
            // Fails only when the group no longer exists.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // The pipe is still open, so the reaper has not begun to kill when the signal arrives.
        let pipe = self.child.stdin.take();
        let _ = self.child.wait();
        drop(pipe);
    }
}
