//! Session state: what one process stores, every process gets with the next request of the session.

use std::net::UdpSocket;
use std::time::Duration;

use super::{before_fakes, get};
use crate::coap_workers;
use crate::support::{DriverUnderTest, Metrics, MetricsClient, ServerUnderTest, TestPeer, Tool};

on_both_drivers! {
    a_session_over_http_is_the_same_in_every_process,
    a_session_over_coap_is_the_same_in_every_process,
    a_name_belongs_to_its_address,
    only_the_server_makes_ids,
    clients_neither_send_nor_receive_the_state,
    a_process_ends_a_session,
    sessions_can_be_off,
}

const COOKIE: &str = "stilling-session-app";

fn events(metrics: &Metrics, event: &str) -> u64 {
    metrics.value(&format!("app_session_events_total{{pool=\"app\",event=\"{event}\"}}"))
}

fn with_cookie(path: &str, id: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nCookie: a=b; {COOKIE}={id}; c=d\r\n\r\n")
}

/// The id in a response with a new session.
#[track_caller]
fn new_session(peer: &mut TestPeer) -> String {
    let answer = peer.ask(get("/visit"));
    let cookie = answer.field("Set-Cookie").expect("a cookie");
    let value =
        cookie.strip_prefix(COOKIE).and_then(|rest| rest.strip_prefix('=')).expect("the cookie of the pool");
    let (id, attributes) = value.split_once("; ").expect("attributes");
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax");
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    id.to_owned()
}

/// Occupies the process that would get the next request, so that another one gets it.
fn occupy_a_process(server: &ServerUnderTest, watcher: &mut MetricsClient) -> TestPeer {
    let running = watcher.fetch().value("jobs_running");
    let mut peer = server.connect();
    peer.send(get("/hang"));
    watcher.until("a process is busy", |metrics| metrics.value("jobs_running") == running + 1);
    peer
}

/// Checks that `count` counts up in three processes, and after one has died.
fn count_in_every_process(server: &ServerUnderTest, watcher: &mut MetricsClient, count: impl Fn() -> String) {
    let mut busy = Vec::new();
    let mut pids = Vec::new();
    for expected in ["1", "2", "3"] {
        let answer = count();
        let (number, pid) = answer.split_once(' ').expect("a number and a process");
        assert_eq!(number, expected);
        assert!(!pids.contains(&pid.to_owned()), "another process answers");
        pids.push(pid.to_owned());
        if pids.len() < 3 {
            busy.push(occupy_a_process(server, watcher));
        }
    }
    assert_eq!(server.connect().ask(get("/die")).status, 502);
    let answer = count();
    assert!(answer.starts_with("4 ") && !answer.ends_with(&pids[2]), "{answer}");
    drop(busy);
}

/// Row 1.5: over HTTP the session is a cookie, here curl's.
fn a_session_over_http_is_the_same_in_every_process(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "-A 2 --processes 3");
    let folder = tempfile::tempdir().expect("a folder");
    let jar = folder.path().join("cookies");
    let count = || {
        let curl = Tool::new("curl", "--silent --fail --cookie").arg(&jar).arg("--cookie-jar").arg(&jar);
        curl.arg(server.url("/visit")).output()
    };
    count_in_every_process(&server, &mut watcher, count);
    let metrics = watcher.fetch();
    assert_eq!((events(&metrics, "created"), metrics.value("app_sessions{pool=\"app\"}")), (1, 1));
    drop(watcher);
    server.finish();
}

/// Row 1.5: over CoAP the session is an argument of the query, here of libcoap's client, which has another port each
/// time.
fn a_session_over_coap_is_the_same_in_every_process(driver: DriverUnderTest) {
    let (server, mut watcher) = before_fakes(driver, "--coap 127.0.0.1:0 -A 2 --processes 3");
    let count = || coap_workers::ask(&server, "-m get", "/visit?session=cart");
    count_in_every_process(&server, &mut watcher, count);
    let other = coap_workers::ask(&server, "-m get", "/visit?session=other");
    assert!(other.starts_with("1 "), "{other}");
    drop(watcher);
    server.finish();
}

