//! The form of `socket2` that opens a UDP socket.

use crate::addresses::{Family, service_port};
use crate::command::{bad_option, io_failure};
use crate::datagram::{DatagramOpenError, DatagramOptions, DatagramSocket};
use crate::tcl::{CommandFailed, CommandResult, Interp, Value, Words};
use crate::thread_sockets::ThreadSockets;

const SWITCHES: [&str; 4] = ["-myaddr", "-myport", "-reuseaddr", "-udp"];

/// `socket2 -udp ?-myaddr addr? ?-myport port? ?-reuseaddr boolean? ?host port?`
pub(crate) fn open(interp: Interp, words: &Words<'_>) -> CommandResult {
    let options = parse(interp, words)?;
    let failed = |error: i32| {
        let text = interp.posix_error(error);
        interp.fail(&format!("couldn't open socket: {text}"))
    };
    let sockets = ThreadSockets::get().map_err(|error| io_failure(interp, "couldn't open socket", &error))?;
    let channel = DatagramSocket::open(&sockets, &options).map_err(|error| match error {
        DatagramOpenError::Lookup(error) => interp.fail(&format!("couldn't open socket: {}", error.text())),
        DatagramOpenError::System(error) => failed(error),
    })?;
    channel.register(Some(interp));
    interp.set_result(&Value::text(&channel.name()));
    Ok(())
}

fn parse(interp: Interp, words: &Words<'_>) -> Result<DatagramOptions, CommandFailed> {
    let mut options = DatagramOptions { family: Family::of(interp), ..DatagramOptions::default() };
    let mut at = 1;
    while at < words.len() {
        let word = words.text(at);
        if !word.starts_with('-') {
            break;
        }
        let Some(&name) = SWITCHES.iter().find(|name| **name == word) else {
            return Err(bad_option(interp, &word, &SWITCHES));
        };
        at += 1;
        if name == "-udp" {
            continue;
        }
        let Some(value) = words.get(at) else {
            return Err(interp.fail(&format!("no argument given for {name} option")));
        };
        at += 1;
        match name {
            "-myaddr" => options.local_host = Some(value.to_text().into_owned()),
            "-myport" => {
                let port = udp_port(&value.to_text(), 0);
                options.local_port = port.map_err(|text| interp.fail(&text))?;
            }
            _ => options.reuse_address = value.to_boolean(Some(interp))?,
        }
    }
    match words.len() - at {
        0 => {}
        2 => {
            let port = udp_port(&words.text(at + 1), 1).map_err(|text| interp.fail(&text))?;
            options.remote = Some((words.text(at), port));
        }
        _ => return Err(usage(interp, words)),
    }
    Ok(options)
}

/// A port by its number, at least `min`, or its service's name. The error is a message.
pub(crate) fn udp_port(text: &str, min: i32) -> Result<u16, String> {
    let number = match Value::text(text).to_integer(None) {
        Ok(number) => Some(number),
        Err(_) => service_port(text, c"udp"),
    };
    match number {
        Some(number) if number >= min => u16::try_from(number).ok(),
        _ => None,
    }
    .ok_or_else(|| {
        format!("bad port \"{text}\": must be an integer from {min} to 65535, or the name of a UDP service")
    })
}

fn usage(interp: Interp, words: &Words<'_>) -> CommandFailed {
    let name = words.command_name();
    interp.set_error_code(&["TCL", "WRONGARGS"]);
    interp.fail(&format!(
        "wrong # args: should be \"{name} -udp ?-myaddr addr? ?-myport port? ?-reuseaddr boolean? ?host port?\""
    ))
}
