//! Sending: one system call per connection, in however many pieces its bytes lie, and one per batch of datagrams.
//!
//! Neighbouring datagrams of one socket leave together with `sendmmsg`. A connection has at most one
//! item per turn: what follows a short send would arrive in the wrong place.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::Poll;
use super::datagrams::{Leaving, SEND_BATCH};
use super::source::Facts;
use crate::driver::role::Role;
use crate::driver::{Event, Gather, Outgoing, SendStop};
use crate::token::Token;

impl Poll {
    pub(super) fn send_all<'a>(
        &mut self,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        stops: &mut Vec<SendStop>,
        events: &mut Vec<Event<OwnedFd>>,
    ) {
        let mut outgoing = outgoing.peekable();
        let mut position = 0;
        while let Some(first) = outgoing.next() {
            let (token, mut close) = (first.token, first.close);
            let stops_before = stops.len();
            let mut count = 1;
            match self.role(token) {
                Some(Role::Stream | Role::Pipe) => {
                    let stop = self.send_bytes(token, first.bytes, close);
                    stops.extend(stop.map(|(sent, error)| stopped(position, sent, error)));
                }
                Some(Role::Datagram) => {
                    let mut batch = [Leaving::default(); SEND_BATCH];
                    batch[0] = leaving(&first);
                    while count < SEND_BATCH
                        && !close
                        && let Some(next) = outgoing.next_if(|next| next.token == token)
                    {
                        batch[count] = leaving(&next);
                        close = next.close;
                        count += 1;
                    }
                    self.send_datagrams(token, &batch[..count], position, stops);
                }
                Some(Role::Listener) | None => {
                    self.counters.stale += 1;
                    stops.push(stopped(position, 0, Some(Errno::NOTCONN)));
                }
            }
            if close && stops.len() == stops_before {
                self.close_now(token, events);
            }
            position += count as u32;
        }
    }

    /// What a source that still is to send can send.
    fn role(&mut self, token: Token) -> Option<Role> {
        let source = self.sources.get_mut(token)?;
        (!source.facts.has(Facts::CLOSING)).then_some(source.role)
    }

    /// Sends on a stream or pipe. `None`: it took all; else how many bytes it took, and the error.
    /// The close that follows a last send at once pushes its bytes out together with the FIN: one
    /// packet, not two.
    fn send_bytes(&mut self, token: Token, bytes: Gather<'_>, last: bool) -> Option<(usize, Option<Errno>)> {
        let source = self.sources.get_mut(token)?;
        if bytes.is_empty() {
            return None;
        }
        let more = if last { SendFlags::MORE } else { SendFlags::empty() };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
        let outcome = loop {
            self.counters.enters += 1;
            let outcome = match (source.role, bytes) {
                (Role::Pipe, _) => self.messages.write(source.fd.as_fd(), bytes),
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
        source.facts.clear(Facts::WRITABLE);
        Some(stop)
    }

    fn send_datagrams(
        &mut self,
        token: Token,
        batch: &[Leaving<'_>],
        position: u32,
        stops: &mut Vec<SendStop>,
    ) {
        let Some(source) = self.sources.get_mut(token) else { return };
        let position_of = |at: usize| position + at as u32;
        let mut done = 0;
        while done < batch.len() {
            self.counters.enters += 1;
            match self.datagrams.send(source.fd.as_fd(), &batch[done..]) {
                Ok(sent) => done += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    source.facts.clear(Facts::WRITABLE);
                    stops.extend((done..batch.len()).map(|at| stopped(position_of(at), 0, None)));
                    return;
                }
                // It concerns this one (or, on a connected socket, an earlier one): the rest may go.
                Err(error) => {
                    stops.push(stopped(position_of(done), 0, Some(error)));
                    done += 1;
                }
            }
        }
    }
}

fn leaving<'a>(out: &Outgoing<'a>) -> Leaving<'a> {
    let payload = out.bytes.as_slice().expect("a datagram is in one piece");
    Leaving { payload, to: out.to, from: out.from }
}

fn stopped(position: u32, sent: usize, error: Option<Errno>) -> SendStop {
    SendStop { position, sent: sent as u32, error: error.map(Into::into) }
}
