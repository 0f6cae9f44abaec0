//! A driver and a disk that record the addresses of the bytes that they receive, send and write.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stilling_engine::driver::{
    BufferId, Datagram, Destination, Driver, DriverCounters, DriverEvent, IncompleteSend, Outgoing,
    SourceKind, Wait, WakeHandle,
};
use stilling_engine::{Time, Token};
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::disk::{DirectoryEntry, Disk, DiskFile, FileStatus, LockError, WriteMethod};

/// Addresses in the order of the operations. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Recorder(Arc<Mutex<RecordedRanges>>);

#[derive(Clone, Debug, Default)]
pub(super) struct RecordedRanges {
    pub(super) received: Vec<Range<usize>>,
    pub(super) sent: Vec<(Token, Range<usize>)>,
    pub(super) written: Vec<Range<usize>>,
    /// Sends that stopped short. `sent` has their bytes again.
    pub(super) incomplete_sends: usize,
}

impl Recorder {
    fn ranges(&self) -> MutexGuard<'_, RecordedRanges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ranges since the last call.
    pub(super) fn take(&self) -> RecordedRanges {
        std::mem::take(&mut *self.ranges())
    }
}

pub(super) fn addresses(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr() as usize;
    start..start + bytes.len()
}

pub(super) struct RecordingDriver<D> {
    pub(super) driver: D,
    pub(super) recorder: Recorder,
}

impl<D: Driver> Driver for RecordingDriver<D> {
    type Socket = D::Socket;
    type Accepted = D::Accepted;

    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn listen(&mut self, token: Token, socket: Self::Socket) -> io::Result<()> {
        self.driver.listen(token, socket)
    }

    fn accept(&mut self, listener: Token) {
        self.driver.accept(listener);
    }

    fn pause_accept(&mut self, listener: Token) {
        self.driver.pause_accept(listener);
    }

    fn accept_now(&mut self, listener: Token) -> io::Result<Option<Self::Accepted>> {
        self.driver.accept_now(listener)
    }

    fn refuse_one(&mut self, listener: Token) -> bool {
        self.driver.refuse_one(listener)
    }

    fn attach(
        &mut self,
        token: Token,
        socket: Self::Accepted,
        kind: SourceKind,
        readable_now: bool,
    ) -> io::Result<()> {
        self.driver.attach(token, socket, kind, readable_now)
    }

    fn connect(&mut self, token: Token, to: &Destination) -> io::Result<()> {
        self.driver.connect(token, to)
    }

    fn receive(&mut self, token: Token) {
        self.driver.receive(token);
    }

    fn await_readable(&mut self, token: Token) {
        self.driver.await_readable(token);
    }

    fn cancel_receive(&mut self, token: Token) {
        self.driver.cancel_receive(token);
    }

    fn recv_now(&mut self, token: Token, into: &mut [u8]) -> io::Result<usize> {
        let count = self.driver.recv_now(token, into)?;
        self.recorder.ranges().received.push(addresses(&into[..count]));
        Ok(count)
    }

    fn send_now(&mut self, token: Token, bytes: &[u8]) -> io::Result<usize> {
        self.driver.send_now(token, bytes)
    }

    fn is_hung_up(&mut self, token: Token) -> bool {
        self.driver.is_hung_up(token)
    }

    fn has_no_unread_input(&mut self, token: Token) -> bool {
        self.driver.has_no_unread_input(token)
    }

    fn await_writable(&mut self, token: Token) {
        self.driver.await_writable(token);
    }

    fn shutdown(&mut self, token: Token) {
        self.driver.shutdown(token);
    }

    fn close(&mut self, token: Token) {
        self.driver.close(token);
    }

    fn detach(&mut self, token: Token) {
        self.driver.detach(token);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.driver.buffer(buffer)
    }

    fn datagram(&self, buffer: BufferId) -> Datagram<'_> {
        self.driver.datagram(buffer)
    }

    fn release(&mut self, buffer: BufferId) {
        self.driver.release(buffer);
    }

    fn buffers_lent(&self) -> usize {
        self.driver.buffers_lent()
    }

    fn turn<'a>(
        &mut self,
        now: Time,
        wait: Wait,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        incomplete_sends: &mut Vec<IncompleteSend>,
        events: &mut Vec<DriverEvent<Self::Socket, Self::Accepted>>,
    ) -> io::Result<()> {
        let (recorder, known) = (&self.recorder, events.len());
        let outgoing = outgoing.inspect(|item| {
            let sent = item.bytes.slices().map(|slice| (item.token, addresses(slice)));
            recorder.ranges().sent.extend(sent);
        });
        self.driver.turn(now, wait, outgoing, incomplete_sends, events)?;
        let mut ranges = recorder.ranges();
        ranges.incomplete_sends += incomplete_sends.len();
        for event in &events[known..] {
            if let DriverEvent::Received { buffer, len, .. } = event {
                ranges.received.push(addresses(&self.driver.buffer(*buffer)[..*len as usize]));
            }
        }
        Ok(())
    }

    fn wake_handle(&self) -> WakeHandle {
        self.driver.wake_handle()
    }

    fn waitable(&mut self) -> Option<i32> {
        self.driver.waitable()
    }

    fn counters(&self) -> DriverCounters {
        self.driver.counters()
    }
}

#[derive(Clone)]
pub(super) struct RecordingDisk {
    pub(super) disk: SimulatedDisk,
    pub(super) recorder: Recorder,
}

pub(super) struct RecordingFile {
    file: <SimulatedDisk as Disk>::File,
    recorder: Recorder,
}

impl RecordingDisk {
    fn record(&self, file: io::Result<<SimulatedDisk as Disk>::File>) -> io::Result<RecordingFile> {
        file.map(|file| RecordingFile { file, recorder: self.recorder.clone() })
    }
}

impl Disk for RecordingDisk {
    type File = RecordingFile;
    type Lock = <SimulatedDisk as Disk>::Lock;

    fn location(&self) -> String {
        self.disk.location()
    }

    fn write_method(&self) -> WriteMethod {
        self.disk.write_method()
    }

    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        self.disk.list()
    }

    fn create(&self, name: &str, size: u64) -> io::Result<RecordingFile> {
        self.record(self.disk.create(name, size))
    }

    fn open(&self, name: &str) -> io::Result<RecordingFile> {
        self.record(self.disk.open(name))
    }

    fn open_to_write(&self, name: &str) -> io::Result<RecordingFile> {
        self.record(self.disk.open_to_write(name))
    }

    fn size_of(&self, name: &str) -> io::Result<u64> {
        self.disk.size_of(name)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        self.disk.is_in_place()
    }

    fn truncate(&self, name: &str, size: u64) -> io::Result<()> {
        self.disk.truncate(name, size)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn sync_ancestors(&self) -> io::Result<()> {
        self.disk.sync_ancestors()
    }

    fn lock(&self) -> Result<Self::Lock, LockError> {
        self.disk.lock()
    }

    fn random_u64(&self) -> u64 {
        self.disk.random_u64()
    }
}

impl DiskFile for RecordingFile {
    fn status(&self) -> io::Result<FileStatus> {
        self.file.status()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_durable(&mut self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.recorder.ranges().written.extend(pieces.iter().map(|piece| addresses(piece)));
        self.file.write_durable(offset, pieces)
    }
}
