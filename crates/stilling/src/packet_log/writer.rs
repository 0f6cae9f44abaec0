//! The thread that writes the packet log.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Instant;

use stilling_ring::{Receiver, Sender, Wake, mailbox};

use super::PacketLogConfig;
use super::capture::{PacketBatch, PacketCapture};
use super::counters::PacketLogCounters;
use super::files::PacketFiles;
use super::limits::{BUFFER_SIZE, BUFFERS_PER_SHARD, LAST_WRITE_TIMEOUT, RETRY_PAUSE};

/// A packet log whose thread does not run yet.
#[derive(Debug)]
pub(crate) struct PacketLog {
    writer: PacketWriter,
    wake: Arc<Wake>,
    thread: Arc<OnceLock<Thread>>,
    is_ended: Arc<AtomicBool>,
}

/// The running thread. Dropping it waits for the last datagrams, but no longer than `LAST_WRITE_TIMEOUT`; the shards
/// have ended by then.
#[derive(Debug)]
pub(crate) struct PacketLogThread {
    wake: Arc<Wake>,
    is_ended: Arc<AtomicBool>,
    done: mpsc::Receiver<()>,
}

/// The state of the thread.
struct PacketWriter {
    shards: Vec<(Receiver<PacketBatch>, Sender<PacketBatch>)>,
    files: PacketFiles,
    counters: Arc<PacketLogCounters>,
    log: Option<fn(&str)>,
    /// Nothing is written before.
    retry_at: Option<Instant>,
}

impl PacketLog {
    /// A log with a capture for each shard.
    pub(crate) fn new(
        config: PacketLogConfig,
        shards: usize,
        log: Option<fn(&str)>,
    ) -> (PacketLog, Vec<PacketCapture>, Arc<PacketLogCounters>) {
        let counters = Arc::new(PacketLogCounters::new(shards));
        let thread = Arc::default();
        let wake = Arc::new(Wake::for_thread(&thread));
        let mut captures = Vec::new();
        let mut ends = Vec::new();
        for counters in &counters.shards {
            let (filled, to_write) = mailbox(BUFFERS_PER_SHARD);
            let (mut to_empty, empty) = mailbox(BUFFERS_PER_SHARD);
            for _ in 0..BUFFERS_PER_SHARD {
                let batch = PacketBatch { bytes: Vec::with_capacity(BUFFER_SIZE), count: 0 };
                // The mailbox has room for all.
                let _ = to_empty.push(batch);
            }
            to_empty.publish();
            captures.push(PacketCapture::new(filled, empty, Arc::clone(&wake), Arc::clone(counters)));
            ends.push((to_write, to_empty));
        }
        let files = PacketFiles::new(config);
        let writer =
            PacketWriter { shards: ends, files, counters: Arc::clone(&counters), log, retry_at: None };
        (PacketLog { writer, wake, thread, is_ended: Arc::default() }, captures, counters)
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn start(self) -> io::Result<PacketLogThread> {
        let PacketLog { mut writer, wake, thread, is_ended } = self;
        let (done_sender, done) = mpsc::sync_channel(1);
        let (thread_wake, thread_end) = (Arc::clone(&wake), Arc::clone(&is_ended));
        thread::Builder::new().name("packet-log".to_owned()).spawn(move || {
            thread.get_or_init(thread::current);
            writer.run(&thread_wake, &thread_end);
            let _ = done_sender.send(());
        })?;
        Ok(PacketLogThread { wake, is_ended, done })
    }
}

impl Drop for PacketLogThread {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Release);
        self.wake.force();
        // A hung disk does not keep the server.
        let _ = self.done.recv_timeout(LAST_WRITE_TIMEOUT);
    }
}

