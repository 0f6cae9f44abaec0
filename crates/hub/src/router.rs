//! Routing: the stream that matches a subject, the registrations that get a message, and the rotation in queue groups.
//!
//! ```text
//!   subject ─▶ find ─▶ stream, registrations ─▶ choose ─▶ targets: all without a queue, one per queue group
//! ```
//!
//! Registrations of disconnected clients are stale: they are removed a few at a time, which bounds the length of a turn. Messages and
//! new registrations add further removals in proportion to their number:
//!
//! ```text
//!   disconnect ─▶ at once:   no registration of the client counts
//!                 each turn: STALE_REGISTRATIONS_PER_TURN registrations that messages would have matched,
//!                            and one more per STALE_MATCHES_PER_STEP such matches
//!                 each STALE_REGISTRATIONS_EVERY_NS: STALE_REGISTRATIONS_PER_TURN registrations
//!                 each new registration: one
//! ```

use crate::filter_tree::FilterTree;
use crate::hash_key::HashKey;
use crate::limits::{STALE_MATCHES_PER_STEP, STALE_REGISTRATIONS_EVERY_NS, STALE_REGISTRATIONS_PER_TURN};
use crate::match_cache::MatchCache;
use crate::publication_batch::{ClientId, RegistrationId};
use crate::registrations::{
    MatchingStreams, Registration, Registrations, RegistrationsFull, RemovedRegistration, STREAMS,
    SubscriberTarget, checked, overlap, shared,
};
use crate::time::SteadyNanos;

/// Streams compared with a filter in the time of one removal of a registration.
const STREAMS_PER_SUBSCRIPTION: usize = 16;

/// Filters of streams and registrations of shards.
#[derive(Debug)]
pub(crate) struct Router {
    interest: FilterTree,
    replies: MatchCache,
    /// Matches of the subjects that clients publish to.
    published: MatchCache,
    registrations: Registrations,
    streams: Vec<StreamSubjects>,
    /// Queue groups and their members among the matches of a message; reused buffer.
    members: Vec<(u32, u32)>,
    /// Matches of a subject that is looked up without a message; reused buffer.
    matches: Vec<u32>,
    /// Stale registrations that the current message would have matched, and the remaining removal steps of this
    /// turn.
    stale_matches: Vec<u32>,
    stale_match_steps: usize,
    remove_at_ns: SteadyNanos,
    work: RouterWork,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RouterWork {
    pub(crate) removed: u64,
    /// Matches of messages with stale registrations.
    pub(crate) stale_matches: u64,
}

#[derive(Debug)]
struct StreamSubjects {
    filters: Vec<String>,
    /// Registrations with filters that may match a subject of the stream.
    matching_registrations: u32,
}

impl StreamSubjects {
    fn overlap(&self, filter: &[u8]) -> bool {
        self.filters.iter().any(|own| overlap(own.as_bytes(), filter))
    }
}

impl Router {
    /// Creates a router for streams with these filters, in the order of their numbers.
    pub(crate) fn new(key: HashKey, streams: impl Iterator<Item = Vec<String>>) -> Router {
        let streams: Vec<_> =
            streams.map(|filters| StreamSubjects { filters, matching_registrations: 0 }).collect();
        let mut interest = FilterTree::new(key);
        for (number, stream) in (STREAMS..).zip(&streams) {
            for filter in stream.filters.iter().filter_map(|filter| checked(filter.as_bytes())) {
                interest.insert(filter, number);
            }
        }
        Router {
            interest,
            replies: MatchCache::new(),
            published: MatchCache::new(),
            registrations: Registrations::new(key),
            streams,
            members: Vec::new(),
            matches: Vec::new(),
            stale_matches: Vec::new(),
            stale_match_steps: STALE_REGISTRATIONS_PER_TURN,
            remove_at_ns: SteadyNanos::START,
            work: RouterWork::default(),
        }
    }

    pub(crate) fn registrations(&self) -> usize {
        self.registrations.len()
    }

    pub(crate) fn work(&self) -> RouterWork {
        self.work
    }

    /// Returns the number of registrations with filters that may match a subject of a stream.
    pub(crate) fn matching_registrations(&self, stream: usize) -> u32 {
        self.streams[stream].matching_registrations
    }

    /// Finds the matches of a subject, from which [`choose`](Self::choose) selects.
    #[inline]
    pub(crate) fn find(&self, subject: &[u8], into: &mut Vec<u32>) {
        into.clear();
        self.interest.find(subject, into);
    }

