//! Network namespace for measurements: the program restarts itself in a new one.
//!
//! In it the congestion control can be set without changing the system's setting, other connections take no ports and
//! do not slow down loopback, and everything disappears with the process.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::XtaskResult;

/// Set in the process that runs inside.
pub(crate) const NAMESPACE_VARIABLE: &str = "XTASK_OWN_NETWORK";

/// Congestion control of the measurements: the system's default may be BBR, which paces every connection with timers.
const CONGESTION: &str = "reno";

/// Ports of outgoing connections: nearly all. With the system's default of 28,232 ports, each resting for a second
/// after its use (`tcp_tw_reuse`, ip-sysctl), no generator opens more than some 14,000 connections per second.
const PORTS: &str = "1024 65535";

const PORTS_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

const CONGESTION_FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

pub(crate) fn is_in_namespace() -> bool {
    std::env::var_os(NAMESPACE_VARIABLE).is_some()
}

/// Restarts this program with the same arguments in a network namespace and does not return. Without permission for
/// one, it prints a note and returns.
///
/// # Errors
/// If this is the process inside and the network cannot be set up.
pub(crate) fn enter_namespace() -> XtaskResult {
    if is_in_namespace() {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
        if !up.success() {
            return Err("`ip link set lo up` failed in the network namespace".into());
        }
        for (file, value) in [(CONGESTION_FILE, CONGESTION), (PORTS_FILE, PORTS)] {
            fs::write(file, value).map_err(|error| format!("cannot write {value} to {file}: {error}"))?;
        }
        return Ok(());
    }
    let may =
        Command::new("unshare").args(["--net", "true"]).output().is_ok_and(|output| output.status.success());
    if !may {
        println!("no network namespace (it needs root): using the system's network as it is");
        return Ok(());
    }
    let mut again = Command::new("unshare");
    again
        .arg("--net")
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(NAMESPACE_VARIABLE, "1");
    Err(format!("unshare does not start: {}", again.exec()).into())
}

/// The congestion control in use and its origin.
pub(crate) fn congestion() -> String {
    let name = fs::read_to_string(CONGESTION_FILE).unwrap_or_default();
    let whose = if is_in_namespace() { "in its own network namespace" } else { "the system's default" };
    format!("{} ({whose}, for all servers and clients)", name.trim())
}
