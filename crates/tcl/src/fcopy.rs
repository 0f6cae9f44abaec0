//! The command `stilling::fcopy`: `fcopy` of Tcl's core, in the system where that is possible.
//!
//! From a regular file to a socket of this extension, or back, the bytes do not pass through the process: sendfile(2)
//! and splice(2) move them. Both channels must be binary and without transforms. Everything else, and every error in
//! the words, is left to the core's command.
//!
//! The core marks channels as busy during a copy, for which there is no public function. During a copy in the
//! background by this command, reads and writes of the channels succeed: they take bytes from it, or insert some.

mod background;
mod copy;

use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};

use self::copy::{CopyDirection, DirectCopy};
use crate::dialect::Dialect;
use crate::stream::Stream;
use crate::tcl::{Channel, CommandResult, CopyFailure, Interest, Interp, Value, Words, is_tcl_9};

use self::background::CopySide;
pub(crate) use self::background::{continue_copy_from, end_copies_of};

/// The core's command: the name in its ensemble, which `stilling::install -fcopy` does not replace.
const CORE_COMMAND: &std::ffi::CStr = c"::tcl::chan::copy";

/// The words of a call that the core would accept.
struct FcopyWords {
    input: String,
    output: String,
    /// Bytes to copy; `None`: to the end of the input.
    size: Option<u64>,
    command: Option<Value>,
}

/// `stilling::fcopy input output ?-size size? ?-command callback?`.
pub(crate) fn fcopy(interp: Interp, words: &Words<'_>) -> CommandResult {
    let Some(call) = FcopyWords::parse(words) else { return run_core(interp, words) };
    for (name, side) in [(&call.input, CopySide::Input), (&call.output, CopySide::Output)] {
        let found = Channel::find(interp, name);
        if found.is_some_and(|(channel, _)| background::is_busy(channel, side)) {
            return Err(interp.fail(&format!("channel \"{name}\" is busy")));
        }
    }
    let Some(copy) = call.direct_copy(interp) else { return run_core(interp, words) };
    for checked in [copy.input.read(&mut []).map(drop), copy.output.check_write()] {
        // The core reports why; a copy of its own is the usual reason.
        if checked.is_err() {
            return run_core(interp, words);
        }
    }
    match call.command {
        Some(command) => {
            background::start(copy, interp, command);
            Ok(())
        }
        None => run_blocking(copy, interp),
    }
}

fn run_core(interp: Interp, words: &Words<'_>) -> CommandResult {
    let outcome = words.run_command(interp, CORE_COMMAND);
    outcome.unwrap_or_else(|| Err(interp.fail("the command \"chan copy\" is missing")))
}

fn run_blocking(mut copy: DirectCopy, interp: Interp) -> CommandResult {
    match copy.run_to_end() {
        Ok(()) => {
            interp.set_result(&Value::integer(copy.total() as i64));
            Ok(())
        }
        Err(failure) => Err(interp.fail(&failure_text(&copy, interp, failure))),
    }
}

/// The message that the core has for a failed copy; sets `errorCode`.
fn failure_text(copy: &DirectCopy, interp: Interp, failure: CopyFailure) -> String {
    let (verb, channel, error) = match failure {
        CopyFailure::Read(error) => ("reading", copy.input, error),
        CopyFailure::Write(error) => ("writing", copy.output, error),
    };
    let text = interp.posix_error(error);
    format!("error {verb} \"{}\": {text}", channel.name())
}

impl FcopyWords {
    /// `None`: the core handles these words: errors, and `-size 0`.
    fn parse(words: &Words<'_>) -> Option<FcopyWords> {
        if !matches!(words.len(), 3 | 5 | 7) {
            return None;
        }
        let mut call = FcopyWords { input: words.text(1), output: words.text(2), size: None, command: None };
        for at in (3..words.len()).step_by(2) {
            let (name, value) = (words.text(at), words.get(at + 1)?);
            let is_option = |option: &str| name.len() > 1 && option.starts_with(&name);
            if is_option("-size") {
                let size = value.to_wide()?;
                call.size = u64::try_from(size).ok();
                if size == 0 {
                    return None;
                }
            } else if is_option("-command") {
                call.command = Some(value);
            } else {
                return None;
            }
        }
        Some(call)
    }

    /// The copy, if the system can make it.
    fn direct_copy(&self, interp: Interp) -> Option<DirectCopy> {
        let (input, input_directions) = Channel::find(interp, &self.input)?;
        let (output, output_directions) = Channel::find(interp, &self.output)?;
        let fits = input_directions.has(Interest::READABLE)
            && output_directions.has(Interest::WRITABLE)
            && are_plain(input, output)
            && (self.command.is_some() || (blocks(input) && blocks(output)));
        if !fits {
            return None;
        }
        let (stream, file, direction) = match (stream_of(input), stream_of(output)) {
            (None, Some(stream)) if input.output_buffered() == 0 => {
                (stream, regular_file(input, Interest::READABLE)?, CopyDirection::ToSocket)
            }
            (Some(stream), None) if output.input_buffered() == 0 => {
                (stream, regular_file(output, Interest::WRITABLE)?, CopyDirection::FromSocket)
            }
            _ => return None,
        };
        if direction == CopyDirection::FromSocket && stream.receives_ahead() {
            return None;
        }
        DirectCopy::new(input, output, stream, file, direction, self.size)
    }
}

fn blocks(channel: Channel) -> bool {
    channel.has_option(c"-blocking", |text| text == "1")
}

fn are_plain(input: Channel, output: Channel) -> bool {
    is_plain(input, Interest::READABLE) && is_plain(output, Interest::WRITABLE)
}

/// Whether the bytes of a channel are what a script reads or writes in this direction.
fn is_plain(channel: Channel, direction: Interest) -> bool {
    let binary = if is_tcl_9() { "iso8859-1" } else { "binary" };
    // A channel with both directions has a list of two: the input's, the output's.
    let is_lf = |text: &str| {
        let mut values = text.split(' ');
        let value = if direction == Interest::READABLE { values.next() } else { values.next_back() };
        value == Some("lf")
    };
    !channel.is_stacked()
        && channel.has_option(c"-translation", is_lf)
        && channel.has_option(c"-encoding", |text| text == binary)
        && channel.has_option(c"-eofchar", |text| matches!(text, "" | "{}" | "{} {}"))
}

fn stream_of(channel: Channel) -> Option<Rc<Stream>> {
    [Dialect::Core, Dialect::Iocpsock]
        .into_iter()
        .find_map(|dialect| channel.driver_of::<Stream>(dialect.stream_type()))
}

/// The descriptor of a channel for a regular file. splice(2) cannot append.
fn regular_file(channel: Channel, direction: Interest) -> Option<RawFd> {
    if channel.type_name() != "file" {
        return None;
    }
    let raw = channel.descriptor(direction)?;
    // SAFETY: the descriptor of a live channel, which is not closed during this call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(raw) };
    let is_regular = FileType::from_raw_mode(fstat(descriptor).ok()?.st_mode) == FileType::RegularFile;
    let appends = fcntl_getfl(descriptor).ok()?.contains(OFlags::APPEND);
    (is_regular && !appends).then_some(raw)
}
