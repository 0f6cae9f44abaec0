//! Copies in the background: steps between other events, and the callback at the end.
//!
//! As in the core, the channels do not block during a copy, and a closed channel or a deleted interpreter ends the copy
//! without a callback. Here a channel that moves to another thread does so, too.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::copy::{CopyDirection, CopyStep, DirectCopy};
use super::{blocks, failure_text};
use crate::stream::Stream;
use crate::tcl::{
    self, Channel, ChannelObserver, CopyFailure, DeleteGuard, EventFlags, EventSource, EventSourceGuard,
    Interest, Interp, Value,
};

struct BackgroundCopy {
    input: Channel,
    output: Channel,
    stream: Rc<Stream>,
    direction: CopyDirection,
    /// Borrowed during a step. A script that a step runs may end the copy, but not step it.
    copy: RefCell<DirectCopy>,
    interp: Interp,
    command: Value,
    file: Channel,
    /// The name of the file's channel, by which a step finds it again: it may have moved to another thread.
    file_name: String,
    /// Channels that block again when the copy ends.
    blocking: RefCell<Vec<Channel>>,
}

/// The side of a copy that a channel is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CopySide {
    Input,
    Output,
}

#[derive(Default)]
struct CopyTable {
    copies: RefCell<CopyIndex>,
    /// The interpreters that have started a copy. One action for each: Tcl finds an action by a scan.
    interps: RefCell<Vec<(Interp, DeleteGuard)>>,
}

/// The copies of a thread, to be found without a scan.
#[derive(Default)]
struct CopyIndex {
    by_number: HashMap<u64, Rc<BackgroundCopy>>,
    by_channel: HashMap<(Channel, CopySide), u64>,
    /// By the address of the socket, which the copy owns, too.
    by_stream: HashMap<(*const Stream, CopyDirection), u64>,
}

/// The number of the next copy. It is never used again, since a channel that has moved to another thread still has it.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The copies of all threads, without those whose file has closed in another thread.
static OPEN_COPIES: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn open_copies() -> MutexGuard<'static, BTreeSet<u64>> {
    OPEN_COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static COPIES: Rc<CopyTable> = Rc::default();
    static ENDS_WITH_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether a channel is in use by a copy on this side. As in the core, its other direction is free for another copy.
pub(super) fn is_busy(channel: Channel, side: CopySide) -> bool {
    COPIES.with(|table| {
        let number = table.copies.borrow().by_channel.get(&(channel, side)).copied();
        // A file that has moved to another thread and closed there leaves its address to another channel.
        number.is_some_and(|number| open_copies().contains(&number))
    })
}

/// Starts a copy, whose first step is an event.
pub(super) fn start(copy: DirectCopy, interp: Interp, command: Value) {
    if !ENDS_WITH_THREAD.replace(true) {
        // Tcl closes channels later; the commands can only be released before.
        tcl::on_thread_exit(CopyTable::end_all);
    }
    let table = COPIES.with(Rc::clone);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let (input, output) = (copy.input, copy.output);
    let (of_input, of_output) = match copy.direction {
        CopyDirection::ToSocket => (Interest::NONE, Interest::WRITABLE),
        CopyDirection::FromSocket => (Interest::READABLE, Interest::NONE),
    };
    input.observe::<CopyTable>(of_input, number);
    output.observe::<CopyTable>(of_output, number);
    table.end_with(interp);
    let file = copy.file_channel();
    let entry = BackgroundCopy {
        input,
        output,
        stream: Rc::clone(&copy.stream),
        direction: copy.direction,
        copy: RefCell::new(copy),
        interp,
        command,
        file,
        file_name: file.name(),
        blocking: RefCell::default(),
    };
    entry.make_nonblocking();
    open_copies().insert(number);
    table.copies.borrow_mut().insert(number, Rc::new(entry));
    // The callback must not run within the command.
    EventSourceGuard::<CopyTable>::queue(number);
}

/// Ends the copies of a socket that leaves its thread.
pub(crate) fn end_copies_of(stream: &Stream) {
    // The table does not exist any more when the thread ends.
    let _ = COPIES.try_with(|table| {
        for direction in [CopyDirection::ToSocket, CopyDirection::FromSocket] {
            let number = table.copies.borrow().by_stream.get(&(ptr::from_ref(stream), direction)).copied();
            if let Some(number) = number {
                CopyTable::end(number);
            }
        }
    });
}

