//! Inspects the data folder before it is opened: whether it is writable, the free space of its volume, and the
//! process that uses it. Creates nothing.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use stilling_journal::LogConfig;
use stilling_journal::disk::Disk;
use stilling_journal::disk::file::FileDisk;

use crate::settings::{Durability, MessagingConfig, StreamConfig};

/// The directory of streams, or the one in which it will be created.
#[derive(Clone, Debug)]
pub struct DataDirectory {
    path: PathBuf,
    existing: PathBuf,
    exists: bool,
    free: u64,
    shortage: Option<String>,
    holder: Option<(String, u32)>,
}

impl DataDirectory {
    /// Inspects the data directory of a configuration; `None`: no stream is kept on disk.
    ///
    /// # Errors
    /// Why nothing can be stored there.
    pub fn inspect(hub: &MessagingConfig) -> Result<Option<DataDirectory>, String> {
        if hub.has_listeners() { DataDirectory::inspect_streams(hub) } else { Ok(None) }
    }

    /// The same for a hub that may have no listeners of its own.
    pub(crate) fn inspect_streams(hub: &MessagingConfig) -> Result<Option<DataDirectory>, String> {
        let on_disk = |stream: &&StreamConfig| stream.durability == Durability::Disk;
        let streams: Vec<&StreamConfig> = hub.streams.iter().filter(on_disk).collect();
        if streams.is_empty() {
            return Ok(None);
        }
        DataDirectory::of(&hub.data, &streams).map(Some)
    }

    fn of(path: &Path, streams: &[&StreamConfig]) -> Result<DataDirectory, String> {
        let path_text = path.display();
        let existing = existing(path).ok_or_else(|| format!("`{path_text}`: no parent directory exists"))?;
        let exists = existing == or_current(path);
        let folders: Vec<PathBuf> = streams.iter().map(|stream| path.join(&stream.name)).collect();
        // Existing streams need no access to the folder above them.
        let has_all = exists && folders.iter().all(|folder| folder.is_dir());
        let writable_folders = if has_all { folders.as_slice() } else { std::slice::from_ref(&existing) };
        for folder in writable_folders {
            let folder_text = folder.display();
            if !folder.is_dir() {
                return Err(format!(
                    "`{folder_text}` is not a directory, so `{path_text}` cannot hold streams"
                ));
            }
            access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
                format!("`{folder_text}` cannot be written, so `{path_text}` cannot hold streams: {error}")
            })?;
        }
        let free = free_of(&existing)
            .map_err(|error| format!("cannot inspect `{}`: {error}", existing.display()))?;
        let shortage = shortage(&folders, streams, free);
        let holder = folders.iter().zip(streams).find_map(|(folder, stream)| {
            let holder = FileDisk::existing(folder).ok()?.holder()?;
            Some((stream.name.clone(), holder))
        });
        Ok(DataDirectory { path: path.to_owned(), existing, exists, free, shortage, holder })
    }

    /// The directory, or its nearest existing ancestor.
    #[must_use]
    pub fn existing(&self) -> &Path {
        &self.existing
    }

    /// Whether the directory itself exists; otherwise the first durable publish creates it.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// Bytes of the volume that are available to this user.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Why a stream without a segment cannot get one.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        let at = if self.exists { &self.path } else { &self.existing };
        self.shortage.as_ref().map(|shortage| format!("`{}` {shortage}", at.display()))
    }

    /// A stream that a running process uses, and the id of that process.
    #[must_use]
    pub fn holder(&self) -> Option<(&str, u32)> {
        self.holder.as_ref().map(|(stream, process)| (stream.as_str(), *process))
    }
}

/// The last ancestor of a relative path is empty and means the current folder.
fn or_current(part: &Path) -> PathBuf {
    if part.as_os_str().is_empty() { PathBuf::from(".") } else { part.to_owned() }
}

/// The path, or its nearest existing ancestor.
fn existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().map(or_current).find(|part| part.symlink_metadata().is_ok())
}

/// Available bytes of the volume of an existing path.
fn free_of(existing: &Path) -> std::io::Result<u64> {
    let system = statvfs(existing)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Available bytes of the volume on which a path is, or will be.
pub(crate) fn free_at(path: &Path) -> std::io::Result<u64> {
    free_of(&existing(path).ok_or(std::io::ErrorKind::NotFound)?)
}

fn shortage(folders: &[PathBuf], streams: &[&StreamConfig], free: u64) -> Option<String> {
    let has_segments = |folder: &Path| {
        let entries = FileDisk::existing(folder).and_then(|disk| disk.list());
        entries.is_ok_and(|entries| entries.iter().any(|entry| entry.name.ends_with(".segment")))
    };
    let lacking = folders.iter().zip(streams).filter(|(folder, _)| !has_segments(folder));
    let segment_sizes = lacking.map(|(_, stream)| {
        (LogConfig::for_retention(Some(stream.retention.bytes)).segment_size, &stream.name)
    });
    let (size, name) = segment_sizes.max()?;
    (free < size).then(|| {
        format!(
            "has {free} bytes free, and the first segment of the stream {name} takes {size}: free some space, choose \
             another volume, or lower retention-bytes"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &Path) -> Result<DataDirectory, String> {
        let events = StreamConfig::new("events", ["events.>"]);
        DataDirectory::of(path, &[&events])
    }

    #[test]
    fn a_folder_is_inspected_and_not_created() {
        let folder = tempfile::tempdir().expect("a folder");
        let there = of(folder.path()).expect("it exists");
        assert!(there.exists() && there.free() > 0 && there.holder().is_none());
        let path = folder.path().join("a/b/c");
        let later = of(&path).expect("it can be created");
        assert_eq!((later.exists(), later.existing()), (false, folder.path()));
        assert!(!folder.path().join("a").exists());
        std::fs::write(folder.path().join("a"), "").expect("it can be written");
        let refused = of(&path).expect_err("a file is in the way");
        assert!(refused.contains("a` is not a directory, so `"), "{refused}");
        assert!(of(Path::new("not/there")).is_ok_and(|data| data.existing() == Path::new(".")));
    }

    #[test]
    fn only_a_first_segment_needs_free_space() {
        let folder = tempfile::tempdir().expect("a folder");
        let events = StreamConfig::new("events", ["events.>"]);
        let path = folder.path().join("events");
        let short = |free| shortage(std::slice::from_ref(&path), &[&events], free);
        let size = LogConfig::for_retention(Some(events.retention.bytes)).segment_size;
        assert_eq!(short(size), None);
        assert!(short(size - 1).is_some_and(|reason| reason.contains("stream events takes")));
        std::fs::create_dir(&path).expect("a folder");
        std::fs::write(path.join("00000000000000000001.segment"), "").expect("a file");
        assert_eq!(short(0), None);
    }

    #[test]
    fn a_stream_in_use_is_named_with_its_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = FileDisk::open_or_create(&folder.path().join("events")).expect("a folder");
        let lock = disk.lock().expect("it is free");
        let data = of(folder.path()).expect("it exists");
        assert_eq!(data.holder(), Some(("events", std::process::id())));
        drop(lock);
        assert_eq!(of(folder.path()).expect("it exists").holder(), None);
    }
}
