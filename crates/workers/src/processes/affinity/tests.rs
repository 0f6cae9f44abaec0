//! The assignment of processes to clients: exhaustively over short histories, and at random over long ones.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use stilling_ring::{Time, Wake};

use super::super::PROCESS_SETS;
use super::super::admission_queue::{AdmissionQueue, QueueLimits};
use super::super::permit::SlotPermit;
use super::super::process_slots::ProcessSlots;
use super::super::waker::SupervisorWaker;
use super::*;

const IDLE: Duration = Duration::from_secs(60);
const PROCESSES: usize = 2;
const CLIENTS: u8 = 3;
const SHARDS: usize = 2;

/// A pool without processes: the test opens and closes the slots, as the supervisor does.
struct Pool {
    slots: Arc<[Arc<ProcessSlots>]>,
    /// The set of processes that serves.
    current: usize,
    generation: u64,
    queues: Vec<AffinityQueue<u8, u32>>,
    /// Admitted requests: client, request, permit.
    running: Vec<(u8, u32, SlotPermit)>,
    refused: Vec<u32>,
    asked: u32,
    now: Time,
}

fn shard_of(client: u8) -> usize {
    usize::from(client) % SHARDS
}

impl Pool {
    fn new(slots_each: usize, queue_max: usize) -> Pool {
        let wakes = (0..SHARDS).map(|_| Arc::new(Wake::new(|| ()))).collect();
        let limits = QueueLimits { queue_max, ..QueueLimits::default() };
        let admission_queue = Arc::new(AdmissionQueue::new(limits, wakes));
        let waker = Arc::new(SupervisorWaker::new().expect("an eventfd"));
        // Those of a reload are closed.
        let slots: Arc<[_]> = (0..PROCESS_SETS * PROCESSES)
            .map(|number| {
                let (waker, admission_queue) = (Arc::clone(&waker), Arc::clone(&admission_queue));
                Arc::new(ProcessSlots::new(number, slots_each, 0, waker, admission_queue))
            })
            .collect();
        let queue = |shard| {
            AffinityQueue::new(ShardAdmissionQueue::new(&admission_queue, &slots, shard), PROCESSES, IDLE)
        };
        let queues = (0..SHARDS).map(queue).collect();
        let now = Time::ZERO.after(Duration::from_secs(1000));
        Pool {
            slots,
            current: 0,
            generation: 0,
            queues,
            running: Vec::new(),
            refused: Vec::new(),
            asked: 0,
            now,
        }
    }

    /// Processes are numbered from 0 in the current set, as in `die`.
    fn open(&mut self, process: usize) {
        let process = self.current * PROCESSES + process;
        if self.slots[process].generation() == 0 {
            self.generation += 1;
            self.slots[process].open(self.generation);
        }
        self.turn();
    }

    /// The process dies; the requests that it had fail after the supervisor has noticed it.
    fn die(&mut self, process: usize) {
        let process = self.current * PROCESSES + process;
        self.slots[process].close();
        self.turn();
        self.running.retain(|(.., permit)| permit.process() != process);
        self.turn();
    }

    /// Replaces the set of processes as the supervisor does. All clients with a process get a new one.
    fn reload(&mut self, between: impl FnMut(&mut Pool)) {
        let clients: Vec<u8> = (0..CLIENTS).filter(|client| self.process_of(*client).is_some()).collect();
        self.reload_of(&clients, between);
    }

    /// A reload after which `clients` have a new process; `between` runs after each step.
    fn reload_of(&mut self, clients: &[u8], mut between: impl FnMut(&mut Pool)) {
        let has_late_requests = self.running.iter().any(|(.., permit)| permit.is_stale());
        for process in 0..PROCESSES {
            self.slots[self.current * PROCESSES + process].retire();
            self.turn();
            between(self);
        }
        self.current = (self.current + 1) % PROCESS_SETS;
        for process in 0..PROCESSES {
            self.open(process);
            between(self);
        }
        for client in clients {
            let process = self.process_of(*client).expect("no client loses its process");
            // A process of the set before the last one still has requests: then its client waits for them.
            assert!(has_late_requests || process / PROCESSES == self.current, "it has a new one");
        }
    }

