//! `stilling journal ls`: a line for each stream of a directory, or for each segment of a stream.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::{JournalError, PathTarget, StreamDirectory, resolve_path, time};

#[derive(Args)]
pub(super) struct LsArguments {
    /// A server's data directory, or a stream in it
    #[arg(default_value = "stilling-data")]
    path: PathBuf,
}

impl LsArguments {
    pub(super) fn run(self) -> Result<(), JournalError> {
        let mut unreadable = None;
        let lines = match resolve_path(&self.path)? {
            PathTarget::OneStream(stream) => segments(&stream)?,
            PathTarget::StreamFolder(streams) => {
                let heads =
                    ["stream", "records", "first", "last", "bytes", "segments", "from", "until", "end"];
                let mut lines = vec![heads.map(str::to_owned).to_vec()];
                for stream in streams {
                    match row(&stream) {
                        Ok(line) => lines.push(line),
                        // The other streams are still listed.
                        Err(stop) => unreadable = Some(stop),
                    }
                }
                lines
            }
        };
        std::io::stdout().lock().write_all(table(&lines).as_bytes())?;
        unreadable.map_or(Ok(()), Err)
    }
}

fn row(stream: &StreamDirectory) -> Result<Vec<String>, JournalError> {
    let inspection = stream.inspect()?;
    let list = inspection.list();
    let records: u64 = list.iter().map(|segment| (segment.last + 1).saturating_sub(segment.first)).sum();
    let bytes: u64 = list.iter().map(|segment| segment.size).sum();
    let (first, last) = (list.first(), list.last());
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let end = match (stream.holder(), inspection.is_ended()) {
        (Some(holder), _) => holder,
        (None, true) => "clean".to_owned(),
        (None, false) => "not ended".to_owned(),
    };
    Ok(vec![
        stream.name.clone(),
        records.to_string(),
        number(first.map(|segment| segment.first)),
        number(last.map(|segment| segment.last)),
        bytes.to_string(),
        list.len().to_string(),
        time(first.map_or(0, |segment| segment.created_ns)),
        time(last.map_or(0, |segment| segment.newest_ns)),
        end,
    ])
}

fn segments(stream: &StreamDirectory) -> Result<Vec<Vec<String>>, JournalError> {
    let heads = ["segment", "records", "first", "last", "bytes", "from", "until"];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    lines.extend(stream.inspect()?.list().into_iter().map(|segment| {
        vec![
            segment.file,
            (segment.last + 1).saturating_sub(segment.first).to_string(),
            segment.first.to_string(),
            segment.last.to_string(),
            segment.size.to_string(),
            time(segment.created_ns),
            time(segment.newest_ns),
        ]
    }));
    Ok(lines)
}

/// Formats columns of minimum width; numbers are right-aligned.
fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let is_number = |column: usize| {
        lines
            .iter()
            .skip(1)
            .all(|line| line[column].bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
    };
    let shapes: Vec<_> = (0..columns).map(|column| (width(column), is_number(column))).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&shapes).map(|(cell, &(width, is_number))| match is_number {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
