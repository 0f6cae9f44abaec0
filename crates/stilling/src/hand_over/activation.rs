//! Listeners that the parent process passes: the protocol of sd_listen_fds(3).
//!
//! Three environment variables describe the descriptors from 3 on: `LISTEN_FDS` is their number, `LISTEN_PID` the
//! process they are meant for (a child that inherits the variables is another process), `LISTEN_FDNAMES` their names,
//! separated by colons. The parent keeps its own copies, so the queues of these listeners survive while no server
//! runs.

use std::fmt;
use std::os::fd::{OwnedFd, RawFd};

use stilling_engine::driver::inherited::{self, FIRST_DESCRIPTOR};

use super::limits::LISTENERS_HANDED_OVER_MAX;

/// Why listeners of the parent process cannot be used.
#[derive(Debug)]
pub enum ActivationError {
    /// The value of a variable is not valid.
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// An announced descriptor is not open.
    Missing(RawFd),
}

impl fmt::Display for ActivationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ActivationError::Variable { name, value } => {
                write!(f, "the parent process set {name} to {value:?}, which sd_listen_fds(3) does not allow")
            }
            ActivationError::Missing(number) => {
                write!(f, "the parent process passed descriptor {number}, which is not open")
            }
        }
    }
}

impl std::error::Error for ActivationError {}

#[derive(Debug)]
pub(crate) struct PassedListener {
    pub(crate) descriptor: OwnedFd,
    pub(crate) name: String,
}

/// Whether the parent has passed listeners to this process.
///
/// # Errors
/// The variables of the parent are wrong.
pub fn are_listeners_passed() -> Result<bool, ActivationError> {
    Ok(!announced()?.is_empty())
}

/// Takes the listeners that the parent has passed, once.
pub(crate) fn take() -> Result<Vec<PassedListener>, ActivationError> {
    let names = announced()?;
    let numbers = FIRST_DESCRIPTOR..;
    let take = |(number, name)| {
        let descriptor = inherited::claim(number).map_err(|_| ActivationError::Missing(number))?;
        Ok(PassedListener { descriptor, name })
    };
    numbers.zip(names).map(take).collect()
}

fn announced() -> Result<Vec<String>, ActivationError> {
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    names(
        std::process::id(),
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_FDNAMES").as_deref(),
    )
}

/// The names of the listeners that are passed to process `own`; without `LISTEN_FDNAMES` all are `unknown`.
fn names(
    own: u32,
    process: Option<&str>,
    count: Option<&str>,
    names: Option<&str>,
) -> Result<Vec<String>, ActivationError> {
    let (Some(process), Some(count)) = (process, count) else { return Ok(Vec::new()) };
    let wrong = |name, value: &str| ActivationError::Variable { name, value: value.to_owned() };
    let target_process: u32 = process.parse().map_err(|_| wrong("LISTEN_PID", process))?;
    if target_process != own {
        return Ok(Vec::new());
    }
    let number: usize = count.parse().map_err(|_| wrong("LISTEN_FDS", count))?;
    if number > LISTENERS_HANDED_OVER_MAX {
        return Err(wrong("LISTEN_FDS", count));
    }
    let Some(names) = names else { return Ok(vec!["unknown".to_owned(); number]) };
    let list: Vec<String> = names.split(':').map(str::to_owned).collect();
    if list.len() == number { Ok(list) } else { Err(wrong("LISTEN_FDNAMES", names)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 4.37: sd_listen_fds(3), word for word.
    #[test]
    fn only_variables_meant_for_this_process_count() {
        let of = |process, count, list| names(7, process, count, list).map(|names| names.join(","));
        for (process, count, list, expected) in [
            (None, None, None, ""),
            (None, Some("2"), None, ""),
            (Some("7"), None, None, ""),
            (Some("8"), Some("2"), None, ""),
            (Some("8"), Some("nonsense"), None, ""),
            (Some("7"), Some("0"), None, ""),
            (Some("7"), Some("2"), None, "unknown,unknown"),
            (Some("7"), Some("2"), Some("web:"), "web,"),
            (Some("7"), Some("1"), Some("stilling.socket"), "stilling.socket"),
        ] {
            assert_eq!(of(process, count, list).unwrap(), expected, "{process:?} {count:?} {list:?}");
        }
    }

    /// Row 4.37: an error names the wrong variable.
    #[test]
    fn an_invalid_variable_is_reported_with_its_name() {
        for (process, count, list, variable) in [
            ("x", "1", None, "LISTEN_PID"),
            ("-7", "1", None, "LISTEN_PID"),
            ("7", "x", None, "LISTEN_FDS"),
            ("7", "-1", None, "LISTEN_FDS"),
            ("7", "1000000", None, "LISTEN_FDS"),
            ("7", "2", Some("one"), "LISTEN_FDNAMES"),
        ] {
            let error = names(7, Some(process), Some(count), list).unwrap_err().to_string();
            assert!(error.contains(variable), "{error}");
        }
    }
}
