//! Lines for the log, written by a thread of their own: a shard never waits for whatever reads them.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Lines that wait to be written. Full: further lines are dropped.
const LINES_MAX: usize = 256;

/// How long the end of the server waits until the last lines are written.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes lines; dropped, it waits a moment until they are written.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Option<SyncSender<String>>,
    is_done: Receiver<()>,
}

impl Log {
    /// A log whose thread gives each line to `write`.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(crate) fn start(write: fn(&str)) -> io::Result<Log> {
        let (lines, to_write) = sync_channel::<String>(LINES_MAX);
        let (done, is_done) = sync_channel(1);
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            for line in to_write {
                write(&line);
            }
            let _ = done.send(());
        })?;
        Ok(Log { lines: Some(lines), is_done })
    }

    /// Has a line written, if there is room for it. Never blocks.
    pub(crate) fn line(&self, line: String) {
        if let Some(lines) = &self.lines {
            let _ = lines.try_send(line);
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        drop(self.lines.take());
        let _ = self.is_done.recv_timeout(LAST_LINES_TIMEOUT);
    }
}
