//! Forwards every message to every subscriber, from the receive buffer.

use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use crate::PeerResult;
use crate::nats::{self, NatsCommand};
use crate::net::{self, PeerConnection, PeerService};

/// Longest payload that is copied after its line. A vector of smaller pieces costs the system more than the copy.
const COPY_SIZE_MAX: usize = 1024;

/// Size of a short message, for the initial capacity of a read's messages.
const MESSAGE_SIZE_TYPICAL: usize = 128;

/// Prefix of the reply subjects of a client's own requests.
const INBOX: &[u8] = b"_INBOX.";

pub(crate) fn run(address: SocketAddr) -> PeerResult {
    let listener = net::listen(address, None)?;
    net::announce("nats", &listener)?;
    Ok(net::serve(&listener, &mut PeerRelay::default())?)
}

struct PeerMessage<'a> {
    subject: &'a [u8],
    /// The payload with its CR LF.
    body: &'a [u8],
}

struct PeerSubscriber {
    stream: Arc<TcpStream>,
    sid: Vec<u8>,
}

#[derive(Default)]
struct PeerRelay {
    subscribers: Vec<PeerSubscriber>,
    /// Message lines and copied payloads of one send.
    lines: Vec<u8>,
}

impl PeerService for PeerRelay {
    fn greeting(&self) -> &'static [u8] {
        nats::INFO
    }

    fn receive(&mut self, connection: &mut PeerConnection, input: &[u8]) -> Option<usize> {
        let mut messages = Vec::with_capacity(input.len() / MESSAGE_SIZE_TYPICAL);
        let mut answers = Vec::new();
        let mut consumed = 0;
        while let Some((command, size)) = nats::next(&input[consumed..]).ok()? {
            consumed += size;
            match command {
                NatsCommand::Pub { subject, reply: None, body } => {
                    messages.push(PeerMessage { subject, body });
                }
                NatsCommand::Pub { reply: Some(reply), .. } => {
                    push_no_responders(&mut answers, reply, &connection.sid);
                }
                NatsCommand::Sub { subject, sid } => {
                    sid.clone_into(&mut connection.sid);
                    if !subject.starts_with(INBOX) {
                        let stream = Arc::clone(&connection.stream);
                        self.subscribers.push(PeerSubscriber { stream, sid: sid.to_vec() });
                    }
                }
                NatsCommand::Ping => answers.extend_from_slice(nats::PONG),
                NatsCommand::Other => {}
            }
        }
        self.deliver(&messages);
        connection.send(&answers).ok()?;
        Some(consumed)
    }

    fn close(&mut self, connection: &PeerConnection) {
        self.subscribers.retain(|subscriber| !Arc::ptr_eq(&subscriber.stream, &connection.stream));
    }
}

impl PeerRelay {
    /// Sends messages to all subscribers; closes a subscriber that does not read them in time.
    fn deliver(&mut self, messages: &[PeerMessage<'_>]) {
        if messages.is_empty() {
            return;
        }
        let PeerRelay { subscribers, lines } = self;
        subscribers.retain(|subscriber| {
            let is_sent = send(subscriber, messages, lines).is_ok();
            if !is_sent {
                let _ = subscriber.stream.shutdown(Shutdown::Both);
            }
            is_sent
        });
    }
}

/// Sends messages to one subscriber: short payloads copied after their lines, long ones from the receive buffer.
fn send(subscriber: &PeerSubscriber, messages: &[PeerMessage<'_>], lines: &mut Vec<u8>) -> io::Result<()> {
    lines.clear();
    // Payloads that are not copied, each with the end of the lines before it.
    let mut references = Vec::with_capacity(messages.len());
    for PeerMessage { subject, body } in messages {
        nats::push_msg_line(lines, subject, &subscriber.sid, body.len() - nats::CRLF.len());
        if body.len() <= COPY_SIZE_MAX {
            lines.extend_from_slice(body);
        } else {
            references.push((lines.len(), *body));
        }
    }
    let mut slices = Vec::with_capacity(2 * references.len() + 1);
    let mut start = 0;
    for (end, body) in references {
        slices.extend([IoSlice::new(&lines[start..end]), IoSlice::new(body)]);
        start = end;
    }
    slices.push(IoSlice::new(&lines[start..]));
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        match (&*subscriber.stream).write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut rest, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Answers a request like a server without responders: status 503.
fn push_no_responders(out: &mut Vec<u8>, reply: &[u8], sid: &[u8]) {
    // Without a subscription the client cannot receive an answer.
    if sid.is_empty() {
        return;
    }
    for piece in [b"HMSG ", reply, b" ", sid, b" 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"] {
        out.extend_from_slice(piece);
    }
}
