//! Real servers that are killed at each step of a hand-over, with publishers to a stream on disk.
//!
//! The two servers talk through a relay, which decides how far they get.

use std::process::Child;

use super::load::{self, Publisher};
use super::*;
use crate::nats::{address as nats_address, own_address};

on_both_drivers!(
    successors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged,
    predecessors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged,
);

/// What both servers have sent and received when one of them is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// The successor has connected.
    Nothing,
    /// The successor has the listeners.
    Offered,
    /// The successor is ready, and has not received `yours`.
    Ready,
    /// The successor has the path, and the old server has not received `taken`.
    Yours,
    /// The old server has received `taken`, and the successor has not received `released`.
    Taken,
    /// The successor has received `released`.
    Released,
    /// The successor has stored messages.
    Opened,
}

/// Both ends of a hand-over.
struct Relay {
    old: Control,
    successor: Control,
}

impl Relay {
    /// Has the next successor come to the test, not to the server at the path.
    fn listen(place: &Place) -> OwnedFd {
        std::fs::rename(&place.path, place.path.with_extension("moved")).expect("our folder");
        Control::door(&place.path)
    }

    /// Connects the successor that comes with the server, whose socket file is put back.
    fn accept(place: &Place, door: &OwnedFd) -> Relay {
        let successor = Control::open(door);
        std::fs::rename(place.path.with_extension("moved"), &place.path).expect("our folder");
        Relay { old: Control::knock(&place.path), successor }
    }

    /// Passes on what the two send each other, so far and no farther.
    fn pass_until(&self, step: Reached) {
        let Relay { old, successor } = self;
        if step >= Reached::Offered {
            successor.expect("hand-over 2");
            old.say("hand-over 2");
            loop {
                let (line, descriptors) = old.hear();
                let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                successor.give(line.trim_end(), &borrowed);
                assert!(line.starts_with("listeners ") || line.starts_with("end "), "{line}");
                if line.starts_with("end ") {
                    break;
                }
            }
        }
        if step >= Reached::Ready {
            successor.expect("ready");
            old.say("ready");
            old.expect("yours");
        }
        if step >= Reached::Yours {
            successor.say("yours");
            successor.expect("taken");
        }
        if step >= Reached::Taken {
            old.say("taken");
        }
        if step >= Reached::Released {
            // A server without connections may end before it says so, which means the same.
            let (line, _) = old.hear();
            assert!(line == "released\n" || line.is_empty(), "{line}");
            successor.say("released");
        }
    }
}

/// A server that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().expect("it has not been waited for");
        self.0.wait().expect("a child can be waited for");
    }
}

/// Waits until `server` has taken some more messages.
#[track_caller]
fn goes_on(server: &Server) {
    let mut watcher = server.watch();
    let before = watcher.look().value("hub_messages_total");
    watcher.until("messages come", |metrics| metrics.value("hub_messages_total") > before + 20);
}

/// Rows 4.37, 0.4: a successor is killed. Before `taken` the old server goes on; afterwards the next server finds every
/// acknowledged message once.
fn successors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged(driver: Driver) {
    let place = Place::new();
    let data = tempfile::tempdir().expect("a folder");
    // No other test uses its ports while no server runs.
    let any = format!("{}:0", own_address());
    let options =
        |nats: &str| format!("-A 1 --nats {nats} --data {} {}", data.path().display(), place.option());
    let mut server = Server::listening(driver, &any, &options(&any));
    let (http, nats) = (server.address(), nats_address(&server));
    let options = options(&nats.to_string());
    let done = AtomicBool::new(false);
    let (server, sent) = thread::scope(|scope| {
        let senders = ["n", "m"].map(|name| {
            let publisher = Publisher::new(nats, name).surviving_outages();
            let done = &done;
            (name, scope.spawn(move || publisher.run(done)))
        });
        let steps = [Reached::Nothing, Reached::Offered, Reached::Ready, Reached::Yours, Reached::Taken];
        for step in steps.into_iter().chain([Reached::Released, Reached::Opened]) {
            goes_on(&server);
            let door = Relay::listen(&place);
            let mut command = binary();
            command.args(["serve", "--listen", &http.to_string()]).args(driver.options());
            command.args(options.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::null());
            let successor = Killed(command.spawn().expect("the binary starts"));
            let relay = Relay::accept(&place, &door);
            relay.pass_until(step);
            if step == Reached::Opened {
                let publication =
                    "POST /publish/events.h HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nh-0";
                let answer = Peer::connect(http).ask(publication);
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            drop((successor, relay));
            if step >= Reached::Taken {
                server.ends_well();
                server = Server::listening(driver, &http.to_string(), &options);
            }
            goes_on(&server);
            // A lock file of the killed one may be left, which the next start removes.
            eventually("the server can be succeeded", || Control::is_offered(&place.path).then_some(()));
        }
        done.store(true, Ordering::Release);
        let [n, m] = senders.map(|(name, thread)| (name, thread.join().expect("it does not fail")));
        (server, [n, m, ("h", 1)])
    });
    server.finish();
    load::expect_stored_once(data.path(), &sent);
}

/// Rows 4.37, 0.4: the old server is killed: its successor serves, and finds every acknowledged message once.
fn predecessors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged(driver: Driver) {
    let place = Place::new();
    let data = tempfile::tempdir().expect("a folder");
    let any = format!("{}:0", own_address());
    let options = |nats: &str| format!("-A 1 --nats {nats} --data {}", data.path().display());
    let mut server = Server::listening(driver, &any, &format!("{} {}", options(&any), place.option()));
    let (http, nats) = (server.address(), nats_address(&server));
    let options = options(&nats.to_string());
    let done = AtomicBool::new(false);
    let (server, sent) = thread::scope(|scope| {
        let senders = ["n", "m"].map(|name| {
            let publisher = Publisher::new(nats, name).surviving_outages();
            let done = &done;
            (name, scope.spawn(move || publisher.run(done)))
        });
        let steps = [Reached::Nothing, Reached::Offered, Reached::Ready, Reached::Yours, Reached::Taken];
        for step in steps.into_iter().chain([Reached::Released]) {
            goes_on(&server);
            let door = Relay::listen(&place);
            let next = thread::scope(|scope| {
                let next = scope.spawn(|| place.next(driver, http, &options));
                let relay = Relay::accept(&place, &door);
                relay.pass_until(step);
                server.signal(Signal::KILL);
                server.wait();
                drop(relay);
                next.join().expect("it starts")
            });
            server = next;
            goes_on(&server);
            // A lock file of the killed one may be left, which the next start removes.
            eventually("the server can be succeeded", || Control::is_offered(&place.path).then_some(()));
        }
        done.store(true, Ordering::Release);
        (server, senders.map(|(name, thread)| (name, thread.join().expect("it does not fail"))))
    });
    server.finish();
    load::expect_stored_once(data.path(), &sent);
}
