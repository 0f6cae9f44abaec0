//! One copy between a regular file and a socket.
//!
//! ```text
//!  to a socket:     bytes in Tcl's buffers ─▶ sendfile(2) until the end of the file, or the size
//!  from a socket:   bytes in Tcl's buffers ─▶ splice(2) into a pipe ─▶ splice(2) into the file
//! ```
//!
//! Where the system refuses both calls for a file, the bytes pass through a buffer. A script may read, write and
//! configure the channels between the steps of a copy in the background: each step moves the bytes in Tcl's buffers
//! first, and a step for channels that are not plain any more reads and writes through them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::are_plain;
use crate::stages::{self, Stage};
use crate::stats;
use crate::stream::Stream;
use crate::tcl::{Channel, CopyFailure, Interest};

/// Bytes copied before other events take their turn.
pub(super) const FCOPY_TURN_SIZE: usize = 1024 * 1024;

/// Bytes that pass through memory at once where the system cannot copy.
const FCOPY_BUFFER_SIZE: usize = 64 * 1024;

/// Bytes of the pipe between a socket and a file; the system's default if it grants less.
const FCOPY_PIPE_SIZE: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CopyDirection {
    ToSocket,
    FromSocket,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyStep {
    /// The turn's bytes are copied.
    More,
    /// The socket is not ready.
    Blocked,
    Done,
}

pub(super) struct DirectCopy {
    pub(super) input: Channel,
    pub(super) output: Channel,
    pub(super) stream: Rc<Stream>,
    pub(super) direction: CopyDirection,
    /// The descriptor of the file's channel.
    file: RawFd,
    /// Bytes still to take from the input; `None`: all.
    left: Option<u64>,
    /// Bytes taken and not written yet, from `pending_from` on.
    pending: Vec<u8>,
    pending_from: usize,
    /// The system copies; false once it has refused to.
    is_direct: bool,
    total: u64,
}

struct CopyPipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

thread_local! {
    /// The pipe of all copies of the thread, empty between their calls: descriptors and the memory of pipes are few.
    static PIPE: RefCell<Option<CopyPipe>> = const { RefCell::new(None) };
}

impl DirectCopy {
    /// `None`: the socket is not connected, or the system does not provide what is necessary.
    pub(super) fn new(
        input: Channel,
        output: Channel,
        stream: Rc<Stream>,
        file: RawFd,
        direction: CopyDirection,
        left: Option<u64>,
    ) -> Option<DirectCopy> {
        stream.prepare_direct_copy().ok()?;
        Some(DirectCopy {
            input,
            output,
            stream,
            direction,
            file,
            left,
            pending: Vec::new(),
            pending_from: 0,
            is_direct: true,
            total: 0,
        })
    }

    pub(super) fn file_channel(&self) -> Channel {
        match self.direction {
            CopyDirection::ToSocket => self.input,
            CopyDirection::FromSocket => self.output,
        }
    }

    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor of the file's channel, which is open during each step.
        unsafe { BorrowedFd::borrow_raw(self.file) }
    }

    /// Bytes written so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Whether the bytes of the socket and the file are still those of the channels.
    pub(super) fn has_plain_channels(&self) -> bool {
        are_plain(self.input, self.output)
            && (self.direction == CopyDirection::ToSocket || !self.stream.receives_ahead())
    }

    /// Copies everything; waits for the socket, without running scripts.
    pub(super) fn run_to_end(&mut self) -> Result<(), CopyFailure> {
        loop {
            match self.step()? {
                CopyStep::More => {}
                CopyStep::Blocked => self.wait()?,
                CopyStep::Done => return Ok(()),
            }
        }
    }

    fn wait(&self) -> Result<(), CopyFailure> {
        match self.direction {
            CopyDirection::ToSocket => self.stream.wait(Interest::WRITABLE).map_err(CopyFailure::Write),
            CopyDirection::FromSocket => self.stream.wait(Interest::READABLE).map_err(CopyFailure::Read),
        }
    }

    /// Copies up to [`FCOPY_TURN_SIZE`] bytes between plain channels without waiting for the socket.
    pub(super) fn step(&mut self) -> Result<CopyStep, CopyFailure> {
        if !self.flush_output()? {
            return Ok(CopyStep::Blocked);
        }
        let turn_end = self.total + FCOPY_TURN_SIZE as u64;
        while self.may_continue(turn_end) {
            let buffered = self.input.input_buffered();
            let outcome = if self.has_pending() {
                self.write_pending()
            } else if self.left == Some(0) {
                return Ok(CopyStep::Done);
            } else if buffered > 0 {
                self.take_buffered(buffered)
            } else if self.is_direct {
                self.copy_directly((turn_end - self.total) as usize)
            } else {
                self.fill_pending()
            };
            match outcome {
                Ok(Moved::Bytes | Moved::Again) => {}
                Ok(Moved::NothingYet) => return Ok(CopyStep::Blocked),
                Ok(Moved::End) if self.has_ended()? => return Ok(CopyStep::Done),
                Ok(Moved::End) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(CopyStep::More)
    }

    /// Copies as [`step`](Self::step) does, through the channels. Both must not block. A transform may run scripts.
    pub(super) fn step_through_channels(&mut self) -> Result<CopyStep, CopyFailure> {
        let turn_end = self.total + FCOPY_TURN_SIZE as u64;
        while self.may_continue(turn_end) {
            if !self.flush_output()? {
                return Ok(CopyStep::Blocked);
            }
            if self.has_pending() {
                let bytes = &self.pending[self.pending_from..];
                self.output.write(bytes).map_err(CopyFailure::Write)?;
                self.pending_written(bytes.len());
                continue;
            }
            if self.left == Some(0) {
                return Ok(CopyStep::Done);
            }
            match self.input.copy_characters(self.output, self.wanted(FCOPY_BUFFER_SIZE)) {
                Ok(0) if self.input.is_at_end() => return Ok(CopyStep::Done),
                Ok(0) | Err(CopyFailure::Read(libc::EAGAIN)) => return Ok(CopyStep::Blocked),
                Ok(count) => {
                    self.taken(count);
                    self.written(count);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(CopyStep::More)
    }

    /// Whether a step goes on whose turn ends at the total `turn_end`. No event announces that the rest can be done: a
    /// file takes bytes at any time, and nothing more may arrive for a copy whose size is reached.
    fn may_continue(&self, turn_end: u64) -> bool {
        let has_rest = self.direction == CopyDirection::FromSocket && self.has_pending();
        self.total < turn_end || self.left == Some(0) || has_rest
    }

    fn has_pending(&self) -> bool {
        self.pending_from < self.pending.len()
    }

    /// Writes the bytes in the output's buffers, which a script has written. Returns whether none are left; Tcl writes
    /// the rest in the background.
    fn flush_output(&self) -> Result<bool, CopyFailure> {
        if self.output.output_buffered() > 0 {
            self.output.flush().map_err(CopyFailure::Write)?;
        }
        Ok(self.output.output_buffered() == 0)
    }

    /// Confirms the end of the input by a read of the channel, so that the script sees the end, too. If something
    /// follows after all, it is copied.
    fn has_ended(&mut self) -> Result<bool, CopyFailure> {
        self.take_from_channel(1)?;
        let is_end = self.pending.is_empty();
        self.take_from_channel(self.input.input_buffered())?;
        Ok(is_end)
    }

    fn take_buffered(&mut self, count: usize) -> Result<Moved, CopyFailure> {
        self.take_from_channel(count)?;
        Ok(if self.has_pending() { Moved::Bytes } else { Moved::NothingYet })
    }

    /// Reads up to `count` bytes through the channel.
    fn take_from_channel(&mut self, count: usize) -> Result<(), CopyFailure> {
        let (count, before) = (self.wanted(count), self.pending.len());
        if count == 0 {
            return Ok(());
        }
        self.pending.resize(before + count, 0);
        let read = self.input.read(&mut self.pending[before..]);
        let taken = *read.as_ref().unwrap_or(&0);
        self.pending.truncate(before + taken);
        self.taken(taken);
        match read {
            // A channel that does not block has no bytes.
            Ok(_) | Err(libc::EAGAIN) => Ok(()),
            Err(error) => Err(CopyFailure::Read(error)),
        }
    }

    /// The part of `count` bytes that is still to be copied.
    fn wanted(&self, count: usize) -> usize {
        self.left.map_or(count, |left| usize::try_from(left).unwrap_or(usize::MAX).min(count))
    }

    fn taken(&mut self, count: usize) {
        self.left = self.left.map(|left| left.saturating_sub(count as u64));
    }

    fn written(&mut self, count: usize) {
        self.total += count as u64;
    }

    fn pending_written(&mut self, count: usize) {
        self.written(count);
        self.pending_from += count;
        if !self.has_pending() {
            self.pending.clear();
            self.pending_from = 0;
        }
    }

    fn write_pending(&mut self) -> Result<Moved, CopyFailure> {
        let bytes = &self.pending[self.pending_from..];
        let written = match self.direction {
            CopyDirection::ToSocket => self.stream.send_now(bytes),
            CopyDirection::FromSocket => rustix::io::write(self.file(), bytes).map_err(Errno::raw_os_error),
        };
        match written {
            Ok(count) => {
                self.pending_written(count);
                Ok(Moved::Bytes)
            }
            Err(libc::EINTR) => Ok(Moved::Again),
            Err(libc::EAGAIN) => Ok(Moved::NothingYet),
            Err(error) => Err(CopyFailure::Write(error)),
        }
    }

    /// Reads the next bytes into memory, past the channel's buffers, which are empty.
    fn fill_pending(&mut self) -> Result<Moved, CopyFailure> {
        let mut buffer = std::mem::take(&mut self.pending);
        buffer.resize(self.wanted(FCOPY_BUFFER_SIZE), 0);
        let read = match self.direction {
            CopyDirection::ToSocket => {
                rustix::io::read(self.file(), &mut buffer[..]).map_err(Errno::raw_os_error)
            }
            CopyDirection::FromSocket => self.stream.receive_now(&mut buffer),
        };
        buffer.truncate(*read.as_ref().unwrap_or(&0));
        self.pending = buffer;
        self.pending_from = 0;
        match read {
            Ok(0) => Ok(Moved::End),
            Ok(count) => {
                self.taken(count);
                Ok(Moved::Bytes)
            }
            Err(libc::EINTR) => Ok(Moved::Again),
            Err(libc::EAGAIN) => Ok(Moved::NothingYet),
            Err(error) => Err(CopyFailure::Read(error)),
        }
    }

    fn copy_directly(&mut self, count: usize) -> Result<Moved, CopyFailure> {
        match self.direction {
            CopyDirection::ToSocket => self.send_file(count),
            CopyDirection::FromSocket => self.receive_file(count),
        }
    }

    fn send_file(&mut self, count: usize) -> Result<Moved, CopyFailure> {
        let room = self.stream.room_to_send(self.wanted(count)).map_err(CopyFailure::Write)?;
        if room == 0 {
            return Ok(Moved::NothingYet);
        }
        let _stage = stages::enter(Stage::Copy);
        let sent = self.stream.with_nonblocking(|socket| {
            sendfile(socket, self.file(), None, room).map_err(Errno::raw_os_error)
        });
        match sent {
            Ok(0) => Ok(Moved::End),
            Ok(count) => {
                self.stream.sent_directly(count);
                stats::add_fcopy_bytes(count);
                self.taken(count);
                self.written(count);
                Ok(Moved::Bytes)
            }
            Err(libc::EINTR) => Ok(Moved::Again),
            Err(libc::EAGAIN) => {
                self.stream.send_was_rejected();
                Ok(Moved::NothingYet)
            }
            // A driver of direct descriptors needs an ordinary one for this call.
            Err(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::EMFILE | libc::ENFILE) => {
                self.is_direct = false;
                Ok(Moved::Again)
            }
            // sendfile(2) has this error for a failed read of the input.
            Err(libc::EIO) => Err(CopyFailure::Read(libc::EIO)),
            Err(error) => Err(CopyFailure::Write(error)),
        }
    }

    fn receive_file(&mut self, count: usize) -> Result<Moved, CopyFailure> {
        let wanted = self.wanted(count.min(FCOPY_PIPE_SIZE));
        let Ok(pipe) = CopyPipe::take() else {
            self.is_direct = false;
            return Ok(Moved::Again);
        };
        let _stage = stages::enter(Stage::Copy);
        let received = self.stream.with_nonblocking(|socket| {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            splice(socket, None, &pipe.writer, None, wanted, flags).map_err(Errno::raw_os_error)
        });
        if let Ok(count) = received {
            self.taken(count);
            // After a failure the pipe is not empty.
            self.empty_pipe(&pipe, count)?;
        }
        pipe.put_back();
        match received {
            // As for a read of the channel, a reset is the end.
            Ok(0) | Err(libc::ECONNRESET) => Ok(Moved::End),
            Ok(_) | Err(libc::EINTR) => Ok(Moved::Again),
            Err(libc::EAGAIN) => self.receive_byte(),
            Err(libc::EINVAL | libc::ENOSYS | libc::EMFILE | libc::ENFILE) => {
                self.is_direct = false;
                Ok(Moved::Again)
            }
            Err(error) => Err(CopyFailure::Read(error)),
        }
    }

    /// The socket is empty: a receive by the driver makes it wait for more. What has arrived just now is copied.
    fn receive_byte(&mut self) -> Result<Moved, CopyFailure> {
        let mut byte = [0];
        match self.stream.receive_now(&mut byte) {
            Ok(0) => Ok(Moved::End),
            Ok(_) => {
                self.pending.push(byte[0]);
                self.taken(1);
                Ok(Moved::Bytes)
            }
            Err(libc::EAGAIN) => Ok(Moved::NothingYet),
            Err(libc::EINTR) => Ok(Moved::Again),
            Err(error) => Err(CopyFailure::Read(error)),
        }
    }

    /// Moves the bytes in the pipe to the file.
    fn empty_pipe(&mut self, pipe: &CopyPipe, filled: usize) -> Result<(), CopyFailure> {
        let mut rest = filled;
        while rest > 0 {
            match splice(&pipe.reader, None, self.file(), None, rest, SpliceFlags::MOVE) {
                Ok(0) => return Err(CopyFailure::Write(libc::EIO)),
                Ok(count) => {
                    rest -= count;
                    self.written(count);
                    stats::add_fcopy_bytes(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) => return self.read_pipe(pipe, rest),
                Err(error) => return Err(CopyFailure::Write(error.raw_os_error())),
            }
        }
        Ok(())
    }

    /// The file takes no bytes from a pipe: those in it go through memory, like all that follow.
    fn read_pipe(&mut self, pipe: &CopyPipe, filled: usize) -> Result<(), CopyFailure> {
        self.is_direct = false;
        let mut read = 0;
        self.pending.resize(filled, 0);
        while read < filled {
            match rustix::io::read(&pipe.reader, &mut self.pending[read..]) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(CopyFailure::Read(error.raw_os_error())),
            }
        }
        self.pending.truncate(read);
        Ok(())
    }
}

/// What one call has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Bytes,
    /// Nothing; the next call may.
    Again,
    NothingYet,
    End,
}

impl CopyPipe {
    /// The thread's pipe, which is empty.
    fn take() -> io::Result<CopyPipe> {
        if let Some(pipe) = PIPE.with(RefCell::take) {
            return Ok(pipe);
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // The system may refuse more than its default.
        let _ = fcntl_setpipe_size(writer.as_fd(), FCOPY_PIPE_SIZE);
        Ok(CopyPipe { reader, writer })
    }

    /// Keeps the pipe, which is empty again, for the next call.
    fn put_back(self) {
        PIPE.with(|pipe| pipe.replace(Some(self)));
    }
}
