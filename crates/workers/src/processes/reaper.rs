//! The keeper: a tiny process that ends all the others when this one is gone, however it went.
//!
//! A process that is killed with `SIGKILL` can clean up nothing, and its children live on. The kernel's own remedy
//! (`PR_SET_PDEATHSIG`) reaches the child but not what the child has started, and ends when the thread that forked
//! ends. The keeper is a shell that reads, from a pipe that only this process holds open, which process groups live.
//! When the pipe ends it kills those of the last complete line, and removes the processes' folder. A group that was started in the very moment before
//! the end, and is in no line yet, escapes.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

/// What the keeper does, with the folder to remove as its argument, if there is one. It is meant to outlive whatever
/// ends this process.
const SCRIPT: &str = "trap '' INT TERM HUP QUIT\n\
    groups=\n\
    while read -r line; do groups=$line; done\n\
    for group in $groups; do kill -s KILL -- \"-$group\"; done\n\
    if [ -n \"$1\" ]; then rm -rf -- \"$1\"; fi";

#[derive(Debug)]
pub(super) struct Reaper {
    child: Child,
    /// The groups that it knows to live.
    groups: Vec<Pid>,
}

impl Reaper {
    pub(super) fn start(folder: Option<&Path>) -> io::Result<Reaper> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "keeper"]);
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
            // One that is stopped reads nothing, and must not stop the supervisor.
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(reaper)
    }

    /// These groups live now.
    ///
    /// # Errors
    /// The keeper is gone, or does not read: another one is needed.
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

    /// Ends the keeper and leaves the groups alone: another keeper has its duty.
    pub(super) fn detach(mut self) {
        self.groups.clear();
    }

    #[cfg(test)]
    pub(super) fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Reaper {
    /// Does the keeper's duty in its place, since a keeper that is stopped would do it only when it is continued; and
    /// kills the keeper, which ends a stopped one, too.
    fn drop(&mut self) {
        for group in self.groups.drain(..).chain([Pid::from_child(&self.child)]) {
            // A group that is gone already needs no signal.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // The pipe is open still, so the keeper has not begun its duty when the signal comes.
        let pipe = self.child.stdin.take();
        let _ = self.child.wait();
        drop(pipe);
    }
}
