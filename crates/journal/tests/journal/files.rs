//! Streams in directories of the machine: restricted to their owner, and removals detected.
#![cfg(target_os = "linux")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{batch, content, open};
use stilling_journal::Disk;
use stilling_journal::disk::file::FileDisk;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

/// Files are restricted to the server's user, also where an older version has left them readable for others.
#[test]
fn streams_are_for_their_owner_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, stream) = (folder.path().join("data"), folder.path().join("data/events"));
    for run in 0..2 {
        let disk = FileDisk::open_or_create(&stream).expect("it can be made");
        let (mut log, _) = open(&disk, 1 << 20);
        let next = batch(run, log.next(), 1, 10);
        log.append(&mut [next]).expect("there is room");
        assert_eq!((mode(&data), mode(&stream)), (0o700, 0o700));
        let files = files(&stream);
        assert!(files.len() >= 2 && files.iter().all(|file| mode(file) == 0o600), "{files:?}");
        drop(log);
        set_mode(&stream, 0o755);
        files.iter().for_each(|file| set_mode(file, 0o644));
    }
}

/// A directory with other content may be shared by users.
#[test]
fn a_shared_folder_stays_shared() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).expect("a folder");
    fs::write(shared.join("notes"), "").expect("a file");
    set_mode(&shared, 0o777);
    set_mode(&shared.join("notes"), 0o666);
    FileDisk::open_or_create(&shared).expect("it can be written");
    assert_eq!((mode(&shared), mode(&shared.join("notes"))), (0o777, 0o666));
}

/// Invariant 5: a write to a file that another program has removed succeeds, but is not acknowledged.
#[test]
fn nothing_is_acknowledged_into_a_folder_that_was_removed_moved_or_cut() {
    let interfere: [fn(&Path); 4] = [
        |stream| fs::remove_dir_all(stream).expect("it is ours"),
        |stream| {
            let segment = files(stream).into_iter().find(|file| file.extension().is_some());
            fs::remove_file(segment.expect("there is one")).expect("it is ours");
        },
        |stream| {
            let segment = files(stream).into_iter().find(|file| file.extension().is_some());
            let file = fs::OpenOptions::new().write(true).open(segment.expect("there is one"));
            file.and_then(|file| file.set_len(0)).expect("it is ours");
        },
        |stream| fs::rename(stream, stream.with_extension("moved")).expect("it is ours"),
    ];
    for (at, interfere) in interfere.into_iter().enumerate() {
        let folder = tempfile::tempdir().expect("a folder");
        let stream = folder.path().join("events");
        let disk = FileDisk::open_or_create(&stream).expect("it can be made");
        let (mut log, _) = open(&disk, 1 << 20);
        let first = batch(1, 1, 1, 10);
        log.append(&mut [first]).expect("there is room");
        log.check_files().expect("all is there");
        interfere(&stream);
        if at == 3 {
            // Its files are unchanged, so only the check of the directory detects it.
            log.check_files().expect_err("the folder is gone");
        }
        let next = batch(1, 2, 1, 10);
        let error = log.append(&mut [next]).expect_err("what is gone takes nothing").to_string();
        assert!(error.contains("restart the server") && error.contains("events"), "{error}");
        assert_eq!(log.durable(), 1);
    }
}

/// A file that could be allocated only in part is removed.
#[test]
fn a_file_without_space_is_removed_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = FileDisk::open_or_create(folder.path()).expect("it can be written");
    // Longer than any file can be.
    let error = disk.create("00000000000000000001.segment", u64::MAX / 2).expect_err("there is no room");
    assert!(error.raw_os_error().is_some(), "{error}");
    assert_eq!(files(folder.path()), Vec::<std::path::PathBuf>::new());
    let (log, _) = open(&disk, 1 << 20);
    assert!(content(&log.source()).records.is_empty());
}
