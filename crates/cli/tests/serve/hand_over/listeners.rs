//! Listeners in a hand-over: different numbers and addresses on either side, and their share of the limit of open
//! files.

use std::os::unix::net::UnixDatagram;

use super::*;

on_both_drivers!(
    numbers_of_shards_may_differ,
    more_listeners_than_one_message_holds_are_handed_over,
    at_the_limit_of_open_files_all_listeners_are_handed_over,
    addresses_may_come_and_go,
    addresses_may_become_wider,
    a_successors_listeners_take_no_connection_before_it_is_the_server,
    socket_paths_change_hands_before_the_old_server_may_close_its_sockets,
);

/// Row 4.37: more shards open more listeners, fewer shards accept from several, and no queue is lost.
fn numbers_of_shards_may_differ(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let mut server = control_folder.start_first(driver, "-A 1");
    let address = server.address();
    for (shards, kept) in [(3, 1), (2, 3), (1, 3), (1, 3)] {
        // The clients send only after the old server has gone, so all its connections wait in a queue.
        server.signal(Signal::STOP);
        let mut waiting: Vec<TestPeer> = (0..60).map(|_| TestPeer::connect(address)).collect();
        for peer in &mut waiting[..30] {
            peer.send(FAST);
        }
        server.signal(Signal::CONT);
        let next = control_folder.start_successor(driver, address, &format!("-A {shards}"));
        assert_eq!(next.banner_line("kept "), format!("{kept} listeners"));
        for peer in &mut waiting[30..] {
            peer.send(FAST);
        }
        for peer in &mut waiting {
            assert_eq!(peer.answer().status, 200);
        }
        drop(waiting);
        server.expect_clean_end();
        server = next;
        for _ in 0..40 {
            expect_served(address);
        }
    }
    server.finish();
}

/// Row 4.37: one message holds 64 descriptors: exactly that many, a few more, and two full ones.
fn more_listeners_than_one_message_holds_are_handed_over(driver: DriverUnderTest) {
    for count in [32, 33, 64] {
        let control_folder = ControlFolder::new();
        let old = ServerUnderTest::listening(
            driver,
            "127.0.0.1:0",
            &format!("-A 2 {} {}", addresses(count - 1), control_folder.option()),
        );
        let mut options = format!("-A 2 {}", control_folder.option());
        for address in &old.addresses()[1..] {
            options += &format!(" --listen {address}");
        }
        let new = ServerUnderTest::listening(driver, &old.address().to_string(), &options);
        assert_eq!(new.banner_line("kept "), format!("{} listeners", 2 * count));
        assert_eq!(new.addresses(), old.addresses());
        old.expect_clean_end();
        for address in new.addresses() {
            expect_served(address);
        }
        new.finish();
    }
}

/// Rows 4.37, 3.27: the share of listeners in the limit of open files is exact: the server's announced capacity is
/// available, also during a hand-over; below that the server does not start.
fn at_the_limit_of_open_files_all_listeners_are_handed_over(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let limited = |limit: usize, options: &str| {
        let limit = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        let mut command = Tool::new("bash", "-c").arg(limit).arg(binary().get_program()).into_command();
        command
            .args(["serve", "--driver", driver.name(), "-A", "1", "--take-over"])
            .arg(&control_folder.path);
        command.args(options.split_whitespace());
        command
    };
    // 64 reserved, 8 for the shard, 20 listeners, a copy of each for a successor, and one for the watch.
    let (kept, room) = (64 + 8 + 3 * 20, 10);
    let outcome = limited(kept, &addresses(20)).output().expect("bash runs");
    expect_failure(&outcome, "open files leaves no room for connections");
    let old = ServerUnderTest::spawn(limited(kept + room, &addresses(20)));
    let full = |server: &ServerUnderTest| -> Vec<TestPeer> {
        assert_eq!(
            server.banner_line("shards 1, worker threads 1, capacity "),
            format!("{room} connections per shard (limited by open files)")
        );
        let mut peers: Vec<TestPeer> = (0..room).map(|_| server.connect()).collect();
        for peer in &mut peers {
            assert_eq!(peer.ask(FAST).status, 200);
        }
        peers
    };
    let peers = full(&old);
    let wanted: String = old.addresses().iter().map(|address| format!("--listen {address} ")).collect();
    let new = ServerUnderTest::spawn(limited(kept + room, &wanted));
    assert_eq!(new.banner_line("kept "), "20 listeners");
    for mut peer in peers {
        assert_eq!(peer.rest(), b"");
    }
    let metrics = old.expect_clean_end();
    assert_eq!((metrics.value("accept_errors_total"), metrics.value("connections_max")), (0, room as u64));
    drop(full(&new));
    new.finish();
}

/// Row 4.37: addresses of the old server alone drain with it, those of the new one alone are opened.
fn addresses_may_come_and_go(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let old = ServerUnderTest::listening(
        driver,
        "127.0.0.1:0",
        &format!("--listen 127.0.0.2:0 {}", control_folder.option()),
    );
    let [kept, left] = old.addresses()[..] else { panic!("two addresses") };
    let mut idle = TestPeer::connect(left);
    assert_eq!(idle.ask(FAST).status, 200);
    let new = ServerUnderTest::listening(
        driver,
        "127.0.0.3:0",
        &format!("--listen {kept} {}", control_folder.option()),
    );
    assert_eq!(idle.rest(), b"");
    old.expect_clean_end();
    let addresses = new.addresses();
    assert_eq!((addresses.len(), addresses[1]), (2, kept));
    for address in addresses {
        expect_served(address);
    }
    assert!(TestPeer::try_connect(left).is_err(), "somebody listens still");
    new.finish();
}

