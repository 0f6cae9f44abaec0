//! The exchange with processes played by threads on a Unix socket, so that each step happens when it is to.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use stilling_ring::{Clock, Wake};
use stilling_wire::http1::{Event, Limits, RequestDecoder};
use stilling_workers::processes::{self, Exchange, Processes};
use stilling_workers::{JobContext, Lane, Limits as PoolLimits, Outcome, Pool};

use super::{BodyFraming, Heard, Question, Refusal, Said, exchange, slot::AppSlot};
use crate::http::{Held, JobOutcome};

/// After this, what has not happened is taken to never happen.
const HANG: Duration = Duration::from_secs(60);

/// A process that only has to live: a thread of the test listens in its place.
struct Sleeper;

impl Exchange for Sleeper {
    fn command(&mut self, _: usize) -> std::io::Result<Command> {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Ok(command)
    }

    fn is_ready(&mut self, _: usize) -> bool {
        true
    }
}

/// What one connection to the process sees, in the order of their making.
type Script = Box<dyn FnOnce(&mut UnixStream) + Send>;

struct World {
    _folder: tempfile::TempDir,
    processes: Processes,
    context: JobContext,
    pool: Pool<JobOutcome>,
    lane: Lane<JobOutcome>,
    listener: JoinHandle<()>,
}

impl World {
    fn new(timeout: Duration, scripts: Vec<Script>) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("app.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let listener = std::thread::spawn(move || {
            for script in scripts {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.set_read_timeout(Some(HANG)).expect("a socket takes options");
                script(&mut stream);
            }
        });
        Self::behind(folder, &path, timeout, listener)
    }

    /// A process at that path that takes no more connections than those that are there.
    fn full(timeout: Duration) -> (World, UnixListener, UnixStream) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("app.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        rustix::net::listen(&listener, 0).expect("a smaller queue");
        let queued = UnixStream::connect(&path).expect("room for one");
        (Self::behind(folder, &path, timeout, std::thread::spawn(|| ())), listener, queued)
    }

    fn behind(folder: tempfile::TempDir, path: &Path, timeout: Duration, listener: JoinHandle<()>) -> World {
        let (processes, mut slots) = Processes::new(processes::Limits::default()).expect("a plan");
        processes.start("app", Box::new(Sleeper), Box::new(|_, _| ())).expect("it starts");
        let slot = AppSlot::new(slots.remove(0), path, timeout).expect("a path");
        let wake = Arc::new(Wake::new(|| ()));
        let limits = PoolLimits { threads: 1, queue_max: 8, ..PoolLimits::default() };
        let (pool, mut lanes) = Pool::new(limits, Clock::real(), vec![wake]);
        let context = JobContext::seated(Box::new(slot));
        World { _folder: folder, processes, context, pool, lane: lanes.remove(0), listener }
    }

    /// The same as soon as the process lives, which may take longer than it has for an answer.
    fn ask_the_living(&mut self, request: &str) -> Said {
        let begun = std::time::Instant::now();
        loop {
            match self.ask(request) {
                Said::Refused(Refusal::Unavailable) if begun.elapsed() < HANG => {}
                said => return said,
            }
        }
    }

    /// One request whose parts nobody is to hear.
    fn ask(&mut self, request: &str) -> Said {
        let question = question(request, b"", false);
        let speaker = self.lane.speaker(0);
        exchange(question, &mut self.context, speaker)
    }

    /// The same, once that many processes were killed: the end of all would let a condemned one end by itself.
    fn finish_after_killing(self, killed: u64) {
        let begun = std::time::Instant::now();
        while self.processes.counters().killed < killed {
            assert!(begun.elapsed() < HANG, "nobody is killed");
            std::thread::yield_now();
        }
        assert_eq!(self.finish().killed, killed);
    }

    fn finish(self) -> processes::ProcessCounters {
        self.listener.join().expect("the process was met as it expected");
        self.pool.close();
        self.processes.stop(HANG);
        assert!(self.processes.join(HANG));
        self.processes.counters()
    }
}

fn question(request: &str, body: &[u8], goes_on: bool) -> Box<Question> {
    let step =
        RequestDecoder::default().decode(&Limits::default(), request.as_bytes()).map(|step| step.event);
    let Ok(Event::Head(head)) = step else { panic!("{request:?}") };
    let mut question = Question::new(&head, None, Vec::new(), Held::new(&Arc::default()));
    question.body = body.to_vec();
    question.goes_on = goes_on;
    question
}

