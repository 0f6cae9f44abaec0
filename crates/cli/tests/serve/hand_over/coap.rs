//! CoAP in a hand-over: transfers that are under way, answers that are pending, datagrams in the queues.

use std::net::UdpSocket;

use stilling_client::coap::{CoapClient, CoapClientConfig, CoapRequest, CoapUrl};
use stilling_wire::coap::{
    BlockSize, BlockValue, CoapMessage, Code, MessageType, MessageWriter, OptionNumber, Token,
};

use super::*;
use crate::nats::{RawNatsClient, address as nats_address};
use crate::support::HANG_TIMEOUT;

on_both_drivers!(
    a_block_transfer_continues_with_the_successor,
    transfers_during_hand_overs_are_complete,
    a_pending_answer_is_sent_by_the_old_server,
    a_request_that_is_repeated_after_a_hand_over_is_executed_once,
    a_third_server_waits_for_the_first_and_gets_its_exchanges,
);

const BLOCK: BlockSize = BlockSize::MIN;

/// A confirmable POST of `/large-post`.
const POST: &[u8] = b"\x40\x02\x12\x34\xbalarge-post\xffbody";

/// A client that sends each datagram once, so that it detects each loss.
struct ScriptedClient {
    socket: UdpSocket,
    next_id: u16,
}

/// A response, owned.
struct ScriptedResponse {
    kind: MessageType,
    code: Code,
    etag: Vec<u8>,
    block: Option<BlockValue>,
    payload: Vec<u8>,
}

impl ScriptedClient {
    fn new(server: &ServerUnderTest) -> ScriptedClient {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.connect(server.banner_line("listening coap://")).expect("an address");
        socket.set_read_timeout(Some(HANG_TIMEOUT)).expect("a socket takes options");
        ScriptedClient { socket, next_id: 0 }
    }

    fn send(&mut self, path: &str, block: Option<u32>) {
        self.next_id += 1;
        let token = Token::new(&self.next_id.to_be_bytes()).expect("a short token");
        let mut buffer = [0; 64];
        let mut writer =
            MessageWriter::new(&mut buffer, MessageType::Confirmable, Code::GET, self.next_id, token)
                .expect("there is room");
        writer.option(OptionNumber::URI_PATH, path.as_bytes()).expect("there is room");
        if let Some(number) = block {
            let block = BlockValue::new(number, false, BLOCK).expect("a small number");
            writer.option(OptionNumber::BLOCK2, block.encode().as_bytes()).expect("there is room");
        }
        let message = writer.payload(b"").expect("there is room");
        self.socket.send(message).expect("it is sent");
    }

    /// Sends [`POST`], the same message each time. Returns the reply.
    fn post(&self) -> Vec<u8> {
        self.socket.send(POST).expect("it is sent");
        self.receive_bytes()
    }

    fn receive_bytes(&self) -> Vec<u8> {
        let mut reply = [0; 2048];
        let size = self.socket.recv(&mut reply).expect("no datagram is lost");
        reply[..size].to_vec()
    }

    fn receive(&self) -> ScriptedResponse {
        let mut buffer = [0; 2048];
        let size = self.socket.recv(&mut buffer).expect("no datagram is lost");
        let message = CoapMessage::parse(&buffer[..size]).expect("a valid message");
        let value = |number| message.options.values(number).next();
        ScriptedResponse {
            kind: message.kind,
            code: message.code,
            etag: value(OptionNumber::ETAG).unwrap_or_default().to_vec(),
            block: value(OptionNumber::BLOCK2).map(|value| BlockValue::decode(value).expect("a valid block")),
            payload: message.payload.to_vec(),
        }
    }

    /// Requests a block of `/large` and appends it. Returns its ETag, and whether more follow.
    fn block_of_large(&mut self, number: u32, body: &mut Vec<u8>) -> (Vec<u8>, bool) {
        self.send("large", Some(number));
        let response = self.receive();
        let block = response.block.expect("a body in blocks");
        assert_eq!((response.code, block.number(), body.len()), (Code::CONTENT, number, block.offset()));
        body.extend(response.payload);
        (response.etag, block.more)
    }
}

