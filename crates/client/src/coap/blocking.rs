//! The blocking client: a socket and the time for [`CoapClientCore`].

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use super::core::{CoapClientConfig, CoapClientCore, CoapClientEvent};
use super::error::CoapClientError;
use super::limits::RECEIVE_SIZE;
use super::request::CoapRequest;
use super::response::CoapResponse;
use super::url::CoapUrl;
use crate::identity::random_seed;
use crate::limits::{SPAN_MAX, deadline};

/// Sends requests to one server, one at a time.
#[derive(Debug)]
pub struct CoapClient {
    server: String,
    /// Further addresses of the server, used if one refuses before anything was received.
    addresses: Vec<SocketAddr>,
    socket: UdpSocket,
    core: CoapClientCore,
    buffer: Box<[u8]>,
}

impl CoapClient {
    /// Resolves the server's name and opens a socket; sends nothing.
    ///
    /// # Errors
    /// [`CoapClientError::Name`] and [`CoapClientError::Socket`].
    pub fn connect(url: &CoapUrl, config: CoapClientConfig) -> Result<CoapClient, CoapClientError> {
        let server = url.server();
        let name = |detail: String| CoapClientError::Name { server: server.clone(), detail };
        let resolved = (url.host.as_str(), url.port).to_socket_addrs();
        let mut addresses: Vec<SocketAddr> = resolved.map_err(|error| name(error.to_string()))?.collect();
        addresses.reverse();
        let first = addresses.pop().ok_or_else(|| name("the name resolves to no address".to_owned()))?;
        let socket = open(first).map_err(|error| socket_error(&server, &error))?;
        let core = CoapClientCore::new(config, random_seed());
        Ok(CoapClient { server, addresses, socket, core, buffer: vec![0; RECEIVE_SIZE].into() })
    }

    /// Sends a request and waits for the complete response. A response with an error code is a response.
    ///
    /// # Errors
    /// [`CoapClientError`].
    pub fn request(&mut self, request: CoapRequest) -> Result<CoapResponse, CoapClientError> {
        loop {
            self.core.start(request.clone(), Instant::now());
            match self.next_event(SPAN_MAX)? {
                Some(CoapClientEvent::Response(response) | CoapClientEvent::Notification(response)) => {
                    self.addresses.clear();
                    return Ok(response);
                }
                Some(CoapClientEvent::Failed(error)) => self.try_next_address(error)?,
                None => {}
            }
        }
    }

    /// Registers for the states of a resource and waits for the first one. The server may answer without registering
    /// the client; then this is the only one.
    ///
    /// # Errors
    /// [`CoapClientError`].
    pub fn observe(&mut self, request: CoapRequest) -> Result<CoapNotifications<'_>, CoapClientError> {
        let first = loop {
            self.core.observe(request.clone(), Instant::now());
            match self.next_event(SPAN_MAX)? {
                Some(CoapClientEvent::Failed(error)) => self.try_next_address(error)?,
                Some(event) => break event,
                None => {}
            }
        };
        self.addresses.clear();
        Ok(CoapNotifications { client: self, first: Some(first), is_open: true })
    }

    fn try_next_address(&mut self, error: CoapClientError) -> Result<(), CoapClientError> {
        let is_refused = matches!(error, CoapClientError::Refused { .. });
        let Some(next) = self.addresses.pop().filter(|_| is_refused) else { return Err(error) };
        self.socket = open(next).map_err(|error| socket_error(&self.server, &error))?;
        Ok(())
    }

    /// Waits for the next event; `None` after the timeout.
    fn next_event(&mut self, timeout: Duration) -> Result<Option<CoapClientEvent>, CoapClientError> {
        let end = deadline(Instant::now(), timeout);
        loop {
            self.transmit();
            if let Some(event) = self.core.poll_event() {
                return Ok(Some(event));
            }
            let now = Instant::now();
            if now >= end {
                return Ok(None);
            }
            let timer = self.core.next_timer().unwrap_or(end);
            if timer <= now {
                self.core.handle_timer(now);
                continue;
            }
            // A read timeout of zero would mean none.
            let wait = timer.min(end).duration_since(now).max(Duration::from_micros(1));
            self.socket.set_read_timeout(Some(wait)).map_err(|error| socket_error(&self.server, &error))?;
            match self.socket.recv(&mut self.buffer) {
                Ok(size) => self.core.handle_datagram(&self.buffer[..size], Instant::now()),
                Err(error) => self.handle_io_error(&error),
            }
        }
    }

    fn transmit(&mut self) {
        while let Some(datagram) = self.core.poll_transmit() {
            if let Err(error) = self.socket.send(&datagram) {
                self.handle_io_error(&error);
            }
        }
    }

    fn handle_io_error(&mut self, error: &io::Error) {
        let is_transient = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted];
        if !is_transient.contains(&error.kind()) {
            self.core.fail(socket_error(&self.server, error));
        }
    }
}

/// The states of an observed resource, in their order; states in between may be missing.
#[derive(Debug)]
pub struct CoapNotifications<'c> {
    client: &'c mut CoapClient,
    first: Option<CoapClientEvent>,
    is_open: bool,
}

impl CoapNotifications<'_> {
    /// Waits for the next state; `None` after the timeout and after the end of the observation.
    ///
    /// # Errors
    /// [`CoapClientError`], which ends the observation.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<CoapResponse>, CoapClientError> {
        if !self.is_open {
            return Ok(None);
        }
        let event = match self.first.take() {
            Some(event) => Some(event),
            None => self.client.next_event(timeout)?,
        };
        match event {
            Some(CoapClientEvent::Notification(response)) => Ok(Some(response)),
            Some(CoapClientEvent::Response(response)) => {
                self.is_open = false;
                Ok(Some(response))
            }
            Some(CoapClientEvent::Failed(error)) => {
                self.is_open = false;
                Err(error)
            }
            None => Ok(None),
        }
    }

    /// Whether further states may follow.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Ends the observation and waits for the server's response. Without this call the server learns of the end when it
    /// sends its next notification.
    ///
    /// # Errors
    /// [`CoapClientError`].
    pub fn end(self) -> Result<(), CoapClientError> {
        if !self.client.core.end_observation(Instant::now()) {
            return Ok(());
        }
        loop {
            match self.client.next_event(SPAN_MAX)? {
                Some(CoapClientEvent::Response(_)) => return Ok(()),
                Some(CoapClientEvent::Failed(error)) => return Err(error),
                Some(CoapClientEvent::Notification(_)) | None => {}
            }
        }
    }
}

/// Opens a socket that receives datagrams of this address only.
fn open(server: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    Ok(socket)
}

fn socket_error(server: &str, error: &io::Error) -> CoapClientError {
    let server = server.to_owned();
    match error.kind() {
        ErrorKind::ConnectionRefused => CoapClientError::Refused { server },
        _ => CoapClientError::Socket { server, detail: error.to_string() },
    }
}