impl PacketWriter {
    fn run(&mut self, wake: &Wake, is_ended: &AtomicBool) {
        loop {
            // Read before the mailboxes: what a shard pushed before the end is written.
            let ends = is_ended.load(Ordering::Acquire);
            if self.write_waiting() {
                continue;
            }
            if ends {
                return;
            }
            wake.set_parked();
            if self.shards.iter().all(|(filled, _)| filled.is_empty()) && !is_ended.load(Ordering::Acquire) {
                thread::park();
            }
            wake.clear_parked();
        }
    }

    /// Writes one buffer of each shard. Returns whether there was any.
    fn write_waiting(&mut self) -> bool {
        let mut has_written = false;
        for at in 0..self.shards.len() {
            let Some(mut batch) = self.shards[at].0.pop() else { continue };
            has_written = true;
            self.write(&batch);
            batch.bytes.clear();
            batch.count = 0;
            let empty = &mut self.shards[at].1;
            // The mailbox has room for all.
            let _ = empty.push(batch);
            empty.publish();
        }
        has_written
    }

    fn write(&mut self, batch: &PacketBatch) {
        if self.retry_at.is_some_and(|retry_at| Instant::now() < retry_at) {
            return self.counters.discarded.add(batch.count);
        }
        match self.files.write(&batch.bytes) {
            Ok(written) => {
                self.retry_at = None;
                self.counters.written.add(written.bytes);
                self.counters.files.add(written.files);
                if written.files > 0 && self.counters.set_failure(None) {
                    let discarded = self.counters.discarded.get();
                    self.log(&format!(
                        "the packet log in {} continues; {discarded} datagrams since the start are missing",
                        self.files.directory()
                    ));
                }
            }
            Err(error) => {
                self.retry_at = Some(Instant::now() + RETRY_PAUSE);
                self.counters.errors.add(1);
                self.counters.discarded.add(batch.count);
                let failure = format!("cannot write the packet log in {}: {error}", self.files.directory());
                if !self.counters.set_failure(Some(failure.clone())) {
                    self.log(&format!("{failure}; its datagrams are discarded until it can be written"));
                }
            }
        }
    }

    fn log(&self, line: &str) {
        if let Some(log) = self.log {
            log(line);
        }
    }
}

