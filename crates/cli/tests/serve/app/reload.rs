//! SIGHUP: new processes replace the present ones, without the loss of a request.

use std::collections::HashSet;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use tempfile::TempDir;

use super::frames::fake_frames;
use super::{fake, get, lives, ready};
use crate::coap_workers;
use crate::support::{
    DriverUnderTest, Metrics, MetricsClient, ServerUnderTest, TestPeer, binary, eventually,
};

on_both_drivers! {
    reloads_under_load_lose_no_request_of_http_workers,
    reloads_under_load_lose_no_request_of_frames_workers,
    reloads_with_affinity_cost_present_clients_nothing,
    a_reload_runs_the_command_of_the_changed_file,
    a_reload_that_fails_leaves_the_present_processes,
    block_transfers_continue_across_reloads_and_recycled_workers,
}

/// A server whose pool is in a settings file.
struct Reloadable {
    folder: TempDir,
    server: ServerUnderTest,
    watcher: MetricsClient,
    reloads: u64,
}

impl Reloadable {
    /// `pool`: the keys of the pool, each on a line.
    fn start(driver: DriverUnderTest, pool: &str, processes: u64, options: &str) -> Reloadable {
        let folder = TempDir::new().expect("a folder");
        write_settings(&folder, pool);
        let mut command = binary();
        command.args(["serve", "--listen", "127.0.0.1:0", "--driver", driver.name(), "--config"]);
        command.arg(folder.path().join("stilling.toml")).args(options.split_whitespace());
        command.stderr(File::create(folder.path().join("log")).expect("a file"));
        let server = ServerUnderTest::spawn(command);
        let mut watcher = server.watch();
        watcher.until("all are ready", |metrics| ready(metrics) == processes);
        Reloadable { folder, server, watcher, reloads: 0 }
    }

    /// Reloads and waits until the new processes have replaced the former ones.
    fn reload(&mut self) -> Metrics {
        self.reloads += 1;
        let reloads = self.reloads;
        self.server.signal(Signal::HUP);
        self.watcher.until("the processes are replaced", |metrics| lives(metrics, "reloaded") == reloads)
    }

    #[track_caller]
    fn wait_for_line(&self, text: &str) {
        eventually(text, || {
            let log = std::fs::read_to_string(self.folder.path().join("log")).expect("it is text");
            log.lines().any(|line| line.contains(text)).then_some(())
        });
    }

    fn finish(self) -> Metrics {
        drop(self.watcher);
        self.server.finish()
    }
}

fn write_settings(folder: &TempDir, pool: &str) {
    let settings = format!("[[app]]\nname = 'shop'\n{pool}");
    std::fs::write(folder.path().join("stilling.toml"), settings).expect("it can be written");
}

/// Row 1.24: clients send without a pause during several reloads; each gets its answer.
fn check_reloads_under_load(driver: DriverUnderTest, pool: &str, processes: u64) {
    let mut server = Reloadable::start(driver, pool, processes, "");
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let pids = std::thread::scope(|scope| {
        let client = || {
            let mut peer = server.server.connect();
            let mut pids = HashSet::new();
            while !is_over.load(Ordering::Relaxed) {
                let answer = peer.ask(get("/pid"));
                assert_eq!(answer.status, 200);
                pids.insert(answer.into_text());
                answered.fetch_add(1, Ordering::Relaxed);
            }
            pids
        };
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(client)).collect();
        let mut reload = |round: u64| {
            let wanted = answered.load(Ordering::Relaxed) + 50;
            eventually("requests are answered", || {
                (answered.load(Ordering::Relaxed) >= wanted).then_some(())
            });
            server.server.signal(Signal::HUP);
            server.watcher.until("they are replaced", |metrics| lives(metrics, "reloaded") == round);
        };
        (1..=3).for_each(&mut reload);
        is_over.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .flat_map(|client| client.join().expect("all are answered"))
            .collect::<HashSet<_>>()
    });
    assert!(pids.len() as u64 > processes, "{pids:?}");
    let metrics = server.finish();
    assert_eq!((metrics.answers(502), metrics.answers(503), metrics.answers(504)), (0, 0, 0));
    let ends = ["exited", "killed", "reload_failed"].map(|event| lives(&metrics, event));
    assert_eq!((ends, lives(&metrics, "started")), ([0, 0, 0], 4 * processes));
}

