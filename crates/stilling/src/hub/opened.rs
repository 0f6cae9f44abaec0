//! From configuration to a running hub: opens the streams' directories, starts the journal's threads, fills the window in
//! which message ids are recognised.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use stilling_hub::{Durability, Hub, HubConfig, Resumed, Storage, StreamConfig, Threads, UnixNanos};
use stilling_journal::disk::Disk;
use stilling_journal::disk::file::FileDisk;
use stilling_journal::disk::simulated::SimulatedDisk;
use stilling_journal::{
    Answer, Batch, Chunk, Config as LogConfig, Journal, Limits, Log, OpenError, Read, ReadOrder, Recovery,
    Replay, ReplayWorker, Retention, Source, StreamIndex, Worker,
};
use stilling_ring::{Receiver, Wake, mailbox, planted};

use super::runner::Mailboxes;
use crate::config::ServeError;

/// Orders for records that may be unanswered.
const READ_ORDERS_MAX: usize = 64;

/// The streams on disk, opened; nothing runs yet.
pub(crate) struct Opened<D: Disk = FileDisk> {
    config: HubConfig,
    data: PathBuf,
    limits: Limits,
    /// When this was made: the creation time of streams that are new.
    opened_ns: UnixNanos,
    /// Whether there is a directory; without, it is made with the first record.
    logs: Option<Vec<Log<D>>>,
    recoveries: Vec<Recovery>,
}

impl Opened {
    /// Opens the streams of `config` under `data`, if that is there. A batch takes a message of `message_size_max` bytes.
    pub(crate) fn open(config: HubConfig, data: &Path, message_size_max: usize) -> Result<Opened, OpenError> {
        let batch_size = (message_size_max + RECORD_EXTRA_MAX).max(Limits::default().batch_size);
        let limits = Limits { batch_size, ..Limits::default() };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let opened_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let data_folder = data.to_owned();
        let mut opened =
            Opened { config, data: data_folder, limits, opened_ns, logs: None, recoveries: Vec::new() };
        if fs::exists(data).unwrap_or(true) && opened.on_disk().next().is_some() {
            let (logs, recoveries) = open_all(&opened.log_configs(), data)?;
            (opened.logs, opened.recoveries) = (Some(logs), recoveries);
        }
        Ok(opened)
    }
}

impl Opened<SimulatedDisk> {
    /// Opens the streams of `config` that are on disk, each on one of `disks`.
    pub(crate) fn simulated(
        config: HubConfig,
        disks: &[SimulatedDisk],
        (log, limits): (LogConfig, Limits),
    ) -> Result<Opened<SimulatedDisk>, OpenError> {
        let opened_ns = log.created_ns;
        let mut opened =
            Opened { config, data: PathBuf::new(), limits, opened_ns, logs: None, recoveries: Vec::new() };
        let mut logs = Vec::new();
        for (name, disk) in opened.names().iter().zip(disks) {
            let (log, recovery) = Log::open(disk.clone(), name, log)?;
            logs.push(log);
            opened.recoveries.push(recovery);
        }
        opened.logs = Some(logs);
        Ok(opened)
    }
}