    fn ask(&mut self, client: u8) -> u32 {
        self.asked += 1;
        let (now, request) = (self.now, self.asked);
        if let Err(request) = self.queues[shard_of(client)].enqueue(now, client, request) {
            self.refused.push(request);
        }
        self.poll(shard_of(client));
        self.turn();
        request
    }

    fn finish(&mut self, client: u8) {
        if let Some(at) = self.running.iter().position(|(of, ..)| *of == client) {
            let (.., permit) = self.running.remove(at);
            permit.release(self.now);
            self.turn();
        }
    }

    fn leave(&mut self, client: u8) {
        self.queues[shard_of(client)].client_left(client);
        self.turn();
    }

    fn wait(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.turn();
    }

    /// Shards run only if they are notified or a deadline has passed, until none is.
    fn turn(&mut self) {
        let mut turns = 0;
        loop {
            let is_due = |queue: &AffinityQueue<u8, u32>| {
                queue.shard_queue().take_notification()
                    || queue.next_deadline().is_some_and(|at| at <= self.now)
            };
            let due: Vec<_> = (0..SHARDS).filter(|shard| is_due(&self.queues[*shard])).collect();
            if due.is_empty() {
                break;
            }
            due.into_iter().for_each(|shard| self.poll(shard));
            turns += 1;
            assert!(turns < 100, "the shards notify each other for ever");
        }
        self.check();
    }

    fn poll(&mut self, shard: usize) {
        let client_of = |queue: &AffinityQueue<u8, u32>, process| {
            let of = queue.assignments.iter().find(|assignment| assignment.process == process);
            of.expect("an admitted request has a process").client
        };
        while let Some(outcome) = self.queues[shard].poll_admission(self.now) {
            match outcome {
                AdmissionOutcome::Admitted(permit, request) => {
                    let client = client_of(&self.queues[shard], permit.process());
                    self.running.push((client, request, permit));
                }
                AdmissionOutcome::Refused(request) | AdmissionOutcome::Expired(request) => {
                    self.refused.push(request);
                }
            }
        }
    }

    fn waiting(&self) -> usize {
        let of = |queue: &AffinityQueue<u8, u32>| {
            let assigned = queue.assignments.iter().map(|assignment| assignment.waiting.len());
            queue.unassigned.requests() + assigned.sum::<usize>()
        };
        self.queues.iter().map(of).sum()
    }

    fn process_of(&self, client: u8) -> Option<usize> {
        let queue = &self.queues[shard_of(client)];
        queue.find(client).map(|at| queue.assignments[at].process)
    }

    /// What must hold after every event.
    fn check(&self) {
        let assigned: Vec<_> = self.queues.iter().flat_map(|queue| &queue.assignments).collect();
        for (at, one) in assigned.iter().enumerate() {
            assert!(self.slots[one.process].is_owned());
            for other in &assigned[at + 1..] {
                assert_ne!(one.process, other.process, "a process belongs to one client");
                let are_current = !one.has_ended && !other.has_ended;
                assert!(!are_current || one.client != other.client, "a client has one process");
            }
        }
        for (client, _, permit) in self.running.iter().filter(|(.., permit)| !permit.is_stale()) {
            let of = assigned.iter().find(|assignment| assignment.process == permit.process());
            assert_eq!(
                of.map(|assignment| assignment.client),
                Some(*client),
                "only its client uses a process"
            );
        }
        let counters = self.slots[0].admission_queue().affinity.snapshot();
        assert_eq!(counters.assigned, assigned.len() as u64);
        let queued = self.slots[0].admission_queue().counters().queued;
        assert_eq!(queued, self.waiting() as u64);
    }

