//! Property tests: for any messages, in any order, and an end at any point, one of the two servers serves and is
//! reachable.
//!
//! The real hand-over thread runs with real sockets; the other side is generated. It is never silent where the thread
//! waits for it, so no test waits for a timeout; timeouts have their own tests.

use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::net::{SendFlags, send};
use stilling_engine::net::ListenOptions;

use super::control_connection::Incoming;
use super::message::{HandoverMessage, VERSION};
use super::*;
use crate::lifecycle::{HandoverStage, Lifecycle, LifecyclePhase, WallClock};

/// Bound for events that a test waits for.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

const READY: &str = "ready\n";
const YOURS: &str = "yours\n";
const TAKEN: &str = "taken\n";

/// The messages of a correct successor.
fn expected_lines() -> [String; 3] {
    [HandoverMessage::Hello { version: VERSION }.to_line(), READY.to_owned(), TAKEN.to_owned()]
}

/// One server: its hand-over thread, without shards.
struct HandoverFixture {
    lifecycle: Arc<Lifecycle>,
    waker: Arc<HandoverWaker>,
    thread: JoinHandle<Result<(), HandOverError>>,
}

impl HandoverFixture {
    fn at(path: &Path, predecessor: Option<ControlConnection>) -> HandoverFixture {
        let waker = Arc::new(HandoverWaker::new().unwrap());
        let pending = PendingTakeOver {
            config: TakeOverConfig { path: path.to_owned(), report: |_| {} },
            predecessor,
            lock: None,
            predecessor_ended: false,
            waker: Arc::clone(&waker),
        };
        let lifecycle = Arc::new(Lifecycle::new(vec![pending.wake()], WallClock::System));
        if pending.has_predecessor() {
            lifecycle.begin_succession(HandoverStage::Overlapping);
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
        let prepared = pending.open_control_socket().unwrap();
        let options = ListenOptions::default();
        let handed = HandedSockets {
            listeners: vec![listener],
            options,
            sockets: Vec::new(),
            exchanges: Arc::default(),
        };
        let handover_thread = HandoverThread::new(prepared, Arc::clone(&lifecycle), handed, 0, None);
        HandoverFixture { lifecycle, waker, thread: std::thread::spawn(|| handover_thread.run()) }
    }

    fn is_running(&self) -> bool {
        self.lifecycle.phase() == LifecyclePhase::Running && !self.thread.is_finished()
    }

    fn end(self) -> Result<(), HandOverError> {
        self.waker.wake_to_end();
        self.thread.join().unwrap()
    }
}

/// Whether the server offers its listeners to a new successor. It may first have to notice the end of another one and
/// take its path back.
fn is_offered(path: &Path, fixture: &HandoverFixture) -> bool {
    let deadline = Instant::now() + HANG_TIMEOUT;
    while fixture.is_running() && Instant::now() < deadline {
        let Ok(Some(connection)) = ControlConnection::connect(path, deadline) else { continue };
        send_line(&connection, &expected_lines()[0]);
        match connection.receive("listeners", deadline, HANG_TIMEOUT) {
            Ok(Incoming::Received(HandoverMessage::Listeners { count: 1 }, _)) => return true,
            Ok(Incoming::Received(HandoverMessage::Refused(reason), _))
                if reason.contains("taking over now") => {}
            // A successor's leftover socket is being removed.
            Ok(Incoming::Ended) => {}
            _ => return false,
        }
    }
    false
}

/// Waits until the server has noticed the end of earlier successors: it then reads the refusal of a probe and answers
/// it.
fn await_idle(path: &Path, fixture: &HandoverFixture) {
    let deadline = Instant::now() + HANG_TIMEOUT;
    while fixture.is_running() {
        assert!(Instant::now() < deadline, "the server does not respond");
        let Ok(Some(connection)) = ControlConnection::connect(path, deadline) else { continue };
        send_line(&connection, "refused by a probe\n");
        let mut was_received = false;
        while let Ok(Incoming::Received(message, _)) = connection.receive("a refusal", deadline, HANG_TIMEOUT)
        {
            was_received |=
                matches!(message, HandoverMessage::Refused(reason) if reason.contains("by a probe"));
        }
        if was_received {
            return;
        }
    }
}

fn send_line(connection: &ControlConnection, line: &str) {
    // The peer may have left.
    let _ = send(connection.as_fd(), line.as_bytes(), SendFlags::NOSIGNAL);
}

/// Lines that are messages, valid in this step or not, and lines that are not.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (0..3usize).prop_map(|at| expected_lines()[at].clone()),
        2 => Just(YOURS.to_owned()),
        1 => Just("refused enough\n".to_owned()),
        1 => prop_oneof![
            Just("hand-over 2\n"), Just("end 1\n"), Just("listeners http 1\n"), Just("ready"), Just("\n"),
            Just("taken\ntaken\n"),
        ].prop_map(str::to_owned),
        1 => "[ -~\\n]{1,600}".prop_map(|text| text),
    ]
}

/// A successor's lines: correct up to a point, then arbitrary.
fn script() -> impl Strategy<Value = Vec<String>> {
    (0..=3usize, vec(line(), 0..3)).prop_map(|(right, rest)| {
        let mut script = expected_lines()[..right].to_vec();
        script.extend(rest);
        script
    })
}

