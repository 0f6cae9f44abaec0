//! Forwards the processes' output line by line, prefixed with their names.
//!
//! Each process has two pipes for all its runs, so one thread polls a fixed set. A slow reader of this process's own
//! output blocks only that thread: the pipes then fill and block the processes.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::limits::{KILL_TIMEOUT, LINE_SIZE_MAX, LINE_WAIT_MAX};

/// The stream that a process printed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Receives a whole line with its prefix and line feed.
pub type OutputSink = Box<dyn FnMut(StandardStream, &[u8]) + Send>;

/// Returns a sink that writes to this process's own standard streams.
#[must_use]
pub fn standard_streams() -> OutputSink {
    Box::new(|stream, line| {
        // Ignores a closed output.
        let _ = match stream {
            StandardStream::Out => io::stdout().write_all(line),
            StandardStream::Err => io::stderr().write_all(line),
        };
    })
}

/// Messages about the processes and their pool. Printing never blocks: a message without room in the pipe is dropped.
#[derive(Debug)]
pub(super) struct Notices {
    name: String,
    pipe: OwnedFd,
}

impl Notices {
    pub(super) fn print_line(&self, number: usize, text: &str) {
        self.write(&format!("{} {number}: {text}\n", self.name));
    }

    /// Prints a line about the whole pool.
    pub(super) fn print_pool_line(&self, text: &str) {
        self.write(&format!("{}: {text}\n", self.name));
    }

    fn write(&self, line: &str) {
        let _ = rustix::io::write(&self.pipe, line.as_bytes());
    }

    /// The same about all processes.
    pub(super) fn print_line_of_all(&self, text: &str) {
        let _ = rustix::io::write(&self.pipe, format!("{}: {text}\n", self.name).as_bytes());
    }
}

/// The writing ends: dropping them and all handles to the notices ends the relay.
pub(super) struct OutputRelay {
    ends: Vec<[OwnedFd; 2]>,
    notices: Arc<Notices>,
    ended: Receiver<()>,
}

impl OutputRelay {
    pub(super) fn start(name: &str, processes: usize, sink: OutputSink) -> io::Result<OutputRelay> {
        let mut output_pipes = Vec::with_capacity(2 * processes + 1);
        let mut ends = Vec::with_capacity(processes);
        let mut open = |prefix: String, stream, flags| -> io::Result<OwnedFd> {
            let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | flags)?;
            // The processes' ends must block, otherwise their writes would fail with `EAGAIN`; this side must not.
            rustix::io::ioctl_fionbio(&reading, true)?;
            let prefix = prefix.into_bytes();
            output_pipes.push(OutputPipe {
                pipe: reading,
                stream,
                line: prefix.clone(),
                prefix,
                line_started: None,
                is_continued: false,
            });
            Ok(writing)
        };
        for number in 0..processes {
            let mut end = |stream| open(format!("{name} {number}: "), stream, PipeFlags::empty());
            ends.push([end(StandardStream::Out)?, end(StandardStream::Err)?]);
        }
        let notices = open(String::new(), StandardStream::Err, PipeFlags::NONBLOCK)?;
        let (ending, ended) = mpsc::channel();
        std::thread::Builder::new().name("relay".to_owned()).spawn(move || {
            run_relay(output_pipes, sink);
            drop(ending);
        })?;
        let notices = Arc::new(Notices { name: name.to_owned(), pipe: notices });
        Ok(OutputRelay { ends, notices, ended })
    }

    pub(super) fn streams(&self, number: usize) -> io::Result<[Stdio; 2]> {
        let [out, err] = &self.ends[number];
        Ok([out.try_clone()?.into(), err.try_clone()?.into()])
    }

    pub(super) fn notices(&self) -> &Arc<Notices> {
        &self.notices
    }

    /// Waits until all remaining output is forwarded, at most [`KILL_TIMEOUT`] in case another process holds a pipe
    /// open.
    pub(super) fn end(self) {
        let OutputRelay { ends, notices, ended } = self;
        drop((ends, notices));
        let outcome = ended.recv_timeout(KILL_TIMEOUT);
        debug_assert!(matches!(outcome, Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)));
    }
}

struct OutputPipe {
    pipe: OwnedFd,
    stream: StandardStream,
    prefix: Vec<u8>,
    /// The prefix and the received part of an unfinished line.
    line: Vec<u8>,
    line_started: Option<Instant>,
    /// The last printed text was the beginning of a line.
    is_continued: bool,
}

