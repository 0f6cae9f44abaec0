//! The command `stilling::trace`: events of this thread's sockets, one line each, for a script or standard error.
//!
//! ```text
//!  record ─▶ standard error
//!         └▶ queue ─▶ Tcl's event ─▶ script
//! ```
//!
//! Lines for a script wait in a bounded queue until the event loop runs it: no script runs inside a driver. While it
//! runs nothing is recorded, and never anything about the channels that it opens; so a script that opens sockets does
//! not feed itself.

mod watch_changes;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

pub(crate) use self::watch_changes::record_watch_changes;

use crate::tcl::{
    self, Channel, CommandResult, DeleteGuard, EventFlags, EventSource, EventSourceGuard, Interp, Value,
    Words,
};
use crate::thread_sockets::ThreadSockets;

/// Lines that wait for the script. More are counted and dropped.
const TRACE_LINES_MAX: usize = 1_000;

/// The kind of a recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceEvent {
    Open,
    Connect,
    Connected,
    ConnectFailed,
    LookUp,
    LookedUp,
    Accept,
    AcceptDropped,
    AcceptPaused,
    Backlog,
    Flood,
    Error,
    Leave,
    Enter,
    Close,
    /// Lines were dropped.
    Lost,
}

impl TraceEvent {
    /// The events with their names, in the order of their declaration.
    const ALL: [(TraceEvent, &'static str); 16] = [
        (TraceEvent::Open, "open"),
        (TraceEvent::Connect, "connect"),
        (TraceEvent::Connected, "connected"),
        (TraceEvent::ConnectFailed, "connect-failed"),
        (TraceEvent::LookUp, "look-up"),
        (TraceEvent::LookedUp, "looked-up"),
        (TraceEvent::Accept, "accept"),
        (TraceEvent::AcceptDropped, "accept-dropped"),
        (TraceEvent::AcceptPaused, "accept-paused"),
        (TraceEvent::Backlog, "backlog"),
        (TraceEvent::Flood, "flood"),
        (TraceEvent::Error, "error"),
        (TraceEvent::Leave, "leave"),
        (TraceEvent::Enter, "enter"),
        (TraceEvent::Close, "close"),
        (TraceEvent::Lost, "lost"),
    ];
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceOutput {
    Off,
    StandardError,
    Script,
}

struct TraceScript {
    interp: Interp,
    script: Value,
    delete_guard: DeleteGuard,
}

/// The lines for the script.
#[derive(Default)]
struct TraceQueue {
    lines: VecDeque<String>,
    dropped: u64,
    is_event_queued: bool,
}

thread_local! {
    static OUTPUT: Cell<TraceOutput> = const { Cell::new(TraceOutput::Off) };
    /// The script runs.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
    /// An exit handler removes the script.
    static ENDS_WITH_THREAD: Cell<bool> = const { Cell::new(false) };
    static SCRIPT: RefCell<Option<TraceScript>> = const { RefCell::new(None) };
    static QUEUE: RefCell<TraceQueue> = RefCell::default();
}

/// Whether events are recorded now. All that a socket costs while they are not.
pub(crate) fn is_on() -> bool {
    OUTPUT.get() != TraceOutput::Off && !IS_RUNNING.get()
}

/// Whether events of a new channel may be recorded: the script did not open it.
pub(crate) fn may_trace_new_channel() -> bool {
    !IS_RUNNING.get()
}

/// Records an event of a channel, or of a socket without one. Runs no script.
pub(crate) fn record(event: TraceEvent, channel: Option<Channel>, detail: impl FnOnce() -> String) {
    if !is_on() {
        return;
    }
    let name = channel.map_or_else(|| "-".to_owned(), Channel::name);
    let line = line(event, &name, &detail());
    match OUTPUT.get() {
        TraceOutput::Off => {}
        // There is no place for an error of that.
        TraceOutput::StandardError => drop(writeln!(std::io::stderr(), "stilling: {line}")),
        TraceOutput::Script => QUEUE.with_borrow_mut(|queue| queue.add(line)),
    }
}

/// The time in seconds since 1970, the event, the channel, and the rest.
fn line(event: TraceEvent, name: &str, detail: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let space = if detail.is_empty() { "" } else { " " };
    format!("{}.{:06} {event} {name}{space}{detail}", now.as_secs(), now.subsec_micros())
}

impl TraceQueue {
    fn add(&mut self, line: String) {
        if self.lines.len() == TRACE_LINES_MAX {
            self.dropped += 1;
            return;
        }
        self.lines.push_back(line);
        if !std::mem::replace(&mut self.is_event_queued, true) {
            EventSourceGuard::<TraceLines>::queue(0);
            // The thread may be about to wait.
            tcl::limit_wait(Duration::ZERO);
        }
    }

    /// All lines so far, with one about those that were dropped.
    fn take(&mut self) -> VecDeque<String> {
        self.is_event_queued = false;
        let mut lines = std::mem::take(&mut self.lines);
        match std::mem::take(&mut self.dropped) {
            0 => {}
            dropped => lines.push_back(line(TraceEvent::Lost, "-", &format!("{dropped} lines"))),
        }
        lines
    }
}

/// `stilling::trace ?on|off|script?`: returns what is set, or sets it for this thread.
pub(crate) fn trace(interp: Interp, words: &Words<'_>) -> CommandResult {
    match words.len() {
        1 => interp.set_result(&current()),
        2 => set(interp, words.get(1).expect("there are two words")),
        _ => return Err(interp.fail("wrong # args: should be \"stilling::trace ?on|off|script?\"")),
    }
    Ok(())
}

fn current() -> Value {
    let script = SCRIPT.with_borrow(|script| script.as_ref().map(|script| script.script.clone()));
    match (OUTPUT.get(), script) {
        (TraceOutput::StandardError, _) => Value::text("on"),
        (TraceOutput::Script, Some(script)) => script,
        _ => Value::text("off"),
    }
}

fn set(interp: Interp, value: Value) {
    stop();
    match &*value.to_text() {
        "off" | "" => return,
        "on" => OUTPUT.set(TraceOutput::StandardError),
        _ => {
            let delete_guard = interp.on_delete(move || {
                // Another interpreter may have set its script meanwhile.
                let own = SCRIPT.with_borrow_mut(|script| script.take_if(|script| script.interp == interp));
                if let Some(script) = own {
                    OUTPUT.set(TraceOutput::Off);
                    script.delete_guard.forget();
                }
            });
            let script = TraceScript { interp, script: value.clone(), delete_guard };
            SCRIPT.with_borrow_mut(|current| *current = Some(script));
            OUTPUT.set(TraceOutput::Script);
            if !ENDS_WITH_THREAD.replace(true) {
                tcl::on_thread_exit(stop);
            }
        }
    }
    watch_changes::begin();
    ThreadSockets::begin_trace();
}

/// Ends the trace; lines that wait are dropped.
fn stop() {
    OUTPUT.set(TraceOutput::Off);
    // Dropped after the borrow.
    let removed = SCRIPT.with_borrow_mut(Option::take);
    drop(removed);
    QUEUE.with_borrow_mut(|queue| {
        queue.lines.clear();
        queue.dropped = 0;
    });
}

/// The source of the events that run the script. It is not registered: it only handles queued events.
struct TraceLines;

impl EventSource for TraceLines {
    fn prepare(&self, _: EventFlags) {}

    fn check(&self, _: EventFlags) {}

    fn handle(&self, _: u64, permitted: EventFlags) -> bool {
        // A script that waits for events is not run again meanwhile.
        if !permitted.permit_channels() || IS_RUNNING.get() {
            return false;
        }
        IS_RUNNING.set(true);
        for line in QUEUE.with_borrow_mut(TraceQueue::take) {
            run_script(&line);
        }
        IS_RUNNING.set(false);
        true
    }

    fn current() -> Option<Rc<Self>> {
        Some(Rc::new(TraceLines))
    }
}

/// Runs the script for a line. An error ends the trace, like that of a file event.
fn run_script(line: &str) {
    // An earlier line may have changed it.
    let script =
        SCRIPT.with_borrow(|script| script.as_ref().map(|script| (script.interp, script.script.clone())));
    let Some((interp, script)) = script else { return };
    let word = Value::list([Value::text(line)]);
    if !interp.evaluate_in_background(&script.with_words(&[&word.to_text()])) {
        stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_names_every_event() {
        let manual = include_str!("../../../docs/tcl/stilling.n");
        let events =
            manual.split_once(".SH TRACE").and_then(|(_, rest)| rest.split_once(".SH")).expect("a section").0;
        for (at, (event, name)) in TraceEvent::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, at);
            assert_eq!(event.to_string(), name);
            assert!(events.replace("\\-", "-").contains(&format!("\\fB{name}\\fR")), "{name}");
        }
    }
}
