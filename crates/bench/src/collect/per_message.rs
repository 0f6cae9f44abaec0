//! A connection for each message, as many programs report that say one thing and end: connect, say it, wait for the
//! acknowledgement or not, close.

use std::io::{self, Write};

use super::acks::Acks;
use super::buffer::Buffer;
use super::codec;
use super::connection::connect;
use super::limits::{CONNECT_ATTEMPTS, CONNECT_PAUSE};
use super::shared::Run;
use super::speech::{Heard, Speech};
use super::tally::{Failure, Tally};

/// Drives one client, which has this thread for itself.
pub(super) fn drive(run: &Run, client: u16) -> Tally {
    run.gate.wait();
    let mut one = Client {
        run,
        client,
        speech: codec::of(run, client),
        input: Buffer::default(),
        output: Vec::new(),
        acks: Acks::new(client, 1),
        tally: Tally::new(),
    };
    for _ in 0..run.plan.share(client) {
        let now = run.now();
        if run.is_over(now) {
            break;
        }
        one.acks.send(now);
        one.tally.queued += 1;
        if let Err((failure, error)) = one.send() {
            let number = error.raw_os_error();
            one.acks.give_up(failure, number, || error.to_string(), &mut one.tally);
        }
    }
    one.tally
}

struct Client<'r> {
    run: &'r Run,
    client: u16,
    speech: Box<dyn Speech>,
    input: Buffer,
    output: Vec<u8>,
    acks: Acks,
    tally: Tally,
}

impl Client<'_> {
    fn open(&mut self) -> Result<std::net::TcpStream, (Failure, io::Error)> {
        let plan = &self.run.plan;
        let mut attempt = 1;
        loop {
            let opened = connect(plan.to, plan.timeout).and_then(|stream| {
                stream.set_read_timeout(Some(plan.timeout))?;
                stream.set_write_timeout(Some(plan.timeout))?;
                Ok(stream)
            });
            match opened {
                Ok(stream) => {
                    self.tally.connects += 1;
                    return Ok(stream);
                }
                Err(error) => {
                    self.tally.connection_fails += 1;
                    if attempt == CONNECT_ATTEMPTS {
                        return Err((Failure::NotSent, error));
                    }
                    // Each attempt waits longer, so that a server that has enough to do gets no more of it.
                    std::thread::sleep(CONNECT_PAUSE * attempt);
                    attempt += 1;
                }
            }
        }
    }

    /// Sends the message that is in flight over a connection of its own.
    fn send(&mut self) -> Result<(), (Failure, io::Error)> {
        let broken = |error| (Failure::Broken, error);
        let mut stream = self.open()?;
        self.input.clear();
        self.output.clear();
        self.speech.begin(&mut self.output);
        self.speech.publish(self.acks.counter() - 1, &mut self.output);
        stream.write_all(&self.output).map_err(broken)?;
        self.tally.write(self.run.now());
        let confirmed = self.run.plan.confirmed;
        let mut is_greeted = !self.speech.is_greeted();
        while if confirmed { self.acks.in_flight() > 0 } else { !is_greeted } {
            let read = self.input.fill(&mut stream).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => (Failure::Unacknowledged, error),
                _ => broken(error),
            })?;
            if read == 0 {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
            while let Some(heard) = self.speech.next(&mut self.input) {
                is_greeted = true;
                self.hear(heard)?;
            }
        }
        if !confirmed {
            self.acks.taken(self.run.now(), &mut self.tally);
        }
        Ok(())
    }

    fn hear(&mut self, heard: Heard) -> Result<(), (Failure, io::Error)> {
        let tally = &mut self.tally;
        match heard {
            Heard::Ack(ack) => self.acks.settle(ack, self.run.now(), tally),
            Heard::Bad { counter, failure, words } => self.acks.reject(counter, failure, || words, tally),
            Heard::Stray { failure, words } => tally.fault(failure, 1, || words),
            Heard::Pong => tally.fault(Failure::Protocol, 1, || "PONG without a PING".to_owned()),
            // The connection is over before anybody could miss the answer.
            Heard::Ping | Heard::Nothing => {}
            Heard::Fault(words) => {
                let words = format!("client {}: {words}", self.client);
                return Err((Failure::Protocol, io::Error::other(words)));
            }
        }
        Ok(())
    }
}
