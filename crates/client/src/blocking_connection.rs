//! A blocking connection for subscribers and requesters.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use stilling_wire::nats::{Info, NatsDelivery, NatsLimits, PING, PONG, ServerDecoder, ServerEvent};

use crate::address::{ServerAddress, ServerUrl};
use crate::connection_error::ConnectionError;
use crate::handshake::{ConnectOptions, Handshake, ServerLimits};
use crate::limits::{READ_SIZE, READS_AFTER_DEADLINE_MAX};
use crate::message::ReceivedMessage;
use crate::socket::{connect_error, resolve};

/// Shortest socket timeout; zero would disable it.
const WAIT_MIN: Duration = Duration::from_millis(1);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionEvent {
    /// A message for the subscription with this id.
    Message(u64, ReceivedMessage),
    /// The server is shutting down (lame duck mode).
    LameDuck,
    /// Nothing until the deadline.
    TimedOut,
    /// The read limit after the deadline is reached. More data may have arrived before the deadline, so no timeout
    /// applies yet.
    ReadLimit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    pub(crate) connect: Duration,
    pub(crate) answer: Duration,
    pub(crate) ping_interval: Duration,
}

#[derive(Debug)]
pub(crate) struct BlockingConnection {
    stream: BlockingStream,
    decoder: ServerDecoder,
    limits: NatsLimits,
    input: Vec<u8>,
    /// Bytes of `input` that are processed.
    consumed: usize,
    pub(crate) server_limits: ServerLimits,
    timeouts: ConnectionTimeouts,
    last_received: Instant,
    ping_sent_at: Option<Instant>,
    /// Reads of this wait that began after its deadline.
    late_reads: usize,
    /// Messages received during a round trip.
    queued_messages: VecDeque<(u64, ReceivedMessage)>,
}

