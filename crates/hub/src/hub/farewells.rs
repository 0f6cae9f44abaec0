//! The ends of connections that have been promised something: closed when they have been told everything, or when the disk
//! has been waited for too long: those that wait for their end would otherwise keep the places of those that come.

use super::{Hub, Now, Outlets};
use crate::intake::Client;
use crate::storage::Storage;
use crate::stream::{Promise, PromisedTo, Stream};

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Has a connection closed behind everything that is promised to it.
    pub(super) fn bid_farewell(&mut self, client: Client, now: Now) {
        let mut waits_for = 0;
        let is_awaited = |stream: &&mut Stream| !stream.is_settled() && !stream.is_overdue(now.steady_ns);
        for stream in self.streams.iter_mut().filter(is_awaited) {
            let to = PromisedTo::Farewell;
            stream.promise(Promise { client, sequence: 0, is_duplicate: false, no_echo: false, to }, b"");
            waits_for += 1;
        }
        if waits_for == 0 {
            self.outs[client.shard as usize].close(client.token);
        } else {
            self.farewells.insert(client, waits_for);
        }
    }

    /// Closes those that wait for a disk that has been waited for too long, if they wait for no other stream.
    pub(super) fn end_farewells_of(&mut self, stream: usize) {
        for client in self.streams[stream].take_farewells() {
            self.end_farewell(client);
        }
    }

    /// A stream has given what it had promised before the farewell, or is not waited for any more.
    pub(super) fn end_farewell(&mut self, client: Client) {
        let Some(waits_for) = self.farewells.get_mut(&client) else { return };
        *waits_for -= 1;
        if *waits_for == 0 {
            self.farewells.remove(&client);
            self.outs[client.shard as usize].close(client.token);
        }
    }
}
