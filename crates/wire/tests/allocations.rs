//! Decoding and encoding do not allocate, checked with an allocator that counts per thread.

use std::hint::black_box;

use stilling_probe::allocations::{CountingAllocator, thread_allocations};
use stilling_wire::coap::{CoapMessage, Code, MessageType, MessageWriter, OptionNumber};
use stilling_wire::message_object::MessageObject;
use stilling_wire::nats::{
    AckSubject, ClientDecoder, ClientEvent, Filter, Headers, Msg, NatsLimits, Pub, PubAck, PubAckResponse,
    ServerDecoder, ServerEvent, SubjectLimits, encode_err, encode_headers,
};
use stilling_wire::sse::{SseDecoder, SseLimits, encode_message};
use stilling_wire::syslog::{self, Framer};
use stilling_wire::websocket::{
    Opcode, WebSocketDecoder, WebSocketEvent, WebSocketFrame, WebSocketLimits, encode_frame_around,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Repetitions of a buffer with every kind of message.
const ROUNDS: usize = 1000;

#[test]
fn no_message_costs_an_allocation() {
    let mut sent = Vec::new();
    let mut headers = Vec::new();
    encode_headers(&mut headers, None, &[("Nats-Msg-Id", "a1")]).expect("the header is good");
    for _ in 0..ROUNDS {
        Pub { subject: b"events.a", reply: Some(b"_INBOX.1"), headers: b"", payload: &[b'x'; 128] }
            .encode(&mut sent);
        Pub { subject: b"events.a", reply: None, headers: &headers, payload: b"hello" }.encode(&mut sent);
        Pub { subject: b"events..a", reply: None, headers: b"", payload: b"hello" }.encode(&mut sent);
        sent.extend_from_slice(b"SUB events.> 1\r\nUNSUB 1 5\r\nPING\r\n");
    }
    let lines =
        b"<13>Nov 21 23:20:08 vm root[1]: hello\n<13>1 - vm root - - [a b=\"c\"] hello\n".repeat(ROUNDS);
    let mut out = Vec::with_capacity(ROUNDS * 400);
    let filter = Filter::parse(b"events.*", &SubjectLimits::default()).expect("the filter is good");

    let before = thread_allocations();
    let (limits, mut decoder, mut start, mut count) = (NatsLimits::default(), ClientDecoder::default(), 0, 0);
    loop {
        let step = decoder.decode(&limits, &sent[start..]).expect("the operations are good");
        start += step.consumed;
        match step.event {
            ClientEvent::NeedMore => break,
            ClientEvent::Publish(message) => {
                let (subject, payload) = (message.subject.as_bytes(), message.payload);
                count += usize::from(filter.matches(message.subject));
                let id = Headers::parse(message.headers).ok().and_then(|headers| headers.find("Nats-Msg-Id"));
                count += usize::from(id.is_some());
                Msg { subject, sid: b"1", reply: None, headers: message.headers, payload }.encode(&mut out);
            }
            ClientEvent::Rejected(error) => encode_err(&mut out, error.text()),
            event => {
                black_box(event);
            }
        }
    }
    assert_eq!((start, count), (sent.len(), 3 * ROUNDS));

    let (limits, mut decoder, mut start, mut count) =
        (NatsLimits::for_client(), ServerDecoder::default(), 0, 0);
    loop {
        let step = decoder.decode(&limits, &out[start..]).expect("the operations are good");
        start += step.consumed;
        match step.event {
            ServerEvent::NeedMore => break,
            ServerEvent::Message(message) => count += message.payload.len(),
            event => {
                black_box(event);
            }
        }
    }
    assert_eq!((start, count), (out.len(), ROUNDS * 133));

    out.clear();
    PubAck { stream: "events".into(), sequence: 7, duplicate: true }.encode(&mut out);
    assert!(matches!(PubAckResponse::parse(&out), Ok(PubAckResponse::Stored(ack)) if ack.sequence == 7));
    assert!(AckSubject::parse(b"$JS.ACK.events.c1.1.22.3.17.4").is_some());

    let (limits, mut framer, mut start, mut count) =
        (syslog::SyslogLimits::default(), Framer::default(), 0, 0);
    loop {
        let step = framer.decode(&limits, &lines[start..]);
        start += step.consumed;
        let Some(frame) = step.frame else { break };
        count += usize::from(syslog::parse(frame.message).host == Some(b"vm"));
    }
    assert_eq!((start, count), (lines.len(), 2 * ROUNDS));
    assert_eq!(thread_allocations() - before, 0);
}

/// Row 2.4: messages to and from subscribers over WebSocket and SSE, of every kind of payload.
#[test]
fn no_subscription_message_costs_an_allocation() {
    let payloads: [&[u8]; 4] =
        [b"{\"a\":[[1],\n\"\\u00e9\"]}", b"hello \"world\"\n", b"\xff\xfe", &[b'x'; 200]];
    let objects = payloads.map(|payload| MessageObject { sequence: 17, subject: "a.b", time_ns: 5, payload });
    let mut received = Vec::new();
    for _ in 0..ROUNDS {
        WebSocketFrame::text("h\u{e9}llo").masked([1, 2, 3, 4]).encode(&mut received);
        let fragment = WebSocketFrame { is_final: false, ..WebSocketFrame::text("a").masked([1, 2, 3, 4]) };
        fragment.encode(&mut received);
        WebSocketFrame::ping(b"p").masked([1, 2, 3, 4]).encode(&mut received);
        WebSocketFrame::new(Opcode::Continuation, b"b").masked([1, 2, 3, 4]).encode(&mut received);
    }
    let (mut frames, mut events) =
        (Vec::with_capacity(ROUNDS * 4 * 500), Vec::with_capacity(ROUNDS * 4 * 500));
    let mut unmasked = Vec::with_capacity(received.len());

    let before = thread_allocations();
    for object in (0..ROUNDS).flat_map(|_| &objects) {
        encode_frame_around(&mut frames, Opcode::Text, |out| object.encode(out));
        encode_frame_around(&mut frames, Opcode::Binary, |out| object.encode_binary(out));
        encode_message(&mut events, 3, object);
    }

    let limits = WebSocketLimits::default();
    for (mut decoder, input, expected) in [
        (WebSocketDecoder::of_client(), &received, 2 * ROUNDS),
        (WebSocketDecoder::of_server(), &frames, 8 * ROUNDS),
    ] {
        let (mut start, mut count) = (0, 0);
        loop {
            let step = decoder.decode(&limits, &input[start..]).expect("the frames are good");
            start += step.consumed;
            match step.event {
                WebSocketEvent::NeedMore => break,
                WebSocketEvent::Message { payload, .. } => {
                    count += 1;
                    unmasked.clear();
                    payload.append_to(&mut unmasked);
                }
                WebSocketEvent::MessageEnd => count += 1,
                event => {
                    black_box(event);
                }
            }
        }
        assert_eq!((start, count), (input.len(), expected));
    }

    let (limits, mut decoder, mut start, mut count) = (SseLimits::default(), SseDecoder::default(), 0, 0);
    loop {
        let step = decoder.decode(&limits, &events[start..]).expect("the events are short");
        start += step.consumed;
        let Some(event) = step.event else { break };
        count += usize::from(event.id() == Some(b"3-17") && event.data().is_some());
    }
    assert_eq!((start, count), (events.len(), 4 * ROUNDS));
    assert_eq!(thread_allocations() - before, 0);
}

/// Row 1.1: messages of CoAP, malformed ones among them.
#[test]
fn no_datagram_costs_an_allocation() {
    let requests: [&[u8]; 3] = [
        b"\x41\x01\x00\x07t\xb4test\x11\x32\x41\x06",
        b"\x40\x01\x00\x07\xff",
        b"\x50\x02\x00\x08\xb1a\xffbody",
    ];
    let (mut buffer, mut count) = ([0; 256], 0);

    let before = thread_allocations();
    for request in (0..ROUNDS).flat_map(|_| requests) {
        let Ok(message) = CoapMessage::parse(request) else { continue };
        let path = message.options.values(OptionNumber::URI_PATH).count();
        let known = message.options.recognised(|_| true).count();
        let kind = MessageType::Acknowledgement;
        let response = MessageWriter::new(&mut buffer, kind, Code::CONTENT, message.id, message.token)
            .and_then(|mut writer| {
                writer.uint(OptionNumber::CONTENT_FORMAT, 50)?;
                writer.payload(message.payload)
            })
            .expect("the buffer has room");
        count += path + known + black_box(response).len();
    }
    assert_eq!(count, ROUNDS * (1 + 3 + 7 + 1 + 1 + 11));
    assert_eq!(thread_allocations() - before, 0);
}
