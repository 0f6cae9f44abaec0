//! Processes that speak frames: a socket pair is their standard input and output.
//!
//! The supervisor creates the pair with each start; a shard that has the slot of a process duplicates this side's
//! descriptor. The lock of a stream is held for a few instructions, and a shard only tries to acquire it.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use stilling_wire::frames::{PREFIX_SIZE, READY};
use stilling_workers::processes::WorkerProgram;

use super::process_sockets::shell_command;

/// This side of the socket pairs of a pool's processes.
#[derive(Clone, Debug)]
pub(super) struct ProcessStreams {
    by_process: Arc<[Mutex<Option<ProcessStream>>]>,
    /// The number of the last request, of whatever shard.
    number: Arc<AtomicU32>,
}

/// This side of a process's socket pair.
#[derive(Debug)]
struct ProcessStream {
    generation: u64,
    socket: Arc<OwnedFd>,
}

impl ProcessStreams {
    pub(super) fn new(processes: usize) -> ProcessStreams {
        let by_process = (0..processes).map(|_| Mutex::default()).collect();
        ProcessStreams { by_process, number: Arc::default() }
    }

    /// Returns a number for a request, which no other request to the same process has had for long.
    pub(super) fn next_number(&self) -> u32 {
        self.number.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Creates the socket pair of a run of the process. Returns the process's side.
    fn open(&self, process: usize, generation: u64) -> io::Result<OwnedFd> {
        // Only this side must not block: the process reads and writes as with pipes.
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let stream = ProcessStream { generation, socket: Arc::new(ours) };
        *self.by_process[process].lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        Ok(theirs)
    }

    /// Returns a descriptor of this side for that run of the process. Never waits.
    ///
    /// # Errors
    /// `NotFound`: the run is over. `WouldBlock`: the supervisor starts the process. Others: no descriptor.
    pub(super) fn connect(&self, process: usize, generation: u64) -> io::Result<OwnedFd> {
        let socket = match self.by_process[process].try_lock() {
            Ok(stream) => stream
                .as_ref()
                .filter(|stream| stream.generation == generation)
                .map(|stream| Arc::clone(&stream.socket)),
            Err(TryLockError::WouldBlock) => return Err(ErrorKind::WouldBlock.into()),
            Err(TryLockError::Poisoned(_)) => None,
        };
        socket.ok_or(ErrorKind::NotFound)?.try_clone()
    }

    /// Reads the frame by which the process reports that it is ready, if it has been written.
    fn is_ready(&self, process: usize) -> Result<bool, String> {
        let stream = self.by_process[process].lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ProcessStream { socket, .. }) = &*stream else { return Ok(false) };
        let mut frame = [0; PREFIX_SIZE];
        // An end of the stream or an error is that of the process, which the supervisor notices.
        let Ok((size, _)) = recv(socket, &mut frame[..], RecvFlags::PEEK) else { return Ok(false) };
        if frame != READY {
            let written = frame[..size].escape_ascii();
            return Err(format!("wrote \"{written}\" before it reported that it is ready"));
        }
        if size < PREFIX_SIZE {
            return Ok(false);
        }
        let _ = recv(socket, &mut frame[..], RecvFlags::empty());
        Ok(true)
    }
}

/// Starts processes that speak frames.
pub(super) struct StreamProgram {
    command: String,
    /// Environment variables that the processes do not inherit.
    secrets: Vec<String>,
    streams: ProcessStreams,
}

impl StreamProgram {
    pub(super) fn new(command: String, secrets: Vec<String>, streams: ProcessStreams) -> StreamProgram {
        StreamProgram { command, secrets, streams }
    }
}

impl WorkerProgram for StreamProgram {
    fn command(&mut self, number: usize, generation: u64) -> io::Result<Command> {
        let input = self.streams.open(number, generation)?;
        let output = input.try_clone()?;
        let mut command = shell_command(&self.command, &self.secrets);
        command.stdin(Stdio::from(input)).stdout(Stdio::from(output));
        Ok(command)
    }

    fn sets_input_and_output(&self) -> bool {
        true
    }

    fn is_ready(&mut self, number: usize) -> Result<bool, String> {
        self.streams.is_ready(number)
    }
}
