//! Which requests were executed, and how often again.

use std::fmt;

use super::limits::DEMO_EXECUTIONS_MAX;

/// Executions of requests, each with a number of its own.
#[derive(Debug, Default)]
pub(super) struct ExecutionLog {
    /// A bit for each number. Allocated with the first execution.
    seen: Vec<u64>,
    executed: u64,
    repeated: u64,
}

impl ExecutionLog {
    /// Counts an execution. Returns whether the number is within the bound.
    pub(super) fn add(&mut self, number: usize) -> bool {
        if number >= DEMO_EXECUTIONS_MAX {
            return false;
        }
        self.seen.resize(DEMO_EXECUTIONS_MAX.div_ceil(u64::BITS as usize), 0);
        let (word, bit) = (&mut self.seen[number / u64::BITS as usize], 1 << (number % u64::BITS as usize));
        match *word & bit {
            0 => self.executed += 1,
            _ => self.repeated += 1,
        }
        *word |= bit;
        true
    }
}

impl fmt::Display for ExecutionLog {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "executed={} repeated={}", self.executed, self.repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_execution_is_counted_apart() {
        let mut log = ExecutionLog::default();
        assert!([0, 1, 63, 64, 1, DEMO_EXECUTIONS_MAX - 1].iter().all(|number| log.add(*number)));
        assert!(!log.add(DEMO_EXECUTIONS_MAX));
        assert_eq!(log.to_string(), "executed=5 repeated=1");
    }
}
