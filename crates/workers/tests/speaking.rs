//! Jobs that say more than one thing, and threads that take jobs only while their seat is ready.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, Thread};
use std::time::Duration;

use stilling_ring::{Clock, Wake};
use stilling_workers::{JobContext, Lane, Limits, Outcome, Pool, Reply, Seat};

/// After this, what has not happened is taken to never happen.
const HANG: Duration = Duration::from_secs(60);

/// What the jobs here say.
#[derive(Debug)]
enum Said {
    Begin(u32, Reply<u32>),
    More(u32),
    End(u32),
    Alone,
}

fn wake() -> Arc<Wake> {
    let consumer: Thread = thread::current();
    Arc::new(Wake::new(move || consumer.unpark()))
}

fn world(threads: usize) -> (Pool<Said>, Lane<Said>, Arc<Wake>) {
    let wake = wake();
    let limits = Limits { threads, queue_max: 8, age_max: HANG, ..Limits::default() };
    let (pool, mut lanes) = Pool::new(limits, Clock::real(), vec![Arc::clone(&wake)]);
    (pool, lanes.remove(0), wake)
}

fn next(lane: &mut Lane<Said>, wake: &Wake) -> (u64, Outcome<Said>) {
    loop {
        if let Some(completed) = lane.next_result() {
            return (completed.ticket, completed.outcome);
        }
        wake.park();
        if !lane.has_result() {
            thread::park();
        }
        wake.unpark();
    }
}

/// Doubles what it is replied until the sum passes a hundred, or nobody listens.
fn submit(lane: &mut Lane<Said>, ticket: u64) {
    let speaker = lane.speaker(ticket);
    let job = move |_: &mut JobContext| {
        let (mut conversation, reply) = speaker.begin::<u32>();
        let mut heard = conversation.say(Said::Begin(1, reply));
        while let Some(number) = heard {
            if number > 100 {
                return Said::End(number);
            }
            heard = conversation.say(Said::More(2 * number));
        }
        assert!(conversation.say(Said::More(0)).is_none(), "nobody listens, and never will");
        Said::Alone
    };
    lane.submit(ticket, job).expect("there is room");
    lane.publish();
}

