//! Peers that send everything before they read the first response: their input is shown also while output is blocked,
//! up to a limit; and deadlines meanwhile. Over the simulated network.

use std::time::Duration;

use stilling_engine::{CloseReason, Io, Service, Session, ShardConfig};
use stilling_simulation::single_shard::{SingleShard, read};

/// Bytes that the network holds in one direction.
const BUFFER: usize = 5000;
const ANSWER: usize = 1000;
const SEND_MAX: usize = 100_000;
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);
/// The deadline of sessions that have one. The client fills the network before it.
const DEADLINE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct BlockedReadService {
    reads_while_blocked: bool,
    /// Whether sessions have a deadline, and whether they keep it.
    keeps_deadline: Option<bool>,
    deadlines: usize,
    send_max: usize,
    input_count: usize,
    ended: Vec<CloseReason>,
}

struct BlockedReadSession;

impl Service for BlockedReadService {
    type Session = BlockedReadSession;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> BlockedReadSession {
        BlockedReadSession
    }
}

impl Session for BlockedReadSession {
    type Service = BlockedReadService;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut BlockedReadService) {
        io.set_send_max(service.send_max);
        if service.reads_while_blocked {
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

    fn received(&mut self, bytes: &[u8], io: &mut Io<'_>, service: &mut BlockedReadService) -> usize {
        for byte in bytes {
            service.input_count += 1;
            io.send(&[*byte; ANSWER]).expect("it is not shown what there is no room for");
        }
        bytes.len()
    }

    fn deadline(&mut self, io: &mut Io<'_>, service: &mut BlockedReadService) {
        assert_eq!(io.deadline(), None);
        service.deadlines += 1;
    }

    fn closed(&mut self, reason: CloseReason, service: &mut BlockedReadService) {
        service.ended.push(reason);
    }
}

fn fixture(reads_while_blocked: bool) -> SingleShard<BlockedReadService> {
    let service =
        BlockedReadService { reads_while_blocked, send_max: SEND_MAX, ..BlockedReadService::default() };
    SingleShard::new(
        service,
        ShardConfig { capacity: 100, write_timeout: WRITE_TIMEOUT, ..ShardConfig::default() },
        BUFFER,
    )
}

/// Row 0.3: input is shown until half of the maximum waits, and again as soon as some of it is sent.
#[test]
fn a_late_reader_is_read_up_to_the_bound() {
    let mut fixture = fixture(true);
    let mut client = fixture.client();
    let mut sent = Vec::new();
    for number in 0..100_u8 {
        // One by one, so that each is shown alone.
        client.write(&[number]).expect("there is room");
        sent.push(number);
        fixture.run_turns();
        let held_bytes = fixture.shard.held_bytes().1;
        assert!(fixture.shard.service().ended.is_empty(), "{held_bytes} bytes are held");
    }
    let input_count = fixture.shard.service().input_count;
    assert!(
        (SEND_MAX / 2 / ANSWER..SEND_MAX / 2 / ANSWER + 20).contains(&input_count),
        "{input_count} were shown"
    );
    let mut answered = Vec::new();
    while answered.len() < sent.len() * ANSWER {
        let more = read(&mut client, 1700).0;
        assert!(!more.is_empty(), "no output after {} bytes", answered.len());
        answered.extend(more);
        fixture.run_turns();
    }
    let expected: Vec<u8> = sent.iter().flat_map(|&byte| [byte; ANSWER]).collect();
    assert!(answered == expected, "every answer in its order");
    drop(client);
    fixture.run_turns();
    assert_eq!(fixture.shard.held_bytes(), (0, 0));
}

/// The write timeout applies to a peer that never reads; without `keep_reading` no more input is shown.
#[test]
fn a_peer_that_never_reads_times_out() {
    for reads_while_blocked in [true, false] {
        let mut fixture = fixture(reads_while_blocked);
        let mut client = fixture.client();
        for number in 0..30_u8 {
            client.write(&[number]).expect("there is room");
            fixture.run_turns();
        }
        let input_count = fixture.shard.service().input_count;
        assert_eq!(input_count == 30, reads_while_blocked, "{input_count} were shown");
        fixture.network.advance_to(fixture.network.now().after(WRITE_TIMEOUT));
        fixture.run_turns();
        assert_eq!(fixture.shard.service().ended, [CloseReason::WriteTimeout]);
    }
}

/// A kept deadline is reported although the peer does not read, and no input is shown for it.
#[test]
fn a_kept_deadline_is_reported_while_output_is_held_up() {
    for keeps_it in [true, false] {
        let service = BlockedReadService {
            keeps_deadline: Some(keeps_it),
            send_max: SEND_MAX,
            ..BlockedReadService::default()
        };
        let config = ShardConfig { capacity: 100, write_timeout: WRITE_TIMEOUT, ..ShardConfig::default() };
        let mut fixture = SingleShard::new(service, config, BUFFER);
        let mut client = fixture.client();
        for number in 0..30_u8 {
            client.write(&[number]).expect("there is room");
            fixture.run_turns();
        }
        let input_count = fixture.shard.service().input_count;
        assert!(input_count < 30, "{input_count} were shown");
        fixture.network.advance_to(fixture.network.now().after(DEADLINE));
        fixture.run_turns();
        let service = fixture.shard.service();
        assert_eq!((service.deadlines, service.input_count), (usize::from(keeps_it), input_count));
        assert_eq!(service.ended, []);
    }
}

/// Row 0.3: a late reader holds up to its maximum, also when another one does; and when the store of all is nearly
/// full, further ones are not read, rather than closed, until some of it is sent.
#[test]
fn several_late_readers_are_blocked_and_not_closed() {
    const SHARE: usize = 4 << 20;
    // Half of the store is two blocks of this many bytes.
    const MOST: usize = 1 << 20;
    let service =
        BlockedReadService { reads_while_blocked: true, send_max: MOST, ..BlockedReadService::default() };
    let config = ShardConfig { capacity: 100, output_bytes_max: SHARE, ..ShardConfig::default() };
    let mut fixture = SingleShard::new(service, config, BUFFER);
    let mut late = [fixture.client(), fixture.client()];
    let sent = vec![b'x'; MOST * 6 / 10 / ANSWER];
    for part in sent.chunks(20) {
        for client in &mut late {
            client.write(part).expect("there is room");
        }
        fixture.run_turns();
        let held_bytes = fixture.shard.held_bytes().1;
        assert_eq!(fixture.shard.service().ended, [], "{held_bytes} bytes are held");
    }
    let input_of_both = fixture.shard.service().input_count;
    assert!(input_of_both >= 2 * (MOST / 2 / ANSWER), "{input_of_both} were shown");
    assert!(input_of_both < 2 * sent.len(), "more than half of its bound is held for none");
    let mut third = fixture.client();
    for _ in 0..100 {
        third.write(b"y").expect("there is room");
        fixture.run_turns();
    }
    let input_of_third = fixture.shard.service().input_count - input_of_both;
    assert!((1..64).contains(&input_of_third), "{input_of_third} bytes shown although the store has no room");
    // The others read, and reading from it resumes although it has not read anything itself.
    for client in &mut late {
        let mut answered = 0;
        while answered < sent.len() * ANSWER {
            let more = read(client, usize::MAX).0.len();
            assert!(more > 0, "no output after {answered} bytes");
            answered += more;
            fixture.run_turns();
        }
    }
    assert_eq!(fixture.shard.service().input_count, 2 * sent.len() + 100);
    assert_eq!(fixture.shard.service().ended, []);
}
