//! A connection that the caller's thread waits on: for subscribers and requests, which have nothing to do while nothing
//! comes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use stilling_wire::nats::{Delivery, Info, Limits, PING, PONG, ServerDecoder, ServerEvent};

use crate::address::{Place, Server};
use crate::handshake::{Greeting, Handshake, Introduction};
use crate::limits::{LATE_READS_MAX, READ_SIZE};
use crate::message::Message;
use crate::socket::{refused, resolve};
use crate::trouble::Trouble;

/// The shortest wait that sockets take; none would be waiting for ever.
const WAIT_LEAST: Duration = Duration::from_millis(1);

/// What the server said, as far as a caller has to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// A message for the subscription with this id.
    Message(u64, Message),
    /// It is about to stop.
    LameDuck,
    /// Nothing until the deadline.
    Nothing,
    /// Nothing in as much as one look reads after the deadline, and more may have come before it: nothing is late yet.
    Enough,
}

/// How long a line waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) connect: Duration,
    pub(crate) answer: Duration,
    pub(crate) ping_interval: Duration,
}

/// A connection that is ready.
#[derive(Debug)]
pub(crate) struct Line {
    stream: Stream,
    decoder: ServerDecoder,
    limits: Limits,
    input: Vec<u8>,
    /// Bytes of `input` that are done with.
    done: usize,
    pub(crate) greeting: Greeting,
    patience: Patience,
    heard: Instant,
    pinged: Option<Instant>,
    /// Reads of this look that began after their deadline.
    late_reads: usize,
    /// Messages that came while something else was waited for.
    early: VecDeque<(u64, Message)>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Line {
    /// Connects and introduces itself.
    pub(crate) fn connect(server: &Server, name: Option<&str>, patience: Patience) -> Result<Line, Trouble> {
        let now = Instant::now();
        let deadline = now + patience.connect;
        let mut line = Line {
            stream: Stream::connect(server, deadline)?,
            decoder: ServerDecoder::default(),
            limits: Limits { whole_size_max: u32::MAX, ..Limits::for_client() },
            input: Vec::new(),
            done: 0,
            greeting: Greeting { payload_size_max: usize::MAX },
            patience,
            heard: now,
            pinged: None,
            late_reads: 0,
            early: VecDeque::new(),
        };
        let introduction = Introduction { credentials: &server.credentials, name, needs_headers: true };
        let mut handshake = Handshake::Silent;
        let greeting = line.take(deadline, |event, out| handshake.hear(&event, &introduction, out))?;
        line.greeting = greeting.ok_or_else(|| Trouble::GreetingTimeout { server: server.to_string() })?;
        Ok(line)
    }

    /// Writes all of it.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let written = self.stream.set_timeout(Some(self.patience.answer)).and_then(|()| {
            let mut rest = bytes;
            while !rest.is_empty() {
                match self.stream.write(rest) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(count) => rest = &rest[count..],
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        written.map_err(|error| if is_timeout(&error) { Trouble::Hung } else { Trouble::broken(&error) })
    }

    /// Waits until the server has processed all that was sent so far. What comes meanwhile is kept; a server sends at most
    /// what fits into the time for an answer.
    pub(crate) fn settle(&mut self) -> Result<(), Trouble> {
        self.look();
        self.send(PING)?;
        let mut early = std::mem::take(&mut self.early);
        let deadline = Instant::now() + self.patience.answer;
        let settled = self.take(deadline, |event, out| match event {
            ServerEvent::Message(delivery) => {
                early.push_back((sid_of(&delivery), Message::of(&delivery)));
                Ok(None)
            }
            ServerEvent::Ping => {
                out.extend_from_slice(PONG);
                Ok(None)
            }
            ServerEvent::Pong => Ok(Some(())),
            ServerEvent::Err(text) => Err(Trouble::said(text)),
            _ => Ok(None),
        })?;
        self.early = early;
        settled.ok_or(Trouble::Hung)
    }

    /// Begins a look: how long a caller waits for one thing, in as many steps as it takes. Whoever sends without a pause does
    /// not extend it: after its deadline a bounded number of reads is left.
    pub(crate) fn look(&mut self) {
        self.late_reads = 0;
    }

    /// What comes next, until `deadline`. Keeps the connection alive meanwhile.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Heard, Trouble> {
        if let Some((sid, message)) = self.early.pop_front() {
            return Ok(Heard::Message(sid, message));
        }
        loop {
            let ping_at = match self.pinged {
                Some(pinged) => pinged + self.patience.answer,
                None => self.heard + self.patience.ping_interval,
            };
            let mut has_pong = false;
            let heard = self.take(deadline.min(ping_at), |event, out| match event {
                ServerEvent::Message(delivery) => {
                    Ok(Some(Heard::Message(sid_of(&delivery), Message::of(&delivery))))
                }
                ServerEvent::Ping => {
                    out.extend_from_slice(PONG);
                    Ok(None)
                }
                ServerEvent::Pong => {
                    has_pong = true;
                    Ok(None)
                }
                ServerEvent::Info(json) if Info::parse(json).is_ok_and(|info| info.ldm) => {
                    Ok(Some(Heard::LameDuck))
                }
                // A user may follow a stream without being allowed to remove its consumers; they go by themselves later.
                ServerEvent::Err(text) if is_about_removal(text) => Ok(None),
                ServerEvent::Err(text) => Err(Trouble::said(text)),
                _ => Ok(None),
            })?;
            if has_pong {
                self.pinged = None;
            }
            if let Some(heard) = heard {
                return Ok(heard);
            }
            if self.late_reads >= LATE_READS_MAX {
                return Ok(Heard::Enough);
            }
            let now = Instant::now();
            match self.pinged {
                Some(pinged) if now >= pinged + self.patience.answer => return Err(Trouble::Hung),
                None if now >= self.heard + self.patience.ping_interval => {
                    self.pinged = Some(now);
                    self.send(PING)?;
                }
                _ => {}
            }
            if now >= deadline {
                return Ok(Heard::Nothing);
            }
        }
    }