    /// [Finds](Self::find) the matches of a subject that a client publishes to, without the stream, which is returned.
    /// Repeated subjects of a client come from a cache.
    #[inline]
    pub(crate) fn route(&mut self, client: ClientId, subject: &[u8], into: &mut Vec<u32>) -> Option<usize> {
        let version = self.interest.version();
        if let Some(matches) = self.published.get(client, subject, version) {
            into.clear();
            into.extend_from_slice(matches);
        } else {
            self.find(subject, into);
            self.published.put(client, subject, version, into);
        }
        take_stream(into)
    }

    /// [Finds](Self::find) the matches of a client's reply subject. Subjects that differ only in their last token
    /// mostly come from a cache.
    #[inline]
    pub(crate) fn find_reply(&mut self, client: ClientId, reply: &[u8], into: &mut Vec<u32>) {
        let version = self.interest.version();
        let Some(dot) = reply.iter().rposition(|&byte| byte == b'.') else { return self.find(reply, into) };
        let prefix = &reply[..dot];
        into.clear();
        if let Some(matches) = self.replies.get(client, prefix, version) {
            into.extend_from_slice(matches);
        } else if self.interest.find_for_all(reply, into) {
            self.replies.put(client, prefix, version, into);
        }
    }

    pub(crate) fn stream_of(&mut self, subject: &[u8]) -> Option<usize> {
        let mut matches = std::mem::take(&mut self.matches);
        self.find(subject, &mut matches);
        let stream = take_stream(&mut matches);
        self.matches = matches;
        stream
    }

    pub(crate) fn has_subscriber(&mut self, subject: &[u8]) -> bool {
        let mut matches = std::mem::take(&mut self.matches);
        self.find(subject, &mut matches);
        let has_subscriber = self.first_subscriber(&matches).is_some();
        self.matches = matches;
        has_subscriber
    }

    /// Returns the subscribers of the first existing registration in `matches`.
    pub(crate) fn first_subscriber(&self, matches: &[u32]) -> Option<SubscriberTarget> {
        matches.iter().find_map(|&slot| self.registrations.get(slot)).map(Registration::subscriber_target)
    }

    /// Returns the registrations in `matches` that still exist.
    pub(crate) fn registered(&self, matches: &[u32]) -> impl Iterator<Item = &Registration> {
        matches.iter().filter_map(|&slot| self.registrations.get(slot))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Registration> {
        self.registrations.get_mut(slot)
    }

    /// Appends the recipients among the registrations `matches` to `to`: all without a queue, one per queue group, none
    /// with `excluded` as its only connection. Returns a lower bound of the number of connections, which is exact if 0.
    pub(crate) fn choose(&mut self, matches: &[u32], excluded: Option<ClientId>, to: &mut Vec<u32>) -> u32 {
        let mut members = std::mem::take(&mut self.members);
        members.clear();
        let mut connections = 0;
        for &slot in matches.iter().filter(|&&slot| slot < STREAMS) {
            let Some(registration) = self.registrations.get(slot) else {
                self.note_stale_match(slot);
                continue;
            };
            let single = registration.single();
            if excluded.is_some() && excluded == single {
                continue;
            }
            match registration.queue {
                Some(queue) => members.push((queue, slot)),
                None => {
                    to.push(slot);
                    // The silent connection may be one of several.
                    connections += match single {
                        None if excluded.is_none_or(|excluded| excluded.shard != registration.shard()) => 2,
                        None | Some(_) => 1,
                    };
                }
            }
        }
        if !members.is_empty() {
            members.sort_unstable();
            for queue in members.chunk_by(|one, other| one.0 == other.0) {
                let chosen = self.registrations.choose(queue[0].0, queue.len());
                to.push(queue[chosen].1);
                connections += 1;
            }
        }
        self.members = members;
        self.remove_stale_matches();
        connections
    }

    /// Adds a registration of a client, unless it exists.
    ///
    /// # Errors
    /// There is no room for a further registration.
    pub(crate) fn register(
        &mut self,
        client: ClientId,
        id: RegistrationId,
        (filter, queue): (&[u8], &[u8]),
    ) -> Result<(), RegistrationsFull> {
        self.make_room(filter);
        if let Some(slot) = self.registrations.add(&mut self.interest, client, id, (filter, queue))? {
            self.add_to_streams(slot, filter);
        }
        Ok(())
    }

    /// Makes a registration of `client` shared by several connections.
    ///
    /// # Errors
    /// There was no registration, and there is no room for one.
    pub(crate) fn share(
        &mut self,
        client: ClientId,
        id: RegistrationId,
        filter: &[u8],
    ) -> Result<(), RegistrationsFull> {
        if self.registrations.share(client, id) {
            return Ok(());
        }
        self.register(shared(client.shard), id, (filter, b""))
    }

    pub(crate) fn unshare(&mut self, client: ClientId, id: RegistrationId) {
        self.registrations.unshare(client, id);
    }

    /// Ends a registration; a queue member may end after a number of messages.
    pub(crate) fn unregister(
        &mut self,
        client: ClientId,
        id: RegistrationId,
        after: Option<u32>,
        is_shared: bool,
    ) {
        let owner = if is_shared { shared(client.shard) } else { client };
        let Some(slot) = self.registrations.find(owner, id) else { return };
        let Some(registration) = self.registrations.get_mut(slot) else { return };
        if after.is_none_or(|after| registration.end_after(after)) {
            self.forget(slot);
        }
    }

    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(removed) = self.registrations.remove(&mut self.interest, slot) {
            self.remove_from_streams(&removed);
        }
    }

