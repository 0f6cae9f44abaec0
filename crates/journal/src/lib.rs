//! Streams on disk: records appended in batches, durable before they are acknowledged, recovered from any state of the
//! files.
//!
//! ```text
//!   stream/   00000000000000000001.segment   00000000000000016001.segment   …        lock
//!             └ header │ batch │ batch │ …
//!
//!   writer ── Batch ──▶ Journal (one thread, group commit) ──▶ Log (one per stream) ──▶ Disk
//!          ◀─ watermark ─┘                                      │
//!                                                  LogSource ─▶ Reader: from any sequence or time
//! ```
//!
//! - **Durable first.** A watermark is published after the sync that covers it; readers see nothing beyond it. After a
//!   failed write or sync the stream is [`Frozen`] until the next start: nothing is acknowledged, reading continues.
//! - **Any content opens.** [`Log::open`] succeeds on any directory content and reports each deviation as a
//!   [`Finding`]. It reads the last segment completely, and others only if a header is damaged or a segment is missing.
//!   Damage costs the batch that contains it. Records cut off by a crash never come back, and their sequences are not
//!   used again.
//! - **Bounded.** All memory is allocated at the start and reused; a record costs no allocation.
//! - **Snapshots** of the state that a stream's records produce are files beside the segments, named by sequence. They
//!   have a checksum, and a newer one replaces the others once it is durable.
//!
//! [`mod@format`] describes the bytes on disk. [`Disk`] documents what a disk guarantees;
//! [`SimulatedDisk`](disk::simulated::SimulatedDisk) simulates every crash and error that this permits.
//!
//! ```
//! use stilling_journal::disk::simulated::SimulatedDisk;
//! use stilling_journal::{Batch, Log, LogConfig, ReadOutcome, Record, StartAt};
//!
//! let (mut log, recovery) = Log::open(SimulatedDisk::new(), "events", LogConfig::default())?;
//! assert!(recovery.findings.is_empty());
//!
//! let mut batch = Batch::new(64 * 1024);
//! batch.begin(log.next(), 1_700_000_000_000_000_000);
//! batch.push(&Record::new(b"events.door", b"open"))?;
//! batch.push(&Record::new(b"events.door", b"closed"))?;
//! let watermark = log.append(std::slice::from_mut(&mut batch))?;
//! assert_eq!(watermark, 2); // both records are durable
//!
//! let mut reader = log.source().read_from(StartAt::Sequence(2));
//! let ReadOutcome::Batch(batch) = reader.read()? else { panic!("it is durable") };
//! let (sequence, record) = batch.records.clone().next().expect("one record");
//! assert_eq!((sequence, record.payload), (2, &b"closed"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod batch;
mod batch_builder;
pub mod disk;
mod failure;
mod finding;
pub mod format;
mod group_commit;
pub mod inspect;
mod journal;
pub mod limits;
mod log;
mod reader;
mod recovery;
mod replay;
mod request;
mod scan;
mod segments;
mod spare_thread;
mod unbuilt_payloads;
mod unsynced_tail;
mod worker;

pub use batch::{Batch, BatchPushError};
pub use disk::{Disk, DiskFile, FileStatus, LockError, WriteMethod};
pub use failure::{AppendError, Frozen};
pub use finding::{Finding, Findings, OpenError};
pub use format::record::{Record, RecordKind, Records};
pub use format::snapshot::Snapshot;
pub use inspect::StreamPreview;
pub use journal::{IdleBatches, Journal, JournalLimits, JournalThreads};
pub use log::{FoundSnapshots, Log, LogConfig, LogRetention, RemovedSegments};
pub use reader::{BatchView, Gap, GapCause, LogSource, ReadOutcome, Reader, StartAt};
pub use recovery::Recovery;
pub use replay::{Chunk, ReadRequest, Replay, ReplayThread, ReplayWorker, read_chunk};
pub use request::{JournalAnswer, StreamIndex};
pub use segments::LogStats;
pub use spare_thread::SpareThread;
pub use worker::JournalWorker;
