//! `--app-affinity`: each client has a worker process of its own.

use super::{before_fakes, get, number};
use crate::coap_workers::{self, process_over_coap};
use crate::support::{DriverUnderTest, Metrics, TestPeer};

on_both_drivers! {
    a_connection_keeps_a_process_of_its_own,
    a_peer_keeps_a_process_of_its_own,
    a_dead_process_costs_its_client_one_request,
    a_client_that_floods_has_one_process,
}

fn assigned(metrics: &Metrics) -> u64 {
    metrics.value("app_clients_assigned{pool=\"app\"}")
}

fn refused(metrics: &Metrics) -> u64 {
    metrics.value("app_requests_total{pool=\"app\",outcome=\"no_worker\"}")
}

fn is_sorted_and_distinct(mut pids: Vec<u32>) -> bool {
    pids.sort_unstable();
    pids.windows(2).all(|pair| pair[0] < pair[1])
}

/// Row 1.4: three connections have three processes and keep them; a fourth is refused until one closes.
fn a_connection_keeps_a_process_of_its_own(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "-A 2 --processes 3 --app-affinity");
    let mut clients: Vec<TestPeer> = (0..3).map(|_| server.connect()).collect();
    let pids: Vec<_> = clients.iter_mut().map(|client| number(client, "/pid")).collect();
    assert!(is_sorted_and_distinct(pids.iter().map(|pid| pid.unsigned_abs()).collect()), "{pids:?}");
    let mut fourth = server.connect();
    for _ in 0..3 {
        let answer = fourth.ask(get("/pid"));
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
        let again: Vec<_> = clients.iter_mut().map(|client| number(client, "/pid")).collect();
        assert_eq!(again, pids);
    }
    let metrics = watcher.fetch();
    assert_eq!((assigned(&metrics), refused(&metrics)), (3, 3));
    drop(clients.remove(1));
    watcher.until("its process is free", |metrics| assigned(metrics) == 2);
    assert_eq!(number(&mut fourth, "/pid"), pids[1]);
    let page = fourth.ask(get("/status")).into_text();
    assert!(page.contains("clients with a process now"), "{page}");
    drop((clients, fourth, watcher));
    let metrics = server.finish();
    assert_eq!((metrics.jobs("done"), metrics.jobs("refused")), (13, 3));
}

/// Row 1.4: the same over CoAP, where a client is an address with its port, and idle clients lose their processes.
fn a_peer_keeps_a_process_of_its_own(driver: DriverUnderTest) {
    let options = "--coap 127.0.0.1:0 -A 2 --processes 3 --app-affinity --app-affinity-idle 5";
    let (server, mut watcher) = before_fakes(driver, options);
    let sockets: Vec<_> = (0..4).map(|_| coap_workers::socket(&server)).collect();
    let (fourth, clients) = sockets.split_last().expect("there are four");
    let pids: Vec<_> =
        clients.iter().map(|client| process_over_coap(client, 1).expect("a free process")).collect();
    assert!(is_sorted_and_distinct(pids.clone()), "{pids:?}");
    for id in 2..5 {
        assert_eq!(process_over_coap(fourth, id), None);
        for (client, pid) in clients.iter().zip(&pids) {
            assert_eq!(process_over_coap(client, id), Some(*pid));
        }
    }
    watcher.until("they are idle", |metrics| assigned(metrics) == 0);
    assert!(process_over_coap(fourth, 5).is_some_and(|pid| pids.contains(&pid)));
    drop(watcher);
    let metrics = server.finish();
    assert_eq!(metrics.value("coap_no_worker_total") + metrics.sum("coap_shed_total", "reply="), 3);
}

/// Row 1.4: the next request of a client whose process died gets another, and the other clients keep theirs.
fn a_dead_process_costs_its_client_one_request(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "-A 2 --processes 2 --app-affinity");
    let [mut victim, mut other] = [(); 2].map(|()| server.connect());
    let [dead, kept] = [&mut victim, &mut other].map(|client| number(client, "/pid"));
    for _ in 0..3 {
        let before = number(&mut victim, "/pid");
        assert_eq!(victim.ask(get("/die")).status, 502);
        let after = number(&mut victim, "/pid");
        assert!(after != before && after != kept, "{after}");
        assert_eq!(number(&mut other, "/pid"), kept);
    }
    assert_ne!(dead, number(&mut victim, "/pid"));
    drop((victim, other, watcher));
    server.finish();
}

/// Row 1.4: the requests of one client are served by its process in order; those of another client do not wait for them.
fn a_client_that_floods_has_one_process(driver: DriverUnderTest) {
    let options = "--coap 127.0.0.1:0 -A 1 --processes 2 --app-affinity";
    let (server, watcher) = before_fakes(driver, options);
    let flood = coap_workers::socket(&server);
    for id in 0..8 {
        flood.send(&coap_workers::get(id, &["sleep", "50"])).expect("it can be sent");
    }
    let mut peer = server.connect();
    let other = number(&mut peer, "/pid");
    for _ in 0..8 {
        let (code, message) = coap_workers::receive(&flood);
        assert_eq!(code, coap_workers::CONTENT);
        assert!(!message.ends_with(other.to_string().as_bytes()), "{other}");
        assert_eq!(number(&mut peer, "/pid"), other);
    }
    drop((peer, watcher));
    server.finish();
}