fn reloads_under_load_lose_no_request_of_http_workers(driver: DriverUnderTest) {
    check_reloads_under_load(driver, &format!("processes = 2\ncommand = {:?}\n", fake()), 2);
}

fn reloads_under_load_lose_no_request_of_frames_workers(driver: DriverUnderTest) {
    let pool = format!("processes = 3\nspeaks = 'frames'\ncommand = {:?}\n", fake_frames());
    check_reloads_under_load(driver, &pool, 3);
}

/// Rows 1.4, 1.24: each client with a process has a new one after a reload, while others ask for one all the time.
fn reloads_with_affinity_cost_present_clients_nothing(driver: DriverUnderTest) {
    let pool = format!("processes = 3\naffinity = true\ncommand = {:?}\n", fake());
    let mut server = Reloadable::start(driver, &pool, 3, "-A 2");
    let mut busy = [(); 2].map(|()| server.server.connect());
    let mut idle = server.server.connect();
    busy.iter_mut().chain([&mut idle]).for_each(|peer| assert_eq!(peer.ask(get("/pid")).status, 200));
    // Checked at the end: a thread that fails would leave the others running.
    let [have_newcomers_ended, is_over] = [const { AtomicBool::new(false) }; 2];
    let [newcomers_asked, newcomers_served, present_refused] = [const { AtomicUsize::new(0) }; 3];
    let idle_answers = std::thread::scope(|scope| {
        let newcomer = || {
            while !have_newcomers_ended.load(Ordering::Relaxed) {
                let mut peer = server.server.connect();
                for _ in 0..20 {
                    let is_served = peer.ask(get("/pid")).status != 503;
                    newcomers_served.fetch_add(usize::from(is_served), Ordering::Relaxed);
                    newcomers_asked.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let present = |mut peer: TestPeer| {
            while !is_over.load(Ordering::Relaxed) {
                let is_refused = peer.ask(get("/sleep/2")).status != 200;
                present_refused.fetch_add(usize::from(is_refused), Ordering::Relaxed);
            }
        };
        let newcomers: Vec<_> = (0..3).map(|_| scope.spawn(newcomer)).collect();
        busy.into_iter().for_each(|peer| _ = scope.spawn(move || present(peer)));
        let mut answers = Vec::new();
        for round in 1..=5 {
            let wanted = newcomers_asked.load(Ordering::Relaxed) + 20;
            eventually("newcomers ask", || (newcomers_asked.load(Ordering::Relaxed) >= wanted).then_some(()));
            server.server.signal(Signal::HUP);
            server.watcher.until("they are replaced", |metrics| lives(metrics, "reloaded") == round);
            let answer = idle.ask(get("/pid"));
            answers.push((answer.status, answer.into_text()));
        }
        // The present clients stay until then: their processes would go to newcomers.
        have_newcomers_ended.store(true, Ordering::Relaxed);
        let have_all_ended = newcomers.into_iter().all(|newcomer| newcomer.join().is_ok());
        is_over.store(true, Ordering::Relaxed);
        assert!(have_all_ended, "all newcomers are answered");
        answers
    });
    assert!(idle_answers.iter().all(|(status, _)| *status == 200), "{idle_answers:?}");
    assert_eq!(idle_answers.iter().collect::<HashSet<_>>().len(), 5, "each time by a new process");
    let counts = [&present_refused, &newcomers_served].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [0, 0]);
    drop(idle);
    let metrics = server.finish();
    assert_eq!((metrics.answers(502), metrics.answers(504)), (0, 0));
}

fn named(name: &str) -> String {
    format!("speaks = 'frames'\ncommand = {:?}\n", format!("NAME={name} {}", fake_frames()))
}

/// A request that a former process has is finished by it.
fn a_reload_runs_the_command_of_the_changed_file(driver: DriverUnderTest) {
    let mut server = Reloadable::start(driver, &named("one"), 1, "");
    let mut peer = server.server.connect();
    assert_eq!(peer.ask(get("/name")).text(), "one");
    let mut slow = server.server.connect();
    slow.send(get("/sleep/1000"));
    server.watcher.until("it runs", |metrics| metrics.sum("app_requests_now", "state=\"running\"") == 1);
    write_settings(&server.folder, &named("two"));
    server.reload();
    assert_eq!(peer.ask(get("/name")).text(), "two");
    assert_eq!(slow.answer().status, 200);
    server.wait_for_line("shop: reloaded: all new processes are ready");
    // Other changes are reported and not applied.
    write_settings(&server.folder, &format!("processes = 5\n{}", named("three")));
    server.reload();
    assert_eq!(peer.ask(get("/name")).text(), "three");
    server.wait_for_line("shop: only the command is reloaded; other changes need a restart");
    drop((peer, slow));
    let metrics = server.finish();
    assert_eq!((lives(&metrics, "started"), lives(&metrics, "killed")), (3, 0));
}

/// A command that does not start, a file that is no settings file, and other pools.
fn a_reload_that_fails_leaves_the_present_processes(driver: DriverUnderTest) {
    let mut server = Reloadable::start(driver, &named("one"), 1, "");
    let mut peer = server.server.connect();
    write_settings(&server.folder, "speaks = 'frames'\ncommand = 'exec /nonexistent/program'\n");
    server.server.signal(Signal::HUP);
    server.watcher.until("the reload has failed", |metrics| lives(metrics, "reload_failed") == 1);
    server.wait_for_line("shop: reload failed: a new process did not become ready; the present ones remain");
    assert_eq!(peer.ask(get("/name")).text(), "one");
    let status = peer.ask(get("/status")).into_text();
    assert!(status.contains("reloads failed"), "{status}");
    for (pool, line) in [
        ("speaks = 'fastcgi'\n", "reload failed: "),
        (
            "command = 'true'\n[[app]]\nname = 'other'\nmatch = '/x'\ncommand = 'true'\n",
            "which needs a restart",
        ),
    ] {
        write_settings(&server.folder, pool);
        server.server.signal(Signal::HUP);
        server.wait_for_line(line);
        assert_eq!(peer.ask(get("/name")).text(), "one");
    }
    write_settings(&server.folder, &named("two"));
    server.reload();
    assert_eq!(peer.ask(get("/name")).text(), "two");
    drop(peer);
    let metrics = server.finish();
    assert_eq!((metrics.answers(502), lives(&metrics, "reload_failed")), (0, 1));
}

/// Rows 1.11, 1.24: transfers in blocks with libcoap's client, while workers are recycled and reloaded.
fn block_transfers_continue_across_reloads_and_recycled_workers(driver: DriverUnderTest) {
    let pool = format!("speaks = 'frames'\nprocesses = 2\nrequests-max = 2\ncommand = {:?}\n", fake_frames());
    let mut server = Reloadable::start(driver, &pool, 2, "--coap 127.0.0.1:0");
    let upload = server.folder.path().join("upload");
    let pattern: Vec<u8> = super::pattern(0, 20_000).collect();
    std::fs::write(&upload, &pattern).expect("a file");
    let is_over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let client = |number: usize| {
            let download = server.folder.path().join(format!("download-{number}"));
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) {
                let put = format!("-m put -b 256 -f {}", upload.display());
                assert_eq!(coap_workers::ask(&server.server, &put, "/put"), "20000 good");
                let get = format!("-m get -b 256 -o {}", download.display());
                coap_workers::ask(&server.server, &get, "/sized/20000");
                assert_eq!(std::fs::read(&download).expect("the answer"), pattern);
                rounds += 1;
            }
            rounds
        };
        let clients: Vec<_> = (0..2).map(|number| scope.spawn(move || client(number))).collect();
        for round in 1..=4 {
            server.server.signal(Signal::HUP);
            server.watcher.until("they are replaced", |metrics| lives(metrics, "reloaded") == round);
        }
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("all is right")).sum::<u64>()
    });
    assert!(rounds > 0);
    let metrics = server.finish();
    assert_eq!(metrics.value("coap_worker_failures_total{reason=\"failed\"}"), 0);
    assert_eq!((lives(&metrics, "exited"), lives(&metrics, "killed")), (0, 0));
}
