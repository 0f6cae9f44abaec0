//! A Tcl extension: sockets on the engine of Stilling, as a replacement for Tcl's own.
//!
//! One thread of an interpreter has a shard (several with direct descriptors), which turns within Tcl's event loop
//! (`thread_sockets`). Channels are drivers on top of its sockets (`stream`, `listener`, `datagram`). `shim/tcl_api.c`
//! hides the differences between the versions of Tcl; `tcl` makes its functions safe to use.
//!
//! ```text
//!  script ─▶ command ─▶ stream, listener ─▶ thread_sockets ─▶ shard ─▶ driver
//!                          ▲  Tcl's channels        │ events       waiter thread: wakes Tcl
//!                          └────────────────────────┘
//! ```
//!
//! This crate is no binding to Tcl in general, and knows nothing of the hub, the journal or protocols.
#![allow(unsafe_code, reason = "the C interface of Tcl; each block states why it is sound")]

mod addresses;
mod command;
mod datagram;
mod datagram_command;
mod dialect;
mod driver_choice;
mod fcopy;
mod flood_scripts;
mod floods;
mod listener;
mod loaded_interps;
mod lookup;
mod lookup_command;
mod options;
mod poll_policy;
mod read_ahead;
mod readiness;
mod recent_events;
mod shard;
mod slab;
mod special_pool;
mod stages;
mod stats;
mod stats_commands;
mod stream;
mod system_errors;
mod tcl;
mod thread_sockets;
mod trace;
mod waiter;

use std::ffi::{CStr, c_int, c_void};

use crate::tcl::{CommandFailed, CommandResult, Interp, Words};

/// The version of the package `Iocpsock` whose interface this extension has.
const IOCPSOCK_VERSION: &CStr = c"3.0";

const STILLING_VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("the version has a zero byte"),
    };

fn initialize(interp: *mut c_void) -> CommandResult {
    let interp = Interp::initialize(interp)?;
    interp.create_command(c"socket2", command::socket2);
    interp.create_command(c"iocp_stats", stats_commands::iocp_stats);
    interp.create_command(c"stilling::install", install);
    interp.create_command(c"stilling::stats", stats_commands::stilling_stats);
    interp.create_command(c"stilling::fcopy", fcopy::fcopy);
    interp.create_command(c"stilling::onflood", flood_scripts::onflood);
    interp.create_command(c"stilling::trace", trace::trace);
    provide(interp)
}

/// A safe interpreter gets only `socket2`, hidden as the core's `socket` is: its parent decides whether to expose it.
fn initialize_safe(interp: *mut c_void) -> CommandResult {
    let interp = Interp::initialize(interp)?;
    interp.create_command(c"socket2", command::socket2);
    interp.hide_command(c"socket2")?;
    provide(interp)
}

fn provide(interp: Interp) -> CommandResult {
    loaded_interps::add(interp);
    interp.provide(c"Stilling", STILLING_VERSION)?;
    interp.provide(c"Iocpsock", IOCPSOCK_VERSION)
}

/// `stilling::install ?-fcopy?`: replaces the interpreter's command `socket`, and with the option `fcopy`, too.
fn install(interp: Interp, words: &Words<'_>) -> CommandResult {
    match words.len() {
        1 => {}
        2 if words.text(1) == "-fcopy" => interp.create_command(c"::fcopy", fcopy::fcopy),
        2 => return Err(interp.fail(&format!("bad option \"{}\": must be -fcopy", words.text(1)))),
        _ => return Err(interp.fail("wrong # args: should be \"stilling::install ?-fcopy?\"")),
    }
    interp.create_command(c"::socket", command::core_socket);
    Ok(())
}

fn entry_point(initialized: CommandResult) -> c_int {
    const OK: c_int = 0;
    const ERROR: c_int = 1;
    match initialized {
        Ok(()) => OK,
        Err(CommandFailed) => ERROR,
    }
}

/// The entry point of `load`.
///
/// # Safety
/// `interp` is a live `Tcl_Interp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Stilling_Init(interp: *mut c_void) -> c_int {
    entry_point(initialize(interp))
}

/// The entry point of `load` for a safe interpreter.
///
/// # Safety
/// `interp` is a live `Tcl_Interp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Stilling_SafeInit(interp: *mut c_void) -> c_int {
    entry_point(initialize_safe(interp))
}

/// The entry point of `load` under the name of IOCPSOCK.
///
/// # Safety
/// `interp` is a live `Tcl_Interp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Iocpsock_Init(interp: *mut c_void) -> c_int {
    entry_point(initialize(interp))
}

/// The entry point of `load` for a safe interpreter, under the name of IOCPSOCK.
///
/// # Safety
/// `interp` is a live `Tcl_Interp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Iocpsock_SafeInit(interp: *mut c_void) -> c_int {
    entry_point(initialize_safe(interp))
}