/// Row 4.37: from one address to all addresses: a successor with both listeners, which share the port, takes over; one
/// with the wide listener alone fails with an error that names the narrow one.
fn addresses_may_become_wider(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let narrow = SocketAddr::from(([127, 0, 0, 1], unused_port()));
    let old = control_folder.start_successor(driver, narrow, "-A 2");
    let wide = SocketAddr::from(([0, 0, 0, 0], narrow.port()));
    let outcome = control_folder.start_failing(driver, &format!("--listen {wide}"));
    expect_failure(
        &outcome,
        &format!("the predecessor listens on {narrow}, which overlaps it; configure both"),
    );
    let other = SocketAddr::from(([127, 0, 0, 3], narrow.port()));
    assert!(TestPeer::try_connect(other).is_err(), "somebody listens");
    let both = control_folder.start_successor(driver, narrow, &format!("-A 2 --demo --listen {wide}"));
    old.expect_clean_end();
    for address in [narrow, other] {
        eventually("it listens", || TestPeer::try_connect(address).ok());
        for _ in 0..10 {
            expect_served(address);
        }
    }
    both.finish();
}

/// Row 4.37: while a hand-over may fail, connections reach the old server's listeners only, whatever the successor
/// opens besides, so none is lost with the successor.
fn a_successors_listeners_take_no_connection_before_it_is_the_server(driver: DriverUnderTest) {
    for fails in [true, false] {
        let control_folder = ControlFolder::new();
        let control_socket = ControlPeer::control_socket(&control_folder.path);
        let queue = TcpListener::bind("127.0.0.1:0").expect("a free port");
        // Allows other listeners at the address.
        socket2::SockRef::from(&queue).set_reuse_port(true).expect("a socket takes the option");
        let address = queue.local_addr().expect("it is bound");
        let besides = free_address();
        let (outcome, waiting) = thread::scope(|scope| {
            let new = scope.spawn(|| {
                let mut command = binary();
                command.args(["serve", "--driver", driver.name(), "-A", "3"]);
                command.args(["--listen", &address.to_string(), "--listen", &besides.to_string()]);
                command.args(control_folder.option().split_whitespace());
                ServerUnderTest::spawn(command)
            });
            let old = ControlPeer::accept(&control_socket);
            old.make_offer(&queue);
            old.expect("ready");
            assert!(TestPeer::try_connect(besides).is_err(), "somebody listens already");
            let server = new.join().expect("it starts");
            if fails {
                // Connections accepted by it end with it.
                server.signal(Signal::STOP);
                server.wait_until_stopped();
            }
            let waiting: Vec<TestPeer> = (0..30).map(|_| TestPeer::connect(address)).collect();
            if fails {
                server.signal(Signal::KILL);
                server.wait();
                old.expect_end();
                return (None, waiting);
            }
            old.send("yours");
            old.expect("taken");
            (Some(server), waiting)
        });
        queue.set_nonblocking(false).expect("a listener can be blocking");
        for mut peer in waiting {
            peer.send(FAST);
            match &outcome {
                None => _ = queue.accept().expect("nobody is lost with the successor"),
                Some(_) => assert_eq!(peer.answer().status, 200),
            }
        }
        if let Some(server) = outcome {
            drop(queue);
            for at in [address, besides] {
                eventually("it listens", || TestPeer::try_connect(at).ok());
                for _ in 0..20 {
                    expect_served(at);
                }
            }
            server.finish();
        }
    }
}

fn addresses(count: usize) -> String {
    "--listen 127.0.0.1:0 ".repeat(count)
}

/// A port that is free on every address and outside the range of ephemeral ports: a connection of another test would
/// prevent a listener on all addresses.
fn unused_port() -> u16 {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("Linux has one");
    let below = range.split_whitespace().next().and_then(|first| first.parse().ok()).expect("a port");
    let start = 10_000 + std::process::id() as u16 % 1000;
    let ports = std::iter::repeat_with(|| start + NEXT_PORT.fetch_add(7, Ordering::Relaxed));
    let mut free =
        ports.take_while(|port| *port < below).filter(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok());
    free.next().expect("a free port")
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.2:0").expect("a free port");
    listener.local_addr().expect("it is bound")
}

/// Row 4.37: after `taken` the old server may close its Unix datagram sockets at once, so by then every path leads to
/// the successor's. There are many, so that a late one is detected.
fn socket_paths_change_hands_before_the_old_server_may_close_its_sockets(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let paths: Vec<PathBuf> = (0..60).map(|number| data.path().join(format!("log-{number}"))).collect();
    let _old: Vec<UnixDatagram> =
        paths.iter().map(|path| UnixDatagram::bind(path).expect("our folder")).collect();
    let inodes = || -> Vec<u64> {
        paths.iter().map(|path| std::fs::metadata(path).expect("a socket is there").ino()).collect()
    };
    let before = inodes();
    let queue = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = queue.local_addr().expect("it is bound");
    let control_socket = ControlPeer::control_socket(&control_folder.path);
    let mut options = format!("-A 1 --data {}", data.path().join("streams").display());
    for path in &paths {
        options += &format!(" --syslog-unix {}", path.display());
    }
    let new = thread::scope(|scope| {
        let next = scope.spawn(|| control_folder.start_successor(driver, address, &options));
        let successor = ControlPeer::accept(&control_socket);
        successor.make_offer(&queue);
        successor.expect("ready");
        assert_eq!(inodes(), before, "nothing has changed hands yet");
        successor.send("yours");
        successor.expect("taken");
        let left = inodes().iter().zip(&before).filter(|(now, before)| now == before).count();
        assert_eq!(left, 0, "paths that still lead to the old server");
        successor.send("released");
        next.join().expect("it starts")
    });
    drop(control_socket);
    new.finish();
}
