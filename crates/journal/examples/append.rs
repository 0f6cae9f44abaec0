//! The cost of appending on this machine: records of 4 KiB, fresh growing segments, each write synced before the next.
//!
//!     cargo run --release -p stilling-journal --example append -- [DIRECTORY [MEBIBYTES [ROUNDS]]]
//!
//! Prints a table in Markdown: for each method the records per second and the CPU seconds per million records, the time
//! to open the stream again and the read rate: the median of the rounds, with minimum and maximum. The methods
//! alternate, so that other load affects all of them.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use stilling_journal::WriteMethod;
use stilling_journal::disk::file::{FileDisk, FreshSpace};
use stilling_journal::{
    Batch, Journal, JournalAnswer, JournalLimits, Log, LogConfig, LogRetention, ReadOutcome, Record, StartAt,
};
use stilling_ring::Wake;

/// Bytes of a record's payload.
const PAYLOAD_SIZE: usize = 4096;
/// Records in flight between the measured writer and the journal thread.
const WINDOW: u64 = 1024;
/// Records per durable write.
const GROUPS: [usize; 4] = [4, 16, 64, 256];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let mebibytes = arguments.next().map_or(Ok(512), |text| text.parse::<usize>())?;
    let rounds = arguments.next().map_or(Ok(3), |text| text.parse::<usize>())?;
    let scratch = tempfile::tempdir_in(directory)?;
    let disk = FileDisk::open_or_create(scratch.path())?;
    let buffered = || WriteMethod::Buffered { reason: "measured".to_owned() };
    let mut ways = vec![("write, fdatasync", buffered(), FreshSpace::Unzeroed)];
    match disk.method().clone() {
        WriteMethod::Direct => {
            ways.push(("O_DIRECT, RWF_DSYNC", WriteMethod::Direct, FreshSpace::Unzeroed));
            ways.push(("the same, zeroed ahead", WriteMethod::Direct, FreshSpace::ZeroAhead));
        }
        WriteMethod::Buffered { reason } => println!("No O_DIRECT with RWF_DSYNC here: {reason}.\n"),
    }
    println!("| method | records per write | records/s | CPU s per million | open ms | read, records/s |");
    println!("|---|---|---|---|---|---|");
    for group in GROUPS {
        let mut figures = vec![Vec::new(); ways.len()];
        for _ in 0..rounds {
            for ((_, method, fresh), figures) in ways.iter().zip(&mut figures) {
                let disk = disk.directory("stream")?.with(method.clone(), *fresh);
                figures.push(measure(disk, group, mebibytes << 20)?);
                std::fs::remove_dir_all(scratch.path().join("stream"))?;
            }
        }
        for ((way, ..), figures) in ways.iter().zip(&mut figures) {
            let spread = |pick: fn(&AppendMeasurement) -> f64, places: usize| {
                spread(figures.iter().map(pick).collect(), places)
            };
            println!(
                "| {way} | {group} | {} | {} | {} | {} |",
                spread(|figures| figures.appended, 0),
                spread(|figures| figures.cpu, 2),
                spread(|figures| figures.open_ms, 1),
                spread(|figures| figures.read, 0),
            );
        }
    }
    let mut figures = Vec::new();
    for _ in 0..rounds {
        figures.push(measure_thread(disk.directory("stream")?, mebibytes << 20)?);
        std::fs::remove_dir_all(scratch.path().join("stream"))?;
    }
    let (appended, cpu): (Vec<f64>, Vec<f64>) = figures.into_iter().unzip();
    println!(
        "\nThrough the journal's thread, {WINDOW} records unacknowledged: {} records/s, {} CPU s per million.",
        spread(appended, 0),
        spread(cpu, 2)
    );
    Ok(())
}

/// The median with minimum and maximum, of at least one value.
fn spread(mut values: Vec<f64>, places: usize) -> String {
    values.sort_by(f64::total_cmp);
    let (median, last) = (values[values.len() / 2], values[values.len() - 1]);
    format!("{median:.places$} ({:.places$} – {last:.places$})", values[0])
}

/// Records per second and CPU seconds per million, for a writer that queues as much as possible and has at most
/// [`WINDOW`] records without their watermark.
fn measure_thread(disk: FileDisk, bytes: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let (log, _) = Log::open(disk, "measured", LogConfig::default())?;
    let payload = vec![b'x'; PAYLOAD_SIZE];
    let own = thread::current();
    let wake = Arc::new(Wake::new(move || own.unpark()));
    let mut journal = Journal::start(vec![log], JournalLimits::default(), Arc::clone(&wake))?;
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let (mut next, mut durable, records) = (1, 0, (bytes / PAYLOAD_SIZE) as u64);
    while durable < records {
        while next <= (durable + WINDOW).min(records)
            && let Some(mut batch) = journal.batch()
        {
            batch.begin(next, 1);
            while next <= (durable + WINDOW).min(records)
                && batch.push(&Record::new(b"events.measured", &payload)).is_ok()
            {
                next += 1;
            }
            journal.append(0, batch).map_err(|_| "no room for a batch of its own")?;
        }
        journal.publish();
        match journal.next_answer() {
            Some(JournalAnswer::Durable { watermark, .. }) => durable = watermark,
            Some(other) => return Err(format!("{other:?}").into()),
            None => {
                wake.set_parked();
                if journal.is_quiet() {
                    thread::park();
                }
                wake.clear_parked();
            }
        }
    }
    let (wall, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    Ok((records as f64 / wall, cpu / records as f64 * 1e6))
}

#[derive(Clone)]
struct AppendMeasurement {
    appended: f64,
    /// CPU seconds per million of them.
    cpu: f64,
    /// Milliseconds to open the stream again, as after a crash.
    open_ms: f64,
    read: f64,
}

fn measure(disk: FileDisk, group: usize, bytes: usize) -> Result<AppendMeasurement, Box<dyn Error>> {
    let (mut log, _) = Log::open(disk.clone(), "measured", LogConfig::default())?;
    let payload = vec![b'x'; PAYLOAD_SIZE];
    let mut batches: Vec<Batch> =
        (0..8).map(|_| Batch::new(stilling_journal::limits::BATCH_SIZE_DEFAULT)).collect();
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let mut records = 0;
    while records * PAYLOAD_SIZE < bytes {
        let (mut next, mut left, mut used) = (log.next(), group, 0);
        while left > 0 {
            let batch = &mut batches[used];
            batch.begin(next, 1);
            while left > 0 && batch.push(&Record::new(b"events.measured", &payload)).is_ok() {
                left -= 1;
            }
            next = batch.next();
            used += 1;
        }
        log.append(&mut batches[..used])?;
        records += group;
        log.retain(&LogRetention { bytes_max: Some(1 << 30), ..LogRetention::default() }, 0, u64::MAX)?;
    }
    let (wall, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    drop(log);
    let begin = Instant::now();
    let (log, recovery) = Log::open(disk, "measured", LogConfig::default())?;
    let open_ms = begin.elapsed().as_secs_f64() * 1e3;
    let begin = Instant::now();
    let (mut reader, mut seen) = (log.source().read_from(StartAt::Sequence(recovery.first)), 0);
    while let ReadOutcome::Batch(batch) = reader.read()? {
        seen += batch.records.count();
    }
    let read = seen as f64 / begin.elapsed().as_secs_f64();
    Ok(AppendMeasurement { appended: records as f64 / wall, cpu: cpu / records as f64 * 1e6, open_ms, read })
}

fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 * 1e-9
}