impl std::fmt::Debug for PacketWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketWriter").field("files", &self.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};
    use std::sync::Mutex;

    use stilling_engine::{DatagramPath, PassedDatagram};
    use stilling_ring::Time;
    use stilling_wire::pcapng::{CapturedDatagram, Direction, FILE_HEADER_SIZE, datagram_size};

    use super::super::limits::FLUSH_INTERVAL;
    use super::*;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn log(line: &str) {
        LINES.lock().unwrap().push(line.to_owned());
    }

    fn path() -> DatagramPath {
        let local = Some(IpAddr::from([127, 0, 0, 2]));
        DatagramPath { socket: 1, peer: SocketAddr::from(([127, 0, 0, 1], 9)), local }
    }

    fn config(directory: std::path::PathBuf) -> PacketLogConfig {
        PacketLogConfig { directory, file_size_max: 1 << 20, files_max: 3 }
    }

    fn record(capture: &mut PacketCapture, payload: &[u8]) {
        capture.record(1, &path(), &PassedDatagram { payload, is_sent: false, is_truncated: false });
    }

    fn capture(mut captures: Vec<PacketCapture>) -> PacketCapture {
        let mut capture = captures.pop().expect("one per shard");
        capture.set_addresses(vec![SocketAddr::from(([0, 0, 0, 0], 5)), SocketAddr::from(([0, 0, 0, 0], 6))]);
        capture
    }

    /// Row 1.13: a shard does not wait for a slow disk: without an empty buffer datagrams are dropped and counted, and
    /// those in full buffers are written.
    #[test]
    fn without_an_empty_buffer_datagrams_are_dropped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let config = PacketLogConfig { file_size_max: 1 << 30, ..config(folder.path().to_owned()) };
        let (packet_log, captures, counters) = PacketLog::new(config, 1, None);
        let mut capture = capture(captures);
        let to = SocketAddr::from(([127, 0, 0, 2], 6));
        let payload = [b'x'; 1000];
        let size = datagram_size(&CapturedDatagram {
            unix_ns: 1,
            from: path().peer,
            to,
            direction: Direction::Inbound,
            payload: &payload,
            truncated: false,
        });
        let room = BUFFER_SIZE / size * BUFFERS_PER_SHARD;
        (0..room + 10).for_each(|_| record(&mut capture, &payload));
        let count = |of: fn(&crate::packet_log::CaptureCounters) -> &stilling_engine::counters::Counter| {
            counters.sum(of)
        };
        assert_eq!((count(|c| &c.recorded), count(|c| &c.dropped)), (room as u64, 10));
        drop(packet_log.start().unwrap());
        assert_eq!(counters.written.get(), (FILE_HEADER_SIZE + room * size) as u64);
        record(&mut capture, &payload);
        assert_eq!((count(|c| &c.recorded), count(|c| &c.dropped)), (room as u64 + 1, 10));
    }

    /// Row 1.13: many turns with few datagrams use few buffers while the thread is behind.
    #[test]
    fn a_thread_that_is_behind_gets_full_buffers() {
        let folder = tempfile::tempdir().unwrap();
        let (packet_log, captures, counters) = PacketLog::new(config(folder.path().to_owned()), 1, None);
        let mut capture = capture(captures);
        let turns = 10 * BUFFERS_PER_SHARD as u64;
        let mut again = None;
        for _ in 0..turns {
            record(&mut capture, b"one");
            again = capture.turn(Time::ZERO);
        }
        assert_eq!(again, Some(Time::ZERO.after(FLUSH_INTERVAL)));
        assert_eq!(counters.sum(|c| &c.dropped), 0);
        let PacketLog { mut writer, .. } = packet_log;
        while writer.write_waiting() {}
        assert_eq!(capture.turn(Time::ZERO), None);
        assert!(writer.write_waiting() && !writer.write_waiting());
        assert_eq!(counters.sum(|c| &c.recorded), turns);
    }

    /// Row 1.13: an error is logged once and counted with all discarded datagrams; the log continues when it can.
    #[test]
    fn an_error_is_logged_once_and_the_log_continues() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("log");
        std::fs::write(&directory, b"a file").unwrap();
        let (packet_log, captures, counters) = PacketLog::new(config(directory.clone()), 1, Some(log));
        let mut capture = capture(captures);
        let PacketLog { mut writer, .. } = packet_log;
        let mut write = |payloads: &[&[u8]]| {
            payloads.iter().for_each(|payload| record(&mut capture, payload));
            capture.flush();
            assert!(writer.write_waiting());
            std::mem::take(&mut writer.retry_at)
        };
        assert!(write(&[b"one", b"two"]).is_some() && write(&[b"three"]).is_some());
        assert_eq!((counters.errors.get(), counters.discarded.get(), counters.written.get()), (2, 3, 0));
        assert!(counters.failure().is_some_and(|failure| failure.contains("cannot write the packet log in")));
        std::fs::remove_file(&directory).unwrap();
        assert!(write(&[b"four"]).is_none() && write(&[b"five"]).is_none());
        assert_eq!((counters.errors.get(), counters.files.get(), counters.failure()), (2, 1, None));
        let lines = LINES.lock().unwrap();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].contains("continues; 3 datagrams"), "{lines:?}");
    }

    /// Row 1.13: nothing is tried during the pause after an error.
    #[test]
    fn datagrams_in_the_pause_after_an_error_are_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let (packet_log, captures, counters) = PacketLog::new(config(folder.path().to_owned()), 1, None);
        let mut capture = capture(captures);
        let PacketLog { mut writer, .. } = packet_log;
        writer.retry_at = Some(Instant::now() + 1000 * RETRY_PAUSE);
        record(&mut capture, b"one");
        capture.flush();
        assert!(writer.write_waiting() && !writer.write_waiting());
        assert_eq!((counters.discarded.get(), counters.errors.get(), counters.written.get()), (1, 0, 0));
    }
}
