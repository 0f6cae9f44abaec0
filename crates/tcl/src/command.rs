//! The commands: `socket2`, and `socket` as that of Tcl's core.

use std::io;

use crate::addresses::{Family, port_number};
use crate::dialect::Dialect;
use crate::listener::{ListenError, ListenOptions, Listener};
use crate::lookup::HostQuery;
use crate::stream::Stream;
use crate::system_errors::system_error;
use crate::tcl::{Channel, CommandFailed, CommandResult, Interp, Value, Words, is_tcl_9};
use crate::thread_sockets::ThreadSockets;
use crate::trace::{self, TraceEvent};

/// Switches of one command, as given.
#[derive(Default)]
struct Switches {
    in_background: bool,
    local_host: Option<String>,
    local_port: i32,
    script: Option<Value>,
    backlog: Option<i32>,
    reuse_address: Option<bool>,
    reuse_port: Option<bool>,
}

pub(crate) fn core_socket(interp: Interp, words: &Words<'_>) -> CommandResult {
    run(Dialect::Core, interp, words)
}

pub(crate) fn socket2(interp: Interp, words: &Words<'_>) -> CommandResult {
    match other_form(words) {
        Some(form) => form(interp, words),
        None => run(Dialect::Iocpsock, interp, words),
    }
}

/// The form of `socket2` that is not about a stream, by its switch.
fn other_form(words: &Words<'_>) -> Option<crate::tcl::Command> {
    let mut at = 1;
    loop {
        let word = words.get(at)?;
        match &*word.to_text() {
            "-udp" => return Some(crate::datagram_command::open),
            "-lookup" => return Some(crate::lookup_command::look_up_host),
            "-async" => at += 1,
            // The others have a value.
            switch if switch.starts_with('-') => at += 2,
            _ => return None,
        }
    }
}

fn run(dialect: Dialect, interp: Interp, words: &Words<'_>) -> CommandResult {
    let (switches, at) = parse_switches(interp, words)?;
    let channel = if switches.script.is_some() {
        open_listener(dialect, interp, words, switches, at)?
    } else {
        connect(dialect, interp, words, switches, at)?
    };
    channel.register(Some(interp));
    interp.set_result(&Value::text(&channel.name()));
    Ok(())
}

/// The switches, and the index of the first word behind them.
fn parse_switches(interp: Interp, words: &Words<'_>) -> Result<(Switches, usize), CommandFailed> {
    let mut switches = Switches::default();
    let mut at = 1;
    while at < words.len() {
        let word = words.text(at);
        if !word.starts_with('-') {
            break;
        }
        let known = switch_names();
        let Some(&name) = known.iter().find(|name| **name == word) else {
            return Err(bad_option(interp, &word, known));
        };
        if name == "-async" {
            if switches.script.is_some() {
                return Err(interp.fail("cannot set -async option for server sockets"));
            }
            switches.in_background = true;
            at += 1;
            continue;
        }
        if name == "-server" && switches.in_background {
            return Err(interp.fail("cannot set -async option for server sockets"));
        }
        at += 1;
        let Some(value) = words.get(at) else {
            return Err(interp.fail(&format!("no argument given for {name} option")));
        };
        set_switch(&mut switches, interp, name, value)?;
        at += 1;
    }
    Ok((switches, at))
}

fn switch_names() -> &'static [&'static str] {
    if is_tcl_9() {
        &["-async", "-backlog", "-myaddr", "-myport", "-reuseaddr", "-reuseport", "-server"]
    } else {
        &["-async", "-myaddr", "-myport", "-server"]
    }
}

fn set_switch(switches: &mut Switches, interp: Interp, name: &str, value: Value) -> CommandResult {
    match name {
        "-myaddr" => switches.local_host = Some(value.to_text().into_owned()),
        "-myport" => switches.local_port = port_number(&value, interp)?,
        "-server" => switches.script = Some(value),
        "-backlog" => switches.backlog = Some(value.to_integer(Some(interp))?),
        "-reuseaddr" => switches.reuse_address = Some(value.to_boolean(Some(interp))?),
        _ => switches.reuse_port = Some(value.to_boolean(Some(interp))?),
    }
    Ok(())
}

pub(crate) fn bad_option(interp: Interp, word: &str, known: &[&str]) -> CommandFailed {
    let (last, others) = known.split_last().expect("there are options");
    interp.set_error_code(&["TCL", "LOOKUP", "INDEX", "option", word]);
    interp.fail(&format!("bad option \"{word}\": must be {}, or {last}", others.join(", ")))
}

