//! Sending: one system call per connection, whatever the number of pieces, and one per batch of datagrams.
//!
//! `sendmmsg` sends consecutive datagrams of one socket together. A connection has at most one item per turn: after a
//! short send, a second one would send later bytes too early.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::Poll;
use super::datagrams::{OutgoingDatagram, SEND_BATCH};
use super::source::SourceFlags;
use crate::driver::role::SourceRole;
use crate::driver::{DriverEvent, Gather, IncompleteSend, Outgoing};
use crate::token::Token;

impl Poll {
    pub(super) fn send_all<'a>(
        &mut self,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        incomplete_sends: &mut Vec<IncompleteSend>,
        events: &mut Vec<DriverEvent<OwnedFd>>,
    ) {
        let mut outgoing = outgoing.peekable();
        let mut position = 0;
        while let Some(first) = outgoing.next() {
            let (token, mut close) = (first.token, first.close);
            let stops_before = incomplete_sends.len();
            let mut count = 1;
            match self.role(token) {
                Some(SourceRole::Stream | SourceRole::Pipe) => {
                    let stop = self.send_bytes(token, first.bytes, close);
                    incomplete_sends.extend(stop.map(|(sent, error)| short_send(position, sent, error)));
                }
                Some(SourceRole::Datagram) => {
                    let mut batch = [OutgoingDatagram::default(); SEND_BATCH];
                    batch[0] = outgoing_datagram(&first);
                    while count < SEND_BATCH
                        && !close
                        && let Some(next) = outgoing.next_if(|next| next.token == token)
                    {
                        batch[count] = outgoing_datagram(&next);
                        close = next.close;
                        count += 1;
                    }
                    self.send_datagrams(token, &batch[..count], position, incomplete_sends);
                }
                Some(SourceRole::Listener) | None => {
                    self.counters.stale += 1;
                    incomplete_sends.push(short_send(position, 0, Some(Errno::NOTCONN)));
                }
            }
            if close && incomplete_sends.len() == stops_before {
                self.close_now(token, events);
            }
            position += count as u32;
        }
    }

    /// The role of a source, unless it is closing.
    fn role(&mut self, token: Token) -> Option<SourceRole> {
        let source = self.sources.get_mut(token)?;
        (!source.source_flags.has(SourceFlags::CLOSING)).then_some(source.role)
    }

    /// Sends on a stream or pipe. `None`: all bytes were sent; else the number of sent bytes, and the error. With
    /// `last`, the close that follows at once sends the bytes together with its FIN: one packet, not two.
    fn send_bytes(&mut self, token: Token, bytes: Gather<'_>, last: bool) -> Option<(usize, Option<Errno>)> {
        let source = self.sources.get_mut(token)?;
        if bytes.is_empty() {
            return None;
        }
        let more = if last { SendFlags::MORE } else { SendFlags::empty() };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
        let outcome = loop {
            self.counters.system_calls += 1;
            let outcome = match (source.role, bytes) {
                (SourceRole::Pipe, _) => self.messages.write(source.fd.as_fd(), bytes),
                (_, Gather::One(bytes)) => rustix::net::send(&source.fd, bytes, flags),
                (_, Gather::Many(_)) => self.messages.send(source.fd.as_fd(), bytes, flags),
            };
            if outcome != Err(Errno::INTR) {
                break outcome;
            }
        };
        let stop = match outcome {
            Ok(sent) if sent == bytes.len() => return None,
            Ok(sent) => (sent, None),
            Err(Errno::AGAIN) => (0, None),
            Err(error) => return Some((0, Some(error))),
        };
        source.source_flags.clear(SourceFlags::WRITABLE);
        Some(stop)
    }

    fn send_datagrams(
        &mut self,
        token: Token,
        batch: &[OutgoingDatagram<'_>],
        position: u32,
        incomplete_sends: &mut Vec<IncompleteSend>,
    ) {
        let Some(source) = self.sources.get_mut(token) else { return };
        let position_of = |at: usize| position + at as u32;
        let begin = Instant::now();
        let mut done = 0;
        while done < batch.len() {
            self.counters.system_calls += 1;
            match self.datagrams.send(source.fd.as_fd(), &batch[done..]) {
                Ok(sent) => done += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    source.source_flags.clear(SourceFlags::WRITABLE);
                    incomplete_sends
                        .extend((done..batch.len()).map(|at| short_send(position_of(at), 0, None)));
                    break;
                }
                // The error concerns this datagram (or, on a connected socket, an earlier one), not the later ones.
                Err(error) => {
                    incomplete_sends.push(short_send(position_of(done), 0, Some(error)));
                    done += 1;
                }
            }
        }
        self.counters.send_nanos += begin.elapsed().as_nanos() as u64;
        self.counters.sends_timed += batch.len() as u64;
    }
}

fn outgoing_datagram<'a>(out: &Outgoing<'a>) -> OutgoingDatagram<'a> {
    let payload = out.bytes.as_slice().expect("a datagram is in one piece");
    OutgoingDatagram { payload, to: out.to, from: out.from }
}

fn short_send(position: u32, sent: usize, error: Option<Errno>) -> IncompleteSend {
    IncompleteSend { position, sent: sent as u32, error: error.map(Into::into) }
}