    pub(crate) fn disconnect(&mut self, client: ClientId) {
        self.registrations.disconnect(client);
    }

    pub(crate) fn has_disconnected(&self) -> bool {
        self.registrations.has_disconnected()
    }

    /// Begins a turn: removes some stale registrations if due, and allows messages to remove as many.
    pub(crate) fn begin_turn(&mut self, now_ns: SteadyNanos) {
        self.stale_match_steps = STALE_REGISTRATIONS_PER_TURN;
        if self.has_disconnected() && now_ns >= self.remove_at_ns {
            self.remove_at_ns = now_ns.after(STALE_REGISTRATIONS_EVERY_NS);
            self.remove_stale(STALE_REGISTRATIONS_PER_TURN);
        }
    }

    /// Removes stale registrations in `steps` steps; the last removal may exceed them.
    fn remove_stale(&mut self, steps: usize) {
        let mut rest = steps;
        while rest > 0 && self.has_disconnected() {
            rest = rest.saturating_sub(self.remove_next_stale());
        }
    }

    /// Removes the next stale registration, unless it is removed already. Returns the number of steps.
    fn remove_next_stale(&mut self) -> usize {
        match self.registrations.remove_next_stale(&mut self.interest) {
            Some(removed) => {
                self.work.removed += 1;
                self.remove_from_streams(&removed)
            }
            None => 1,
        }
    }

    /// Makes room for a new registration: removes one stale registration, so that registering and disconnecting
    /// cannot outpace removal, and further ones as needed.
    fn make_room(&mut self, filter: &[u8]) {
        self.remove_next_stale();
        while self.registrations.waits_for_stale(filter) {
            self.remove_next_stale();
        }
    }

    /// Notes that the current message would have matched a stale registration. It is removed after the message if
    /// the turn has steps left; every [`STALE_MATCHES_PER_STEP`] matches add a step. This bounds the matches per
    /// stale registration, regardless of the number of messages.
    fn note_stale_match(&mut self, id: u32) {
        self.work.stale_matches += 1;
        if self.work.stale_matches.is_multiple_of(STALE_MATCHES_PER_STEP) {
            self.stale_match_steps += 1;
        }
        if self.stale_matches.len() < self.stale_match_steps {
            self.stale_matches.push(id);
        }
    }

    /// Removes the stale registrations that a message would have matched, so that the next message does not match
    /// them.
    fn remove_stale_matches(&mut self) {
        while let Some(id) = self.stale_matches.pop() {
            if self.stale_match_steps > 0
                && let Some(removed) = self.registrations.remove_if_stale(&mut self.interest, id)
            {
                self.work.removed += 1;
                let steps = self.remove_from_streams(&removed);
                self.stale_match_steps = self.stale_match_steps.saturating_sub(steps);
            }
        }
    }

    /// Counts a new filter in the streams that it overlaps.
    fn add_to_streams(&mut self, id: u32, filter: &[u8]) {
        let mut matching_streams = MatchingStreams::None;
        for (number, stream) in (0..).zip(&mut self.streams) {
            if stream.overlap(filter) {
                stream.matching_registrations += 1;
                matching_streams = match matching_streams {
                    MatchingStreams::None => MatchingStreams::One(number),
                    MatchingStreams::One(_) | MatchingStreams::Many => MatchingStreams::Many,
                };
            }
        }
        if let Some(registration) = self.registrations.get_mut(id) {
            registration.streams = matching_streams;
        }
    }