impl<D: Disk> Opened<D> {
    /// What opening found that is not as it was written, by stream.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        let names = self.names();
        self.recoveries
            .iter()
            .zip(names)
            .filter(|(recovery, _)| !recovery.findings.is_empty())
            .map(|(recovery, name)| format!("stream {name}: {}", recovery.findings))
    }

    /// How each stream is written, as far as that is known before its first record.
    pub(crate) fn write_methods(&self) -> impl Iterator<Item = String> {
        self.logs.iter().flatten().map(write_method)
    }

    fn on_disk(&self) -> impl Iterator<Item = (usize, &StreamConfig)> {
        self.config.streams.iter().enumerate().filter(|(_, stream)| stream.durability == Durability::Disk)
    }

    /// The streams on disk by name, each with segments that fit how much of it is kept.
    fn log_configs(&self) -> Vec<(String, LogConfig)> {
        let config = |stream: &StreamConfig| LogConfig {
            created_ns: self.opened_ns,
            ..LogConfig::for_retention(stream.retention.bytes_max)
        };
        self.on_disk().map(|(_, stream)| (stream.name.clone(), config(stream))).collect()
    }

    fn names(&self) -> Vec<String> {
        self.on_disk().map(|(_, stream)| stream.name.clone()).collect()
    }

    /// Starts the journal by `start`, and the hub, which is woken by `wake`.
    pub(crate) fn start(
        self,
        outlets: Mailboxes,
        shards: usize,
        (key, started_ns): (stilling_hub::HashKey, UnixNanos),
        wake: &Arc<Wake>,
        start: impl FnOnce(Vec<Log<D>>, Limits, &Arc<Wake>) -> io::Result<Threads>,
    ) -> Result<Hub<House, Mailboxes>, ServeError> {
        let of_hub: Vec<usize> = self.on_disk().map(|(number, _)| number).collect();
        let mut resumed = vec![Resumed::default(); self.config.streams.len()];
        for &number in &of_hub {
            resumed[number].created_ns = self.opened_ns;
        }
        for (&number, recovery) in of_hub.iter().zip(&self.recoveries) {
            resumed[number] = Resumed {
                first: recovery.first.max(1),
                next: recovery.next,
                created_ns: if recovery.created_ns == 0 { self.opened_ns } else { recovery.created_ns },
            };
        }
        let dedup_times: Vec<u64> =
            of_hub.iter().map(|&number| self.config.streams[number].dedup_time_ns).collect();
        let sources: Vec<Source<D>> = self.logs.iter().flatten().map(Log::source).collect();
        let limits = self.limits;
        let streams = self.log_configs();
        let on_disk = self.names();
        let threads = match self.logs {
            Some(logs) => Way::Open(start(logs, limits, wake).map_err(ServeError::Threads)?),
            None if of_hub.is_empty() => Way::Open(Threads::default()),
            None => Way::Unopened { streams, data: self.data.clone(), limits, wake: Arc::clone(wake) },
        };
        let house = House { threads, of_hub: of_hub.clone(), refused: Vec::new() };
        let mut hub = Hub::new(self.config, &resumed, (house, outlets), shards, (key, started_ns));
        for (at, source) in sources.iter().enumerate() {
            let recovery = &self.recoveries[at];
            // Nothing before it was in the window when its segment was made; what is too old since is left out by time.
            let from = if dedup_times[at] == 0 { recovery.next } else { recovery.deduplicate_from.max(1) };
            let mut reader = source.read_from(stilling_journal::From::Sequence(from));
            let unread = |source| {
                let place = self.data.join(&on_disk[at]).display().to_string();
                ServeError::Streams(OpenError::Disk { place, source })
            };
            loop {
                // With a part of the window missing, messages sent again would be stored again, unnoticed.
                match reader.read().map_err(unread)? {
                    Read::Batch(_) if planted!("forgotten window") => {}
                    Read::Batch(batch) => hub.remember(of_hub[at], batch),
                    Read::Gap(gap) => hub.report_unreadable(of_hub[at], gap),
                    Read::End => break,
                }
            }
            if !recovery.findings.is_empty() {
                hub.report_findings(of_hub[at], &recovery.findings.to_string());
            }
        }
        Ok(hub)
    }
}

fn write_method<D: Disk>(log: &Log<D>) -> String {
    format!("stream {}: writes are {}", log.name(), log.write_method())
}

/// What a record has beside its payload, at most: subject, headers, heads.
pub(crate) const RECORD_EXTRA_MAX: usize = 128 * 1024;

fn open_all(
    streams: &[(String, LogConfig)],
    data: &Path,
) -> Result<(Vec<Log<FileDisk>>, Vec<Recovery>), OpenError> {
    let (mut logs, mut recoveries) = (Vec::new(), Vec::new());
    for (name, config) in streams {
        let path = data.join(name);
        let disk = FileDisk::make(&path)
            .map_err(|source| OpenError::Disk { place: path.display().to_string(), source })?;
        let (log, recovery) = Log::open(disk, name, *config)?;
        logs.push(log);
        recoveries.push(recovery);
    }
    Ok((logs, recoveries))
}