/// Plays a successor, which `stays` connected after its last line and `moves` to the path when it may. Returns its
/// sockets if it is the server.
fn run_successor(
    path: &Path,
    fixture: &HandoverFixture,
    script: &[String],
    stays: bool,
    moves: bool,
) -> Option<(Option<ControlSocket>, ControlConnection)> {
    let connection = ControlConnection::connect(path, Instant::now() + HANG_TIMEOUT).unwrap()?;
    let expected_lines = expected_lines();
    let mut control_socket = None;
    let receive_next = || connection.receive("anything", Instant::now() + HANG_TIMEOUT, HANG_TIMEOUT);
    for (at, line) in script.iter().enumerate() {
        send_line(&connection, line);
        if moves && at == 1 && script[..2] == expected_lines[..2] {
            while !matches!(
                receive_next(),
                Ok(Incoming::Received(HandoverMessage::PathGranted, _)) | Ok(Incoming::Ended) | Err(_)
            ) {}
            let next = ControlSocket::bind_pending(path).unwrap();
            next.claim_path().unwrap();
            control_socket = Some(next);
        }
    }
    // The thread waits for a successor that is correct so far and not finished.
    let is_incomplete = expected_lines.starts_with(script) && script.len() < expected_lines.len();
    if is_incomplete || !stays {
        return None;
    }
    while fixture.is_running() {
        match connection.try_receive("anything") {
            Ok(Incoming::Nothing) => std::thread::yield_now(),
            Ok(Incoming::Ended | Incoming::Received(HandoverMessage::Refused(_), _)) => return None,
            Ok(Incoming::Received(..)) | Err(_) => {}
        }
    }
    Some((control_socket, connection))
}

/// Row 4.37: a successor that hangs with the listeners blocks no connection: the shards check the queues repeatedly.
#[test]
fn a_hung_successor_does_not_block_waiting_connections() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let fixture = HandoverFixture::at(&path, None);
    let deadline = Instant::now() + HANG_TIMEOUT;
    let connection = ControlConnection::connect(&path, deadline).unwrap().expect("the server listens");
    send_line(&connection, &expected_lines()[0]);
    while fixture.lifecycle.queue_checks() < 2 {
        assert!(fixture.is_running() && Instant::now() < deadline, "no queue check");
        std::thread::park_timeout(Duration::from_millis(1));
    }
    drop(connection);
    assert!(fixture.end().is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Row 4.37: a predecessor goes on, and can be succeeded, unless it received all expected messages in order.
    #[test]
    fn a_predecessor_serves_until_all_messages_have_arrived(
        attempts in vec((script(), any::<bool>(), any::<bool>()), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let fixture = HandoverFixture::at(&path, None);
        let mut may_have_drained = false;
        let mut server = None;
        for (script, stays, moves) in &attempts {
            await_idle(&path, &fixture);
            server = run_successor(&path, &fixture, script, *stays, *moves);
            let took_over = server.is_some();
            may_have_drained |= script.starts_with(&expected_lines());
            prop_assert!(!took_over || may_have_drained, "it was succeeded after {script:?}");
            prop_assert!(took_over || !*stays || *script != expected_lines(), "it was not succeeded");
            if may_have_drained {
                break;
            }
        }
        if may_have_drained {
            // The end of a successor after its last message may go unnoticed: the server has either retired or
            // serves.
            let deadline = Instant::now() + HANG_TIMEOUT;
            while fixture.is_running() && !is_offered(&path, &fixture) {
                prop_assert!(Instant::now() < deadline, "it neither drains nor serves");
            }
        } else {
            prop_assert!(is_offered(&path, &fixture), "neither server serves");
        }
        drop(server);
        prop_assert!(fixture.end().is_ok());
    }

    /// Row 4.37: a successor is the server after `yours` or the end of its predecessor, and ends otherwise, for any
    /// further messages; then it has not touched the path, or the predecessor takes it back.
    #[test]
    fn a_successor_serves_or_ends_with_an_error(sent_lines in vec(line(), 0..4), sends_grant in any::<bool>(), stays in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (predecessor_end, server_end) = ControlConnection::pair();
        let mut sent_lines = sent_lines;
        if sends_grant {
            sent_lines.insert(0, YOURS.to_owned());
        }
        for line in &sent_lines {
            send_line(&predecessor_end, line);
        }
        let fixture = HandoverFixture::at(&path, Some(server_end));
        // The thread would wait for a silent predecessor.
        let predecessor_end = (stays && !sent_lines.is_empty()).then_some(predecessor_end);
        let is_refused = |at: usize| sent_lines.get(at).is_some_and(|line| {
            matches!(HandoverMessage::parse(line.as_bytes()), Ok(HandoverMessage::Refused(_)))
        });
        let takes_over = sent_lines.first().is_none_or(|line| line == YOURS);
        if takes_over && !is_refused(1) {
            let deadline = Instant::now() + HANG_TIMEOUT;
            while !fixture.lifecycle.has_reached(HandoverStage::PathTaken) {
                prop_assert!(Instant::now() < deadline && !fixture.thread.is_finished(), "it does not serve");
                std::thread::yield_now();
            }
            prop_assert!(is_offered(&path, &fixture), "the successor is not reachable");
            prop_assert!(fixture.end().is_ok());
        } else {
            let error = fixture.thread.join().unwrap().expect_err("it must not continue");
            prop_assert_eq!(matches!(error, HandOverError::PredecessorContinues(_)), takes_over, "{}", error);
            // The predecessor sees the end of the connection, and nothing else is at the path.
            if let Some(predecessor_end) = predecessor_end {
                let receive_next = || predecessor_end.receive("anything", Instant::now() + HANG_TIMEOUT, HANG_TIMEOUT);
                prop_assert!(matches!(receive_next(), Ok(Incoming::Received(HandoverMessage::Ready, _))));
                prop_assert_eq!(takes_over, matches!(receive_next(), Ok(Incoming::Received(HandoverMessage::PathTaken, _))));
                prop_assert!(matches!(receive_next(), Ok(Incoming::Ended)));
            }
            prop_assert!(!path.exists());
        }
    }
}