/// The options of a CoAP server at the address of another one.
fn coap_options(server: &ServerUnderTest, options: &str) -> String {
    format!("--coap {} {options}", server.banner_line("listening coap://"))
}

fn large(server: &ServerUnderTest) -> Vec<u8> {
    let mut client = ScriptedClient::new(server);
    let mut body = Vec::new();
    (0..).find(|number| !client.block_of_large(*number, &mut body).1);
    body
}

/// Rows 1.11, 4.37: the blocks of one answer come from the old server and its successor, with the same ETag and without
/// a lost datagram, whatever the numbers of shards, with and without a hub.
fn a_block_transfer_continues_with_the_successor(driver: DriverUnderTest) {
    for hub in ["", "--nats 127.0.0.1:0"] {
        let data = tempfile::tempdir().expect("a folder");
        let hub = format!("{hub} --data {}", data.path().display());
        let control_folder = ControlFolder::new();
        let mut server = control_folder.start_first(driver, &format!("-A 2 --coap 127.0.0.1:0 {hub}"));
        let expected = large(&server);
        let mut clients: Vec<_> = (0..8).map(|_| (ScriptedClient::new(&server), Vec::new())).collect();
        let first = clients[0].0.block_of_large(0, &mut Vec::new());
        let mut next_block = 0;
        for shards in [3, 1, 2] {
            for number in next_block..next_block + 20 {
                for (client, body) in &mut clients {
                    assert_eq!(client.block_of_large(number, body), first);
                }
            }
            next_block += 20;
            // One request of each client waits in a queue, or is answered by either server.
            for (client, _) in &mut clients {
                client.send("large", Some(next_block));
            }
            let options = coap_options(&server, &format!("-A {shards} {hub}"));
            let next = control_folder.start_successor(driver, server.address(), &options);
            assert_eq!(next.banner_line("listening coap://"), server.banner_line("listening coap://"));
            server.expect_clean_end();
            server = next;
            for (client, _) in &mut clients {
                let response = client.receive();
                assert_eq!((response.code, response.etag), (Code::CONTENT, first.0.clone()));
            }
        }
        for (mut client, mut body) in clients {
            (next_block..).find(|number| !client.block_of_large(*number, &mut body).1);
            assert_eq!(body, expected);
        }
        server.finish();
    }
}

/// Rows 1.11, 4.37: clients that transfer bodies without a pause get each of them whole.
fn transfers_during_hand_overs_are_complete(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let mut server = control_folder.start_first(driver, "-A 2 --coap 127.0.0.1:0");
    let expected = large(&server);
    let url: CoapUrl =
        format!("coap://{}/large", server.banner_line("listening coap://")).parse().expect("a valid URL");
    let done = AtomicBool::new(false);
    let transfer = || {
        let mut count = 0;
        while !done.load(Ordering::Acquire) {
            let mut client =
                CoapClient::connect(&url, CoapClientConfig::default()).expect("a server is there");
            let response = client.request(CoapRequest::new(Code::GET, &url)).expect("it is answered");
            assert_eq!((response.code, &response.payload), (Code::CONTENT, &expected));
            count += 1;
        }
        count
    };
    let (server, counts) = thread::scope(|scope| {
        let transfers: Vec<_> = (0..3).map(|_| scope.spawn(transfer)).collect();
        for shards in [1, 3, 2] {
            let options = coap_options(&server, &format!("-A {shards}"));
            let next = control_folder.start_successor(driver, server.address(), &options);
            server.expect_clean_end();
            server = next;
        }
        done.store(true, Ordering::Release);
        let counts: Vec<u32> =
            transfers.into_iter().map(|transfer| transfer.join().expect("it gets all")).collect();
        (server, counts)
    });
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    server.finish();
}

