//! Instructions executed by a server, user and kernel, counted by the processor: they measure the cost of a request
//! independently of other load on the machine. Many virtual machines have no such counter; the figure is then missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::XtaskResult;

pub(super) fn are_counted() -> bool {
    let output = Command::new("perf").args(["stat", "-x", ",", "-e", "instructions", "true"]).output();
    output.is_ok_and(|output| counted(&String::from_utf8_lossy(&output.stderr)).is_some())
}

pub(super) struct Instructions {
    perf: Child,
    file: PathBuf,
}

impl Instructions {
    /// Counts the instructions of these processes and their threads from now on.
    pub(super) fn of(processes: &[u32], folder: &Path) -> XtaskResult<Instructions> {
        let file = folder.join("instructions.csv");
        let list = processes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x", ",", "-e", "instructions", "-p", &list, "-o"]).arg(&file);
        let perf = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Instructions { perf, file })
    }

    pub(super) fn stop(mut self) -> Option<f64> {
        // perf writes its figures when it is interrupted.
        let _ = Command::new("kill").args(["-INT", &self.perf.id().to_string()]).status();
        let _ = self.perf.wait();
        counted(&fs::read_to_string(&self.file).ok()?)
    }
}

/// The count in the output of `perf stat -x ,`: `value,unit,event,…`.
fn counted(csv: &str) -> Option<f64> {
    let line = csv
        .lines()
        .find(|line| line.split(',').nth(2).is_some_and(|event| event.starts_with("instructions")))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_is_a_count() {
        let csv = "# started on Sat\n\n123456,,instructions,1000,100.00,,\n";
        assert_eq!(counted(csv), Some(123_456.0));
        assert_eq!(counted("123,,instructions:u,1000,100.00,,"), Some(123.0));
        assert_eq!(counted("<not supported>,,instructions,0,100.00,,"), None);
        assert_eq!(counted("<not counted>,,instructions,0,0.00,,"), None);
        assert_eq!(counted("Error: no permission"), None);
    }
}
