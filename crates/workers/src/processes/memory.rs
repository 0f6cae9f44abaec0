//! Resident memory of a worker process and its descendants, from `/proc`.
//!
//! A command may be a shell or a master that leaves the work to its children, so their memory counts. A page shared by
//! several of them counts in each. A descendant whose parent has exited is no longer found.

use std::fs;

use super::limits::{MEASURED_PROCESSES_MAX, MEASURED_THREADS_MAX};

/// Returns the resident bytes of the process and its descendants; those that have exited count as none.
pub(super) fn resident_bytes(pid: i32) -> u64 {
    let mut pids = vec![pid];
    let mut resident = 0_u64;
    let mut next = 0;
    while let Some(&pid) = pids.get(next) {
        next += 1;
        resident = resident.saturating_add(resident_bytes_of_one(pid));
        add_children(pid, &mut pids);
    }
    resident
}

fn resident_bytes_of_one(pid: i32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/status")).map_or(0, |status| parse_resident_bytes(&status))
}

/// A zombie has no such line.
fn parse_resident_bytes(status: &str) -> u64 {
    let field = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = field.and_then(|field| field.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// Each thread has a list of the children it has started. Kernels without `CONFIG_PROC_CHILDREN` provide none.
fn add_children(pid: i32, pids: &mut Vec<i32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.take(MEASURED_THREADS_MAX).flatten() {
        let Ok(children) = fs::read_to_string(thread.path().join("children")) else { continue };
        let room = MEASURED_PROCESSES_MAX.saturating_sub(pids.len());
        pids.extend(
            children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()).take(room),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_read_from_the_status_of_a_process() {
        assert_eq!(
            parse_resident_bytes("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    2048 kB\nRssAnon:\t 1 kB\n"),
            2 << 20
        );
        assert_eq!(parse_resident_bytes("Name:\tx\nState:\tZ (zombie)\n"), 0);
        assert_eq!(parse_resident_bytes("VmRSS:\tmany kB\n"), 0);
    }
}
