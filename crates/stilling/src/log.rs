//! Writes log lines on a separate thread: a shard never waits for the reader of the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Lines that wait to be written. Full: further lines are dropped and counted.
const QUEUED_LINES_MAX: usize = 256;

/// Maximum wait for the last lines at the end of the server.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

/// Queue of log lines. On drop, waits up to `LAST_LINES_TIMEOUT` until they are written.
#[derive(Debug)]
pub(crate) struct LogWriter {
    lines: Option<SyncSender<String>>,
    dropped: u64,
    /// Dropped lines that no written line has reported.
    unreported: Arc<AtomicU64>,
    is_done: Receiver<()>,
}

impl LogWriter {
    /// A log thread that gives each line to `write`.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(crate) fn start(write: impl Fn(&str) + Send + 'static) -> io::Result<LogWriter> {
        let (lines, to_write) = sync_channel::<String>(QUEUED_LINES_MAX);
        let (done, is_done) = sync_channel(1);
        let unreported = Arc::new(AtomicU64::new(0));
        let rest = Arc::clone(&unreported);
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            for line in to_write {
                write(&line);
            }
            let rest = rest.load(Ordering::Acquire);
            if rest > 0 {
                write(&dropped_lines_text(rest));
            }
            let _ = done.send(());
        })?;
        Ok(LogWriter { lines: Some(lines), dropped: 0, unreported, is_done })
    }

    /// Queues a line. Never blocks. Without room the line is dropped and counted, and the next queued line reports
    /// the count.
    pub(crate) fn line(&mut self, line: String) {
        let Some(lines) = &self.lines else { return };
        let unreported = self.unreported.load(Ordering::Relaxed);
        let line = if unreported > 0 { format!("{line} ({})", dropped_lines_text(unreported)) } else { line };
        let unreported = match lines.try_send(line) {
            Ok(()) => 0,
            Err(_) => {
                self.dropped += 1;
                unreported + 1
            }
        };
        self.unreported.store(unreported, Ordering::Release);
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn dropped_lines_text(count: u64) -> String {
    format!("{count} log lines before this one were dropped: the log is written too slowly")
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        drop(self.lines.take());
        let _ = self.is_done.recv_timeout(LAST_LINES_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A log that writes nothing before something is sent, or the sender is dropped.
    fn blocked() -> (LogWriter, std::sync::mpsc::Sender<()>, Receiver<String>) {
        let (release, blocked) = channel::<()>();
        let (written, lines) = channel();
        let log = LogWriter::start(move |line: &str| {
            let _ = blocked.recv();
            let _ = written.send(line.to_owned());
        });
        (log.expect("a thread starts"), release, lines)
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_by_the_next_one() {
        let (mut log, release, lines) = blocked();
        let mut accepted_lines = 0;
        while log.dropped() < 3 {
            log.line(format!("line {accepted_lines}"));
            accepted_lines += 1;
        }
        drop(release);
        // The queue has room again when the thread has written one line.
        assert_eq!(lines.recv().as_deref(), Ok("line 0"));
        while log.unreported.load(Ordering::Relaxed) > 0 {
            log.line("after".to_owned());
        }
        let dropped = log.dropped();
        drop(log);
        let lines: Vec<String> = lines.iter().collect();
        let last = lines.last().expect("lines were written");
        assert_eq!(*last, format!("after ({})", dropped_lines_text(dropped)));
        assert!(lines.iter().filter(|line| line.contains("dropped")).count() == 1, "{lines:?}");
    }

    #[test]
    fn lines_dropped_at_the_end_are_reported_by_a_line_of_their_own() {
        let (mut log, release, lines) = blocked();
        while log.dropped() < 2 {
            log.line("line".to_owned());
        }
        drop(release);
        drop(log);
        assert_eq!(lines.iter().last(), Some(dropped_lines_text(2)));
    }
}
