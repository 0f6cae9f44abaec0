//! WebSocket subscribers during hand-overs.

use super::*;
use crate::nats::auctions::post;
use crate::support::RawWebSocket;

on_both_drivers!(subscribers_resume_at_the_successor);

/// Direct descriptors × WebSocket × hot restart.
#[test]
fn subscribers_resume_at_the_successor_with_direct_descriptors() {
    subscribers_resume_at_the_successor(DriverUnderTest::UringDirect);
}

const SUBSCRIBERS: usize = 12;

struct ResumingSubscriber {
    socket: RawWebSocket,
    epoch: String,
    last: u64,
}

impl ResumingSubscriber {
    #[track_caller]
    fn open(at: SocketAddr, from: &str) -> ResumingSubscriber {
        let socket = RawWebSocket::open(at, &format!("/subscribe/events.a?from={from}"), "");
        ResumingSubscriber { socket, epoch: String::new(), last: 0 }
    }

    /// Reads records until the sequence `last` and its position notice if it catches up.
    #[track_caller]
    fn read_through(&mut self, last: u64) {
        while self.last < last || self.epoch.is_empty() {
            let text = self.socket.text();
            let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            if let Some(position) = object["position"].as_str() {
                position.split('-').next().expect("an epoch").clone_into(&mut self.epoch);
            } else if object.get("start").is_none() {
                assert_eq!(object["seq"].as_u64(), Some(self.last + 1), "{text}");
                self.last += 1;
            }
        }
    }

    /// Waits for the close of the predecessor, and continues at its successor.
    #[track_caller]
    fn resume(mut self, at: SocketAddr) -> ResumingSubscriber {
        let (kind, payload) = self.socket.frame();
        assert_eq!((kind, &payload[..2]), (0x88, &[0x03, 0xe9][..]), "close 1001");
        let next = ResumingSubscriber::open(at, &format!("{}-{}", self.epoch, self.last));
        ResumingSubscriber { last: self.last, ..next }
    }
}

/// Each subscriber is closed with 1001, resumes behind its last record, and gets every record once.
fn subscribers_resume_at_the_successor(driver: DriverUnderTest) {
    const PER_ROUND: u64 = 20;
    let control_folder = ControlFolder::new();
    let data = tempfile::tempdir().expect("a folder");
    let common = format!(
        "-A 2 --stream events=events.>:disk --nats 127.0.0.1:0 --data {}",
        data.path().join("streams").display()
    );
    let mut server = control_folder.start_first(driver, &common);
    let at = server.address();
    let publish = |server: &ServerUnderTest, count: u64| {
        for _ in 0..count {
            assert_eq!(post(server, "events.a", "", "{}").status, 200);
        }
    };
    publish(&server, PER_ROUND / 2);
    let mut subscribers: Vec<_> = (0..SUBSCRIBERS).map(|_| ResumingSubscriber::open(at, "all")).collect();
    let mut last = PER_ROUND / 2;
    for _ in 0..3 {
        publish(&server, PER_ROUND);
        last += PER_ROUND;
        subscribers.iter_mut().for_each(|subscriber| subscriber.read_through(last));
        let next = control_folder.start_successor(driver, at, &common);
        server.expect_clean_end();
        server = next;
        // Published before they come back.
        publish(&server, PER_ROUND);
        last += PER_ROUND;
        subscribers = subscribers.into_iter().map(|subscriber| subscriber.resume(at)).collect();
        subscribers.iter_mut().for_each(|subscriber| subscriber.read_through(last));
    }
    drop(subscribers);
    server.finish();
}
