//! CPU time of the measured server, from `/proc`.

use std::time::Duration;

/// Clock ticks per second in `/proc`: the same on every common Linux (`getconf CLK_TCK`).
const TICKS_PER_SECOND: u64 = 100;

/// CPU time of a process so far, user and kernel, all threads; `None` if there is no such process.
pub(crate) fn of(process: u32) -> Option<Duration> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// proc(5): the name is in brackets and may contain anything, so fields are counted after the last bracket.
fn parse(stat: &str) -> Option<Duration> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added() {
        let stat = "42 (a ) b) S 7 42 42 0 -1 4194304 100 0 0 0 250 150 3 4 20 0 5 0 100 1 2";
        assert_eq!(parse(stat), Some(Duration::from_secs(4)));
        assert_eq!(parse("42 (a"), None);
        assert!(of(std::process::id()).is_some());
    }
}
