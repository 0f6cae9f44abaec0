//! Peers that say everything before they read the first answer: their input is shown also while output is held up, up to a
//! bound; and what a session may know of time meanwhile. Over the simulated network.

use std::time::Duration;

use stilling_engine::{CloseReason, Config, Io, Service, Session};
use stilling_simulation::alone::{Alone, read};

/// Bytes that the network takes in one direction before somebody reads.
const BUFFER: usize = 5000;
/// Bytes of the answer to each byte.
const ANSWER: usize = 1000;
/// Bytes of answers that may wait.
const SEND_MAX: usize = 100_000;
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);
/// The deadline of sessions that have one. Before it the client fills what the network takes.
const DEADLINE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Stage {
    reads_on: bool,
    /// Sessions have a deadline; and whether they keep it.
    keeps_deadline: Option<bool>,
    deadlines: usize,
    send_max: usize,
    seen: usize,
    ended: Vec<CloseReason>,
}

struct Answering;

impl Service for Stage {
    type Session = Answering;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> Answering {
        Answering
    }
}

impl Session for Answering {
    type Service = Stage;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut Stage) {
        io.set_send_max(service.send_max);
        if service.reads_on {
            io.keep_reading();
        }
        if let Some(keeps_it) = service.keeps_deadline {
            io.set_deadline(Some(io.now().after(DEADLINE)));
            assert_eq!(io.deadline(), Some(io.now().after(DEADLINE)));
            if keeps_it {
                io.keep_deadline();
            }
        }
    }

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut Stage) -> usize {
        for byte in bytes {
            service.seen += 1;
            io.send(&[*byte; ANSWER]).expect("it is not shown what there is no room for");
        }
        bytes.len()
    }

    fn deadline(&mut self, io: &mut Io<'_>, service: &mut Stage) {
        assert_eq!(io.deadline(), None);
        service.deadlines += 1;
    }

    fn closed(&mut self, reason: CloseReason, service: &mut Stage) {
        service.ended.push(reason);
    }
}

fn world(reads_on: bool) -> Alone<Stage> {
    let service = Stage { reads_on, send_max: SEND_MAX, ..Stage::default() };
    Alone::new(service, Config { capacity: 100, write_timeout: WRITE_TIMEOUT, ..Config::default() }, BUFFER)
}

/// Row 0.3: input is shown until half of what may wait does, and again as soon as some of it has gone.
#[test]
fn who_reads_late_is_read_on_up_to_the_bound() {
    let mut world = world(true);
    let mut client = world.client();
    let mut said = Vec::new();
    for number in 0..100_u8 {
        // One by one, so that each is shown alone.
        client.write(&[number]).expect("there is room");
        said.push(number);
        world.turns();
        let held = world.shard.held().1;
        assert!(world.shard.service().ended.is_empty(), "{held} bytes are held");
    }
    let seen = world.shard.service().seen;
    assert!((SEND_MAX / 2 / ANSWER..SEND_MAX / 2 / ANSWER + 20).contains(&seen), "{seen} were shown");
    let mut heard = Vec::new();
    while heard.len() < said.len() * ANSWER {
        let more = read(&mut client, 1700).0;
        assert!(!more.is_empty(), "it goes on after {} bytes", heard.len());
        heard.extend(more);
        world.turns();
    }
    let expected: Vec<u8> = said.iter().flat_map(|&byte| [byte; ANSWER]).collect();
    assert!(heard == expected, "every answer in its order");
    drop(client);
    world.turns();
    assert_eq!(world.shard.held(), (0, 0));
}

/// The write timeout goes on for who never reads; and who has not asked for it is shown nothing more, as ever.
#[test]
fn who_never_reads_is_given_up() {
    for reads_on in [true, false] {
        let mut world = world(reads_on);
        let mut client = world.client();
        for number in 0..30_u8 {
            client.write(&[number]).expect("there is room");
            world.turns();
        }
        let seen = world.shard.service().seen;
        assert_eq!(seen == 30, reads_on, "{seen} were shown");
        world.network.advance_to(world.network.now().after(WRITE_TIMEOUT));
        world.turns();
        assert_eq!(world.shard.service().ended, [CloseReason::WriteTimeout]);
    }
}

/// A session that asks for it has its deadline although its peer does not read, and is shown no input for that.
#[test]
fn a_deadline_that_is_kept_comes_while_output_is_held_up() {
    for keeps_it in [true, false] {
        let service = Stage { keeps_deadline: Some(keeps_it), send_max: SEND_MAX, ..Stage::default() };
        let config = Config { capacity: 100, write_timeout: WRITE_TIMEOUT, ..Config::default() };
        let mut world = Alone::new(service, config, BUFFER);
        let mut client = world.client();
        for number in 0..30_u8 {
            client.write(&[number]).expect("there is room");
            world.turns();
        }
        let seen = world.shard.service().seen;
        assert!(seen < 30, "{seen} were shown");
        world.network.advance_to(world.network.now().after(DEADLINE));
        world.turns();
        let service = world.shard.service();
        assert_eq!((service.deadlines, service.seen), (usize::from(keeps_it), seen));
        assert_eq!(service.ended, []);
    }
}

/// Row 0.3: who reads late holds up to its bound, also when another does; and where the share of all is nearly full, further
/// ones are not read, rather than closed, until some of it has gone.
#[test]
fn several_who_read_late_are_held_back_and_not_closed() {
    const SHARE: usize = 4 << 20;
    // Half of the share is two blocks of so many bytes.
    const MOST: usize = 1 << 20;
    let service = Stage { reads_on: true, send_max: MOST, ..Stage::default() };
    let config = Config { capacity: 100, output_bytes_max: SHARE, ..Config::default() };
    let mut world = Alone::new(service, config, BUFFER);
    let mut late = [world.client(), world.client()];
    let said = vec![b'x'; MOST * 6 / 10 / ANSWER];
    for part in said.chunks(20) {
        for client in &mut late {
            client.write(part).expect("there is room");
        }
        world.turns();
        let held = world.shard.held().1;
        assert_eq!(world.shard.service().ended, [], "{held} bytes are held");
    }
    let of_both = world.shard.service().seen;
    assert!(of_both >= 2 * (MOST / 2 / ANSWER), "{of_both} were shown");
    assert!(of_both < 2 * said.len(), "more than half of its bound is held for none");
    let mut third = world.client();
    for _ in 0..100 {
        third.write(b"y").expect("there is room");
        world.turns();
    }
    let shown = world.shard.service().seen - of_both;
    assert!((1..64).contains(&shown), "{shown} were shown of one that finds no share");
    // The others read, and it is read on although it has not read anything itself.
    for client in &mut late {
        let mut heard = 0;
        while heard < said.len() * ANSWER {
            let more = read(client, usize::MAX).0.len();
            assert!(more > 0, "it goes on after {heard} bytes");
            heard += more;
            world.turns();
        }
    }
    assert_eq!(world.shard.service().seen, 2 * said.len() + 100);
    assert_eq!(world.shard.service().ended, []);
}
