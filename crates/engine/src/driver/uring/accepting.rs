//! Accepting: one multishot operation per listener, or operations for one connection while the ring's own table is nearly
//! full.

use std::ptr;

use io_uring::{cqueue, opcode, types};
use rustix::io::Errno;

use super::Uring;
use super::completions::{UringEvents, error};
use super::direct_table::DirectTable;
use super::queue::{Completion, UringOp};
use super::source::{AcceptRequest, ArmedOps};
use crate::driver::DriverEvent;
use crate::driver::accept::AcceptFailure;
use crate::token::Token;

impl Uring {
    pub(super) fn arm_accept(&mut self, listener: Token) {
        let is_nearly_full = self.has_nearly_full_table();
        let direct = self.table.is_some();
        let Some(source) = self.sources.get_mut(listener) else { return };
        source.arm(ArmedOps::ACCEPT);
        source.clear_mark(ArmedOps::ONE_ACCEPT);
        let entry = if is_nearly_full {
            source.set_mark(ArmedOps::ONE_ACCEPT);
            let slot = Some(types::DestinationSlot::auto_target());
            let accept =
                |fd| opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut()).file_index(slot).build();
            source.handle.entry(accept)
        } else {
            // The kernel rejects the flag for a slot, which is never inherited.
            let flags = if direct { 0 } else { libc::SOCK_CLOEXEC };
            let accept = |fd| opcode::AcceptMulti::new(fd).allocate_file_index(direct).flags(flags).build();
            source.handle.entry(accept)
        };
        self.submit(&entry.user_data(UringOp::Accept.with(listener)));
    }

    fn has_nearly_full_table(&self) -> bool {
        self.table.as_ref().is_some_and(DirectTable::is_nearly_full)
    }

    /// Replaces the multishot accept of a listener by accepts of one connection, once the table is nearly full.
    fn limit_accept(&mut self, listener: Token) {
        if self.has_nearly_full_table()
            && let Some(source) = self.sources.get_mut(listener)
            && source.set_mark(ArmedOps::ONE_ACCEPT)
        {
            self.cancel(UringOp::Accept, listener);
        }
    }

    pub(super) fn complete_accept(
        &mut self,
        listener: Token,
        completion: Completion,
        events: &mut UringEvents,
    ) {
        let result = completion.result;
        let socket = (result >= 0).then(|| self.accepted_socket(result));
        let ended = !cqueue::more(completion.flags);
        let alive = match self.sources.get_mut(listener) {
            Some(source) if !ended => !source.closing,
            _ => self.finish_operation(listener, ArmedOps::ACCEPT, events),
        };
        if !alive {
            return;
        }
        if let Some(socket) = socket {
            events.push(DriverEvent::Accepted { listener, socket });
        }
        if !ended {
            self.limit_accept(listener);
            return;
        }
        // A multishot accept also ends without an error, when completions overflow.
        let failed = result < 0
            && result != -libc::ECANCELED
            && AcceptFailure::of(Errno::from_raw_os_error(-result)) != AcceptFailure::Transient;
        // The kernel accepted the connection and closed it, because the table had no free slot.
        let slotless = result == -libc::ENFILE && self.table.as_ref().is_some_and(DirectTable::is_full);
        let source = self.sources.get_mut(listener).expect("it is alive");
        let was = source.accepting;
        source.accepting =
            if failed || was == AcceptRequest::No { AcceptRequest::No } else { AcceptRequest::Yes };
        if failed || was != AcceptRequest::Yes {
            let error = failed.then(|| error(result));
            events.push(DriverEvent::AcceptStopped { listener, error, refused: u32::from(slotless) });
        }
        if !failed && was != AcceptRequest::No {
            self.arm_accept(listener);
        }
    }
}