/// Whether streams that were opened late go on where the hub has begun them. There was no directory at the start; what
/// is in it now may have been mounted, restored or written by another server meanwhile, and its sequences are not the
/// hub's: what the hub has numbered must neither be written behind it nor be acknowledged because of it.
fn as_begun(logs: &[Log<FileDisk>], data: &Path) -> Result<(), (String, io::ErrorKind)> {
    let begun = Resumed::default().next;
    let Some(other) = logs.iter().find(|log| log.next() != begun) else { return Ok(()) };
    let (name, last) = (other.name(), other.next() - 1);
    let place = data.join(name);
    let reason = format!(
        "stream {name}: {} was not there at the start and has appeared since, with records up to {last}: \
         restart the server to go on behind them",
        place.display()
    );
    Err((reason, io::ErrorKind::AlreadyExists))
}

/// Starts the journal's two threads.
pub(crate) fn start_threads(
    logs: Vec<Log<FileDisk>>,
    limits: Limits,
    wake: &Arc<Wake>,
) -> io::Result<Threads> {
    let sources = logs.iter().map(Log::source).collect();
    let journal = Journal::start(logs, limits, Arc::clone(wake))?;
    let replay = Replay::start(sources, READ_ORDERS_MAX, Arc::clone(wake))?;
    Ok(Threads::new(journal, replay))
}

/// The journal's two threads as steps, for a simulation.
#[derive(Debug)]
pub struct SteppedJournal {
    /// Writes batches.
    pub writer: Worker<SimulatedDisk>,
    /// Reads records.
    pub reader: ReplayWorker<SimulatedDisk>,
}

/// As [`start_threads`], without threads.
pub(crate) fn start_stepped(
    logs: Vec<Log<SimulatedDisk>>,
    limits: Limits,
    (wake, now): (&Arc<Wake>, Instant),
) -> io::Result<(Threads, SteppedJournal)> {
    let sources = logs.iter().map(Log::source).collect();
    let (journal, writer) = Journal::stepped(logs, limits, wake, now)?;
    let (replay, reader) = Replay::stepped(sources, READ_ORDERS_MAX, Arc::clone(wake));
    Ok((Threads::new(journal, replay), SteppedJournal { writer, reader }))
}

/// The journal's threads, which know only the streams on disk; the hub numbers all.
pub(crate) struct House {
    threads: Way,
    /// The hub's number of each stream on disk.
    of_hub: Vec<usize>,
    /// Batches of streams that could not be opened, and why.
    refused: Vec<(Answer, Option<Batch>)>,
}

enum Way {
    Open(Threads),
    /// The directory is made with the first record.
    Unopened {
        streams: Vec<(String, LogConfig)>,
        data: PathBuf,
        limits: Limits,
        wake: Arc<Wake>,
    },
    /// It is being made, on a thread that may wait for the disk.
    Opening {
        opened: Receiver<Opening>,
        batch_size: usize,
    },
    /// It could not be made.
    Failed {
        reason: Arc<str>,
        kind: io::ErrorKind,
        batch: Option<Batch>,
    },
}

impl House {
    fn number_on_disk(&self, stream: StreamIndex) -> StreamIndex {
        self.of_hub.iter().position(|&number| number == stream as usize).unwrap_or(0) as StreamIndex
    }

    fn number_in_hub(&self, stream: StreamIndex) -> StreamIndex {
        self.of_hub.get(stream as usize).map_or(0, |&number| number as StreamIndex)
    }

    /// The threads, which are started for the first record. None while they are, and when they could not be.
    fn threads(&mut self) -> Option<&mut Threads> {
        self.begin_opening();
        self.look_for_opened();
        match &mut self.threads {
            Way::Open(threads) => Some(threads),
            Way::Unopened { .. } | Way::Opening { .. } | Way::Failed { .. } => None,
        }
    }

    fn begin_opening(&mut self) {
        if !matches!(self.threads, Way::Unopened { .. }) {
            return;
        }
        let Way::Unopened { streams, data, limits, wake } =
            std::mem::replace(&mut self.threads, Way::Open(Threads::default()))
        else {
            return;
        };
        let (done, opened) = mailbox(1);
        let work = move || {
            let last_word = LastWord(Arc::clone(&wake));
            // Its end is seen before the wake.
            let mut done = done;
            let outcome = open_all(&streams, &data)
                .map_err(|error| (error.to_string(), io::ErrorKind::Other))
                .and_then(|(logs, _)| {
                    as_begun(&logs, &data)?;
                    start_threads(logs, limits, &wake).map_err(|error| (error.to_string(), error.kind()))
                });
            let _ = done.push(outcome);
            done.publish();
            drop(done);
            drop(last_word);
        };
        let batch_size = limits.batch_size;
        self.threads = match thread::Builder::new().name("opening".to_owned()).spawn(work) {
            Ok(_) => Way::Opening { opened, batch_size },
            Err(error) => Way::failed(error.to_string(), error.kind(), batch_size),
        };
    }

