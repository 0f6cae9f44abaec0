//! The form of `socket2` that looks up a host name.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::addresses::{Family, LookupError, host_number};
use crate::command::{bad_option, io_failure};
use crate::lookup::{HostQuery, Lookup, LookupOutcome, outcome_text};
use crate::slab::SlabKey;
use crate::stream::ConnectPair;
use crate::tcl::{CommandFailed, CommandResult, DeleteGuard, EventSource, Interp, Value, Words};
use crate::thread_sockets::{SocketChannel, ThreadSockets};
use crate::trace::{self, TraceEvent};

const SWITCHES: [&str; 2] = ["-command", "-lookup"];

/// `socket2 -lookup name ?-command script?`
pub(crate) fn look_up_host(interp: Interp, words: &Words<'_>) -> CommandResult {
    let (host, script) = parse(interp, words)?;
    let query = HostQuery { host, port: 0, local_host: None, local_port: 0, family: Family::of(interp) };
    match script {
        None => {
            let outcome = query.run();
            trace::record(TraceEvent::LookedUp, None, || outcome_text(&query.host, &outcome));
            let pairs = outcome.map_err(|error| failed(interp, &query.host, error))?;
            interp.set_result(&address_list(&pairs));
            Ok(())
        }
        Some(script) => ScriptLookup::start(interp, query, script),
    }
}

/// The name and the script.
fn parse(interp: Interp, words: &Words<'_>) -> Result<(String, Option<Value>), CommandFailed> {
    let (mut host, mut script) = (None, None);
    let mut at = 1;
    while at < words.len() {
        let word = words.text(at);
        let Some(&name) = SWITCHES.iter().find(|name| **name == word) else {
            if word.starts_with('-') {
                return Err(bad_option(interp, &word, &SWITCHES));
            }
            return Err(usage(interp, words));
        };
        let Some(value) = words.get(at + 1) else {
            return Err(interp.fail(&format!("no argument given for {name} option")));
        };
        match name {
            "-lookup" => host = Some(value.to_text().into_owned()),
            _ => script = Some(value),
        }
        at += 2;
    }
    Ok((host.ok_or_else(|| usage(interp, words))?, script))
}

fn usage(interp: Interp, words: &Words<'_>) -> CommandFailed {
    interp.set_error_code(&["TCL", "WRONGARGS"]);
    let name = words.command_name();
    interp.fail(&format!("wrong # args: should be \"{name} -lookup name ?-command script?\""))
}

fn failed(interp: Interp, host: &str, error: LookupError) -> CommandFailed {
    let text = error.text();
    interp.set_error_code(&["STILLING", "LOOKUP", &error.name(), &text]);
    interp.fail(&format!("couldn't look up \"{host}\": {text}"))
}

/// The addresses of a host, each once.
fn address_list(pairs: &[ConnectPair]) -> Value {
    let addresses = HostQuery::remote_addresses(pairs);
    Value::list(addresses.into_iter().map(|address| Value::text(&host_number(address))))
}

/// A script that waits for a look-up.
pub(crate) struct ScriptLookup {
    script: Value,
    /// `None`: it was deleted.
    interp: Cell<Option<Interp>>,
    delete_guard: RefCell<Option<DeleteGuard>>,
    lookup: RefCell<Option<Lookup>>,
    outcome: RefCell<Option<LookupOutcome>>,
    /// The script of a trace did not start it.
    may_trace: bool,
}

impl ScriptLookup {
    fn start(interp: Interp, query: HostQuery, script: Value) -> CommandResult {
        let sockets = ThreadSockets::get()
            .map_err(|error| io_failure(interp, &format!("couldn't look up \"{}\"", query.host), &error))?;
        let waiting = Rc::new(ScriptLookup {
            script,
            interp: Cell::new(Some(interp)),
            delete_guard: RefCell::default(),
            lookup: RefCell::default(),
            outcome: RefCell::default(),
            may_trace: trace::may_trace_new_channel(),
        });
        let key = sockets.insert(SocketChannel::Lookup(Rc::clone(&waiting)));
        if query.is_numeric() {
            waiting.set_outcome(query.run());
            sockets.queue_event(key);
        } else {
            let query = Arc::new(query);
            match Lookup::start(&query, sockets.lookup_inbox(), key) {
                Ok(lookup) => {
                    trace::record(TraceEvent::LookUp, None, || query.host.clone());
                    waiting.lookup.replace(Some(lookup));
                }
                Err(refusal) => {
                    sockets.remove(key);
                    let message = format!("couldn't look up \"{}\": {}", query.host, refusal.text());
                    return Err(interp.fail(&message));
                }
            }
        }
        waiting.end_with(interp, key);
        Ok(())
    }

    /// Ends the wait when the interpreter is deleted.
    fn end_with(self: &Rc<Self>, interp: Interp, key: SlabKey) {
        let waiting = Rc::downgrade(self);
        let guard = interp.on_delete(move || {
            let Some(waiting) = waiting.upgrade() else { return };
            waiting.interp.set(None);
            if let Some(guard) = waiting.delete_guard.take() {
                guard.forget();
            }
            if let Some(sockets) = ThreadSockets::current() {
                sockets.remove(key);
            }
        });
        self.delete_guard.replace(Some(guard));
    }

    /// The look-up is over; its event is queued next.
    pub(crate) fn set_outcome(&self, outcome: LookupOutcome) {
        let lookup = self.lookup.take();
        if let Some(lookup) = lookup.filter(|_| self.may_trace) {
            trace::record(TraceEvent::LookedUp, None, || outcome_text(lookup.host(), &outcome));
        }
        self.outcome.replace(Some(outcome));
    }

    /// Runs the script: with the addresses, or with an empty list and the error's text.
    pub(crate) fn run_script(&self) {
        self.delete_guard.take();
        let (Some(interp), Some(outcome)) = (self.interp.get(), self.outcome.take()) else { return };
        let words = match outcome {
            Ok(pairs) => vec![address_list(&pairs)],
            Err(error) => vec![Value::text(""), Value::text(&error.text())],
        };
        interp.evaluate_in_background(&self.script.with_words(&[&Value::list(words).to_text()]));
    }
}
