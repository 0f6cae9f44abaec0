//! Idle connections to the processes.

use stilling_engine::Token;
use stilling_ring::Time;

pub(super) struct IdleConnection {
    pub(super) token: Token,
    pub(super) generation: u64,
    pub(super) since: Time,
}

pub(super) struct IdleConnections {
    /// By process; the most recently used last.
    by_process: Vec<Vec<IdleConnection>>,
}

impl IdleConnections {
    pub(super) fn new(processes: usize) -> Self {
        IdleConnections { by_process: (0..processes).map(|_| Vec::new()).collect() }
    }

    pub(super) fn has_connection(&self, process: usize) -> bool {
        !self.by_process[process].is_empty()
    }

    pub(super) fn push(&mut self, process: usize, connection: IdleConnection) {
        self.by_process[process].push(connection);
    }

    pub(super) fn pop(&mut self, process: usize) -> Option<IdleConnection> {
        self.by_process[process].pop()
    }

    pub(super) fn remove(&mut self, process: usize, token: Token) {
        self.by_process[process].retain(|idle| idle.token != token);
    }

    /// Removes and closes connections to earlier generations of their process, and as many as other shards claim.
    /// `demand`: the current generation of a process, and the number of claimed connections.
    pub(super) fn release_unneeded(
        &mut self,
        demand: impl Fn(usize) -> (u64, u32),
        mut close: impl FnMut(Token),
    ) {
        for (process, connections) in self.by_process.iter_mut().enumerate() {
            if connections.is_empty() {
                continue;
            }
            let (generation, mut needed) = demand(process);
            connections.retain(|idle| {
                let stays = idle.generation == generation && needed == 0;
                if !stays {
                    needed = needed.saturating_sub(1);
                    close(idle.token);
                }
                stays
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_an_earlier_generation_are_released_first() {
        let mut idle = IdleConnections::new(2);
        for (process, number, generation) in [(0, 1, 1), (0, 2, 2), (0, 3, 2), (1, 4, 7)] {
            let since = Time::ZERO;
            idle.push(process, IdleConnection { token: Token::new(number, 0), generation, since });
        }
        let mut closed = Vec::new();
        let demand = |process: usize| [(2, 2), (7, 0)][process];
        idle.release_unneeded(demand, |token| closed.push(token.index()));
        assert_eq!(closed, [1, 2]);
        assert_eq!(idle.pop(0).map(|idle| idle.token.index()), Some(3));
        assert!(!idle.has_connection(0) && idle.has_connection(1));
        idle.remove(1, Token::new(4, 0));
        assert!(!idle.has_connection(1));
    }
}