    /// Whatever happened before: when the processes run, the requests end and the clients are idle, other clients get
    /// the processes.
    fn check_that_it_never_sticks(&mut self) {
        (0..PROCESSES).for_each(|process| self.open(process));
        while let Some((client, ..)) = self.running.first() {
            self.finish(*client);
        }
        assert_eq!(self.waiting(), 0, "no request waits while its process is free");
        self.wait(IDLE);
        let fresh: Vec<_> = (100..100 + PROCESSES as u8).map(|client| (client, self.ask(client))).collect();
        for (client, request) in fresh {
            let is_running = self.running.iter().any(|(_, running, _)| *running == request);
            assert!(is_running, "client {client} has no process: {:?}", self.queues);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Ask(u8),
    Finish(u8),
    Leave(u8),
    Die(usize),
    Open(usize),
    Wait,
    Reload,
}

fn apply(pool: &mut Pool, event: Event) {
    match event {
        Event::Ask(client) => _ = pool.ask(client),
        Event::Finish(client) => pool.finish(client),
        Event::Leave(client) => pool.leave(client),
        Event::Die(process) => pool.die(process),
        Event::Open(process) => pool.open(process),
        Event::Wait => pool.wait(IDLE),
        Event::Reload => pool.reload(|_| ()),
    }
}

fn events() -> Vec<Event> {
    let clients =
        (0..CLIENTS).flat_map(|client| [Event::Ask(client), Event::Finish(client), Event::Leave(client)]);
    let processes = (0..PROCESSES).flat_map(|process| [Event::Die(process), Event::Open(process)]);
    clients.chain(processes).chain([Event::Wait, Event::Reload]).collect()
}

/// Row 1.4: after every history of up to four events, begun with no process and with all, the pool serves other clients
/// again.
#[test]
fn no_history_makes_an_assignment_stick() {
    let events = events();
    let count = events.len();
    for opened in [0, PROCESSES] {
        for history in 0..count.pow(4) {
            let mut pool = Pool::new(1, 100);
            (0..opened).for_each(|process| pool.open(process));
            let mut rest = history;
            for _ in 0..4 {
                apply(&mut pool, events[rest % count]);
                rest /= count;
            }
            pool.check_that_it_never_sticks();
        }
    }
}

proptest! {
    /// Row 1.4: long histories, also with several slots and a short queue.
    #[test]
    fn no_long_history_makes_an_assignment_stick(
        slots in 1..3_usize,
        queue_max in 1..6_usize,
        history in proptest::collection::vec(0..15_usize, 0..200),
    ) {
        let events = events();
        let mut pool = Pool::new(slots, queue_max);
        history.into_iter().for_each(|at| apply(&mut pool, events[at]));
        pool.check_that_it_never_sticks();
    }
}

/// Row 1.4: a client keeps its process, others are refused, and get it when its client is idle or has left.
#[test]
fn a_process_serves_its_client_only() {
    let mut pool = Pool::new(1, 100);
    (0..PROCESSES).for_each(|process| pool.open(process));
    let [first, second] = [0, 1].map(|client| {
        pool.ask(client);
        pool.finish(client);
        pool.process_of(client).expect("it has a process")
    });
    assert_ne!(first, second);
    let refused = pool.ask(2);
    assert_eq!(pool.refused, [refused]);
    assert_eq!(pool.slots[0].admission_queue().affinity.snapshot().no_worker, 1);
    // Time without requests counts from the end of the last one.
    pool.wait(IDLE / 2);
    pool.ask(0);
    pool.wait(IDLE);
    assert_eq!(pool.process_of(0), Some(first));
    assert_eq!(pool.process_of(1), None, "it was idle");
    pool.ask(2);
    assert_eq!(pool.process_of(2), Some(second));
    pool.finish(0);
    pool.leave(0);
    pool.ask(1);
    assert_eq!(pool.process_of(1), Some(first));
}

/// Row 1.4: a request that waits for its dead process gets another one, or the next run of the same.
#[test]
fn a_dead_process_frees_its_client() {
    let mut pool = Pool::new(1, 100);
    pool.open(0);
    pool.ask(0);
    let waiting = pool.ask(0);
    pool.open(1);
    pool.die(0);
    assert_eq!(pool.process_of(0), Some(1));
    assert_eq!(pool.running.iter().map(|(_, request, _)| *request).collect::<Vec<_>>(), [waiting]);
    pool.die(1);
    let waiting = pool.ask(0);
    assert_eq!((pool.waiting(), pool.refused.len()), (1, 0), "it waits for a process that starts");
    pool.open(1);
    assert_eq!(pool.running.iter().map(|(_, request, _)| *request).collect::<Vec<_>>(), [waiting]);
}

/// Rows 1.4, 1.24: in a reload, clients with a process get its successor, however many others ask meanwhile.
#[test]
fn a_reload_keeps_the_places_of_the_present_clients() {
    let mut pool = Pool::new(1, 100);
    (0..PROCESSES).for_each(|process| pool.open(process));
    pool.ask(1);
    pool.finish(1);
    let runs = |pool: &Pool, of: u8, request: u32| {
        pool.running.iter().any(|(client, running, _)| (*client, *running) == (of, request))
    };
    for _ in 0..3 {
        let (running, waiting) = (pool.ask(0), pool.ask(0));
        let refused = pool.refused.len();
        pool.reload(|pool| {
            for newcomer in 2..6 {
                pool.ask(newcomer);
                assert_eq!(pool.process_of(newcomer), None);
            }
        });
        assert_eq!(pool.refused.len() - refused, 4 * 2 * PROCESSES, "newcomers are refused, and do not wait");
        assert!(!pool.refused.contains(&waiting) && runs(&pool, 0, running));
        assert!(runs(&pool, 0, waiting), "it does not wait for the request of the former process");
        let of_idle = pool.ask(1);
        assert!(runs(&pool, 1, of_idle), "an idle client has a new process, too");
        [0, 0, 1].into_iter().for_each(|client| pool.finish(client));
        assert_eq!((pool.waiting(), pool.running.len()), (0, 0));
    }
}

/// Rows 1.4, 1.24: the new process of a client that leaves during a reload goes to another one at once.
#[test]
fn a_client_that_leaves_during_a_reload_makes_room() {
    let mut pool = Pool::new(1, 100);
    (0..PROCESSES).for_each(|process| pool.open(process));
    let left = pool.ask(0);
    pool.ask(1);
    let mut has_left = false;
    pool.reload_of(&[1], |pool| {
        if !std::mem::replace(&mut has_left, true) {
            pool.leave(0);
            pool.ask(2);
        }
    });
    assert!(pool.process_of(2).is_some() && pool.refused.is_empty());
    assert!(pool.running.iter().any(|(_, request, _)| *request == left), "its request is not finished");
    pool.finish(0);
}

/// Rows 1.4, 1.24: a client does not wait for a successor that has died, if another process is free.
#[test]
fn a_dead_successor_is_replaced_by_a_free_process() {
    let mut pool = Pool::new(1, 100);
    (0..PROCESSES).for_each(|process| pool.open(process));
    pool.ask(0);
    let process = pool.process_of(0).expect("it has a process");
    let waiting = pool.ask(0);
    (0..PROCESSES).for_each(|process| pool.slots[process].retire());
    pool.turn();
    pool.current = 1;
    assert_eq!((pool.waiting(), pool.process_of(0)), (1, Some(process)), "it waits for the successor");
    pool.open(1 - process);
    assert_eq!(pool.process_of(0), Some(PROCESSES + 1 - process));
    assert!(pool.running.iter().any(|(_, request, _)| *request == waiting));
}

/// Row 1.4: requests of one client are served in order, and a client that floods has its share of the queue.
#[test]
fn a_client_has_its_share_of_the_queue() {
    let mut pool = Pool::new(1, 8);
    (0..PROCESSES).for_each(|process| pool.open(process));
    let flood: Vec<_> = (0..10).map(|_| pool.ask(0)).collect();
    assert_eq!(pool.refused, flood[5..], "one runs and four wait");
    let other = [pool.ask(1), pool.ask(1)];
    assert_eq!(pool.refused.len(), 5);
    for request in &flood[..5] {
        assert!(pool.running.iter().any(|(client, running, _)| (*client, running) == (0, request)));
        pool.finish(0);
    }
    assert!(pool.running.iter().any(|(_, request, _)| *request == other[0]));
    assert_eq!(pool.waiting(), 1);
}

/// Row 1.4: the share holds also while processes change, for clients that have none.
#[test]
fn a_client_without_a_process_has_its_share_of_the_queue() {
    let mut pool = Pool::new(1, 8);
    let flood: Vec<_> = (0..10).map(|_| pool.ask(0)).collect();
    assert_eq!((pool.waiting(), &pool.refused[..]), (4, &flood[4..]));
    let others: Vec<_> = (0..4).map(|_| pool.ask(1)).collect();
    assert_eq!((pool.waiting(), pool.refused.len()), (8, 6), "the other client has its share, too");
    assert_eq!(pool.slots[0].admission_queue().affinity.snapshot().no_worker, 6);
    (0..PROCESSES).for_each(|process| pool.open(process));
    for request in flood[..4].iter().zip(&others).flat_map(|(one, other)| [(0, one), (1, other)]) {
        assert!(pool.running.iter().any(|(client, running, _)| (*client, running) == request));
        pool.finish(request.0);
    }
    assert_eq!(pool.waiting(), 0);
}

/// Row 1.4: in a full queue, a client beyond its share is refused for its share: no other request can make room for it.
#[test]
fn a_client_beyond_its_share_is_refused_in_a_full_queue_too() {
    let mut pool = Pool::new(1, 4);
    for client in [0, 0, 2, 2] {
        pool.ask(client);
    }
    assert_eq!((pool.waiting(), pool.refused.len()), (4, 0));
    let (now, no_worker) =
        (pool.now, |pool: &Pool| pool.slots[0].admission_queue().affinity.snapshot().no_worker);
    assert!(pool.queues[0].enqueue(now, 0, 100).is_ok(), "it is refused by `poll_admission`");
    pool.poll(0);
    assert_eq!((&pool.refused[..], no_worker(&pool)), (&[100][..], 1));
    assert_eq!(pool.queues[0].enqueue(now, 4, 101), Err(101), "within its share, but the queue is full");
    assert_eq!((pool.waiting(), no_worker(&pool)), (4, 1));
    pool.check();
    (0..PROCESSES).for_each(|process| pool.open(process));
    assert_eq!(pool.running.len(), PROCESSES);
}

/// Row 1.4: a request that is withdrawn makes room, whether its client has a process or not.
#[test]
fn a_withdrawn_request_frees_its_place() {
    let mut pool = Pool::new(1, 4);
    for opened in [0, 1] {
        (0..opened).for_each(|process| pool.open(process));
        pool.wait(Duration::from_secs(1));
        let now = pool.now;
        let queue = &mut pool.queues[shard_of(0)];
        let tickets: Vec<_> =
            (0..2).map(|request| queue.enqueue(now, 0, request).expect("there is room")).collect();
        if opened > 0 {
            pool.poll(shard_of(0));
            assert_eq!(pool.waiting(), 1, "one runs");
        }
        let queue = &mut pool.queues[shard_of(0)];
        assert_eq!(queue.withdraw(1, tickets[1], false), None, "it is not a request of this client");
        assert_eq!(queue.withdraw(0, tickets[1], false), Some(1));
        assert_eq!(queue.withdraw(0, tickets[1], false), None);
        if opened == 0 {
            assert_eq!(queue.withdraw(0, tickets[0], true), Some(0));
            assert_eq!(queue.unassigned.oldest(), None);
        }
        pool.check();
    }
    assert!(pool.running.len() == 1 && pool.refused.is_empty());
}