/// Takes a whole head.
fn take(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert!(stream.read(&mut byte).expect("more of the head") > 0, "it ends in {}", head.escape_ascii());
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("it is text")
}

fn say(stream: &mut UnixStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("it is taken");
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[track_caller]
fn is_ok(said: &Said) {
    let Said::Answer(answer, None) = said else { panic!("{said:?}") };
    let piece = &answer.piece;
    assert_eq!((answer.status, answer.framing, piece.is_last), (200, BodyFraming::Length(2), true));
    assert_eq!(&piece.bytes[piece.start..], b"ok");
}

#[track_caller]
fn is_refused(said: &Said, wanted: Refusal) {
    assert!(matches!(said, Said::Refused(refusal) if *refusal == wanted), "{said:?}");
}

#[test]
fn a_connection_is_kept_as_long_as_both_want_it() {
    let mut world = World::new(
        HANG,
        vec![
            Box::new(|stream| {
                for _ in 0..3 {
                    take(stream);
                    say(stream, OK);
                }
                take(stream);
                say(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
            }),
            Box::new(|stream| {
                take(stream);
                // More than an answer: this connection is not to be trusted with the next.
                say(stream, &format!("{OK}{OK}"));
            }),
            Box::new(|stream| {
                take(stream);
                say(stream, OK);
            }),
        ],
    );
    for _ in 0..6 {
        is_ok(&world.ask(GET));
    }
    world.finish();
}

/// RFC 9110 §9.2.2: what may be sent twice is, once, when the first connection turns out to be dead.
#[test]
fn a_dead_kept_connection_is_noticed_only_by_what_must_not_be_sent_twice() {
    let dies_on_the_second = || -> Script {
        Box::new(|stream| {
            take(stream);
            say(stream, OK);
            take(stream);
        })
    };
    let serves = || -> Script {
        Box::new(|stream| {
            take(stream);
            say(stream, OK);
        })
    };
    let mut world = World::new(HANG, vec![dies_on_the_second(), serves()]);
    is_ok(&world.ask(GET));
    is_ok(&world.ask(GET));
    world.finish();
    let mut world = World::new(HANG, vec![dies_on_the_second(), serves()]);
    is_ok(&world.ask(GET));
    is_refused(&world.ask(POST), Refusal::Bad);
    is_ok(&world.ask(POST));
    world.finish();
    // Once: a second connection that dies as well is the process's fault. (A first one always is.)
    let dies: fn() -> Script = || Box::new(|stream| drop(take(stream)));
    let mut world = World::new(HANG, vec![dies_on_the_second(), dies(), dies()]);
    is_ok(&world.ask(GET));
    is_refused(&world.ask(GET), Refusal::Bad);
    is_refused(&world.ask(GET), Refusal::Bad);
    world.finish();
}

#[test]
fn what_nobody_has_taken_may_be_sent_again_whatever_it_is() {
    let (closed, is_closed) = std::sync::mpsc::channel();
    let mut world = World::new(
        HANG,
        vec![
            Box::new(move |stream| {
                take(stream);
                say(stream, OK);
                stream.shutdown(std::net::Shutdown::Both).expect("it is open");
                closed.send(()).expect("somebody waits");
            }),
            Box::new(|stream| {
                assert!(take(stream).contains("\r\nContent-Length: 0\r\n\r\n"));
                say(stream, OK);
            }),
        ],
    );
    is_ok(&world.ask(GET));
    is_closed.recv().expect("it is closed");
    is_ok(&world.ask(POST));
    world.finish();
}

/// Row 1.24.
#[test]
fn a_process_that_does_not_answer_in_time_is_condemned() {
    let timeout = Duration::from_millis(50);
    let waits: fn() -> Script = || {
        Box::new(|stream| {
            take(stream);
            let _ = stream.read(&mut [0]);
        })
    };
    let drips: Script = Box::new(|stream| {
        take(stream);
        say(stream, "HTTP/1.1 200 OK\r\n");
        // Always a sign of life and never a whole head: the deadline is not put off by that.
        for byte in std::iter::repeat(b"X: y\r\n") {
            let pause = Duration::from_millis(5);
            if stream.write_all(byte).is_err() {
                break;
            }
            std::thread::park_timeout(pause);
        }
    });
    let mut world = World::new(timeout, vec![waits(), drips]);
    is_refused(&world.ask_the_living(GET), Refusal::Late);
    is_refused(&world.ask_the_living(GET), Refusal::Late);
    world.finish_after_killing(2);
}

/// Plays the session on a thread of its own: asks, and replies to each part as `reply` says.
fn converse(
    world: &mut World,
    question: Box<Question>,
    hear: impl FnMut(&Said) -> Option<Heard> + Send,
) -> (Vec<Said>, Said) {
    converse_until(world, question, false, hear)
}

/// The same; `leaves`: the session goes away after its first reply.
fn converse_until(
    world: &mut World,
    question: Box<Question>,
    leaves: bool,
    mut hear: impl FnMut(&Said) -> Option<Heard> + Send,
) -> (Vec<Said>, Said) {
    let speaker = world.lane.speaker(0);
    let (lane, context) = (&mut world.lane, &mut world.context);
    std::thread::scope(|scope| {
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let session = scope.spawn({
            let done = Arc::clone(&done);
            move || {
                let (mut parts, mut reply) = (Vec::new(), None);
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    let Some(completed) = lane.next_result() else {
                        std::thread::yield_now();
                        continue;
                    };
                    let Outcome::Part(outcome) = completed.outcome else { panic!("only parts come here") };
                    let mut said = outcome.into_app();
                    if let Said::Answer(_, handle @ Some(_)) | Said::Ask(handle @ Some(_)) = &mut said {
                        reply = handle.take();
                    }
                    match hear(&said) {
                        Some(heard) => {
                            reply.as_mut().expect("it came with the first").send(heard).expect("once");
                            if leaves {
                                reply = None;
                            }
                        }
                        None => reply = None,
                    }
                    parts.push(said);
                }
                parts
            }
        });
        let last = exchange(question, context, speaker);
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        (session.join().expect("it does not panic"), last)
    })
}

#[test]
fn a_long_body_and_a_long_answer_go_piece_by_piece() {
    const LONG: usize = 300_000;
    for chunked in [false, true] {
        let mut world = World::new(
            HANG,
            vec![Box::new(move |stream| {
                let head = take(stream);
                let mut body = Vec::new();
                if chunked {
                    assert!(head.contains("\r\nTransfer-Encoding: chunked\r\n"), "{head}");
                    while !body.ends_with(b"\r\n0\r\n\r\n") {
                        let mut bytes = [0; 4096];
                        let count = stream.read(&mut bytes).expect("more");
                        body.extend_from_slice(&bytes[..count]);
                    }
                    assert_eq!(body, b"5\r\nfirst\r\n6\r\nsecond\r\n5\r\nthird\r\n0\r\n\r\n");
                } else {
                    body.resize(16, 0);
                    stream.read_exact(&mut body).expect("the body");
                    assert_eq!(body, b"firstsecondthird");
                }
                say(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                say(stream, &format!("{LONG:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(LONG)));
            })],
        );
        let framing = if chunked { "Transfer-Encoding: chunked" } else { "Content-Length: 16" };
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
        let mut pieces = vec![Heard::Body(b"third".to_vec(), true), Heard::Body(b"second".to_vec(), false)];
        let (parts, last) =
            converse(&mut world, question(&request, b"first", true), move |said| match said {
                Said::Ask(_) => pieces.pop(),
                _ => Some(Heard::More),
            });
        assert!(matches!(&parts[..2], [Said::Ask(_), Said::Ask(_)]), "{parts:?}");
        let mut sent = Vec::new();
        for said in parts.into_iter().skip(2).chain([last]) {
            let piece = match said {
                Said::Answer(answer, _) => {
                    assert_eq!(answer.framing, BodyFraming::Chunked);
                    answer.piece
                }
                Said::Piece(piece) => piece,
                other => panic!("{other:?}"),
            };
            assert!(piece.bytes.len() - piece.start <= super::limits::PIECE_SIZE_MAX + 32);
            sent.extend_from_slice(&piece.bytes[piece.start..]);
        }
        assert!(sent.ends_with(b"\r\n0\r\n\r\n"));
        assert_eq!(sent.iter().filter(|byte| **byte == b'x').count(), LONG);
        world.finish();
    }
}

/// Row 4.12.
#[test]
fn a_session_that_goes_away_ends_the_exchange_and_not_the_process() {
    let mut world = World::new(
        HANG,
        vec![
            Box::new(|stream| {
                take(stream);
                let endless = "x".repeat(1 << 20);
                assert!(
                    write!(stream, "HTTP/1.1 200 OK\r\n\r\n{endless}{endless}").is_err(),
                    "the connection is closed in the middle"
                );
            }),
            Box::new(|stream| {
                take(stream);
                say(stream, OK);
            }),
        ],
    );
    let (parts, last) = converse(&mut world, question(GET, b"", false), |_| None);
    assert!(matches!((&parts[..], last), ([Said::Answer(..)], Said::Broken)));
    is_ok(&world.ask(GET));
    let counters = world.finish();
    assert_eq!((counters.died, counters.killed), (0, 0));
}

/// Row 1.24: what is silent in the middle of an answer loses the answer, and the process's other requests nothing.
#[test]
fn an_answer_that_stops_in_the_middle_ends_the_exchange_and_not_the_process() {
    let stops = |text: &'static str| -> Script {
        Box::new(move |stream| {
            take(stream);
            say(stream, text);
            assert_eq!(stream.read(&mut [0]).expect("an end"), 0, "the connection is closed");
        })
    };
    let chunked = stops("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let sized = stops("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    let mut world = World::new(Duration::from_millis(50), vec![sized, chunked]);
    is_refused(&world.ask_the_living(GET), Refusal::Late);
    let (parts, last) = converse(&mut world, question(GET, b"", false), |_| Some(Heard::More));
    assert!(matches!((&parts[..], last), ([Said::Answer(..)], Said::Broken)), "{parts:?}");
    let counters = world.finish();
    assert_eq!((counters.died, counters.killed), (0, 0));
}

/// Row 4.12: a stream that is silent for long, and a client that leaves meanwhile: its slot is free at once.
#[test]
fn a_session_that_leaves_a_silent_stream_frees_the_slot_before_the_deadline() {
    let mut world = World::new(
        HANG * 10,
        vec![Box::new(|stream| {
            take(stream);
            say(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
            assert_eq!(stream.read(&mut [0]).expect("an end in time"), 0, "the connection is closed");
        })],
    );
    let hear = |_: &Said| Some(Heard::More);
    let (parts, last) = converse_until(&mut world, question(GET, b"", false), true, hear);
    assert!(matches!((&parts[..], last), ([Said::Answer(..)], Said::Broken)), "{parts:?}");
    let counters = world.finish();
    assert_eq!((counters.died, counters.killed), (0, 0));
}

/// RFC 9112 §9.3: an answer before the end of the body is the answer, over a kept connection, too.
#[test]
fn an_early_answer_between_two_pieces_of_a_body_is_not_lost_on_a_kept_connection() {
    let (asked, is_asked) = std::sync::mpsc::channel();
    let (closed, is_closed) = std::sync::mpsc::channel();
    let mut world = World::new(
        HANG,
        vec![Box::new(move |stream| {
            take(stream);
            say(stream, OK);
            take(stream);
            stream.read_exact(&mut [0; 5]).expect("the first piece");
            is_asked.recv().expect("somebody asks");
            say(stream, "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
            stream.shutdown(std::net::Shutdown::Both).expect("it is open");
            closed.send(()).expect("somebody waits");
        })],
    );
    is_ok(&world.ask(GET));
    let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n";
    let (_, last) = converse(&mut world, question(request, b"first", true), move |_| {
        asked.send(()).expect("the process waits");
        is_closed.recv().expect("it closes");
        Some(Heard::Body(b"second".to_vec(), false))
    });
    let Said::Answer(answer, None) = &last else { panic!("{last:?}") };
    assert_eq!((answer.status, answer.piece.is_last), (413, true));
    world.finish();
}

/// Row 1.24: one that lives and takes no connections is as good as dead.
#[test]
fn a_process_that_takes_no_connections_is_replaced() {
    // Its socket is gone as soon as the list of connections is at its end.
    let mut world = World::new(HANG, Vec::new());
    is_refused(&world.ask(GET), Refusal::Bad);
    world.finish_after_killing(1);

    let (mut world, _listener, _queued) = World::full(Duration::from_millis(50));
    is_refused(&world.ask_the_living(GET), Refusal::Late);
    world.finish_after_killing(1);
}