fn usage(interp: Interp, words: &Words<'_>) -> CommandFailed {
    let name = words.command_name();
    let (client, server) = if is_tcl_9() {
        (
            "?-async? ?-myaddr addr? ?-myport myport? host port",
            "-server command ?-backlog count? ?-myaddr addr? ?-reuseaddr boolean? ?-reuseport boolean? port",
        )
    } else {
        ("?-myaddr addr? ?-myport myport? ?-async? host port", "-server command ?-myaddr addr? port")
    };
    interp.set_error_code(&["TCL", "WRONGARGS"]);
    interp.fail(&format!("wrong # args: should be \"{name} {client}\" or \"{name} {server}\""))
}

/// The last word as a port.
fn last_word_as_port(interp: Interp, words: &Words<'_>, at: usize) -> Result<i32, CommandFailed> {
    match words.get(at) {
        Some(word) if at + 1 == words.len() => port_number(&word, interp),
        _ => Err(usage(interp, words)),
    }
}

/// The last word as the port of a listener, of which Tcl 9 does not say what is wrong with it.
fn listener_port(interp: Interp, words: &Words<'_>, at: usize) -> Result<i32, CommandFailed> {
    last_word_as_port(interp, words, at).map_err(|failed| match is_tcl_9() && at + 1 == words.len() {
        true => interp.fail("couldn't open socket: invalid port number"),
        false => failed,
    })
}

fn open_listener(
    dialect: Dialect,
    interp: Interp,
    words: &Words<'_>,
    switches: Switches,
    at: usize,
) -> Result<Channel, CommandFailed> {
    if switches.local_port != 0 {
        return Err(interp.fail("option -myport is not valid for servers"));
    }
    let options = ListenOptions {
        host: switches.local_host,
        port: listener_port(interp, words, at)?,
        family: Family::of(interp),
        // As in the core, a negative number is the system's maximum.
        backlog: switches.backlog.filter(|backlog| *backlog >= 0),
        reuse_address: switches.reuse_address.unwrap_or(true),
        reuse_port: switches.reuse_port.unwrap_or(false),
    };
    let sockets = ThreadSockets::get().map_err(|error| io_failure(interp, "couldn't open socket", &error))?;
    let script = switches.script.expect("the caller checked it");
    Listener::open(dialect, &sockets, interp, script, &options).map_err(|error| match error {
        ListenError::Text(text) => interp.fail(&format!("couldn't open socket: {text}")),
        ListenError::System(error) => open_error(interp, error),
    })
}

fn connect(
    dialect: Dialect,
    interp: Interp,
    words: &Words<'_>,
    switches: Switches,
    at: usize,
) -> Result<Channel, CommandFailed> {
    if at >= words.len() {
        return Err(usage(interp, words));
    }
    if switches.backlog.is_some() || switches.reuse_address.is_some() || switches.reuse_port.is_some() {
        return Err(interp.fail("options -backlog, -reuseaddr, and -reuseport are only valid for servers"));
    }
    let host = words.text(at);
    let port = last_word_as_port(interp, words, at + 1)?;
    let query = HostQuery {
        host,
        port,
        local_host: switches.local_host,
        local_port: switches.local_port,
        family: Family::of(interp),
    };
    let cannot_open = |text: String| interp.fail(&format!("couldn't open socket: {text}"));
    // The core's form looks up at once, and reports the error as that of the command.
    if switches.in_background && dialect == Dialect::Iocpsock && !query.is_numeric() {
        let sockets =
            ThreadSockets::get().map_err(|error| io_failure(interp, "couldn't open socket", &error))?;
        let stream = Stream::look_up_and_connect(dialect, &sockets, query);
        let channel = stream.map_err(|refusal| cannot_open(refusal.text()))?.into_channel();
        trace::record(TraceEvent::Open, Some(channel), || "looking up its host".into());
        return Ok(channel);
    }
    let pairs = query.run().map_err(|error| cannot_open(error.text()))?;
    let sockets = ThreadSockets::get().map_err(|error| io_failure(interp, "couldn't open socket", &error))?;
    let stream = Stream::connect(dialect, &sockets, pairs, switches.in_background)
        .map_err(|error| open_error(interp, error))?;
    let channel = stream.into_channel();
    trace::record(TraceEvent::Open, Some(channel), || {
        format!(
            "to {} {port}, {}",
            query.host,
            if switches.in_background { "connecting" } else { "connected" }
        )
    });
    Ok(channel)
}

fn open_error(interp: Interp, error: i32) -> CommandFailed {
    let text = interp.posix_error(error);
    interp.fail(&format!("couldn't open socket: {text}"))
}

/// Fails with the text of an error: its own, or that of its number, which then is in `errorCode`.
pub(crate) fn io_failure(interp: Interp, what: &str, error: &io::Error) -> CommandFailed {
    let text = match error.get_ref() {
        Some(own) => own.to_string(),
        None => interp.posix_error(system_error(error)),
    };
    interp.fail(&format!("{what}: {text}"))
}
