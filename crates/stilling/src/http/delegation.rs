//! Gives a client's connection to a worker.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use stilling_engine::{Detached, net};

use super::counters::DelegatedGuard;
use super::delegated_connection::{Delegate, DelegatedConnection};
use super::session::HttpSession;
use super::shard::{HttpShard, JobOutcome, JobProduct};

impl HttpShard {
    /// Gives a connection that has left the shard to a worker. Full queue: it is closed, which
    /// [`can_delegate`](Self::can_delegate) makes a rare thing.
    pub(crate) fn delegate(&mut self, detached: Detached<OwnedFd, HttpSession>) {
        let Detached { session, socket, unread } = detached;
        let Some(Delegate(serve)) = session.into_delegate() else { return };
        let timeouts = [self.config.timeouts.idle, self.config.write_timeout];
        // Nobody waits for the result: the connection's slot has a new tenant by then.
        let now = DelegatedGuard::new(&self.counters);
        let job = move |_: &mut _| {
            // Until its server returns, or panics.
            let _now = now;
            if let Ok(stream) = prepare(socket, timeouts) {
                serve(DelegatedConnection::new(stream, unread));
            }
            JobOutcome(JobProduct::DelegatedConnection)
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