    fn look_for_opened(&mut self) {
        let Way::Opening { opened, batch_size } = &mut self.threads else { return };
        // Asked first: what is there afterwards is all there will be.
        let is_over = opened.is_closed();
        self.threads = match opened.pop() {
            Some(Ok(threads)) => Way::Open(threads),
            Some(Err((reason, kind))) => Way::failed(reason, kind, *batch_size),
            None if is_over => {
                Way::failed("opening it panicked".to_owned(), io::ErrorKind::Other, *batch_size)
            }
            None => return,
        };
    }
}

/// What came of making the directory.
type Opening = Result<Threads, (String, io::ErrorKind)>;

impl Way {
    fn failed(reason: String, kind: io::ErrorKind, batch_size: usize) -> Way {
        Way::Failed { reason: reason.into(), kind, batch: Some(Batch::new(batch_size)) }
    }
}

/// Wakes whoever runs the hub when it is dropped, in whichever way that comes.
struct LastWord(Arc<Wake>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.force();
    }
}

impl Storage for House {
    fn batch(&mut self) -> Option<Batch> {
        if let Some(threads) = self.threads() {
            return threads.batch();
        }
        match &mut self.threads {
            Way::Failed { batch, .. } => batch.take(),
            Way::Open(_) | Way::Unopened { .. } | Way::Opening { .. } => None,
        }
    }

    fn give_back(&mut self, batch: Batch) {
        match &mut self.threads {
            Way::Open(threads) => threads.give_back(batch),
            Way::Failed { batch: place, .. } => *place = Some(batch),
            Way::Unopened { .. } | Way::Opening { .. } => {}
        }
    }

    fn append(&mut self, stream: StreamIndex, batch: Batch, deduplicate_from: u64) {
        let on_disk = self.number_on_disk(stream);
        match &mut self.threads {
            Way::Open(threads) => threads.append(on_disk, batch, deduplicate_from),
            Way::Failed { reason, kind, .. } => {
                let frozen = stilling_journal::Frozen { reason: Arc::clone(reason), kind: *kind };
                let answer =
                    Answer::Frozen { stream, watermark: batch.first() - 1, frozen, is_batch_lost: false };
                self.refused.push((answer, Some(batch)));
            }
            Way::Unopened { .. } | Way::Opening { .. } => {}
        }
    }

    fn retain(&mut self, stream: StreamIndex, retention: Retention, now_ns: UnixNanos) -> bool {
        let on_disk = self.number_on_disk(stream);
        match &mut self.threads {
            Way::Open(threads) => threads.retain(on_disk, retention, now_ns),
            Way::Unopened { .. } | Way::Opening { .. } | Way::Failed { .. } => false,
        }
    }

    fn read(&mut self, order: ReadOrder) -> bool {
        let stream = self.number_on_disk(order.stream);
        match &mut self.threads {
            Way::Open(threads) => threads.read(ReadOrder { stream, ..order }),
            Way::Unopened { .. } | Way::Opening { .. } | Way::Failed { .. } => false,
        }
    }

    fn publish(&mut self) {
        if let Way::Open(threads) = &mut self.threads {
            threads.publish();
        }
    }

    fn next_answer(&mut self) -> Option<(Answer, Option<Batch>)> {
        self.look_for_opened();
        if let Some(refused) = self.refused.pop() {
            return Some(refused);
        }
        let Way::Open(threads) = &mut self.threads else { return None };
        let (mut answer, batch) = threads.next_answer()?;
        let (Answer::Durable { stream, .. }
        | Answer::Frozen { stream, .. }
        | Answer::Waiting { stream, .. }
        | Answer::Resumed { stream }
        | Answer::Retained { stream, .. }) = &mut answer;
        let number = *stream;
        *stream = self.number_in_hub(number);
        Some((answer, batch))
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        let Way::Open(threads) = &mut self.threads else { return None };
        let mut chunk = threads.next_chunk()?;
        chunk.stream = self.number_in_hub(chunk.stream);
        Some(chunk)
    }