    /// Removes a filter from the streams' counts. Returns the cost in removals of a registration.
    fn remove_from_streams(&mut self, removed: &RemovedRegistration) -> usize {
        match removed.streams {
            MatchingStreams::None => 1,
            MatchingStreams::One(number) => {
                self.streams[number as usize].matching_registrations -= 1;
                1
            }
            MatchingStreams::Many => {
                for stream in self.streams.iter_mut().filter(|stream| stream.overlap(&removed.filter)) {
                    stream.matching_registrations -= 1;
                }
                1 + self.streams.len() / STREAMS_PER_SUBSCRIPTION
            }
        }
    }
}

#[inline]
fn take_stream(matches: &mut Vec<u32>) -> Option<usize> {
    let at = matches.iter().position(|&id| id >= STREAMS)?;
    Some((matches.swap_remove(at) - STREAMS) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: ClientId = ClientId { shard: 0, token: 1 };
    const BOB: ClientId = ClientId { shard: 1, token: 2 };

    fn at(nanos: u64) -> SteadyNanos {
        SteadyNanos::from_nanos(nanos)
    }

    /// A router for a stream of `a.>` and one of `b.>`.
    fn router() -> Router {
        let streams = ["a.>", "b.>"].map(|filter| vec![filter.to_owned()]);
        Router::new(HashKey(1, 2), streams.into_iter())
    }

    fn id(number: u32) -> RegistrationId {
        RegistrationId { number, serial: 1 }
    }

    fn register(router: &mut Router, client: ClientId, filter: &str, queue: &str, number: u32) {
        assert_eq!(router.register(client, id(number), (filter.as_bytes(), queue.as_bytes())), Ok(()));
    }

    fn unregister(router: &mut Router, client: ClientId, number: u32) {
        router.unregister(client, id(number), None, false);
    }

    fn recipients(router: &mut Router, subject: &str, excluded: Option<ClientId>) -> Vec<ClientId> {
        let (mut matches, mut to) = (Vec::new(), Vec::new());
        router.find(subject.as_bytes(), &mut matches);
        router.choose(&matches, excluded, &mut to);
        to.into_iter().filter_map(|slot| router.get_mut(slot).and_then(|one| one.single())).collect()
    }

    #[test]
    fn matches_are_looked_up_again_after_a_filter_change() {
        let mut router = router();
        let mut matches = Vec::new();
        for _ in 0..2 {
            assert_eq!((router.route(ALICE, b"a.x", &mut matches), matches.len()), (Some(0), 0));
        }
        register(&mut router, BOB, "a.>", "", 1);
        for _ in 0..2 {
            assert_eq!((router.route(ALICE, b"a.x", &mut matches), matches.len()), (Some(0), 1));
            assert_eq!((router.route(ALICE, b"a.y", &mut matches), matches.len()), (Some(0), 1));
        }
        unregister(&mut router, BOB, 1);
        assert_eq!((router.route(ALICE, b"a.y", &mut matches), matches.len()), (Some(0), 0));
    }

    #[test]
    fn a_subject_has_its_stream_and_its_registrations() {
        let mut router = router();
        register(&mut router, ALICE, "a.*", "", 1);
        let mut matches = vec![7];
        assert_eq!((router.route(ALICE, b"a.x", &mut matches), matches.len()), (Some(0), 1));
        assert_eq!((router.route(ALICE, b"c", &mut matches), matches.len()), (None, 0));
        assert_eq!((router.route(BOB, b"a.x", &mut matches), matches.len()), (Some(0), 1));
        assert_eq!((router.stream_of(b"b.x"), router.stream_of(b"b")), (Some(1), None));
        assert!(
            router.has_subscriber(b"a.x") && !router.has_subscriber(b"b.x"),
            "a stream is no subscription"
        );
        assert_eq!(recipients(&mut router, "a.x", None), [ALICE]);
        assert_eq!(recipients(&mut router, "a.x", Some(ALICE)), []);
    }

    #[test]
    fn lookups_agree_with_the_filters_after_any_changes() {
        let mut router = router();
        let (mut matches, mut expected) = (Vec::new(), Vec::new());
        let filters = ["inbox.1.*", "inbox.>", "inbox.1.b", "*.*.a", ">", "inbox", "inbox.*.>"];
        let replies = ["inbox.1.a", "inbox.1.b", "inbox.2.a", "inbox", "inbox.1.a.c", "inbox.1"];
        let mut check = |router: &mut Router| {
            for client in [ALICE, BOB, ALICE] {
                for reply in replies {
                    router.find_reply(client, reply.as_bytes(), &mut matches);
                    router.find(reply.as_bytes(), &mut expected);
                    assert_eq!(matches, expected, "{reply}");
                }
            }
        };
        for (number, filter) in (0..).zip(filters) {
            register(&mut router, BOB, filter, "", number);
            check(&mut router);
        }
        for number in 0..filters.len() as u32 {
            unregister(&mut router, BOB, number);
            check(&mut router);
        }
    }

    #[test]
    fn a_queue_takes_turns_beside_the_others() {
        let mut router = router();
        register(&mut router, ALICE, "jobs", "workers", 1);
        register(&mut router, BOB, "jobs", "workers", 1);
        register(&mut router, BOB, "jobs", "", 2);
        let mut of_queue = Vec::new();
        for _ in 0..4 {
            let to = recipients(&mut router, "jobs", None);
            assert_eq!((to.len(), to[0]), (2, BOB));
            of_queue.push(to[1]);
        }
        assert_eq!(of_queue.iter().filter(|client| **client == ALICE).count(), 2, "{of_queue:?}");
    }

    /// A stream without subscribers does not look up registrations.
    #[test]
    fn each_stream_counts_its_possible_subscribers() {
        let mut router = router();
        let matching_registrations =
            |router: &Router| (router.matching_registrations(0), router.matching_registrations(1));
        for (filter, number) in [("a.x", 1), (">", 2), ("c", 3), ("*.*", 4)] {
            register(&mut router, ALICE, filter, "", number);
        }
        assert_eq!(matching_registrations(&router), (3, 2));
        unregister(&mut router, ALICE, 2);
        router.unregister(ALICE, id(1), Some(3), false);
        assert_eq!(matching_registrations(&router), (2, 1), "one ends later");
        router.disconnect(ALICE);
        router.begin_turn(at(5));
        assert_eq!(
            (matching_registrations(&router), router.registrations(), router.has_disconnected()),
            ((0, 0), 0, false)
        );
        assert_eq!(router.work(), RouterWork { removed: 3, stale_matches: 0 });
    }

    /// A stale registration costs a message once and is removed by it.
    #[test]
    fn messages_remove_what_they_would_have_matched_of_a_client_that_has_left() {
        let mut router = router();
        let count = 2 * STALE_REGISTRATIONS_PER_TURN;
        for sid in 0..count {
            register(&mut router, ALICE, "x", "", sid as u32);
        }
        router.disconnect(ALICE);
        assert_eq!(recipients(&mut router, "x", None), []);
        let RouterWork { removed, stale_matches } = router.work();
        assert_eq!((removed as usize, stale_matches as usize), (STALE_REGISTRATIONS_PER_TURN, count));
        assert_eq!(recipients(&mut router, "x", None), []);
        assert_eq!(router.work().removed, removed, "the turn has no more steps");
        router.begin_turn(at(5));
        assert!(router.work().removed > removed);
        let before = router.work();
        register(&mut router, BOB, "y", "", 1);
        router.begin_turn(at(5 + STALE_REGISTRATIONS_EVERY_NS - 1));
        assert!(router.work().removed <= before.removed + 1, "it is not time, and a new one removes one");
        router.begin_turn(at(5 + STALE_REGISTRATIONS_EVERY_NS));
        assert_eq!((router.work().removed as usize, router.registrations()), (count, 1));
    }

    /// Design, section 4: the hub decides for the single connection of a shard, the shard for several.
    #[test]
    fn a_message_without_echo_goes_to_no_single_publisher_and_to_shards_with_several() {
        let mut router = router();
        register(&mut router, ALICE, "x", "", 1);
        let choose = |router: &mut Router, excluded| {
            let (mut matches, mut to) = (Vec::new(), Vec::new());
            router.find(b"x", &mut matches);
            (router.choose(&matches, excluded, &mut to), to.len())
        };
        assert_eq!(choose(&mut router, Some(ALICE)), (0, 0));
        assert_eq!(router.share(ALICE, id(1), b"x"), Ok(()));
        assert_eq!(choose(&mut router, Some(ALICE)), (1, 1), "at least one");
        assert_eq!((choose(&mut router, Some(BOB)), choose(&mut router, None)), ((2, 1), (2, 1)));
        router.disconnect(ALICE);
        assert_eq!(choose(&mut router, None), (2, 1), "the others are there");
        router.unshare(ALICE, id(1));
        assert_eq!(choose(&mut router, Some(ALICE)), (0, 0));
        assert_eq!(router.share(BOB, id(7), b"y"), Ok(()), "it was not registered");
        assert_eq!(router.registrations(), 2);
        router.unregister(BOB, id(7), None, true);
        assert_eq!(router.registrations(), 1);
    }
}