/// Continues the copy from a socket that a script has closed for reading, without a shutdown that the system would report.
pub(crate) fn continue_copy_from(stream: &Stream) {
    let _ = COPIES.try_with(|table| {
        let key = (ptr::from_ref(stream), CopyDirection::FromSocket);
        if let Some(&number) = table.copies.borrow().by_stream.get(&key) {
            EventSourceGuard::<CopyTable>::queue(number);
        }
    });
}

impl BackgroundCopy {
    fn channel_sides(&self) -> [(Channel, CopySide); 2] {
        [(self.input, CopySide::Input), (self.output, CopySide::Output)]
    }

    /// Ends the observation of the channels, which block again if they did before.
    fn detach_from_channels(&self, number: u64) {
        let has_file = self.has_file(number);
        for channel in [self.input, self.output] {
            // Without the copy, the observation of a file in another thread does nothing.
            if channel != self.file || has_file {
                self.detach_from_channel(channel, number);
            }
        }
        open_copies().remove(&number);
    }

    fn detach_from_channel(&self, channel: Channel, number: u64) {
        channel.end_observation::<CopyTable>(number);
        // A closed channel must not block: that would end its flush in the background.
        if !self.blocking.borrow().contains(&channel) || self.is_closed(channel) {
            return;
        }
        // A copy in the other direction still must not block.
        match CopyTable::other_copy(channel, number) {
            Some(other) => other.blocking.borrow_mut().push(channel),
            None => {
                channel.set_option(c"-blocking", c"1");
            }
        }
    }

    fn make_nonblocking(&self) {
        for channel in [self.input, self.output].into_iter().filter(|channel| blocks(*channel)) {
            channel.set_option(c"-blocking", c"0");
            let mut blocking = self.blocking.borrow_mut();
            if !blocking.contains(&channel) {
                blocking.push(channel);
            }
        }
    }

    /// Whether the file's channel is still one of this thread. It must not be used otherwise. (A socket that moves to
    /// another thread ends its copies.)
    fn has_file(&self, number: u64) -> bool {
        if !open_copies().contains(&number) {
            // Its name and its address may be those of another channel now.
            return false;
        }
        let is_in_interp = || {
            let found = Channel::find(self.interp, &self.file_name);
            found.is_some_and(|(channel, _)| channel == self.file)
        };
        // Another interpreter of the thread may have it.
        (!self.interp.is_deleted() && is_in_interp()) || Channel::exists(&self.file_name)
    }

    fn socket(&self) -> Channel {
        if self.file == self.input { self.output } else { self.input }
    }

    /// Whether a script has closed the channel, which stays until Tcl has written its output in the background.
    fn is_closed(&self, channel: Channel) -> bool {
        let is_registered = !self.interp.is_deleted() && channel.is_registered(self.interp);
        // Another interpreter may have it.
        !is_registered && channel.output_buffered() > 0 && channel.is_closed_by_script()
    }

    /// Makes a step. The scripts of transforms may end the copy; both channels stay open until the end of the step.
    fn step(&self, copy: &mut DirectCopy) -> Result<CopyStep, CopyFailure> {
        if copy.has_plain_channels() {
            if self.output.output_buffered() > 0 {
                // A script may have made it block since the start.
                self.make_nonblocking();
            }
            return copy.step();
        }
        for channel in [self.input, self.output] {
            channel.register(None);
        }
        self.make_nonblocking();
        let outcome = copy.step_through_channels();
        for channel in [self.input, self.output] {
            channel.unregister(None);
        }
        outcome
    }

    /// Ends the copy, which is not in the table any more, and runs its callback.
    fn run_callback(&self, number: u64, failure: Option<CopyFailure>) {
        let (interp, command) = (self.interp, self.command.clone());
        let copy = self.copy.borrow();
        let mut words = vec![Value::integer(copy.total() as i64)];
        if let Some(failure) = failure {
            words.push(Value::text(&failure_text(&copy, interp, failure)));
        }
        drop(copy);
        self.detach_from_channels(number);
        // As in the core, the callback is a list; a text that is no list is evaluated unchanged.
        let script = match command.elements(None) {
            Ok(elements) => Value::list(elements.into_iter().chain(words)),
            Err(_) => command,
        };
        interp.evaluate_in_background(&script);
    }
}

impl CopyIndex {
    fn insert(&mut self, number: u64, entry: Rc<BackgroundCopy>) {
        for side in entry.channel_sides() {
            self.by_channel.insert(side, number);
        }
        self.by_stream.insert((Rc::as_ptr(&entry.stream), entry.direction), number);
        self.by_number.insert(number, entry);
    }

