//! The file of a Unix socket for datagrams, which is ours as long as nobody has put another one in its place.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of a Unix socket, which is removed with this, unless it is another's by then.
#[derive(Debug)]
pub(crate) struct SocketFile {
    pub(crate) path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    pub(crate) fn of(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), identity: file_identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if file_identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Whoever comes next replaces what is left.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
