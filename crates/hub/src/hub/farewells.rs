//! The ends of connections that have been promised something: closed when they have been told everything.

use super::{Hub, Outlets};
use crate::intake::Client;
use crate::storage::Storage;
use crate::stream::{Promise, PromisedTo};

impl<S: Storage, O: Outlets> Hub<S, O> {
    /// Has a connection closed behind everything that is promised to it.
    pub(super) fn bid_farewell(&mut self, client: Client) {
        let mut waits_for = 0;
        for stream in self.streams.iter_mut().filter(|stream| !stream.is_settled()) {
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

    /// A stream has given what it had promised before the farewell.
    pub(super) fn end_farewell(&mut self, client: Client) {
        let Some(waits_for) = self.farewells.get_mut(&client) else { return };
        *waits_for -= 1;
        if *waits_for == 0 {
            self.farewells.remove(&client);
            self.outs[client.shard as usize].close(client.token);
        }
    }
}
