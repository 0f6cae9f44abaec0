//! The keeper: a tiny process that ends all the others when this one is gone, however it went.
//!
//! A process that is killed with `SIGKILL` can clean up nothing, and its children live on. The kernel's own remedy
//! (`PR_SET_PDEATHSIG`) reaches the child but not what the child has started, and ends when the thread that forked
//! ends. The keeper is a shell that reads, from a pipe that only this process holds open, which process groups live.
//! When the pipe ends it kills those of the last complete line. A group that was started in the very moment before
//! the end, and is in no line yet, escapes.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

/// What the keeper does. It is meant to outlive whatever ends this process.
const SCRIPT: &str = "trap '' INT TERM HUP QUIT\n\
    groups=\n\
    while read -r line; do groups=$line; done\n\
    for group in $groups; do kill -s KILL -- \"-$group\"; done";

#[derive(Debug)]
pub(super) struct Keeper {
    child: Child,
}

impl Keeper {
    pub(super) fn start() -> io::Result<Keeper> {
        let child = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Keeper { child })
    }

    /// These groups live now.
    ///
    /// # Errors
    /// The keeper is gone; another one is needed.
    pub(super) fn hears(&mut self, groups: impl Iterator<Item = Pid>) -> io::Result<()> {
        let mut line = String::new();
        for group in groups {
            line += &format!("{} ", group.as_raw_nonzero());
        }
        line.push('\n');
        let Some(pipe) = &mut self.child.stdin else { return Err(io::ErrorKind::BrokenPipe.into()) };
        pipe.write_all(line.as_bytes())
    }

    #[cfg(test)]
    pub(super) fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Waiting ends the pipe first, and the keeper ends with it.
        let _ = self.child.wait();
    }
}
