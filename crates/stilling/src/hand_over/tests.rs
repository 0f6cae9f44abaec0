//! Whatever the other side says, in whatever order, and wherever it ends: one of the two serves, and can be reached.
//!
//! The shipped porter runs on a thread with real sockets; the other side is made up. It never stays silent where the
//! porter waits for it, so no timeout is waited for; those have tests of their own.

use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::net::{SendFlags, send};
use stilling_engine::net::ListenOptions;

use super::channel::Incoming;
use super::message::{Message, VERSION};
use super::*;
use crate::lifecycle::{Calendar, Lifecycle, Phase, Stage};

/// After this, what has not happened is taken to never happen.
const HANG: Duration = Duration::from_secs(60);

const READY: &str = "ready\n";
const YOURS: &str = "yours\n";
const TAKEN: &str = "taken\n";

/// What a successor says when all goes well.
fn course() -> [String; 3] {
    [Message::Hello { version: VERSION }.to_line(), READY.to_owned(), TAKEN.to_owned()]
}

/// One server: its porter, without shards.
struct Side {
    lifecycle: Arc<Lifecycle>,
    bell: Arc<Bell>,
    thread: JoinHandle<Result<(), HandOverError>>,
}

impl Side {
    fn at(path: &Path, old: Option<Channel>) -> Side {
        let bell = Arc::new(Bell::new().unwrap());
        let arrival = Arrival {
            config: TakeOver { path: path.to_owned(), tell: |_| {} },
            old,
            lock: None,
            has_ended: false,
            bell: Arc::clone(&bell),
        };
        let lifecycle = Arc::new(Lifecycle::new(vec![arrival.wake()], Calendar::System));
        if arrival.has_old() {
            lifecycle.begin_succession(Stage::Beside);
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
        let waiting = arrival.settle().unwrap();
        let options = ListenOptions::default();
        let held = Held { listeners: vec![listener], options, sockets: Vec::new() };
        let porter = Porter::new(waiting, Arc::clone(&lifecycle), held, 0, None);
        Side { lifecycle, bell, thread: std::thread::spawn(|| porter.keep()) }
    }

    fn is_running(&self) -> bool {
        self.lifecycle.phase() == Phase::Running && !self.thread.is_finished()
    }

    fn end(self) -> Result<(), HandOverError> {
        self.bell.ring_the_end();
        self.thread.join().unwrap()
    }
}

/// Whether the server would hand over to who comes to the path. It may have to notice first that somebody has left,
/// and to take its path back.
fn is_offered(path: &Path, side: &Side) -> bool {
    let deadline = Instant::now() + HANG;
    while side.is_running() && Instant::now() < deadline {
        let Ok(Some(channel)) = Channel::connect(path, deadline) else { continue };
        say(&channel, &course()[0]);
        match channel.receive("listeners", deadline, HANG) {
            Ok(Incoming::Message(Message::Listeners { count: 1 }, _)) => return true,
            Ok(Incoming::Message(Message::Refused(reason), _)) if reason.contains("at this moment") => {}
            // What a successor had left at the path is gone in this moment.
            Ok(Incoming::Ended) => {}
            _ => return false,
        }
    }
    false
}

/// Waits until the server has noticed that whoever came before has left: it has heard somebody out who wants nothing.
fn await_leisure(path: &Path, side: &Side) {
    let deadline = Instant::now() + HANG;
    while side.is_running() {
        assert!(Instant::now() < deadline, "the server has no time");
        let Ok(Some(channel)) = Channel::connect(path, deadline) else { continue };
        say(&channel, "refused by nobody\n");
        let mut was_heard = false;
        while let Ok(Incoming::Message(said, _)) = channel.receive("a refusal", deadline, HANG) {
            was_heard |= matches!(said, Message::Refused(reason) if reason.contains("by nobody"));
        }
        if was_heard {
            return;
        }
    }
}

fn say(channel: &Channel, line: &str) {
    // One that has gone hears nothing.
    let _ = send(channel.as_fd(), line.as_bytes(), SendFlags::NOSIGNAL);
}

/// Lines that are messages, right or wrong, and lines that are none.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (0..3usize).prop_map(|at| course()[at].clone()),
        2 => Just(YOURS.to_owned()),
        1 => Just("refused enough\n".to_owned()),
        1 => prop_oneof![
            Just("hand-over 2\n"), Just("end 1\n"), Just("listeners http 1\n"), Just("ready"), Just("\n"),
            Just("taken\ntaken\n"),
        ].prop_map(str::to_owned),
        1 => "[ -~\\n]{1,600}".prop_map(|text| text),
    ]
}

/// What a successor says: as it should for a while, and then anything.
fn script() -> impl Strategy<Value = Vec<String>> {
    (0..=3usize, vec(line(), 0..3)).prop_map(|(right, rest)| {
        let mut script = course()[..right].to_vec();
        script.extend(rest);
        script
    })
}