/// Row 1.5: another address cannot read or change a session by its name; a request with an invalid name is refused.
fn a_name_belongs_to_its_address(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "--coap 127.0.0.1:0 -A 2");
    let target = server.banner_line("listening coap://");
    let ask = |source: &str, id: u16, argument: &[u8]| {
        let socket = UdpSocket::bind((source, 0)).expect("a free port");
        socket.connect(target).expect("a valid address");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
        let mut request = coap_workers::get(id, &["visit"]);
        // Uri-Query is four after Uri-Path; a length of 13 and more has a byte of its own.
        match u8::try_from(argument.len() - 13) {
            Ok(rest) => request.extend_from_slice(&[0x4d, rest]),
            Err(_) => panic!("{argument:?}"),
        }
        request.extend_from_slice(argument);
        socket.send(&request).expect("it can be sent");
        let (code, message) = coap_workers::receive(&socket);
        let payload = message.split(|byte| *byte == 0xff).nth(1).unwrap_or_default();
        (code, payload.split(|byte| *byte == b' ').next().unwrap_or_default().to_vec())
    };
    let content = |number: &[u8]| (coap_workers::CONTENT, number.to_vec());
    assert_eq!(ask("127.0.0.1", 1, b"session=kitchen"), content(b"1"));
    assert_eq!(ask("127.0.0.1", 2, b"session=kitchen"), content(b"2"));
    assert_eq!(ask("127.0.0.2", 3, b"session=kitchen"), content(b"1"));
    assert_eq!(ask("127.0.0.1", 4, b"session=kitchen"), content(b"3"));
    // Without a name there is no session.
    assert_eq!([5, 6].map(|id| ask("127.0.0.1", id, b"sessions=kitchen")), [content(b"1"), content(b"1")]);
    let long = [&b"session="[..], &[b'a'; 65]].concat();
    assert_eq!(ask("127.0.0.1", 7, &long).0, 0x80);
    drop(watcher);
    server.finish();
}

/// Row 1.5: an id that the server has not made names no session, and the client gets another one.
fn only_the_server_makes_ids(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "-A 2");
    let mut peer = server.connect();
    let [first, second] = [(); 2].map(|()| new_session(&mut peer));
    assert_ne!(first, second);
    let chosen = "0123456789abcdef0123456789abcdef";
    let answer = peer.ask(with_cookie("/visit", chosen));
    assert!(answer.field("Set-Cookie").is_some_and(|cookie| !cookie.contains(chosen)), "{answer:?}");
    for id in [chosen, "", "x", &first[1..], &first.to_uppercase()[..], &format!("{first}0")] {
        assert_eq!(peer.ask(with_cookie("/state", id)).text(), "none", "{id}");
    }
    let answer = peer.ask(with_cookie("/visit", &first));
    assert!(answer.text().starts_with("2 ") && answer.field("Set-Cookie").is_none(), "{answer:?}");
    drop((peer, watcher));
    server.finish();
}

/// Row 1.5: the field is dropped from requests and responses, and a state that is too large changes nothing.
fn clients_neither_send_nor_receive_the_state(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "-A 2");
    let mut peer = server.connect();
    let id = new_session(&mut peer);
    for field in ["Stilling-Session-State: 41", "STILLING-session-state: 41", "Stilling_Session_State: 41"] {
        let request = format!("GET /state HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        assert_eq!(peer.ask(request).text(), "none", "{field}");
        let request = format!("GET /state HTTP/1.1\r\nHost: a\r\n{field}\r\nCookie: {COOKIE}={id}\r\n\r\n");
        assert_eq!(peer.ask(request).text(), "1", "{field}");
    }
    for (size, state) in [(4096, "s".repeat(4096)), (4097, "s".repeat(4096))] {
        let answer = peer.ask(with_cookie(&format!("/keep/{size}"), &id));
        assert_eq!((answer.status, answer.field("Stilling-Session-State")), (200, None));
        assert_eq!(peer.ask(with_cookie("/state", &id)).text(), state, "{size}");
    }
    drop((peer, watcher));
    assert_eq!(events(&server.finish(), "too_large"), 1);
}

/// Row 1.5: an empty state ends a session, and its id does not come back.
fn a_process_ends_a_session(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "-A 2");
    let mut peer = server.connect();
    let id = new_session(&mut peer);
    let answer = peer.ask(with_cookie("/keep/0", &id));
    assert!(answer.field("Set-Cookie").is_some_and(|cookie| cookie.contains("Max-Age=0")), "{answer:?}");
    assert_eq!(peer.ask(with_cookie("/state", &id)).text(), "none");
    let answer = peer.ask(with_cookie("/visit", &id));
    assert!(answer.text().starts_with("1 ") && answer.field("Set-Cookie").is_some(), "{answer:?}");
    drop((peer, watcher));
    let metrics = server.finish();
    assert_eq!((events(&metrics, "created"), events(&metrics, "deleted")), (2, 1));
}

/// Row 1.5.
fn sessions_can_be_off(driver: DriverUnderTest) {
    let (server, watcher) = before_fakes(driver, "-A 2 --app-sessions 0");
    let mut peer = server.connect();
    let answer = peer.ask(get("/visit"));
    assert_eq!((answer.field("Set-Cookie"), answer.field("Stilling-Session-State")), (None, None));
    drop((peer, watcher));
    server.finish();
}
