//! The files of the packet log: begun, rotated, and removed when there are too many.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stilling_wire::pcapng;

use super::PacketLogConfig;

const PREFIX: &str = "packets-";
const SUFFIX: &str = ".pcapng";

/// Digits of the milliseconds since the Unix epoch in a name: the order of names is that of time until the year 2286.
const TIME_DIGITS: usize = 13;

/// Names that are tried for a new file: one per millisecond.
const NAMES_TRIED_MAX: u128 = 16;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct PacketFiles {
    config: PacketLogConfig,
    file: Option<(File, u64)>,
}

/// What a write did beside writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) bytes: u64,
    pub(super) files: u64,
}

impl PacketFiles {
    pub(super) fn new(config: PacketLogConfig) -> PacketFiles {
        PacketFiles { config, file: None }
    }

    pub(super) fn directory(&self) -> std::path::Display<'_> {
        self.config.directory.display()
    }

    /// Appends whole packets. After an error a new file begins with the next call.
    pub(super) fn write(&mut self, packets: &[u8]) -> io::Result<Written> {
        let mut written = Written::default();
        let is_full = |size: u64| size + packets.len() as u64 > self.config.file_size_max;
        if self.file.as_ref().is_none_or(|(_, size)| is_full(*size)) {
            self.file = None;
            let mut file = self.create()?;
            let mut header = Vec::with_capacity(pcapng::FILE_HEADER_SIZE);
            pcapng::write_file_header(&mut header);
            file.write_all(&header)?;
            written = Written { bytes: header.len() as u64, files: 1 };
            self.file = Some((file, header.len() as u64));
        }
        let Some((file, size)) = &mut self.file else { return Ok(written) };
        if let Err(error) = file.write_all(packets) {
            // A packet that is written in part would make the file end with an error.
            let _ = file.set_len(*size);
            self.file = None;
            return Err(error);
        }
        *size += packets.len() as u64;
        written.bytes += packets.len() as u64;
        Ok(written)
    }

    /// Creates the next file, after it has made room for it.
    fn create(&self) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.config.directory)?;
        self.remove_oldest()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis();
        let pid = std::process::id();
        let names = (now..now + NAMES_TRIED_MAX)
            .map(|time| format!("{PREFIX}{time:0width$}-{pid}{SUFFIX}", width = TIME_DIGITS));
        let mut outcome = Err(io::ErrorKind::AlreadyExists.into());
        for name in names {
            let path = self.config.directory.join(name);
            outcome = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path);
            if !matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
                break;
            }
        }
        outcome
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.config.directory)? {
            let entry = entry?;
            if is_packet_file(&entry.file_name()) {
                paths.push(entry.path());
            }
        }
        paths.sort_unstable();
        let surplus = (paths.len() + 1).saturating_sub(self.config.files_max);
        for path in &paths[..surplus] {
            match fs::remove_file(path) {
                // Another server has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

/// Whether a file has the name of one of this log.
fn is_packet_file(name: &OsStr) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = || name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-');
    parts().is_some_and(|(time, pid)| time.len() == TIME_DIGITS && is_number(time) && is_number(pid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn files(directory: PathBuf, file_size_max: u64, files_max: usize) -> PacketFiles {
        PacketFiles::new(PacketLogConfig { directory, file_size_max, files_max })
    }

    fn names(directory: &std::path::Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(name).collect();
        names.sort_unstable();
        names
    }

    /// Row 1.13: files are bounded in size and number, earlier ones included; other files are not touched.
    #[test]
    fn files_are_rotated_and_the_oldest_removed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("a/b");
        fs::create_dir_all(&directory).unwrap();
        let kept = ["notes.pcapng", "packets-1.pcapng", "packets-0000000000001-x.pcapng"];
        for name in kept.into_iter().chain(["packets-0000000000001-7.pcapng"]) {
            fs::write(directory.join(name), b"").unwrap();
        }
        let mut log = files(directory.clone(), 1000, 3);
        let mut written = Written::default();
        for _ in 0..25 {
            let Written { bytes, files } = log.write(&[7; 200]).unwrap();
            written = Written { bytes: written.bytes + bytes, files: written.files + files };
        }
        // Four packets fit behind a header.
        assert_eq!(written, Written { bytes: 25 * 200 + 7 * pcapng::FILE_HEADER_SIZE as u64, files: 7 });
        let mut ours = names(&directory);
        ours.retain(|name| !kept.contains(&name.as_str()));
        assert_eq!(ours.len(), 3, "{ours:?}");
        assert!(!ours.contains(&"packets-0000000000001-7.pcapng".to_owned()));
        for name in ours {
            let metadata = fs::metadata(directory.join(name)).unwrap();
            assert!(metadata.len() <= 1000 && metadata.permissions().mode() & 0o777 == 0o600);
        }
        assert_eq!(names(&directory).len(), 6);
    }

    /// Row 1.13: a full disk leaves whole packets, and the next write begins a new file.
    #[test]
    fn a_failed_write_begins_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("new");
        let mut log = files(directory.clone(), 1000, 3);
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        log.file = Some((full, 0));
        assert_eq!(log.write(&[7; 200]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(log.write(&[7; 200]).unwrap().files, 1);
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
