//! Server-sent events of Stilling's HTTP port: a message as a JSON object with its id. Publishers use NATS.

use super::codec::{BroadcastCodec, PublicationCodec, ReceivedItem, Subscription, shown};
use super::nats::Nats;
use super::record::{RecordText, find, head_size, parse_position};

const END: &[u8] = b"\n\n";

pub(super) struct Sse;

/// Decodes an event that is no message.
fn other_event(event: &[u8], size: usize) -> Result<ReceivedItem, String> {
    let is_known = event.starts_with(b":") || event.starts_with(b"retry: ");
    let position = event.strip_prefix(b"id: ").filter(|id| parse_position(id).is_some());
    if is_known || position.is_some() {
        Ok(ReceivedItem::Control { size, answer: b"" })
    } else {
        Err(shown(event))
    }
}

impl BroadcastCodec for Sse {
    fn publications(&self) -> &dyn PublicationCodec {
        &Nats
    }

    fn open_subscriber(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        let path = format!("GET /subscribe/{}?from=new HTTP/1.1\r\n", subscription.subject);
        out.extend_from_slice(path.as_bytes());
        out.extend_from_slice(b"Host: localhost\r\nAccept: text/event-stream\r\n\r\n");
    }

    /// The answer ends with the event that has only an id: from it on, the subscription is live.
    fn opening_size(&self, input: &[u8]) -> Result<Option<usize>, String> {
        let Some(mut start) = head_size(input, b"HTTP/1.1 200 ")? else { return Ok(None) };
        while let Some(end) = find(&input[start..], END) {
            let event = &input[start..start + end];
            start += end + END.len();
            other_event(event, 0)?;
            if event.starts_with(b"id: ") {
                return Ok(Some(start));
            }
        }
        Ok(None)
    }

    fn has_known_deliveries(&self) -> bool {
        false
    }

    fn next_item(&self, subscription: &Subscription, input: &[u8]) -> Result<ReceivedItem, String> {
        if let Some(start) = message_start(input) {
            let Some((sequence, size)) = start else { return Ok(ReceivedItem::Incomplete) };
            return RecordText { subscription, sequence, end: END }.item(input, size);
        }
        match find(input, END) {
            None => Ok(ReceivedItem::Incomplete),
            Some(end) => other_event(&input[..end], end + END.len()),
        }
    }
}

/// The sequence of the message at the start of `input`, and the size before its object. Outer `None`: another event;
/// inner `None`: incomplete.
fn message_start(input: &[u8]) -> Option<Option<(u64, usize)>> {
    let Some(id) = input.strip_prefix(b"id: ") else {
        return b"id: ".starts_with(input).then_some(None);
    };
    let Some(line) = id.iter().take(64).position(|byte| *byte == b'\n') else { return Some(None) };
    let (_, sequence) = parse_position(&id[..line])?;
    let data = &id[line + 1..];
    let field = b"data: ";
    if data.len() < field.len() {
        return field.starts_with(data).then_some(None);
    }
    data.starts_with(field).then_some(Some((sequence, 4 + line + 1 + field.len())))
}

#[cfg(test)]
mod tests {
    use super::super::plan::{BroadcastPlan, BroadcastProtocol};
    use super::*;

    #[test]
    fn a_message_is_decoded_and_other_events_are_no_messages() {
        let to = ([127, 0, 0, 1], 9).into();
        let plan = BroadcastPlan { protocol: BroadcastProtocol::Sse, size: 16, ..BroadcastPlan::new(to) };
        let subscription = Subscription::new(&plan, &Sse, 0);
        let object = "{\"seq\":17,\"subject\":\"bench\",\"time\":\"2026-01-31T12:00:00.000000000Z\",\"text\":\"0000000000000005\"}";
        let event = format!("id: 3-17\ndata: {object}\n\n");
        let end = event.len() - 4;
        let expected =
            ReceivedItem::Delivery { size: event.len(), payload: end - 16..end, sequence: Some(17) };
        assert_eq!(Sse.next_item(&subscription, event.repeat(2).as_bytes()), Ok(expected));
        for size in 0..event.len() {
            let item = Sse.next_item(&subscription, &event.as_bytes()[..size]);
            assert_eq!(item, Ok(ReceivedItem::Incomplete), "{size} bytes");
        }
        for wrong in [event.replace("seq\":17", "seq\":18"), event.replace("bench", "bunch")] {
            assert!(Sse.next_item(&subscription, wrong.as_bytes()).is_err(), "{wrong}");
        }
        let comment = ReceivedItem::Control { size: 3, answer: b"" };
        assert_eq!(Sse.next_item(&subscription, b":\n\nid"), Ok(comment));
        assert!(Sse.next_item(&subscription, b"event: gap\ndata: {}\n\n").is_err());
    }

    #[test]
    fn an_opening_ends_with_the_position() {
        let whole = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nretry: 1000\n\nid: 3-0\n\n";
        assert_eq!(Sse.opening_size(whole), Ok(Some(whole.len())));
        for size in 0..whole.len() {
            assert_eq!(Sse.opening_size(&whole[..size]), Ok(None));
        }
        assert!(Sse.opening_size(b"HTTP/1.1 403 Forbidden\r\n\r\n").is_err());
    }
}
