//! A connection of a simulated worker process: HTTP/1.1, one request after the other.

use std::io::ErrorKind;

use stilling_ring::Time;

use crate::network::SimPeer;

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
}

/// What a process does when its work on a request ends.
#[derive(Clone, Debug)]
pub(super) enum WorkEnd {
    /// Sends these bytes; then the connection is closed, or serves the next request.
    Answer { bytes: Vec<u8>, closes: bool },
    /// Sends these bytes and dies.
    Death(Vec<u8>),
    /// The whole process does nothing any more.
    Hang,
}

/// A request that is worked on.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) ends_at: Time,
    pub(super) end: WorkEnd,
}

/// See the [module](self).
pub(super) struct ProcessConnection {
    peer: SimPeer,
    input: Vec<u8>,
    output: Vec<u8>,
    pub(super) work: Option<Work>,
    closes: bool,
    has_ended: bool,
}

impl ProcessConnection {
    pub(super) fn new(peer: SimPeer) -> ProcessConnection {
        ProcessConnection {
            peer,
            input: Vec::new(),
            output: Vec::new(),
            work: None,
            closes: false,
            has_ended: false,
        }
    }

    /// Whether the connection serves nothing any more, and is to be closed.
    pub(super) fn is_over(&self) -> bool {
        let is_served = self.work.is_none() && self.output.is_empty();
        self.has_ended && is_served || self.closes && self.output.is_empty()
    }

    /// Whether no request is served.
    pub(super) fn is_idle(&self) -> bool {
        self.work.is_none() && self.output.is_empty() && self.input.is_empty()
    }

    /// Queues bytes for sending; `closes`: the last ones.
    pub(super) fn answer(&mut self, bytes: &[u8], closes: bool) {
        self.output.extend_from_slice(bytes);
        self.closes |= closes;
    }

    /// Receives and sends what is possible. Returns whether there was anything.
    pub(super) fn transfer(&mut self) -> bool {
        let mut any = false;
        let mut piece = [0; 2048];
        while !self.has_ended {
            match self.peer.read(&mut piece) {
                Ok(0) => self.has_ended = true,
                Ok(size) => self.input.extend_from_slice(&piece[..size]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.fail(),
            }
            any = true;
        }
        while !self.output.is_empty() {
            match self.peer.write(&self.output) {
                Ok(size) => _ = self.output.drain(..size),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.fail(),
            }
            any = true;
        }
        any
    }

    /// The connection was reset: nothing can be sent.
    fn fail(&mut self) {
        self.has_ended = true;
        self.output.clear();
        self.closes = true;
    }

    /// The next whole request, unless one is worked on.
    pub(super) fn next_request(&mut self) -> Result<Option<HttpRequest>, String> {
        if self.work.is_some() || !self.output.is_empty() || self.closes {
            return Ok(None);
        }
        let Some(end) = self.input.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(None) };
        let head = std::str::from_utf8(&self.input[..end]).map_err(|_| "a head that is not text")?;
        let mut lines = head.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(path), Some("HTTP/1.1")) = (first.next(), first.next(), first.next()) else {
            return Err(format!("not a request: {head}"));
        };
        let (method, path) = (method.to_owned(), path.to_owned());
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let (start, size) = (end + 4, length.unwrap_or(0_usize));
        if self.input.len() < start + size {
            return Ok(None);
        }
        let body = self.input[start..start + size].to_vec();
        self.input.drain(..start + size);
        Ok(Some(HttpRequest { method, path, body }))
    }

    /// Closes with a reset.
    pub(super) fn reset(self) {
        self.peer.reset();
    }
}
