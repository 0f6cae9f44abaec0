//! `stilling journal`: inspects the files of a server without a server.
//!
//! The commands only read and take no lock, so they are safe beside a server that writes. They show what is written at
//! the time of the read; an unfinished last write is not reported as damage.
//!
//! Exit status: 0; 1 if records cannot be shown or bytes are damaged; 2 if something cannot be read.

mod cat;
mod ls;
mod verify;

use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use stilling_journal::disk::file::FileDisk;
use stilling_journal::inspect::Inspection;
use stilling_journal::{Disk, OpenError};

use crate::settings::nearest::nearest;

/// Bytes differ from what was written.
pub(crate) const EXIT_DAMAGED: u8 = 1;
/// The requested path or stream cannot be read.
pub(crate) const EXIT_UNREADABLE: u8 = 2;

/// Attempts to read a directory that changes meanwhile. Exceeded: the command fails with an error.
const INSPECTIONS_MAX: usize = 10;

#[derive(Args)]
pub(crate) struct JournalArguments {
    #[command(subcommand)]
    what: JournalCommand,
}

#[derive(Subcommand)]
enum JournalCommand {
    /// List the streams of a data directory, or the segments of one stream
    Ls(ls::LsArguments),
    /// Print the records of a stream
    Cat(cat::CatArguments),
    /// Read every byte and report damage: exit status 0 intact, 1 damaged, 2 cannot be read
    Verify(verify::VerifyArguments),
}

impl JournalArguments {
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let outcome = match self.what {
            JournalCommand::Ls(arguments) => arguments.run(),
            JournalCommand::Cat(arguments) => arguments.run(),
            JournalCommand::Verify(arguments) => arguments.run(),
        };
        match outcome {
            // The reader has closed the pipe: not an error.
            Err(JournalError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(stop) => Err(stop.into()),
            Ok(()) => Ok(()),
        }
    }
}

#[derive(Debug)]
pub(crate) enum JournalError {
    /// Something is damaged; `None` if the details are already printed.
    Damaged(Option<String>),
    /// Something cannot be read; the text includes a remedy.
    Unreadable(String),
    Output(io::Error),
}

impl JournalError {
    pub(crate) fn status(&self) -> u8 {
        match self {
            JournalError::Damaged(_) => EXIT_DAMAGED,
            JournalError::Unreadable(_) | JournalError::Output(_) => EXIT_UNREADABLE,
        }
    }

    pub(crate) fn has_message(&self) -> bool {
        !matches!(self, JournalError::Damaged(None))
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Damaged(words) => f.write_str(words.as_deref().unwrap_or("the journal is damaged")),
            JournalError::Unreadable(words) => f.write_str(words),
            JournalError::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

impl Error for JournalError {}

impl From<io::Error> for JournalError {
    fn from(error: io::Error) -> JournalError {
        JournalError::Output(error)
    }
}

struct StreamDirectory {
    name: String,
    disk: FileDisk,
}

impl StreamDirectory {
    fn at(path: &Path) -> Result<StreamDirectory, JournalError> {
        let name = match path.file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => path.display().to_string(),
        };
        let disk = FileDisk::existing(path).map_err(|error| JournalError::Unreadable(error.to_string()))?;
        Ok(StreamDirectory { name, disk })
    }

    /// Reads the directory, again if a server removes a file meanwhile.
    fn inspect(&self) -> Result<Inspection<FileDisk>, JournalError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Inspection::of(self.disk.clone()) {
                Ok(inspection) => return Ok(inspection),
                Err(error) if attempts < INSPECTIONS_MAX && is_gone(&error) => {}
                Err(error) => return Err(JournalError::Unreadable(error.to_string())),
            }
        }
    }

    /// The process that holds the stream, as text.
    fn holder(&self) -> Option<String> {
        self.disk.holder().map(|process| format!("in use by process {process}"))
    }

    fn location(&self) -> String {
        self.disk.location()
    }
}

fn is_gone(error: &OpenError) -> bool {
    matches!(error, OpenError::Disk { source, .. } if source.kind() == ErrorKind::NotFound)
}

enum PathTarget {
    OneStream(StreamDirectory),
    /// A directory of streams, sorted by name.
    StreamFolder(Vec<StreamDirectory>),
}

/// Resolves a path, or explains why it names no stream.
fn resolve_path(path: &Path) -> Result<PathTarget, JournalError> {
    let refused = |error: io::Error| JournalError::Unreadable(describe_path_error(path, &error));
    let is_directory = fs::metadata(path).map_err(refused)?.is_dir();
    if !is_directory {
        return Err(JournalError::Unreadable(format!(
            "{} is a file: name its stream's directory, or the data directory",
            path.display()
        )));
    }
    if FileDisk::contains_stream(path).map_err(refused)? {
        return Ok(PathTarget::OneStream(StreamDirectory::at(path)?));
    }
    let streams = streams_in(path).map_err(refused)?;
    if streams.is_empty() {
        return Err(JournalError::Unreadable(format!(
            "{} contains no stream: streams are in the directory of the server's --data (default ./stilling-data), from the first durable message on",
            path.display()
        )));
    }
    let streams = streams.iter().map(|stream| StreamDirectory::at(stream)).collect::<Result<_, _>>()?;
    Ok(PathTarget::StreamFolder(streams))
}

/// The single stream that a path names.
fn stream(path: &Path) -> Result<StreamDirectory, JournalError> {
    match resolve_path(path)? {
        PathTarget::OneStream(stream) => Ok(stream),
        PathTarget::StreamFolder(streams) => {
            let first = path.join(&streams[0].name);
            let names: Vec<_> = streams.iter().map(|stream| stream.name.as_str()).collect();
            let (path, names) = (path.display(), names.join(", "));
            Err(JournalError::Unreadable(format!(
                "{path} is a directory of streams: {names}; name one, such as {}",
                first.display()
            )))
        }
    }
}

fn streams_in(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut streams = Vec::new();
    for entry in fs::read_dir(path)? {
        let inside = entry?.path();
        // An unreadable directory counts as a stream; the error appears when it is read.
        if inside.is_dir() && FileDisk::contains_stream(&inside).unwrap_or(true) {
            streams.push(inside);
        }
    }
    streams.sort();
    Ok(streams)
}

/// Why a path cannot be read, with the nearest existing name.
fn describe_path_error(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    match error.kind() {
        ErrorKind::NotFound => {}
        ErrorKind::PermissionDenied => {
            return format!("cannot read {shown} as this user: run as the user of the server");
        }
        _ => return format!("cannot read {shown}: {error}"),
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let streams = streams_in(above).unwrap_or_default();
    let names: Vec<_> = streams
        .iter()
        .filter_map(|stream| Some(stream.file_name()?.to_string_lossy().into_owned()))
        .collect();
    if names.is_empty() {
        return format!(
            "{shown} does not exist: name the directory of the server's --data (default ./stilling-data), or a stream in it"
        );
    }
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (above, all) = (above.display(), names.join(", "));
    match nearest(&wanted, names.iter().map(String::as_str)) {
        Some(meant) => format!("there is no stream {wanted} in {above}: did you mean {meant}? It has: {all}"),
        None => format!("there is no stream {wanted} in {above}; it has: {all}"),
    }
}

/// A time as RFC 3339, or `-` for an unknown time (0).
fn time(time_ns: u64) -> String {
    if time_ns == 0 {
        return "-".to_owned();
    }
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(time_ns);
    humantime::format_rfc3339_millis(time).to_string()
}