/// Plays a successor; whether it stays when it has said everything, and whether it takes the path when it may.
/// Returns what it holds as the server, if it is.
fn play(
    path: &Path,
    side: &Side,
    script: &[String],
    stays: bool,
    moves: bool,
) -> Option<(Option<Door>, Channel)> {
    let channel = Channel::connect(path, Instant::now() + HANG).unwrap()?;
    let course = course();
    let mut door = None;
    let hear = || channel.receive("anything", Instant::now() + HANG, HANG);
    for (at, line) in script.iter().enumerate() {
        say(&channel, line);
        if moves && at == 1 && script[..2] == course[..2] {
            while !matches!(hear(), Ok(Incoming::Message(Message::Yours, _)) | Ok(Incoming::Ended) | Err(_)) {
            }
            let next = Door::beside(path).unwrap();
            next.move_in().unwrap();
            door = Some(next);
        }
    }
    // As long as it has said nothing wrong and not all, it would be waited for.
    let is_waited_for = course.starts_with(script) && script.len() < course.len();
    if is_waited_for || !stays {
        return None;
    }
    while side.is_running() {
        match channel.receive_now("anything") {
            Ok(Incoming::Nothing) => std::thread::yield_now(),
            Ok(Incoming::Ended | Incoming::Message(Message::Refused(_), _)) => return None,
            Ok(Incoming::Message(..)) | Err(_) => {}
        }
    }
    Some((door, channel))
}

/// Row 4.37: a successor that hangs with the listeners in its hands keeps nobody waiting: the shards look again and again.
#[test]
fn a_successor_that_hangs_does_not_hide_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let side = Side::at(&path, None);
    let deadline = Instant::now() + HANG;
    let channel = Channel::connect(&path, deadline).unwrap().expect("somebody is there");
    say(&channel, &course()[0]);
    while side.lifecycle.looks() < 2 {
        assert!(side.is_running() && Instant::now() < deadline, "nobody looks");
        std::thread::park_timeout(Duration::from_millis(1));
    }
    drop(channel);
    assert!(side.end().is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Row 4.37: an old server goes on, and can be succeeded, unless it has heard all that it should in its order.
    #[test]
    fn an_old_server_serves_until_everything_was_said(
        visits in vec((script(), any::<bool>(), any::<bool>()), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let side = Side::at(&path, None);
        let mut may_have_gone = false;
        let mut server = None;
        for (script, stays, moves) in &visits {
            await_leisure(&path, &side);
            server = play(&path, &side, script, *stays, *moves);
            let went = server.is_some();
            may_have_gone |= script.starts_with(&course());
            prop_assert!(!went || may_have_gone, "it went after {script:?}");
            prop_assert!(went || !*stays || *script != course(), "it did not go");
            if may_have_gone {
                break;
            }
        }
        if may_have_gone {
            // One that left at its last word may have been noticed or not: the old server has gone, or serves.
            let deadline = Instant::now() + HANG;
            while side.is_running() && !is_offered(&path, &side) {
                prop_assert!(Instant::now() < deadline, "it neither goes nor serves");
            }
        } else {
            prop_assert!(is_offered(&path, &side), "nobody serves");
        }
        drop(server);
        prop_assert!(side.end().is_ok());
    }

    /// Row 4.37: a successor is the server when the old one has said so or has gone, and ends otherwise, whatever
    /// else was said; then it has not touched the path, or the old server takes it back.
    #[test]
    fn a_successor_serves_or_ends_and_says_so(said in vec(line(), 0..4), yours in any::<bool>(), stays in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (ours, theirs) = Channel::pair();
        let mut said = said;
        if yours {
            said.insert(0, YOURS.to_owned());
        }
        for line in &said {
            say(&ours, line);
        }
        let side = Side::at(&path, Some(theirs));
        // A silent one would be waited for.
        let ours = (stays && !said.is_empty()).then_some(ours);
        let is_refused = |at: usize| said.get(at).is_some_and(|line| {
            matches!(Message::parse(line.as_bytes()), Ok(Message::Refused(_)))
        });
        let takes = said.first().is_none_or(|line| line == YOURS);
        if takes && !is_refused(1) {
            let deadline = Instant::now() + HANG;
            while !side.lifecycle.has_reached(Stage::Alone) {
                prop_assert!(Instant::now() < deadline && !side.thread.is_finished(), "it does not serve");
                std::thread::yield_now();
            }
            prop_assert!(is_offered(&path, &side), "nobody can reach it");
            prop_assert!(side.end().is_ok());
        } else {
            let error = side.thread.join().unwrap().expect_err("it was not to go on");
            prop_assert_eq!(matches!(error, HandOverError::TakenBack(_)), takes, "{}", error);
            // The old server sees the end of the connection, and nobody else is at the path.
            if let Some(ours) = ours {
                let hear = || ours.receive("anything", Instant::now() + HANG, HANG);
                prop_assert!(matches!(hear(), Ok(Incoming::Message(Message::Ready, _))));
                prop_assert_eq!(takes, matches!(hear(), Ok(Incoming::Message(Message::Taken, _))));
                prop_assert!(matches!(hear(), Ok(Incoming::Ended)));
            }
            prop_assert!(!path.exists());
        }
    }
}
