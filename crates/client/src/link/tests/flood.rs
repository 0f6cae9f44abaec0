//! A crowd of publishers and a server that takes less than they give: the crowd backs off, the server stays busy and not more,
//! and when the flood is over all is delivered and the pace is the old one.

use std::collections::VecDeque;
use std::time::Duration;

use super::rig::{Published, Rig, config, stored};
use crate::config::Config;

/// Publishers.
const CROWD: usize = 20;
/// Between two looks at everybody.
const STEP_MS: u64 = 10;

struct World {
    crowd: Vec<Rig>,
    queue: VecDeque<(usize, Published)>,
    /// Messages that the server can take in one step, and that may wait for it.
    capacity: usize,
    queue_max: usize,
    sequence: u64,
    refused: u64,
    given: u64,
    random: crate::ladder::Random,
}

impl World {
    /// One step in which `offered` messages are given in all.
    fn step(&mut self, offered: usize) {
        for _ in 0..offered {
            let who = self.random.draw() as usize % CROWD;
            self.crowd[who].submit_silently("a", b"x");
            self.given += 1;
        }
        for (who, rig) in self.crowd.iter_mut().enumerate() {
            rig.pass(Duration::from_millis(STEP_MS));
            for one in rig.published() {
                if self.queue.len() < self.queue_max {
                    self.queue.push_back((who, one));
                } else {
                    self.refused += 1;
                    rig.answer(&one, "NATS/1.0 429\r\n\r\n", b"");
                }
            }
        }
        for _ in 0..self.capacity.min(self.queue.len()) {
            if let Some((who, one)) = self.queue.pop_front() {
                self.sequence += 1;
                self.crowd[who].answer(&one, "", &stored(self.sequence, false));
            }
        }
    }

    fn held(&mut self) -> u64 {
        self.crowd.iter_mut().map(|rig| rig.counts().held).sum()
    }
}

/// Rows 0.17, 0.26, 0.28 and 0.29: nothing is lost in the flood, the server is used all the time, and after the flood what is
/// pending goes to nothing, at the server's full rate, and every publisher is at rest again within five seconds of that.
#[test]
fn a_flooded_server_recovers_because_its_publishers_back_off() {
    let crowd =
        (0..CROWD as u64).map(|seed| Rig::new(Config { seed: Some(seed), unacknowledged: 64, ..config() }));
    let mut world = World {
        crowd: crowd.collect(),
        queue: VecDeque::new(),
        capacity: 10,
        queue_max: 200,
        sequence: 0,
        refused: 0,
        given: 0,
        random: crate::ladder::Random::new(1),
    };
    for rig in &mut world.crowd {
        rig.greet();
    }
    // Ten seconds of three times what the server takes.
    for _ in 0..1000 {
        world.step(30);
    }
    let (taken, refused, backlog) = (world.sequence, world.refused, world.held());
    assert!(taken >= 9_500, "the server is busy all the time: {taken} of 10000");
    assert!(refused < taken, "it is not asked in vain all the time: {refused} refusals for {taken}");
    // Then half of what it takes: the backlog goes at the rate that is left.
    let mut steps = 0;
    while world.held() > 50 {
        world.step(5);
        steps += 1;
        assert!(steps < 10_000, "{} are still held", world.held());
    }
    let least = backlog / 5;
    assert!(steps < least * 3 / 2, "{steps} steps for {backlog} messages, {least} at the full rate");
    for _ in 0..500 {
        world.step(5);
    }
    assert!(world.crowd.iter().all(|rig| rig.rung() == 0), "everybody is at rest");
    let delivered: u64 = world.crowd.iter_mut().map(|rig| rig.counts().delivered).sum();
    assert!(world.given - delivered < 50, "{delivered} of {}", world.given);
    assert!(world.crowd.iter_mut().all(|rig| rig.counts().dropped == 0 && rig.counts().is_balanced()));
}