    fn remove(&mut self, number: u64) -> Option<Rc<BackgroundCopy>> {
        let entry = self.by_number.remove(&number)?;
        for side in entry.channel_sides() {
            // A file that has moved to another thread and closed there leaves its address to another channel.
            if self.by_channel.get(&side) == Some(&number) {
                self.by_channel.remove(&side);
            }
        }
        self.by_stream.remove(&(Rc::as_ptr(&entry.stream), entry.direction));
        Some(entry)
    }
}

impl CopyTable {
    fn take(number: u64) -> Option<Rc<BackgroundCopy>> {
        COPIES.try_with(|table| table.copies.borrow_mut().remove(number)).ok().flatten()
    }

    fn get(number: u64) -> Option<Rc<BackgroundCopy>> {
        COPIES.try_with(|table| table.copies.borrow().by_number.get(&number).cloned()).ok().flatten()
    }

    /// Another copy of a channel.
    fn other_copy(channel: Channel, number: u64) -> Option<Rc<BackgroundCopy>> {
        let numbers = COPIES.try_with(|table| {
            let copies = table.copies.borrow();
            let number = |side| copies.by_channel.get(&(channel, side)).copied();
            [number(CopySide::Input), number(CopySide::Output)]
        });
        numbers.ok()?.into_iter().flatten().find(|other| *other != number).and_then(Self::get)
    }

    /// Ends the thread's copies without callbacks.
    fn end_all() {
        Self::end_matching(|_| true);
        drop(COPIES.with(|table| table.interps.take()));
    }

    fn end_matching(is_included: impl Fn(&BackgroundCopy) -> bool) {
        let numbers = COPIES.try_with(|table| {
            let copies = table.copies.borrow();
            let included = copies.by_number.iter().filter(|(_, entry)| is_included(entry));
            included.map(|(number, _)| *number).collect::<Vec<_>>()
        });
        for number in numbers.into_iter().flatten() {
            Self::end(number);
        }
    }

    /// Ends an interpreter's copies when it is deleted.
    fn end_with(&self, interp: Interp) {
        if self.interps.borrow().iter().any(|(known, _)| *known == interp) {
            return;
        }
        let guard = interp.on_delete(move || {
            Self::end_matching(|entry| entry.interp == interp);
            let _ = COPIES.try_with(|table| {
                let mut interps = table.interps.borrow_mut();
                if let Some(at) = interps.iter().position(|(known, _)| *known == interp) {
                    interps.swap_remove(at).1.forget();
                }
            });
        });
        self.interps.borrow_mut().push((interp, guard));
    }

    /// Ends a copy without a callback.
    fn end(number: u64) {
        if let Some(entry) = Self::take(number) {
            entry.detach_from_channels(number);
        }
    }

    fn step(number: u64) {
        let Some(entry) = Self::get(number) else { return };
        // A script of a step runs the event loop.
        let Ok(mut copy) = entry.copy.try_borrow_mut() else { return };
        if !entry.has_file(number) || entry.is_closed(entry.socket()) {
            drop(copy);
            return Self::end(number);
        }
        // As in the core, an input that a script has closed for reading is at its end.
        let outcome = if entry.input.is_readable() { entry.step(&mut copy) } else { Ok(CopyStep::Done) };
        drop(copy);
        let failure = match outcome {
            Ok(CopyStep::More | CopyStep::Blocked) => return,
            Ok(CopyStep::Done) => None,
            Err(failure) => Some(failure),
        };
        // A script of the step may have ended the copy.
        if let Some(entry) = Self::take(number) {
            entry.run_callback(number, failure);
        }
    }
}

impl ChannelObserver for CopyTable {
    fn ready(number: u64) {
        Self::step(number);
    }

    fn closing(number: u64) {
        Self::end(number);
        // For a file that has moved: the thread of the copy must not use it any more.
        open_copies().remove(&number);
    }
}

/// The first step of a copy; the table is no source of other events.
impl EventSource for CopyTable {
    fn prepare(&self, _: EventFlags) {}

    fn check(&self, _: EventFlags) {}

    fn handle(&self, number: u64, permitted: EventFlags) -> bool {
        if permitted.permit_channels() {
            Self::step(number);
        }
        permitted.permit_channels()
    }

    fn current() -> Option<Rc<Self>> {
        COPIES.try_with(Rc::clone).ok()
    }
}
