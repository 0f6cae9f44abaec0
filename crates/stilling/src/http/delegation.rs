//! Hands a client's connection to a worker.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use stilling_engine::{Detached, net};

use super::counters::DelegatedGuard;
use super::delegated_connection::{Delegate, DelegatedConnection};
use super::session::HttpSession;
use super::shard::{HttpShard, JobOutcome, JobOutput};

impl HttpShard {
    /// Submits a detached connection to a worker. If the queue is full, the connection is closed; this is rare, because
    /// [`can_delegate`](Self::can_delegate) is checked before.
    pub(crate) fn delegate(&mut self, detached: Detached<OwnedFd, HttpSession>) {
        let Detached { session, socket, unread } = detached;
        let Some(Delegate(serve)) = session.into_delegate() else { return };
        let timeouts = [self.config.timeouts.idle, self.config.write_timeout];
        // The result has no receiver (ticket `u64::MAX`): the connection's slot may be reused by then.
        let now = DelegatedGuard::new(&self.counters);
        let job = move |_: &mut _| {
            // Counted until `serve` returns or panics.
            let _now = now;
            if let Ok(stream) = prepare(socket, timeouts) {
                serve(DelegatedConnection::new(stream, unread));
            }
            JobOutcome(JobOutput::DelegatedConnection)
        };
        self.counters.jobs.add(1);
        if self.submitter.submit(u64::MAX, job).is_err() {
            self.counters.jobs_refused.add(1);
        }
    }

    /// Whether a worker can take a connection now.
    pub(super) fn can_delegate(&self) -> bool {
        self.config.has_workers && !self.submitter.is_full()
    }
}

fn prepare(socket: OwnedFd, [read, write]: [Duration; 2]) -> io::Result<TcpStream> {
    net::set_blocking(&socket)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(read))?;
    stream.set_write_timeout(Some(write))?;
    Ok(stream)
}
