//! One pool with requests over HTTP and CoAP: a flood over one protocol does not keep the other one from its answers.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{before_fakes, get};
use crate::coap_workers;
use crate::support::{DriverUnderTest, ServerUnderTest, Tool};

on_both_drivers! {
    http_is_answered_while_coap_floods,
    coap_is_answered_while_http_floods,
}

/// Clients of the flood, each with one request at any time: many times what the processes can answer at once.
const FLOOD: usize = 48;
/// Requests of the other protocol, one after the other.
const REQUESTS: usize = 10;

fn server(driver: DriverUnderTest) -> ServerUnderTest {
    let (server, watcher) = before_fakes(driver, "--coap 127.0.0.1:0 -A 2 --processes 2");
    drop(watcher);
    server
}

/// Runs clients of a flood, which return whether they were answered, until `other` has ended. Returns the answers of the
/// flood.
fn flood_until(flood: impl Fn(&AtomicBool) -> u64 + Sync, other: impl FnOnce()) -> u64 {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..FLOOD).map(|_| scope.spawn(|| flood(&has_ended))).collect();
        other();
        has_ended.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    })
}

/// Repeats a request until it is answered: a refusal in overload is no answer.
#[track_caller]
fn ask_until_answered(ask: impl Fn() -> bool) {
    for _ in 0..REQUESTS {
        let refusals = (0..100_000).take_while(|_| !ask()).count();
        assert!(refusals < 100_000, "it is never answered");
    }
}

fn http_is_answered_while_coap_floods(driver: DriverUnderTest) {
    let server = server(driver);
    let flood = |has_ended: &AtomicBool| {
        let socket = coap_workers::socket(&server);
        // A full ring drops datagrams: the client then goes on with its next request.
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("it can be set");
        let mut answered = 0;
        for id in 0.. {
            if has_ended.load(Relaxed) {
                break;
            }
            socket.send(&coap_workers::get(id, &["sleep", "10"])).expect("it can be sent");
            let mut message = [0; 2048];
            let is_received = socket.recv(&mut message).is_ok();
            answered += u64::from(is_received && message[1] == coap_workers::CONTENT);
        }
        answered
    };
    let url = server.url("/sleep/10");
    let curl = || {
        let status =
            Tool::new("curl", "--silent --output /dev/null --write-out %{http_code}").arg(&url).output();
        assert!(["200", "503"].contains(&status.as_str()), "{status}");
        status == "200"
    };
    let answered = flood_until(flood, || ask_until_answered(curl));
    assert!(answered > 0, "the flood has its share, too");
    assert!(server.finish().jobs("done") >= answered + REQUESTS as u64);
}

fn coap_is_answered_while_http_floods(driver: DriverUnderTest) {
    let server = server(driver);
    let flood = |has_ended: &AtomicBool| {
        let mut peer = server.connect();
        let mut answered = 0;
        while !has_ended.load(Relaxed) {
            let status = peer.ask(get("/sleep/10")).status;
            assert!([200, 503].contains(&status), "{status}");
            answered += u64::from(status == 200);
        }
        answered
    };
    // libcoap's client prints the code of an error.
    let coap = || coap_workers::ask(&server, "-m get", "/sleep/10").parse::<u32>().is_ok();
    let answered = flood_until(flood, || ask_until_answered(coap));
    assert!(answered > 0, "the flood has its share, too");
    let metrics = server.finish();
    assert_eq!(metrics.jobs("done"), answered + REQUESTS as u64);
}