fn begun(outcome: Outcome<Said>) -> (u32, Reply<u32>) {
    match outcome {
        Outcome::Part(Said::Begin(number, reply)) => (number, reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_conversation_alternates_until_the_result() {
    let (pool, mut lane, wake) = world(1);
    pool.start().expect("a thread");
    submit(&mut lane, 7);
    let (ticket, outcome) = next(&mut lane, &wake);
    let (mut number, mut reply) = begun(outcome);
    assert_eq!((ticket, number, lane.outstanding()), (7, 1, 1));
    loop {
        reply.send(number + 1).expect("the job listens");
        match next(&mut lane, &wake) {
            (7, Outcome::Part(Said::More(more))) => {
                assert_eq!((more, lane.outstanding()), (2 * (number + 1), 1), "a part is not an answer");
                number = more;
            }
            (7, Outcome::Done(Said::End(end))) => break assert_eq!(end, number + 1),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((number, lane.outstanding(), pool.counters().done), (190, 0, 1));
}

#[test]
fn a_second_reply_to_the_same_part_comes_back() {
    let (_pool, lane, _) = world(0);
    let (_conversation, mut reply) = lane.speaker(1).begin::<u32>();
    assert_eq!((reply.send(50), reply.send(51)), (Ok(()), Err(51)));
}

/// Row 4.12: whoever goes away in the middle costs no thread.
#[test]
fn a_listener_that_goes_away_ends_the_conversation() {
    let (pool, mut lane, wake) = world(1);
    pool.start().expect("a thread");
    for round in 0..100 {
        submit(&mut lane, round);
        let (ticket, outcome) = next(&mut lane, &wake);
        assert_eq!(ticket, round);
        drop(begun(outcome));
        assert!(matches!(next(&mut lane, &wake), (ticket, Outcome::Done(Said::Alone)) if ticket == round));
    }
    submit(&mut lane, 100);
    wake.park();
    while !lane.has_result() {
        thread::park();
    }
    // The part lies in the mailbox of a lane that goes.
    drop(lane);
    pool.close();
    pool.join(Clock::real().now().after(HANG)).expect("the job hears of it");
}

/// A lane that fetches nothing is refused before the mailbox of its results is full, also when every job speaks.
#[test]
fn there_is_room_for_a_part_and_a_result_of_every_job() {
    let (pool, mut lane, _) = world(1);
    let mut submitted = 0;
    let refused = loop {
        let speaker = lane.speaker(submitted);
        let job = move |_: &mut JobContext| {
            let (mut conversation, reply) = speaker.begin::<u32>();
            // The replying end is dropped with the part: the job goes on at once, the part stays.
            let _ = conversation.say(Said::Begin(drop_reply(reply), dead_reply()));
            Said::Alone
        };
        match lane.submit(submitted, job) {
            Ok(_) => submitted += 1,
            Err(refused) => break refused,
        }
        lane.publish();
        let mut context = JobContext::real();
        pool.take().expect("it was published").run(&mut context).deliver();
    };
    drop(refused);
    assert_eq!(submitted, 2 * (8 + 1), "as many as a pool of silent jobs takes");
    let mut results = 0;
    while lane.next_result().is_some() {
        results += 1;
    }
    assert_eq!((results, lane.outstanding()), (2 * submitted, 0));
}

fn drop_reply(reply: Reply<u32>) -> u32 {
    drop(reply);
    0
}

/// A reply to a conversation that does not matter here.
fn dead_reply() -> Reply<u32> {
    let (_pool, lane, _) = world(0);
    lane.speaker(0).begin().1
}

/// A seat that is ready when it is told so.
struct Chair {
    number: usize,
    stage: Arc<Stage>,
}

#[derive(Default)]
struct Stage {
    ready: [AtomicBool; 2],
    over: AtomicBool,
    changed: Condvar,
    lock: Mutex<()>,
    ran: [AtomicUsize; 2],
}

impl Stage {
    fn set(&self, flag: &AtomicBool, to: bool) {
        let _guard = self.lock.lock().expect("no panic");
        flag.store(to, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

impl Seat for Chair {
    fn wait(&mut self) {
        let mut guard = self.stage.lock.lock().expect("no panic");
        while !self.is_ready() {
            guard = self.stage.changed.wait(guard).expect("no panic");
        }
    }

    fn is_ready(&self) -> bool {
        self.stage.ready[self.number].load(Ordering::SeqCst) || self.stage.over.load(Ordering::SeqCst)
    }
}

/// Row 1.24: a worker whose process is down takes no jobs, and no wake is lost with it.
#[test]
fn a_thread_takes_jobs_only_while_its_seat_is_ready() {
    let (pool, mut lane, wake) = world(2);
    let stage = Arc::new(Stage::default());
    let seat = |number| Box::new(Chair { number, stage: Arc::clone(&stage) }) as Box<dyn Seat>;
    pool.start_seats(vec![seat(0), seat(1)]).expect("two threads");
    assert!(pool.start().is_err(), "a pool starts once");
    for round in 0..200 {
        let now = round % 2;
        stage.set(&stage.ready[now], true);
        // The other thread may just have been awake; from now on it is not ready.
        stage.set(&stage.ready[1 - now], false);
        let before = stage.ran[1 - now].load(Ordering::SeqCst);
        for ticket in 0..3 {
            let stage = Arc::clone(&stage);
            let job = move |context: &mut JobContext| {
                let chair = context.seat::<Chair>().expect("every thread has one");
                stage.ran[chair.number].fetch_add(1, Ordering::SeqCst);
                Said::Alone
            };
            lane.submit(ticket, job).expect("there is room");
            lane.publish();
        }
        for _ in 0..3 {
            assert!(matches!(next(&mut lane, &wake).1, Outcome::Done(Said::Alone)));
        }
        let strays = stage.ran[1 - now].load(Ordering::SeqCst) - before;
        assert!(strays <= 1, "one job at most was taken in the moment of the change, not {strays}");
    }
    for ready in &stage.ready {
        stage.set(ready, false);
    }
    let job = |_: &mut JobContext| Said::Alone;
    lane.submit(9, job).expect("there is room");
    lane.publish();
    pool.close();
    stage.set(&stage.over, true);
    assert!(
        matches!(next(&mut lane, &wake), (9, Outcome::Done(Said::Alone))),
        "what was accepted is answered"
    );
    pool.join(Clock::real().now().after(HANG)).expect("both threads end");
}