impl OutputPipe {
    /// Reads the available output. Returns whether the pipe is still open.
    fn read_available(&mut self, sink: &mut OutputSink) -> bool {
        let mut bytes = [0; LINE_SIZE_MAX];
        match rustix::io::read(&self.pipe, &mut bytes) {
            Ok(0) => {
                self.flush(sink);
                return false;
            }
            Ok(count) => self.push(&bytes[..count], sink),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
        true
    }

    fn push(&mut self, bytes: &[u8], sink: &mut OutputSink) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            self.line.extend_from_slice(text);
            if ends && text.is_empty() && self.is_continued {
                // The end of a line whose text was printed before it was complete.
                self.is_continued = false;
                continue;
            }
            self.is_continued = false;
            if self.line.len() - self.prefix.len() >= LINE_SIZE_MAX {
                self.print_line(sink);
                self.is_continued = !ends;
            } else if ends {
                self.print_line(sink);
                continue;
            }
            if self.line.len() > self.prefix.len() {
                self.line_started.get_or_insert_with(Instant::now);
            }
        }
    }

    fn flush(&mut self, sink: &mut OutputSink) {
        if self.line_started.is_some() {
            self.print_line(sink);
            self.is_continued = true;
        }
    }

    fn print_line(&mut self, sink: &mut OutputSink) {
        self.line.push(b'\n');
        sink(self.stream, &self.line);
        self.line.truncate(self.prefix.len());
        self.line_started = None;
    }
}

/// The relay's thread: runs until all writing ends are closed.
fn run_relay(mut output_pipes: Vec<OutputPipe>, mut sink: OutputSink) {
    while !output_pipes.is_empty() {
        let oldest = output_pipes.iter().filter_map(|output_pipe| output_pipe.line_started).min();
        let wait = oldest.map(|line_started| timespec(LINE_WAIT_MAX.saturating_sub(line_started.elapsed())));
        let mut polled: Vec<PollFd<'_>> =
            output_pipes.iter().map(|output_pipe| PollFd::new(&output_pipe.pipe, PollFlags::IN)).collect();
        // An interrupted wait reports no events.
        let _ = poll(&mut polled, wait.as_ref());
        let mut readiness =
            polled.iter().map(|polled| !polled.revents().is_empty()).collect::<Vec<_>>().into_iter();
        output_pipes.retain_mut(|output_pipe| {
            let is_open = !readiness.next().unwrap_or(false) || output_pipe.read_available(&mut sink);
            if output_pipe.line_started.is_some_and(|line_started| line_started.elapsed() >= LINE_WAIT_MAX) {
                output_pipe.flush(&mut sink);
            }
            is_open
        });
    }
}

/// Converts to poll(2)'s timeout, rounded up to a whole millisecond so that it does not return early repeatedly.
pub(super) fn timespec(span: Duration) -> Timespec {
    let span = span.saturating_add(Duration::from_micros(999));
    Timespec::try_from(span).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn relayed(writes: &[&[u8]]) -> Vec<String> {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let relay = OutputRelay::start("app", 1, {
            let lines = Arc::clone(&lines);
            Box::new(move |stream, line| {
                let text = String::from_utf8_lossy(line);
                lines.lock().expect("no panic").push(format!("{stream:?} {text}"));
            })
        })
        .expect("pipes and a thread");
        for bytes in writes {
            let mut rest = *bytes;
            while !rest.is_empty() {
                let written = rustix::io::write(&relay.ends[0][0], rest).expect("the relay reads");
                rest = &rest[written..];
            }
        }
        relay.notices().print_line(0, "a notice");
        relay.notices().print_pool_line("another");
        relay.end();
        lines.lock().expect("no panic").clone()
    }

    #[test]
    fn lines_come_whole_and_with_the_name_of_their_process() {
        let lines = relayed(&[b"one\ntw", b"o\n", b"\n", b"end without a line feed"]);
        let (notices, lines): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.starts_with("Err"));
        assert_eq!(notices, ["Err app 0: a notice\n", "Err app: another\n"]);
        let text = lines.concat().replace("Out app 0: ", "");
        assert_eq!(text.replace('\n', ""), "onetwoend without a line feed");
        assert!(
            lines.iter().all(|line| line.starts_with("Out app 0: ") && line.ends_with('\n')),
            "{lines:?}"
        );
        assert_eq!(lines[0], "Out app 0: one\n");
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let lines = relayed(&[&vec![b'x'; 3 * LINE_SIZE_MAX]]);
        let of_process: Vec<_> = lines.iter().filter(|line| line.starts_with("Out")).collect();
        assert!(of_process.len() >= 2);
        assert!(of_process.iter().all(|line| line.len() <= "Out app 0: \n".len() + 2 * LINE_SIZE_MAX));
        let count: usize = of_process.iter().map(|line| line.matches('x').count()).sum();
        assert_eq!(count, 3 * LINE_SIZE_MAX);
    }

    #[test]
    fn the_end_of_a_long_line_prints_no_empty_line() {
        let lines = relayed(&[&vec![b'x'; 3 * LINE_SIZE_MAX], b"\n", b"next\n"]);
        let of_process: Vec<_> = lines.iter().filter(|line| line.starts_with("Out")).collect();
        assert!(of_process.iter().all(|line| **line != "Out app 0: \n"), "{of_process:?}");
        assert_eq!(of_process.last().map(|line| line.as_str()), Some("Out app 0: next\n"));
    }
}
