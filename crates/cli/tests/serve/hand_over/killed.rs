//! Real servers killed at each step of a hand-over, with publishers to a stream on disk.
//!
//! The two servers communicate through a relay, which stops them at a step.

use std::process::Child;

use super::load::{self, LoadPublisher};
use super::*;
use crate::nats::{address as nats_address, own_address};

on_both_drivers!(
    successors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged,
    predecessors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged,
);

/// The state of both servers when one of them is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KillPoint {
    Nothing,
    Offered,
    /// The successor has sent `ready`, and has not received `yours`.
    Ready,
    /// The successor has the path, and the old server has not received `taken`.
    Yours,
    /// The old server has received `taken`, and the successor has not received `released`.
    Taken,
    Released,
    Opened,
}

struct ControlRelay {
    old: ControlPeer,
    successor: ControlPeer,
}

impl ControlRelay {
    /// Makes the next successor connect to the test instead of the server at the path.
    fn listen(control_folder: &ControlFolder) -> OwnedFd {
        std::fs::rename(&control_folder.path, control_folder.path.with_extension("moved"))
            .expect("our folder");
        ControlPeer::control_socket(&control_folder.path)
    }

    /// Connects the waiting successor to the server and restores its socket file.
    fn accept(control_folder: &ControlFolder, control_socket: &OwnedFd) -> ControlRelay {
        let successor = ControlPeer::accept(control_socket);
        std::fs::rename(control_folder.path.with_extension("moved"), &control_folder.path)
            .expect("our folder");
        ControlRelay { old: ControlPeer::connect_to(&control_folder.path), successor }
    }

    /// Forwards messages between both servers up to a step.
    fn pass_until(&self, step: KillPoint) {
        let ControlRelay { old, successor } = self;
        if step >= KillPoint::Offered {
            successor.expect("hand-over 2");
            old.send("hand-over 2");
            loop {
                let (line, descriptors) = old.receive();
                let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                successor.send_descriptors(line.trim_end(), &borrowed);
                assert!(line.starts_with("listeners ") || line.starts_with("end "), "{line}");
                if line.starts_with("end ") {
                    break;
                }
            }
        }
        if step >= KillPoint::Ready {
            successor.expect("ready");
            old.send("ready");
            old.expect("yours");
        }
        if step >= KillPoint::Yours {
            successor.send("yours");
            successor.expect("taken");
        }
        if step >= KillPoint::Taken {
            old.send("taken");
        }
        if step >= KillPoint::Released {
            self.expect_released();
            successor.send("released");
        }
    }

    fn expect_released(&self) {
        // A server without connections may end before it sends the line, which means the same.
        let (line, _) = self.old.receive();
        assert!(line == "released\n" || line.is_empty(), "{line}");
    }
}

struct KilledServer(Child);

impl Drop for KilledServer {
    fn drop(&mut self) {
        self.0.kill().expect("it has not been waited for");
        self.0.wait().expect("a child can be waited for");
    }
}

/// Waits until `server` has received more messages.
#[track_caller]
fn expect_progress(server: &ServerUnderTest) {
    let mut watcher = server.watch();
    let before = watcher.fetch().value("hub_messages_total");
    watcher.until("messages come", |metrics| metrics.value("hub_messages_total") > before + 20);
}

/// Rows 4.37, 0.4: the successor is killed. Before `taken` the old server continues; afterwards the next server finds
/// every acknowledged message once.
fn successors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    // No other test uses its ports while no server runs.
    let any = format!("{}:0", own_address());
    let options = |nats: &str| {
        format!("-A 1 --nats {nats} --data {} {}", data.path().display(), control_folder.option())
    };
    let mut server = ServerUnderTest::listening(driver, &any, &options(&any));
    let (http, nats) = (server.address(), nats_address(&server));
    let options = options(&nats.to_string());
    let done = AtomicBool::new(false);
    let (server, sent) = thread::scope(|scope| {
        let senders = ["n", "m"].map(|name| {
            let publisher = LoadPublisher::new(nats, name).surviving_outages();
            let done = &done;
            (name, scope.spawn(move || publisher.run(done)))
        });
        let steps =
            [KillPoint::Nothing, KillPoint::Offered, KillPoint::Ready, KillPoint::Yours, KillPoint::Taken];
        for step in steps.into_iter().chain([KillPoint::Released, KillPoint::Opened]) {
            expect_progress(&server);
            let control_socket = ControlRelay::listen(&control_folder);
            let mut command = binary();
            command.args(["serve", "--listen", &http.to_string()]).args(driver.options());
            command.args(options.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::null());
            let successor = KilledServer(command.spawn().expect("the binary starts"));
            let relay = ControlRelay::accept(&control_folder, &control_socket);
            relay.pass_until(step);
            if step == KillPoint::Taken {
                // Otherwise the old server may see the end of the successor together with `taken`, and continue.
                relay.expect_released();
            }
            if step == KillPoint::Opened {
                let publication =
                    "POST /publish/events.h HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nh-0";
                let answer = TestPeer::connect(http).ask(publication);
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            drop((successor, relay));
            if step >= KillPoint::Taken {
                server.expect_clean_end();
                server = ServerUnderTest::listening(driver, &http.to_string(), &options);
            }
            expect_progress(&server);
            // A lock file of the killed server may remain, which the next start removes.
            eventually("the server can be succeeded", || {
                ControlPeer::is_offered(&control_folder.path).then_some(())
            });
        }
        done.store(true, Ordering::Release);
        let [n, m] = senders.map(|(name, thread)| (name, thread.join().expect("it does not fail")));
        (server, [n, m, ("h", 1)])
    });
    server.finish();
    load::expect_stored_once(data.path(), &sent);
}

/// Rows 4.37, 0.4: the old server is killed: its successor serves, and finds every acknowledged message once.
fn predecessors_that_are_killed_at_each_step_lose_nothing_that_was_acknowledged(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let any = format!("{}:0", own_address());
    let options = |nats: &str| format!("-A 1 --nats {nats} --data {}", data.path().display());
    let mut server =
        ServerUnderTest::listening(driver, &any, &format!("{} {}", options(&any), control_folder.option()));
    let (http, nats) = (server.address(), nats_address(&server));
    let options = options(&nats.to_string());
    let done = AtomicBool::new(false);
    let (server, sent) = thread::scope(|scope| {
        let senders = ["n", "m"].map(|name| {
            let publisher = LoadPublisher::new(nats, name).surviving_outages();
            let done = &done;
            (name, scope.spawn(move || publisher.run(done)))
        });
        let steps =
            [KillPoint::Nothing, KillPoint::Offered, KillPoint::Ready, KillPoint::Yours, KillPoint::Taken];
        for step in steps.into_iter().chain([KillPoint::Released]) {
            expect_progress(&server);
            let control_socket = ControlRelay::listen(&control_folder);
            let next = thread::scope(|scope| {
                let next = scope.spawn(|| control_folder.start_successor(driver, http, &options));
                let relay = ControlRelay::accept(&control_folder, &control_socket);
                relay.pass_until(step);
                server.signal(Signal::KILL);
                server.wait();
                drop(relay);
                next.join().expect("it starts")
            });
            server = next;
            expect_progress(&server);
            // A lock file of the killed server may remain, which the next start removes.
            eventually("the server can be succeeded", || {
                ControlPeer::is_offered(&control_folder.path).then_some(())
            });
        }
        done.store(true, Ordering::Release);
        (server, senders.map(|(name, thread)| (name, thread.join().expect("it does not fail"))))
    });
    server.finish();
    load::expect_stored_once(data.path(), &sent);
}
