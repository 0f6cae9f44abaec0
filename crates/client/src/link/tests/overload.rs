//! Many publishers that exceed the rate of their server: they back off, the server stays fully loaded, and after the
//! overload all messages are delivered and the rate is restored.

use std::collections::VecDeque;
use std::time::Duration;

use super::fixture::{CapturedPublish, LinkFixture, config, stored};
use crate::config::PublisherConfig;

const PUBLISHERS: usize = 20;
/// Milliseconds per step.
const STEP_MS: u64 = 10;

struct OverloadScenario {
    publishers: Vec<LinkFixture>,
    queue: VecDeque<(usize, CapturedPublish)>,
    /// Messages that the server accepts per step, and the length of its queue.
    capacity: usize,
    queue_max: usize,
    sequence: u64,
    refused: u64,
    given: u64,
    random: crate::backoff::JitterRng,
}

impl OverloadScenario {
    fn step(&mut self, offered: usize) {
        for _ in 0..offered {
            let publisher = self.random.next_u64() as usize % PUBLISHERS;
            self.publishers[publisher].submit_without_ticket("a", b"x");
            self.given += 1;
        }
        for (publisher, fixture) in self.publishers.iter_mut().enumerate() {
            fixture.pass(Duration::from_millis(STEP_MS));
            for one in fixture.published() {
                if self.queue.len() < self.queue_max {
                    self.queue.push_back((publisher, one));
                } else {
                    self.refused += 1;
                    fixture.answer(&one, "NATS/1.0 429\r\n\r\n", b"");
                }
            }
        }
        for _ in 0..self.capacity.min(self.queue.len()) {
            if let Some((publisher, one)) = self.queue.pop_front() {
                self.sequence += 1;
                self.publishers[publisher].answer(&one, "", &stored(self.sequence, false));
            }
        }
    }

    fn held(&mut self) -> u64 {
        self.publishers.iter_mut().map(|fixture| fixture.counts().held).sum()
    }
}

/// Rows 0.17, 0.26, 0.28 and 0.29: nothing is lost in the overload, the server is always busy, and afterwards the
/// backlog drains at the server's full rate, and every publisher is back at its configured backoff within five seconds
/// of that.
#[test]
fn a_flooded_server_recovers_because_its_publishers_back_off() {
    let publishers = (0..PUBLISHERS as u64)
        .map(|seed| LinkFixture::new(PublisherConfig { seed: Some(seed), unacknowledged: 64, ..config() }));
    let mut scenario = OverloadScenario {
        publishers: publishers.collect(),
        queue: VecDeque::new(),
        capacity: 10,
        queue_max: 200,
        sequence: 0,
        refused: 0,
        given: 0,
        random: crate::backoff::JitterRng::new(1),
    };
    for fixture in &mut scenario.publishers {
        fixture.complete_handshake();
    }
    // Ten seconds at three times the server's rate.
    for _ in 0..1000 {
        scenario.step(30);
    }
    let (taken, refused, backlog) = (scenario.sequence, scenario.refused, scenario.held());
    assert!(taken >= 9_500, "the server is busy all the time: {taken} of 10000");
    assert!(refused < taken, "most attempts succeed: {refused} refusals for {taken}");
    // Then at half of its rate: the backlog drains with the other half.
    let mut steps = 0;
    while scenario.held() > 50 {
        scenario.step(5);
        steps += 1;
        assert!(steps < 10_000, "{} are still held", scenario.held());
    }
    let least = backlog / 5;
    assert!(steps < least * 3 / 2, "{steps} steps for {backlog} messages, {least} at the full rate");
    for _ in 0..500 {
        scenario.step(5);
    }
    assert!(scenario.publishers.iter().all(|fixture| fixture.exponent() == 0), "everybody is at rest");
    let delivered: u64 = scenario.publishers.iter_mut().map(|fixture| fixture.counts().delivered).sum();
    assert!(scenario.given - delivered < 50, "{delivered} of {}", scenario.given);
    assert!(
        scenario
            .publishers
            .iter_mut()
            .all(|fixture| fixture.counts().dropped == 0 && fixture.counts().is_balanced())
    );
}
