//! Unread output: which connections are disconnected for it, and how long a connection may take.

use std::time::Duration;

use stilling_engine::limits::WRITE_RATE_MIN;
use stilling_engine::{CloseReason, Io, Service, Session, ShardConfig};
use stilling_simulation::single_shard::{SingleShard, read};
use stilling_simulation::unread::{UnreadReport, run};

/// Row 4.35: only connections that hold more than their share are disconnected, the largest first; the others get every
/// message.
#[test]
fn connections_within_their_share_lose_nothing() {
    let mut sum = UnreadReport::default();
    for seed in 0..400 {
        let report = run(seed).unwrap_or_else(|failure| panic!("{failure}"));
        sum.disconnected += report.disconnected;
        sum.got_last_message += report.got_last_message;
        sum.too_slow += report.too_slow;
        sum.served += report.served;
    }
    assert!(sum.disconnected > 400 && sum.too_slow > 10 && sum.served > 1000, "{sum:?}");
    assert!(sum.got_last_message * 10 > (sum.disconnected + sum.too_slow) * 7, "{sum:?}");
}

const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

const LONG: usize = 60_000;

/// The reasons for which connections ended.
#[derive(Default)]
struct CloseRecorder {
    reasons: Vec<CloseReason>,
    /// The response is offered, not sent.
    offers: bool,
}

struct LongAnswer {
    left: usize,
}

impl Service for CloseRecorder {
    type Session = LongAnswer;
    type Mail = ();

    fn accepted(&mut self, _listener: u32) -> LongAnswer {
        LongAnswer { left: LONG }
    }
}

impl Session for LongAnswer {
    type Service = CloseRecorder;

    fn opened(&mut self, io: &mut Io<'_>, service: &mut CloseRecorder) {
        match service.offers {
            true => io.offer(&[b'x'; LONG]),
            false => io.send(&[b'x'; LONG]).expect("there is room"),
        }
    }

    fn received(&mut self, bytes: &[u8], _: &mut Io<'_>, _: &mut CloseRecorder) -> usize {
        bytes.len()
    }

    fn offer_sent(&mut self, count: usize, io: &mut Io<'_>, _: &mut CloseRecorder) {
        self.left -= count;
        if self.left > 0 {
            io.offer(&[b'x'; LONG][..self.left]);
        }
    }

    fn closed(&mut self, reason: CloseReason, service: &mut CloseRecorder) {
        service.reasons.push(reason);
    }
}

/// Row 4.35: a peer that reads too little within each write timeout is closed; a peer that reads enough is not.
#[test]
fn a_peer_that_reads_too_slowly_is_closed() {
    let rate = usize::try_from(WRITE_RATE_MIN).expect("a small number");
    let paces = [(rate / 10, true), (2 * rate, false)];
    for ((per_second, is_slow), offers) in
        paces.into_iter().zip([false; 2]).chain(paces.into_iter().zip([true; 2]))
    {
        let config = ShardConfig { capacity: 10, write_timeout: WRITE_TIMEOUT, ..ShardConfig::default() };
        let mut world = SingleShard::new(CloseRecorder { offers, ..CloseRecorder::default() }, config, 1000);
        let mut client = world.client();
        let mut seconds = 0;
        let mut all = 0;
        while all < LONG && world.service().reasons.is_empty() {
            all += read(&mut client, per_second).0.len();
            world.network.advance_to(world.network.now().after(Duration::from_secs(1)));
            world.run_turns();
            seconds += 1;
            assert!(seconds < 100, "it is served for ever");
        }
        let expected: &[CloseReason] = if is_slow { &[CloseReason::WriteTimeout] } else { &[] };
        assert_eq!(world.service().reasons, expected);
        assert!(!is_slow || seconds < 10, "it was served for {seconds} s");
    }
}