#[derive(Debug)]
enum BlockingStream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl BlockingConnection {
    pub(crate) fn connect(
        server: &ServerUrl,
        name: Option<&str>,
        timeouts: ConnectionTimeouts,
    ) -> Result<BlockingConnection, ConnectionError> {
        let now = Instant::now();
        let deadline = now + timeouts.connect;
        let mut connection = BlockingConnection {
            stream: BlockingStream::connect(server, deadline)?,
            decoder: ServerDecoder::default(),
            limits: NatsLimits { whole_size_max: u32::MAX, ..NatsLimits::for_client() },
            input: Vec::new(),
            consumed: 0,
            server_limits: ServerLimits { payload_size_max: usize::MAX },
            timeouts,
            last_received: now,
            ping_sent_at: None,
            late_reads: 0,
            queued_messages: VecDeque::new(),
        };
        let connect_options = ConnectOptions { credentials: &server.credentials, name, needs_headers: true };
        let mut handshake = Handshake::AwaitingInfo;
        let server_limits = connection
            .decode_until(deadline, |event, out| handshake.handle_event(&event, &connect_options, out))?;
        connection.server_limits =
            server_limits.ok_or_else(|| ConnectionError::HandshakeTimeout { server: server.to_string() })?;
        Ok(connection)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let written = self.stream.set_timeout(Some(self.timeouts.answer)).and_then(|()| {
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
        written.map_err(|error| {
            if is_timeout(&error) { ConnectionError::Hung } else { ConnectionError::from_io(&error) }
        })
    }

    /// Waits until the server has processed everything sent so far. Messages received meanwhile are queued; only the
    /// answer timeout bounds their number.
    pub(crate) fn round_trip(&mut self) -> Result<(), ConnectionError> {
        self.begin_wait();
        self.send(PING)?;
        let mut queued_messages = std::mem::take(&mut self.queued_messages);
        let deadline = Instant::now() + self.timeouts.answer;
        let pong = self.decode_until(deadline, |event, out| match event {
            ServerEvent::Message(delivery) => {
                queued_messages.push_back((sid_of(&delivery), ReceivedMessage::from_delivery(&delivery)));
                Ok(None)
            }
            ServerEvent::Ping => {
                out.extend_from_slice(PONG);
                Ok(None)
            }
            ServerEvent::Pong => Ok(Some(())),
            ServerEvent::Err(text) => Err(ConnectionError::from_server_text(text)),
            _ => Ok(None),
        })?;
        self.queued_messages = queued_messages;
        pong.ok_or(ConnectionError::Hung)
    }

    /// Begins a wait, which may span several calls of `next_event`. The number of reads after its deadline is bounded,
    /// so a server that sends continuously does not extend it.
    pub(crate) fn begin_wait(&mut self) {
        self.late_reads = 0;
    }

    /// The next event until `deadline`. Sends PINGs and answers the server's.
    pub(crate) fn next_event(&mut self, deadline: Instant) -> Result<ConnectionEvent, ConnectionError> {
        if let Some((sid, message)) = self.queued_messages.pop_front() {
            return Ok(ConnectionEvent::Message(sid, message));
        }
        loop {
            let ping_at = match self.ping_sent_at {
                Some(ping_sent_at) => ping_sent_at + self.timeouts.answer,
                None => self.last_received + self.timeouts.ping_interval,
            };
            let mut has_pong = false;
            let event = self.decode_until(deadline.min(ping_at), |event, out| match event {
                ServerEvent::Message(delivery) => Ok(Some(ConnectionEvent::Message(
                    sid_of(&delivery),
                    ReceivedMessage::from_delivery(&delivery),
                ))),
                ServerEvent::Ping => {
                    out.extend_from_slice(PONG);
                    Ok(None)
                }
                ServerEvent::Pong => {
                    has_pong = true;
                    Ok(None)
                }
                ServerEvent::Info(json) if Info::parse(json).is_ok_and(|info| info.ldm) => {
                    Ok(Some(ConnectionEvent::LameDuck))
                }
                // A user may have permission to follow a stream but not to delete its consumers; these expire on the
                // server.
                ServerEvent::Err(text) if is_removal_error(text) => Ok(None),
                ServerEvent::Err(text) => Err(ConnectionError::from_server_text(text)),
                _ => Ok(None),
            })?;
            if has_pong {
                self.ping_sent_at = None;
            }
            if let Some(event) = event {
                return Ok(event);
            }
            if self.late_reads >= READS_AFTER_DEADLINE_MAX {
                return Ok(ConnectionEvent::ReadLimit);
            }
            let now = Instant::now();
            match self.ping_sent_at {
                Some(ping_sent_at) if now >= ping_sent_at + self.timeouts.answer => {
                    return Err(ConnectionError::Hung);
                }
                None if now >= self.last_received + self.timeouts.ping_interval => {
                    self.ping_sent_at = Some(now);
                    self.send(PING)?;
                }
                _ => {}
            }
            if now >= deadline {
                return Ok(ConnectionEvent::TimedOut);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn wait_for_input(&self, timeout: Duration) {
        self.stream.set_timeout(Some(timeout)).expect("a socket takes options");
        let BlockingStream::Tcp(stream) = &self.stream else { panic!("only for TCP") };
        stream.peek(&mut [0]).expect("something comes");
    }

    #[cfg(test)]
    pub(crate) fn break_sending(&self) {
        let BlockingStream::Tcp(stream) = &self.stream else { panic!("only for TCP") };
        stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
    }

    /// Passes events to `on_event` until it returns a value, the deadline passes, or the read limit after the deadline
    /// is reached.
    fn decode_until<T>(
        &mut self,
        deadline: Instant,
        mut on_event: impl FnMut(ServerEvent<'_>, &mut Vec<u8>) -> Result<Option<T>, ConnectionError>,
    ) -> Result<Option<T>, ConnectionError> {
        let mut out = Vec::new();
        loop {
            let step = self.decoder.decode(&self.limits, &self.input[self.consumed..]);
            let step = step.map_err(|error| ConnectionError::Protocol(error.to_string()))?;
            let needs_more = step.event == ServerEvent::NeedMore;
            let result = if needs_more { None } else { on_event(step.event, &mut out)? };
            self.consumed += step.consumed;
            if !out.is_empty() {
                self.send(&out)?;
                out.clear();
            }
            if result.is_some() {
                return Ok(result);
            }
            if needs_more && !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Reads available data. Returns false if nothing arrived until the deadline, or the read limit after it is
    /// reached.
    fn receive(&mut self, deadline: Instant) -> Result<bool, ConnectionError> {
        if Instant::now() >= deadline {
            if self.late_reads >= READS_AFTER_DEADLINE_MAX {
                return Ok(false);
            }
            self.late_reads += 1;
        }
        self.input.drain(..self.consumed);
        self.consumed = 0;
        let unread = self.input.len();
        let left = deadline.saturating_duration_since(Instant::now()).max(WAIT_MIN);
        let read = self.stream.set_timeout(Some(left)).and_then(|()| {
            self.input.resize(unread + READ_SIZE, 0);
            self.stream.read(&mut self.input[unread..])
        });
        self.input.truncate(unread + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(_) => {
                self.last_received = Instant::now();
                Ok(true)
            }
            Err(error) if is_timeout(&error) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Instant::now() < deadline),
            Err(error) => Err(ConnectionError::from_io(&error)),
        }
    }
}

/// The subscription id of a delivery; the client's ids are numbers from 1.
fn sid_of(delivery: &NatsDelivery<'_>) -> u64 {
    crate::identity::number(delivery.sid).unwrap_or(0)
}

fn is_removal_error(text: &[u8]) -> bool {
    const PARTS: [&[u8]; 2] = [b"Permissions Violation", b"$JS.API.CONSUMER.DELETE."];
    PARTS.iter().all(|words| text.windows(words.len()).any(|some| some.eq_ignore_ascii_case(words)))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl BlockingStream {
    fn connect(server: &ServerUrl, deadline: Instant) -> Result<BlockingStream, ConnectionError> {
        match &server.address {
            ServerAddress::Tcp { .. } => {
                let mut last = None;
                for address in resolve(server)? {
                    let left = deadline.saturating_duration_since(Instant::now()).max(WAIT_MIN);
                    match TcpStream::connect_timeout(&address, left) {
                        Ok(stream) => {
                            // Without it small requests are delayed; its failure is not an error.
                            let _ = stream.set_nodelay(true);
                            return Ok(BlockingStream::Tcp(stream));
                        }
                        Err(error) => last = Some(error),
                    }
                }
                let error = last.unwrap_or_else(|| ErrorKind::NotFound.into());
                if is_timeout(&error) {
                    return Err(ConnectionError::ConnectTimeout { server: server.to_string() });
                }
                Err(connect_error(server, &error))
            }
            #[cfg(unix)]
            ServerAddress::Unix(path) => UnixStream::connect(path)
                .map(BlockingStream::Unix)
                .map_err(|error| connect_error(server, &error)),
            #[cfg(not(unix))]
            ServerAddress::Unix(_) => Err(connect_error(server, &ErrorKind::Unsupported.into())),
        }
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            BlockingStream::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            #[cfg(unix)]
            BlockingStream::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            BlockingStream::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            BlockingStream::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            BlockingStream::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            BlockingStream::Unix(stream) => stream.write(bytes),
        }
    }
}
