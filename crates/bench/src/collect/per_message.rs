//! A connection for each message, as in short-lived programs that report once: connect, send, optionally wait for the
//! acknowledgement, close.

use std::io::{self, Write};

use super::ack_window::AckWindow;
use super::buffer::ReceiveBuffer;
use super::client_codec::{ClientCodec, CodecEvent};
use super::codec;
use super::collect_run::CollectRun;
use super::connection::connect;
use super::limits::{CONNECT_ATTEMPTS, CONNECT_PAUSE};
use super::tally::{CollectTally, MessageFailure};

/// Drives one client on this thread.
pub(super) fn drive(run: &CollectRun, client: u16) -> CollectTally {
    run.gate.wait();
    let mut one = PerMessageClient {
        run,
        client,
        codec: codec::codec_for(run, client),
        input: ReceiveBuffer::default(),
        output: Vec::new(),
        acks: AckWindow::new(client, 1),
        tally: CollectTally::new(),
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
            one.acks.fail_in_flight(failure, number, || error.to_string(), &mut one.tally);
        }
    }
    one.tally
}

struct PerMessageClient<'r> {
    run: &'r CollectRun,
    client: u16,
    codec: Box<dyn ClientCodec>,
    input: ReceiveBuffer,
    output: Vec<u8>,
    acks: AckWindow,
    tally: CollectTally,
}

impl PerMessageClient<'_> {
    fn open(&mut self) -> Result<std::net::TcpStream, (MessageFailure, io::Error)> {
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
                        return Err((MessageFailure::NotSent, error));
                    }
                    // Each attempt waits longer, to spare a busy server.
                    std::thread::sleep(CONNECT_PAUSE * attempt);
                    attempt += 1;
                }
            }
        }
    }

    /// Sends the message in flight over a connection of its own.
    fn send(&mut self) -> Result<(), (MessageFailure, io::Error)> {
        let broken = |error| (MessageFailure::Broken, error);
        let mut stream = self.open()?;
        self.input.clear();
        self.output.clear();
        self.codec.begin(&mut self.output);
        self.codec.publish(self.acks.counter() - 1, &mut self.output);
        stream.write_all(&self.output).map_err(broken)?;
        self.tally.write(self.run.now());
        let confirmed = self.run.plan.confirmed;
        let mut is_greeted = !self.codec.expects_greeting();
        while if confirmed { self.acks.in_flight() > 0 } else { !is_greeted } {
            let read = self.input.fill(&mut stream).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    (MessageFailure::Unacknowledged, error)
                }
                _ => broken(error),
            })?;
            if read == 0 {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
            while let Some(event) = self.codec.next(&mut self.input) {
                is_greeted = true;
                self.receive(event)?;
            }
        }
        if !confirmed {
            self.acks.complete_sent(self.run.now(), &mut self.tally);
        }
        Ok(())
    }

    fn receive(&mut self, event: CodecEvent) -> Result<(), (MessageFailure, io::Error)> {
        let tally = &mut self.tally;
        match event {
            CodecEvent::Ack(ack) => self.acks.acknowledge(ack, self.run.now(), tally),
            CodecEvent::Failed { counter, failure, detail } => {
                self.acks.reject(counter, failure, || detail, tally);
            }
            CodecEvent::Unmatched { failure, detail } => tally.fault(failure, 1, || detail),
            CodecEvent::Pong => tally.fault(MessageFailure::Protocol, 1, || "PONG without a PING".to_owned()),
            // Without a PONG: the connection closes before the server would miss it.
            CodecEvent::Ping | CodecEvent::Ignored => {}
            CodecEvent::ProtocolError(detail) => {
                let detail = format!("client {}: {detail}", self.client);
                return Err((MessageFailure::Protocol, io::Error::other(detail)));
            }
        }
        Ok(())
    }
}