    /// Waits until something can be read.
    #[cfg(test)]
    pub(crate) fn wait_for_input(&self, timeout: Duration) {
        self.stream.set_timeout(Some(timeout)).expect("a socket takes options");
        let Stream::Tcp(stream) = &self.stream else { panic!("other sockets cannot be asked") };
        stream.peek(&mut [0]).expect("something comes");
    }

    /// Lets nothing more be sent.
    #[cfg(test)]
    pub(crate) fn break_sending(&self) {
        let Stream::Tcp(stream) = &self.stream else { panic!("other sockets cannot be asked") };
        stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
    }

    /// Shows `look` one event after the other until it finds something, or the deadline passes, or after the deadline as much
    /// has been read as one look may.
    fn take<T>(
        &mut self,
        deadline: Instant,
        mut look: impl FnMut(ServerEvent<'_>, &mut Vec<u8>) -> Result<Option<T>, Trouble>,
    ) -> Result<Option<T>, Trouble> {
        let mut out = Vec::new();
        loop {
            let step = self.decoder.decode(&self.limits, &self.input[self.done..]);
            let step = step.map_err(|error| Trouble::Protocol(error.to_string()))?;
            let needs_more = step.event == ServerEvent::NeedMore;
            let found = if needs_more { None } else { look(step.event, &mut out)? };
            self.done += step.consumed;
            if !out.is_empty() {
                self.send(&out)?;
                out.clear();
            }
            if found.is_some() {
                return Ok(found);
            }
            if needs_more && !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Reads what is there; false: nothing came until the deadline, or enough after it.
    fn receive(&mut self, deadline: Instant) -> Result<bool, Trouble> {
        if Instant::now() >= deadline {
            if self.late_reads >= LATE_READS_MAX {
                return Ok(false);
            }
            self.late_reads += 1;
        }
        self.input.drain(..self.done);
        self.done = 0;
        let kept = self.input.len();
        let left = deadline.saturating_duration_since(Instant::now()).max(WAIT_LEAST);
        let read = self.stream.set_timeout(Some(left)).and_then(|()| {
            self.input.resize(kept + READ_SIZE, 0);
            self.stream.read(&mut self.input[kept..])
        });
        self.input.truncate(kept + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err(Trouble::Closed),
            Ok(_) => {
                self.heard = Instant::now();
                Ok(true)
            }
            Err(error) if is_timeout(&error) => Ok(false),
            // The next round asks with what is left of the time.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Instant::now() < deadline),
            Err(error) => Err(Trouble::broken(&error)),
        }
    }
}

/// The subscription that a delivery is for; ours have numbers, and none is 0.
fn sid_of(delivery: &Delivery<'_>) -> u64 {
    crate::identity::number(delivery.sid).unwrap_or(0)
}

/// Whether an error says that a consumer may not be removed.
fn is_about_removal(text: &[u8]) -> bool {
    const WORDS: [&[u8]; 2] = [b"Permissions Violation", b"$JS.API.CONSUMER.DELETE."];
    WORDS.iter().all(|words| text.windows(words.len()).any(|some| some.eq_ignore_ascii_case(words)))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl Stream {
    /// Tries the server's addresses one after the other.
    fn connect(server: &Server, deadline: Instant) -> Result<Stream, Trouble> {
        match &server.place {
            Place::Tcp { .. } => {
                let mut last = None;
                for address in resolve(server)? {
                    let left = deadline.saturating_duration_since(Instant::now()).max(WAIT_LEAST);
                    match TcpStream::connect_timeout(&address, left) {
                        Ok(stream) => {
                            // Without it small questions wait; it is no reason to give up.
                            let _ = stream.set_nodelay(true);
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = Some(error),
                    }
                }
                let error = last.unwrap_or_else(|| ErrorKind::NotFound.into());
                if is_timeout(&error) {
                    return Err(Trouble::ConnectTimeout { server: server.to_string() });
                }
                Err(refused(server, &error))
            }
            #[cfg(unix)]
            Place::Unix(path) => {
                UnixStream::connect(path).map(Stream::Unix).map_err(|error| refused(server, &error))
            }
            #[cfg(not(unix))]
            Place::Unix(_) => Err(refused(server, &ErrorKind::Unsupported.into())),
        }
    }

    /// For each read and write.
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            #[cfg(unix)]
            Stream::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.write(bytes),
        }
    }
}
