//! Disk usage of streams and free space of their volumes, for `/status` and `/metrics`. A separate thread measures
//! them, because a file system may hang and a shard must not wait for it.
//!
//! It measures on request of a page and while streams change, at most once a second; an idle server that is not
//! observed does not use its disk.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::data_directory;
use crate::settings::{Durability, MessagingConfig};

/// Interval of checks for changed streams.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum interval of measurements.
const MEASURE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The unit of `st_blocks`, in bytes (stat(2)).
const STAT_BLOCK_SIZE: u64 = 512;

/// The streams on disk and their last measurements.
#[derive(Debug, Default)]
pub struct VolumeMonitor {
    streams: Vec<MeasuredStream>,
    measurement_requested: AtomicBool,
    is_stopped: AtomicBool,
    /// When the thread began, and its handle for wakes.
    thread: OnceLock<(Instant, Thread)>,
}

#[derive(Debug)]
struct MeasuredStream {
    name: String,
    folder: PathBuf,
    bytes: AtomicU64,
    free: AtomicU64,
    /// Milliseconds since the thread began, plus one; 0: not measured.
    at: AtomicU64,
}

/// A measurement of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// Bytes of its folder on disk, including preallocated ones.
    pub(crate) bytes: u64,
    /// Bytes of the volume that are available to this user.
    pub(crate) free: u64,
    /// Time since the measurement.
    pub(crate) age: Duration,
}

impl VolumeMonitor {
    /// A monitor of a configuration's streams on disk.
    pub(crate) fn of(hub: &MessagingConfig) -> VolumeMonitor {
        let on_disk = hub.streams.iter().filter(|stream| stream.durability == Durability::Disk);
        let stream = |name: &String| MeasuredStream {
            name: name.clone(),
            folder: hub.data.join(name),
            bytes: AtomicU64::new(0),
            free: AtomicU64::new(0),
            at: AtomicU64::new(0),
        };
        VolumeMonitor {
            streams: on_disk.map(|config| stream(&config.name)).collect(),
            ..VolumeMonitor::default()
        }
    }

    /// Starts the thread, if there are streams on disk. `progress` returns another number after streams have changed.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn start(self: &Arc<Self>, progress: impl Fn() -> u64 + Send + 'static) -> io::Result<()> {
        if self.streams.is_empty() {
            return Ok(());
        }
        let volumes = Arc::clone(self);
        let started_at = Instant::now();
        let builder = std::thread::Builder::new().name("volumes".to_owned());
        let thread = builder.spawn(move || volumes.run(started_at, &progress))?;
        let _ = self.thread.set((started_at, thread.thread().clone()));
        Ok(())
    }

    /// Requests a measurement of all streams.
    pub(crate) fn request_measurement(&self) {
        if let Some((_, thread)) = self.thread.get()
            && !self.measurement_requested.swap(true, Ordering::Relaxed)
        {
            thread.unpark();
        }
    }

    /// Ends the thread. Does not wait for it: its file system may hang.
    pub(crate) fn end(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some((_, thread)) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The last measurement of a stream.
    pub(crate) fn usage(&self, name: &str) -> Option<DiskUsage> {
        let stream = self.streams.iter().find(|stream| stream.name == name)?;
        let at = stream.at.load(Ordering::Acquire).checked_sub(1)?;
        let (started_at, _) = self.thread.get()?;
        let age = started_at.elapsed().saturating_sub(Duration::from_millis(at));
        let (bytes, free) = (stream.bytes.load(Ordering::Relaxed), stream.free.load(Ordering::Relaxed));
        Some(DiskUsage { bytes, free, age })
    }

    fn run(&self, started_at: Instant, progress: &impl Fn() -> u64) {
        let mut last_progress = None;
        let mut measured: Option<Instant> = None;
        while !self.is_stopped.load(Ordering::Relaxed) {
            let rest =
                measured.map_or(Duration::ZERO, |at| MEASURE_INTERVAL_MIN.saturating_sub(at.elapsed()));
            if !rest.is_zero() {
                std::thread::park_timeout(rest);
                continue;
            }
            let now = Some(progress());
            if self.measurement_requested.swap(false, Ordering::Relaxed) || last_progress != now {
                last_progress = now;
                self.streams.iter().for_each(|stream| stream.measure(started_at));
                measured = Some(Instant::now());
            } else {
                std::thread::park_timeout(CHECK_INTERVAL);
            }
        }
    }
}

impl MeasuredStream {
    /// After a failed measurement the old figures remain, with their age.
    fn measure(&self, started_at: Instant) {
        let (Ok(bytes), Ok(free)) = (bytes_on_disk(&self.folder), data_directory::free_at(&self.folder))
        else {
            return;
        };
        self.bytes.store(bytes, Ordering::Relaxed);
        self.free.store(free, Ordering::Relaxed);
        let at = u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.at.store(at + 1, Ordering::Release);
    }
}

/// Bytes that the files of a folder occupy; 0 if it does not exist.
fn bytes_on_disk(folder: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        match entry?.metadata() {
            Ok(status) => bytes += status.blocks() * STAT_BLOCK_SIZE,
            // Retention may have removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::StreamConfig;

    #[test]
    fn files_are_counted_by_allocated_blocks() {
        let folder = tempfile::tempdir().expect("a folder");
        let events = folder.path().join("events");
        assert_eq!(bytes_on_disk(&events).expect("it need not be there"), 0);
        assert!(data_directory::free_at(&events).expect("the folder above is there") > 0);
        fs::create_dir(&events).expect("a folder");
        let file = events.join("1.segment");
        fs::write(&file, vec![1; 100_000]).expect("a file");
        fs::File::open(&file).and_then(|file| file.sync_all()).expect("a disk");
        let bytes = bytes_on_disk(&events).expect("it is there");
        assert!((100_000..400_000).contains(&bytes), "{bytes}");
        // A hole occupies nothing.
        let hole = fs::File::create(events.join("2.segment")).expect("a file");
        hole.set_len(1 << 30).expect("a sparse file");
        assert!(bytes_on_disk(&events).expect("it is there") < 1 << 29);
    }

    #[test]
    fn the_thread_measures_on_request_until_it_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let streams = vec![StreamConfig::new("events", ["events.>"])];
        let config =
            MessagingConfig { streams, data: folder.path().to_owned(), ..MessagingConfig::default() };
        let volumes = Arc::new(VolumeMonitor::of(&config));
        assert_eq!(volumes.usage("events"), None);
        volumes.start(|| 0).expect("a thread");
        let until = |what: &str, is_so: &dyn Fn() -> bool| {
            let started_at = Instant::now();
            while !is_so() {
                assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
                volumes.request_measurement();
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until("the first measurement", &|| volumes.usage("events").is_some_and(|usage| usage.bytes == 0));
        fs::create_dir(folder.path().join("events")).expect("a folder");
        fs::write(folder.path().join("events/1.segment"), vec![1; 100_000]).expect("a file");
        until("the new file", &|| volumes.usage("events").is_some_and(|usage| usage.bytes > 0));
        assert_eq!(volumes.usage("others"), None);
        volumes.end();
        // The thread holds the other reference.
        let started_at = Instant::now();
        while Arc::strong_count(&volumes) > 1 {
            assert!(started_at.elapsed() < Duration::from_secs(60), "the thread ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
