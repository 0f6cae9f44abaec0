//! The interpreters of each thread that have loaded this extension.

use std::cell::RefCell;

use crate::tcl::{Channel, Interp};

thread_local! {
    static LOADED: RefCell<Vec<Interp>> = const { RefCell::new(Vec::new()) };
}

/// Adds an interpreter of this thread until it is deleted.
pub(crate) fn add(interp: Interp) {
    let is_new = LOADED.with_borrow_mut(|loaded| {
        let is_new = !loaded.contains(&interp);
        if is_new {
            loaded.push(interp);
        }
        is_new
    });
    if is_new {
        let deleted = interp.on_delete(move || {
            // The thread's last interpreter may outlive this table.
            let _ = LOADED.try_with(|loaded| loaded.borrow_mut().retain(|other| *other != interp));
        });
        // The action always runs.
        deleted.forget();
    }
}

/// An interpreter that knows a channel of this thread.
pub(crate) fn find(channel: Channel) -> Option<Interp> {
    LOADED.with_borrow(|loaded| loaded.iter().copied().find(|interp| channel.is_registered(*interp)))
}
