//! The commands `iocp_stats` and `stilling::stats`.

use stilling_engine::CloseReason;
use stilling_engine::counters::EngineCounters;

use crate::driver_choice;
use crate::floods;
use crate::special_pool::SPECIAL_POOL;
use crate::stages;
use crate::stats;
use crate::tcl::{CommandResult, Interp, Value, Words};

/// `iocp_stats ?boolean?`: the five counts of IOCPSOCK, as lines or as rows of an HTML table.
pub(crate) fn iocp_stats(interp: Interp, words: &Words<'_>) -> CommandResult {
    let as_html = match words.len() {
        1 => false,
        2 => words.get(1).expect("there are two words").to_boolean(Some(interp))?,
        _ => return Err(interp.fail("wrong # args: should be \"iocp_stats ?boolean?\"")),
    };
    let counts = [
        ("Sockets open:", stats::open_sockets()),
        ("AcceptEx calls that returned an error:", accept_errors() as i64),
        // An accept that cannot be posted again does not exist here: the listening socket stays armed.
        ("Unreplaced AcceptEx calls:", 0),
        ("General pool bytes in use:", stats::general_bytes()),
        ("Special pool bytes in use:", SPECIAL_POOL.bytes()),
    ];
    let mut text = String::new();
    for (key, count) in counts {
        text.push_str(&match as_html {
            true => format!("<tr><td>{key}</td><td>{count}</td></tr>\n"),
            false => format!("{key} {count}\n"),
        });
    }
    interp.set_result(&Value::text(&text));
    Ok(())
}

fn accept_errors() -> u64 {
    stats::sum(|shard| shard.accept_errors.get() + shard.refused_descriptors.get())
}

/// `stilling::stats ?-stages boolean?`: a dictionary of everything that the engine counts, for all threads of the
/// process; with the option, after measuring stages is switched on or off.
pub(crate) fn stilling_stats(interp: Interp, words: &Words<'_>) -> CommandResult {
    match words.len() {
        1 => {}
        3 if words.text(1) == "-stages" => {
            let is_on = words.get(2).expect("there are three words").to_boolean(Some(interp))?;
            stages::switch(is_on);
        }
        3 => return Err(interp.fail(&format!("bad option \"{}\": must be -stages", words.text(1)))),
        _ => return Err(interp.fail("wrong # args: should be \"stilling::stats ?-stages boolean?\"")),
    }
    let count = |of: fn(&EngineCounters) -> u64| Value::integer(stats::sum(of) as i64);
    let driver = driver_choice::selected().map_or_else(|error| error.to_string(), |kind| kind.to_string());
    let closed = CloseReason::ALL.iter().map(|&reason| {
        let closed = stats::sum(|shard| shard.closed(reason).get());
        (reason.name(), Value::integer(closed as i64))
    });
    let entries = [
        ("driver", Value::text(&driver)),
        ("sockets_open", Value::integer(stats::open_sockets())),
        ("general_bytes", Value::integer(stats::general_bytes())),
        ("special_bytes", Value::integer(SPECIAL_POOL.bytes())),
        ("accepted", count(|shard| shard.accepted.get())),
        ("connected", count(|shard| shard.connected.get())),
        ("adopted", count(|shard| shard.adopted.get())),
        ("connections_open", count(|shard| shard.open.get())),
        ("connections_open_max", count(|shard| shard.open_max.get())),
        ("refused_descriptors", count(|shard| shard.refused_descriptors.get())),
        ("refused_full", count(|shard| shard.refused_full.get())),
        ("accept_pauses", count(|shard| shard.gate_closed.get())),
        ("accept_errors", count(|shard| shard.accept_errors.get())),
        ("received_bytes", count(|shard| shard.received_bytes.get())),
        ("sent_bytes", count(|shard| shard.sent_bytes.get())),
        ("fcopy_bytes", Value::integer(stats::fcopy_bytes())),
        ("turns", count(|shard| shard.turns.get())),
        ("system_calls", count(|shard| shard.system_calls.get())),
        ("closed", Value::dict(closed)),
        ("floods", floods::flood_stats()),
        ("stages", stages::stage_stats()),
    ];
    interp.set_result(&Value::dict(entries));
    Ok(())
}
