//! `stilling journal verify`: reads and checks every byte.
//!
//! A finding is reported only if two further reads confirm it: the first one may meet an unfinished write of a server,
//! which later reads find complete or elsewhere.

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use stilling_journal::inspect::VerifyReport;

use super::{INSPECTIONS_MAX, JournalError, PathTarget, StreamDirectory, is_gone, resolve_path};

/// Delay before each further read of a stream in use, so that an unfinished write completes.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(super) struct VerifyArguments {
    /// A server's data directory, or a stream in it
    #[arg(default_value = "stilling-data")]
    path: PathBuf,
}

impl VerifyArguments {
    pub(super) fn run(self) -> Result<(), JournalError> {
        let streams = match resolve_path(&self.path)? {
            PathTarget::OneStream(stream) => vec![stream],
            PathTarget::StreamFolder(streams) => streams,
        };
        let mut stop = None;
        let mut out = std::io::stdout().lock();
        for stream in streams {
            let holder = stream.holder();
            match verdict(&stream) {
                Ok(verdict) => {
                    write!(out, "{}: {verdict}", stream.name)?;
                    if let Some(holder) = holder {
                        writeln!(out, "{} is {holder}: later writes are not verified", stream.name)?;
                    }
                    if !verdict.is_intact() && stop.is_none() {
                        stop = Some(JournalError::Damaged(None));
                    }
                }
                Err(JournalError::Unreadable(words)) => {
                    // The other streams are still verified.
                    writeln!(std::io::stderr(), "stilling: {}: {words}", stream.name)?;
                    stop = Some(JournalError::Unreadable("not everything could be read".to_owned()));
                }
                Err(other) => return Err(other),
            }
        }
        out.flush()?;
        stop.map_or(Ok(()), Err)
    }
}

fn verdict(stream: &StreamDirectory) -> Result<VerifyReport, JournalError> {
    let mut verdict = verify_stream(stream)?;
    for _ in 0..2 {
        if verdict.is_intact() {
            break;
        }
        if stream.holder().is_some() {
            thread::sleep(PAUSE);
        }
        let again = verify_stream(stream)?;
        verdict.findings.confirm(&again.findings);
    }
    Ok(verdict)
}

/// Reads everything, again if a server removes a file meanwhile.
fn verify_stream(stream: &StreamDirectory) -> Result<VerifyReport, JournalError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match stream.inspect()?.verify() {
            Ok(verdict) => return Ok(verdict),
            Err(error) if attempts < INSPECTIONS_MAX && is_gone(&error) => {}
            Err(error) => return Err(JournalError::Unreadable(error.to_string())),
        }
    }
}
