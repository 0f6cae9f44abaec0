//! A client's socket in a worker's hands.
//!
//! A handler may answer with the connection itself: the shard lets go of the socket, and a worker serves it
//! as it likes, synchronously or with an event loop of its own. From then on the connection is none of the
//! server's: it counts as closed with the reason `detached`, and a drain does not wait for it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use stilling_engine::{Detached, net};

use super::counters::DelegatedNow;
use super::response::{Body, Response};
use super::session::HttpSession;
use super::shard::{HttpShard, JobOutcome, Work};

/// What is to be done with a socket.
pub(super) struct Delegate(Box<dyn FnOnce(Delegated) + Send>);

impl fmt::Debug for Delegate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delegate")
    }
}

/// A client's connection, in the hands of whoever has it. Reading begins with what the client has sent
/// behind its request. Dropping it closes the connection.
#[derive(Debug)]
pub struct Delegated {
    stream: TcpStream,
    unread: Vec<u8>,
    /// Bytes of `unread` that have been read.
    read: usize,
}

impl Delegated {
    /// The socket: blocking, with the server's idle and write timeouts set, to be changed at will. What
    /// [`read`](Read::read) of this connection has not given yet may not be in it any more.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The socket, and what was received and not read: for a shard of one's own, which adopts them as an
    /// [`engine::Detached`](stilling_engine::Detached).
    pub fn into_parts(mut self) -> (OwnedFd, Vec<u8>) {
        self.unread.drain(..self.read);
        (self.stream.into(), self.unread)
    }
}

impl Read for Delegated {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut rest = &self.unread[self.read..];
        if rest.is_empty() {
            return self.stream.read(into);
        }
        let count = rest.read(into)?;
        self.read += count;
        Ok(count)
    }
}

impl Write for Delegated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Response {
    /// No answer but the connection itself: `serve` gets it in a worker, which is its own until it returns.
    /// It writes whatever the client is to read, beginning with the head of an answer if there is to be
    /// one. When no worker can be had the client is answered 503.
    ///
    /// Each such connection holds a worker thread until `serve` returns: as many of them as there are workers, and
    /// no other work is done. Give the pool threads for them ([`ServeConfig::worker_threads`] or
    /// [`growth`](crate::ServeConfig::growth)), or have `serve` hand the socket to an event loop of its own and
    /// return. `/status` and `/metrics` say how many there are (`stilling_http_delegated`).
    ///
    /// [`ServeConfig::worker_threads`]: crate::ServeConfig::worker_threads
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use stilling::http::{Method, Response, Routes};
    ///
    /// let routes = Routes::new().inline(Method::Get, "/shout", |_| {
    ///     Response::delegate(|mut client| {
    ///         let _ = client.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: shout\r\n\r\n");
    ///         let mut bytes = [0; 256];
    ///         while let Ok(count @ 1..) = client.read(&mut bytes) {
    ///             bytes[..count].make_ascii_uppercase();
    ///             if client.write_all(&bytes[..count]).is_err() {
    ///                 break;
    ///             }
    ///         }
    ///     })
    /// });
    /// # let _ = routes;
    /// ```
    pub fn delegate(serve: impl FnOnce(Delegated) + Send + 'static) -> Self {
        let body = Body::Delegate(Delegate(Box::new(serve)));
        Response { body, ..Response::new(super::Status::SwitchingProtocols) }
    }
}

impl HttpShard {
    /// Gives a connection that has left the shard to a worker. Full queue: it is closed, which
    /// [`can_delegate`](Self::can_delegate) makes a rare thing.
    pub(crate) fn delegate(&mut self, detached: Detached<OwnedFd, HttpSession>) {
        let Detached { session, socket, unread } = detached;
        let Some(Delegate(serve)) = session.into_delegate() else { return };
        let timeouts = [self.config.timeouts.idle, self.config.write_timeout];
        // Nobody waits for the result: the connection's slot has a new tenant by then.
        let now = DelegatedNow::new(&self.counters);
        let job = move |_: &mut _| {
            // Until its server returns, or panics.
            let _now = now;
            if let Ok(stream) = prepare(socket, timeouts) {
                serve(Delegated { stream, unread, read: 0 });
            }
            JobOutcome(Work::Delegated)
        };
        self.counters.jobs.add(1);
        if self.lane.submit(u64::MAX, job).is_err() {
            self.counters.jobs_refused.add(1);
        }
    }

    /// Whether a worker could be had for a connection now.
    pub(super) fn can_delegate(&self) -> bool {
        self.config.has_workers && !self.lane.is_full()
    }
}

/// A socket that a thread may block on, but not for ever.
fn prepare(socket: OwnedFd, [read, write]: [Duration; 2]) -> io::Result<TcpStream> {
    net::set_blocking(&socket)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(read))?;
    stream.set_write_timeout(Some(write))?;
    Ok(stream)
}
