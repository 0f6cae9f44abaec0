//! Servers to kill, and measurements of a server process from outside.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::super::error::CollectError;

/// Bytes per read of a segment; also the granularity of written bytes.
const BLOCK_SIZE: usize = 4096;

/// Scans of a folder while segments are removed. More: an error.
const SCANS_MAX: u32 = 10;

/// A server that can be killed and restarted with its data on disk.
pub trait CrashTarget {
    /// Starts the server; returns its address as soon as it accepts connections.
    ///
    /// # Errors
    /// The server does not start.
    fn start(&mut self) -> Result<SocketAddr, CollectError>;

    /// Returns whether the server has not exited by itself.
    fn is_running(&mut self) -> bool {
        true
    }

    /// Process id of the server, if it has its own process: then its descriptors are counted.
    fn process(&self) -> Option<u32> {
        None
    }

    /// Kills the server without a warning and waits until it is gone.
    ///
    /// # Errors
    /// The server had already exited, so this kill is not a valid sample.
    fn kill(&mut self) -> Result<(), CollectError>;
}

/// A server process, started by a command with placeholders.
#[derive(Debug)]
pub struct TargetProcess {
    command: Vec<String>,
    address: SocketAddr,
    child: Option<Child>,
}

impl TargetProcess {
    /// In each word of the command, `{address}` and `{port}` are replaced by the listen address, `{data}` by the data
    /// folder.
    pub fn new(command: &[String], address: SocketAddr, data: &Path) -> TargetProcess {
        let word = |word: &String| {
            let word = word.replace("{address}", &address.to_string());
            word.replace("{port}", &address.port().to_string()).replace("{data}", &data.to_string_lossy())
        };
        TargetProcess { command: command.iter().map(word).collect(), address, child: None }
    }
}

impl CrashTarget for TargetProcess {
    fn start(&mut self) -> Result<SocketAddr, CollectError> {
        let command_text = self.command.join(" ");
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| CollectError::Local("no command".to_owned()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child =
            command.spawn().map_err(|error| CollectError::Local(format!("`{command_text}`: {error}")))?;
        self.child = Some(child);
        Ok(self.address)
    }

    fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn kill(&mut self) -> Result<(), CollectError> {
        let command_text = self.command.join(" ");
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Ok(Some(status)) = child.try_wait() {
            return Err(CollectError::Server(format!("`{command_text}` ended by itself: {status}")));
        }
        let killed = child.kill().and_then(|()| child.wait());
        killed
            .map(|_| ())
            .map_err(|error| CollectError::Local(format!("cannot kill `{command_text}`: {error}")))
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Number of open descriptors of a process.
pub fn descriptors(process: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{process}/fd")).ok()?.count())
}

/// Bytes of anonymous resident memory of a process: `RssAnon` of proc(5).
pub fn resident_bytes(process: u32) -> Option<u64> {
    resident(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Returns whether the volume of a directory supports durable writes that bypass the page cache (`O_DIRECT` with
/// `RWF_DSYNC`).
pub fn can_write_directly(folder: &Path) -> bool {
    use rustix::fs::{Mode, OFlags};
    let path = folder.join(format!("direct-{}", std::process::id()));
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT;
    let Ok(file) = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) else { return false };
    // Page alignment satisfies every volume.
    let mut memory = vec![0_u8; 2 * BLOCK_SIZE];
    let start = memory.as_ptr().align_offset(BLOCK_SIZE);
    let block = &mut memory[start..start + BLOCK_SIZE];
    let pieces = [io::IoSlice::new(block)];
    let written = rustix::io::pwritev2(&file, &pieces, 0, rustix::io::ReadWriteFlags::DSYNC);
    let _ = fs::remove_file(path);
    written.is_ok()
}

/// Returns whether a process bypasses the page cache for its segments: the flag `O_DIRECT` of each segment open for
/// writing. `None`: no segment is open.
pub fn writes_directly(process: u32) -> Option<bool> {
    let mut all = None;
    for entry in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.extension().is_none_or(|extension| extension != "segment") {
            continue;
        }
        let number = entry.file_name();
        let info = Path::new("/proc").join(process.to_string()).join("fdinfo").join(number);
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or_default();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap_or(0);
        let flags = rustix::fs::OFlags::from_bits_retain(flags);
        if flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR) {
            let is_direct = flags.contains(rustix::fs::OFlags::DIRECT);
            all = Some(all.unwrap_or(true) && is_direct);
        }
    }
    all
}

/// Bytes of the segments in a stream's folder, each up to its last written block: preallocated, unwritten bytes read as
/// zeros. A missing folder counts as empty: the server was killed before it opened the stream.
pub(super) fn written(folder: &Path) -> io::Result<u64> {
    for _ in 1..SCANS_MAX {
        match scan(folder) {
            // Retention removes segments meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return outcome,
        }
    }
    scan(folder)
}

fn scan(folder: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "segment") {
            bytes += written_to(&path)?;
        }
    }
    Ok(bytes)
}

fn written_to(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let (mut at, mut end) = (0, 0);
    let mut block = [0; BLOCK_SIZE];
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            return Ok(end);
        }
        at += count as u64;
        if block[..count].iter().any(|byte| *byte != 0) {
            end = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_as_the_manual_says() {
        assert_eq!(resident("VmRSS:\t 900 kB\nRssAnon:\t     123 kB\nRssFile:\t 7 kB\n"), Some(123 * 1024));
        assert_eq!(resident("VmRSS:\t 900 kB\n"), None);
        assert!(resident_bytes(std::process::id()) > Some(0));
    }

    /// A server that is killed before it opens its stream creates no folder.
    #[test]
    fn a_folder_that_is_not_there_holds_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(written(&folder.path().join("events")).expect("it is counted"), 0);
    }

    #[test]
    fn preallocated_space_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, blocks: &[u8], size: u64| {
            let path = folder.path().join(name);
            let bytes: Vec<u8> = blocks.iter().flat_map(|byte| [*byte; BLOCK_SIZE]).collect();
            fs::write(&path, bytes).expect("a file");
            File::options().write(true).open(path).and_then(|file| file.set_len(size)).expect("it grows");
        };
        write("1.segment", &[1, 0, 1, 0], 1 << 20);
        write("2.segment", &[1], 4096);
        write("lock", &[1, 1], 8192);
        assert_eq!(written(folder.path()).expect("it can be read"), 3 * 4096 + 4096);
    }
}
