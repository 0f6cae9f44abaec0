//! The command `stilling::onflood`: scripts that run when a SYN flood begins or ends.
//!
//! ```text
//!  the watch's thread:   change ─▶ recent changes ─▶ wakes the threads that have scripts
//!  a thread with scripts: event source ─▶ queued event ─▶ scripts
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use stilling_engine::listen_watch::{ListenEvent, ListenWatch};

use crate::recent_events::RecentEvents;
use crate::tcl::{
    self, CommandResult, DeleteGuard, EventFlags, EventSource, EventSourceGuard, Interp, ThreadId, Value,
    Words,
};

/// Recent begins and ends of floods. A thread that runs no event loop meanwhile misses older ones.
const FLOOD_CHANGES_MAX: usize = 16;

#[derive(Clone, Copy, Debug)]
enum FloodChange {
    Began { unanswered: u64, has_cookies: bool },
    Ended { lasted_ms: u64 },
}

static RECENT: RecentEvents<FloodChange> = RecentEvents::new(FLOOD_CHANGES_MAX);

/// The threads that have scripts. Woken under the lock; a thread is removed before it ends.
static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

fn threads() -> MutexGuard<'static, Vec<ThreadId>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the watch's thread: records a change and wakes the threads that have scripts.
fn on_listen_event(event: &ListenEvent) {
    let change = match *event {
        ListenEvent::FloodBegan { unanswered, has_cookies, .. } => {
            FloodChange::Began { unanswered, has_cookies }
        }
        ListenEvent::FloodEnded { lasted, .. } => {
            FloodChange::Ended { lasted_ms: u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX) }
        }
        _ => return,
    };
    RECENT.push(change);
    for thread in &*threads() {
        // SAFETY: a thread is removed from the list, under this lock, before it ends.
        unsafe { thread.alert() };
    }
}

struct FloodScript {
    interp: Interp,
    script: Value,
    delete_guard: DeleteGuard,
}

/// The scripts of one thread.
struct FloodScripts {
    scripts: RefCell<Vec<FloodScript>>,
    /// Changes that were reported to the scripts, or were before the first of them.
    reported: Cell<u64>,
    is_event_queued: Cell<bool>,
    source: Cell<Option<EventSourceGuard<FloodScripts>>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<FloodScripts>>> = const { RefCell::new(None) };
}

/// `stilling::onflood ?script?`: returns the interpreter's script, or replaces it; an empty one removes it.
pub(crate) fn onflood(interp: Interp, words: &Words<'_>) -> CommandResult {
    match words.len() {
        1 => {
            let script = FloodScripts::current().and_then(|scripts| scripts.script_of(interp));
            interp.set_result(&script.unwrap_or_else(|| Value::text("")));
        }
        2 => FloodScripts::get().replace(interp, words.get(1).expect("there are two words")),
        _ => return Err(interp.fail("wrong # args: should be \"stilling::onflood ?script?\"")),
    }
    Ok(())
}

impl FloodScripts {
    /// The scripts of the current thread; created by the first call.
    fn get() -> Rc<FloodScripts> {
        if let Some(scripts) = Self::current() {
            return scripts;
        }
        let scripts = Rc::new(FloodScripts {
            scripts: RefCell::default(),
            reported: Cell::new(RECENT.count()),
            is_event_queued: Cell::new(false),
            source: Cell::new(Some(EventSourceGuard::new())),
        });
        CURRENT.with_borrow_mut(|current| *current = Some(Rc::clone(&scripts)));
        threads().push(ThreadId::current());
        tcl::on_thread_exit(|| {
            threads().retain(|thread| *thread != ThreadId::current());
            if let Some(scripts) = CURRENT.with_borrow_mut(Option::take) {
                scripts.source.take();
            }
        });
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| ListenWatch::global().on_change(on_listen_event));
        scripts
    }

    fn script_of(&self, interp: Interp) -> Option<Value> {
        let scripts = self.scripts.borrow();
        scripts.iter().find(|entry| entry.interp == interp).map(|entry| entry.script.clone())
    }

    fn replace(&self, interp: Interp, script: Value) {
        // Dropped after the borrow, like the guard in it.
        drop(self.remove(interp));
        if script.to_text().is_empty() {
            return;
        }
        let delete_guard = interp.on_delete(move || {
            if let Some(entry) = Self::current().and_then(|scripts| scripts.remove(interp)) {
                entry.delete_guard.forget();
            }
        });
        self.scripts.borrow_mut().push(FloodScript { interp, script, delete_guard });
    }

    fn remove(&self, interp: Interp) -> Option<FloodScript> {
        let mut scripts = self.scripts.borrow_mut();
        let at = scripts.iter().position(|entry| entry.interp == interp)?;
        Some(scripts.remove(at))
    }

    fn has_changes(&self) -> bool {
        RECENT.count() != self.reported.get()
    }

    fn run_scripts(&self, change: FloodChange) {
        let words = change.words();
        let interps: Vec<Interp> = self.scripts.borrow().iter().map(|entry| entry.interp).collect();
        for interp in interps {
            // An earlier script may have deleted the interpreter or its script.
            if let Some(script) = self.script_of(interp) {
                interp.evaluate_in_background(&script.with_words(&[&words]));
            }
        }
    }
}

impl FloodChange {
    /// The words that follow the script: the kind of change, and a dictionary.
    fn words(self) -> String {
        let (kind, details) = match self {
            FloodChange::Began { unanswered, has_cookies } => (
                "began",
                Value::dict([
                    ("unanswered", Value::integer(unanswered as i64)),
                    ("cookies", Value::integer(i64::from(has_cookies))),
                ]),
            ),
            FloodChange::Ended { lasted_ms } => {
                ("ended", Value::dict([("lasted_ms", Value::integer(lasted_ms as i64))]))
            }
        };
        Value::list([Value::text(kind), details]).to_text().into_owned()
    }
}

impl EventSource for FloodScripts {
    fn prepare(&self, permitted: EventFlags) {
        if permitted.permit_channels() && self.has_changes() {
            tcl::limit_wait(std::time::Duration::ZERO);
        }
    }

    fn check(&self, permitted: EventFlags) {
        if permitted.permit_channels() && self.has_changes() && !self.is_event_queued.replace(true) {
            EventSourceGuard::<FloodScripts>::queue(0);
        }
    }

    fn handle(&self, _: u64, permitted: EventFlags) -> bool {
        if !permitted.permit_channels() {
            return false;
        }
        self.is_event_queued.set(false);
        for change in RECENT.take_after(&self.reported) {
            self.run_scripts(change);
        }
        true
    }

    fn current() -> Option<Rc<FloodScripts>> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }
}