    fn is_quiet(&self) -> bool {
        self.refused.is_empty()
            && match &self.threads {
                Way::Open(threads) => threads.is_quiet(),
                Way::Opening { opened, .. } => opened.is_empty() && !opened.is_closed(),
                Way::Unopened { .. } | Way::Failed { .. } => true,
            }
    }
}

#[cfg(test)]
mod tests {
    use stilling_hub::{Door, HashKey, Intake, Loss, Publication, Request, Traits};
    use stilling_journal::Record;

    use super::super::runner::connect;
    use super::*;

    const KEY: HashKey = HashKey(1, 2);

    fn open(data: &Path) -> Opened {
        Opened::open(HubConfig::default(), data, 1024).expect("it opens")
    }

    /// Somebody else's records of the stream `events`.
    fn keep(data: &Path, count: u64) {
        let disk = FileDisk::make(&data.join("events")).expect("a directory");
        let (mut log, _) = Log::open(disk, "events", LogConfig::default()).expect("it opens");
        let mut batch = Batch::new(64 * 1024);
        batch.begin(log.next(), 1);
        for _ in 0..count {
            batch.push(&Record::new(b"events.a", b"x")).expect("there is room");
        }
        log.append(std::slice::from_mut(&mut batch)).expect("it is written");
        log.close().expect("it is closed");
    }

    /// Row 2.15: nothing is acknowledged that is not on disk, whatever has come to lie where the records were to go.
    #[test]
    fn a_directory_that_appears_with_records_freezes_the_stream_and_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a directory");
        let data = folder.path().join("data");
        let own = thread::current();
        let wakes = [Arc::new(Wake::new(|| ())), Arc::new(Wake::new(move || own.unpark()))];
        let (_ports, outlets, _inlets) = connect(&wakes[..1], &wakes[1]);
        let mut hub = open(&data).start(outlets, 1, (KEY, 0), &wakes[1], start_threads).expect("it starts");
        keep(&data, 500);
        let mut intake = Intake::new();
        let publication = Publication {
            door: Door::Nats,
            subject: b"events.a",
            reply: b"",
            headers: b"",
            payload: b"y",
            ticket: Some(1),
        };
        for _ in 0..3 {
            intake.push(1, Traits::default(), &Request::Publish(publication));
        }
        let (mut at, counters) = (0, hub.counters());
        while at < intake.len() || !hub.is_settled() {
            hub.absorb(1);
            at = hub.take(0, &intake, at, 1);
            hub.flush();
            wakes[1].park();
            if hub.is_quiet() && (at < intake.len() || !hub.is_settled()) {
                thread::park();
            }
            wakes[1].unpark();
        }
        hub.flush();
        let reason = counters.streams[0].health.get().reason.expect("it is frozen");
        assert!(reason.contains("records up to 500") && reason.contains("restart"), "{reason}");
        assert_eq!((counters.losses(Door::Nats, Loss::Frozen), counters.streams[0].visible.get()), (3, 0));
        drop(hub);
        assert_eq!(open(&data).recoveries[0].next, 501);
    }

    /// A window of which a part is missing would take again what was sent again.
    #[test]
    fn a_deduplication_window_that_cannot_be_read_is_told_at_the_start() {
        let folder = tempfile::tempdir().expect("a directory");
        keep(folder.path(), 3);
        let opened = open(folder.path());
        let files = fs::read_dir(folder.path().join("events")).expect("it is there");
        for file in files.map(|file| file.expect("a file").path()) {
            if file.extension().is_some_and(|extension| extension == "segment") {
                fs::remove_file(file).expect("it can be removed");
            }
        }
        let wakes: Vec<_> = (0..2).map(|_| Arc::new(Wake::new(|| ()))).collect();
        let (_ports, outlets, _inlets) = connect(&wakes[..1], &wakes[1]);
        let error =
            opened.start(outlets, 1, (KEY, 0), &wakes[1], start_threads).err().expect("it does not start");
        assert!(error.to_string().contains("cannot read") && error.to_string().contains("events"), "{error}");
    }
}