/// Row 4.37: a request that waits for its answer gets it from the old server, which waits for it also without a
/// successor.
fn a_pending_answer_is_sent_by_the_old_server(driver: DriverUnderTest) {
    for is_succeeded in [true, false] {
        let control_folder = ControlFolder::new();
        let server = control_folder.start_first(driver, "-A 1 --coap 127.0.0.1:0");
        let mut watcher = server.watch();
        let mut client = ScriptedClient::new(&server);
        let mut clients: Vec<_> = (0..20).map(|_| ScriptedClient::new(&server)).collect();
        client.send("separate", None);
        watcher.until("it waits", |metrics| metrics.value("coap_datagrams_total{class=\"new\"}") == 1);
        for other in &mut clients {
            other.send("separate", None);
        }
        watcher.until("all wait", |metrics| metrics.value("coap_datagrams_total{class=\"new\"}") == 21);
        let successor = if is_succeeded {
            let options = coap_options(&server, "-A 1");
            Some(control_folder.start_successor(driver, server.address(), &options))
        } else {
            server.signal(Signal::TERM);
            None
        };
        for other in clients.iter().chain([&client]) {
            let response = other.receive();
            assert_eq!((response.code, response.payload), (Code::CONTENT, b"separate".to_vec()));
            assert_eq!(response.kind, MessageType::Acknowledgement);
        }
        server.expect_clean_end();
        if let Some(successor) = successor {
            large(&successor);
            successor.finish();
        }
    }
}

/// Row 4.37: the successor answers a repeated POST with the reply of the old server and does not execute it,
/// whatever the numbers of shards; so does the successor's successor.
fn a_request_that_is_repeated_after_a_hand_over_is_executed_once(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let mut server = control_folder.start_first(driver, "-A 2 --coap 127.0.0.1:0");
    let clients: Vec<_> = (0..CLIENTS).map(|_| ScriptedClient::new(&server)).collect();
    let replies: Vec<_> = clients.iter().map(ScriptedClient::post).collect();
    assert!(replies.iter().all(|reply| reply.ends_with(b"BODY")));
    for shards in [3, 1] {
        let options = coap_options(&server, &format!("-A {shards}"));
        let next = control_folder.start_successor(driver, server.address(), &options);
        server.expect_clean_end();
        assert_eq!(clients.iter().map(ScriptedClient::post).collect::<Vec<_>>(), replies);
        expect_only_duplicates(&next, CLIENTS);
        server = next;
    }
    server.finish();
}

const CLIENTS: u64 = 12;

#[track_caller]
fn expect_only_duplicates(server: &ServerUnderTest, count: u64) {
    let metrics = server.watch().fetch();
    let class = |name| metrics.value(&format!("coap_datagrams_total{{class=\"{name}\"}}"));
    assert_eq!((class("duplicate"), class("new")), (count, 0));
}

/// Row 4.37: a server that is succeeded before its predecessor has released the sockets waits for it, and passes its
/// exchanges on: the datagrams wait for the third server.
fn a_third_server_waits_for_the_first_and_gets_its_exchanges(driver: DriverUnderTest) {
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let hub = format!("-A 1 --data {}", data.path().display());
    let first = control_folder.start_first(driver, &format!("--nats 127.0.0.1:0 --coap 127.0.0.1:0 {hub}"));
    let (http, nats) = (first.address(), nats_address(&first));
    // Holds the streams and sockets of a server for some hundred milliseconds at its hand-over.
    let silent = RawNatsClient::connect(nats);
    let clients: Vec<_> = (0..CLIENTS).map(|_| ScriptedClient::new(&first)).collect();
    let replies: Vec<_> = clients.iter().map(ScriptedClient::post).collect();
    let options = coap_options(&first, &format!("--nats {nats} {hub}"));
    let inode = || std::fs::metadata(&control_folder.path).map(|file| file.ino()).ok();
    let at_path = inode();
    let second = control_folder.start_successor(driver, http, &options);
    eventually("the second server has the path", || (inode() != at_path).then_some(()));
    first.signal(Signal::STOP);
    first.wait_until_stopped();
    let at_path = inode();
    let third = control_folder.start_successor(driver, http, &options);
    eventually("the third server has the path", || (inode() != at_path).then_some(()));
    for client in &clients {
        client.socket.send(POST).expect("it is sent");
    }
    first.signal(Signal::CONT);
    drop(silent);
    for (client, reply) in clients.iter().zip(&replies) {
        assert_eq!(client.receive_bytes(), *reply);
    }
    first.expect_clean_end();
    second.expect_clean_end();
    assert_eq!(clients.iter().map(ScriptedClient::post).collect::<Vec<_>>(), replies);
    let metrics = third.finish();
    assert_eq!(metrics.value("coap_datagrams_total{class=\"new\"}"), 0);
}
