//! The table of all consumers, indexed by stream, filter, owner and pending work.
//!
//! No operation visits all consumers: followers are indexed by stream and filter, consumers that can continue are
//! queued, those of a client are listed with it, and each turn checks a bounded number for expiry. Memory is bounded
//! per client that creates consumers or sends pull requests, and in total.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use stilling_journal::StartAt;

use super::consumer::{Consumer, ConsumerSpec, ConsumerState};
use super::followers::Followers;
use crate::hash_key::HashKey;
use crate::limits::{
    CONSUMER_CONFIGS_SIZE_MAX, CONSUMER_FILTER_TOKENS_MAX, CONSUMER_FILTER_TOKENS_PER_CLIENT_MAX,
    CONSUMERS_MAX, CONSUMERS_PER_CLIENT_MAX, PULLS_MAX, PULLS_PER_CLIENT_MAX,
};
use crate::publication_batch::ClientId;
use crate::pull::Pull;
use crate::registrations::SubscriberTarget;
use crate::router::Router;
use crate::time::{Now, SteadyNanos};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddConsumerError {
    TooMany,
    NoMemory,
}

/// All consumers; a reused number gets a new generation.
#[derive(Debug)]
pub(crate) struct ConsumerTable {
    slots: Vec<(u32, Option<Consumer>)>,
    free: Vec<u32>,
    streams: Vec<StreamConsumers>,
    clients: HashMap<ClientId, ClientConsumers, HashKey>,
    due: VecDeque<u32>,
    without_room: Vec<u32>,
    /// A consumer can continue at once.
    pub(crate) can_resume: bool,
    pulls: usize,
    configs_size: usize,
    tokens: usize,
    /// Consumers without an owner, in the order of the owners' disconnects.
    orphans: BTreeMap<u64, u32>,
    orphan_serial: u64,
    pub(crate) checked_ns: SteadyNanos,
    check_from: u32,
    /// Counter in marks; distinguishes old marks from new ones.
    marks: u32,
}

#[derive(Debug)]
struct StreamConsumers {
    names: HashMap<String, u32, HashKey>,
    followers: Followers,
}

#[derive(PartialEq, Eq, Debug, Default)]
struct ClientConsumers {
    owned: BTreeSet<u32>,
    tokens: usize,
    pulls: usize,
    /// Consumers that hold its pull requests or await its mark, each with the number of these.
    attached: BTreeMap<u32, usize>,
}

impl ClientConsumers {
    fn attach(&mut self, number: u32) {
        *self.attached.entry(number).or_default() += 1;
    }

    fn release(&mut self, number: u32) {
        if let Some(times) = self.attached.get_mut(&number) {
            *times -= 1;
            if *times == 0 {
                self.attached.remove(&number);
            }
        }
    }
}

/// Bits of a generation in a reader id: the highest two belong to ids of single reads and catch-ups.
const GENERATION_MASK: u32 = u32::MAX >> 2;

/// Bits of the counter in a mark: the highest belongs to marks of catch-ups.
const MARK_MASK: u32 = u32::MAX >> 1;

/// A consumer's number and generation as the reader id of a read.
pub(crate) type ReaderId = u64;

impl ConsumerTable {
    pub(crate) fn new(key: HashKey, streams: usize) -> ConsumerTable {
        let of_stream =
            || StreamConsumers { names: HashMap::with_hasher(key), followers: Followers::new(key) };
        ConsumerTable {
            slots: Vec::new(),
            free: Vec::new(),
            streams: (0..streams).map(|_| of_stream()).collect(),
            clients: HashMap::with_hasher(key),
            due: VecDeque::new(),
            without_room: Vec::new(),
            can_resume: false,
            pulls: 0,
            configs_size: 0,
            tokens: 0,
            orphans: BTreeMap::new(),
            orphan_serial: 0,
            checked_ns: SteadyNanos::START,
            check_from: 0,
            marks: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn reader_id(&self, number: u32) -> ReaderId {
        u64::from(self.slots[number as usize].0) << 32 | u64::from(number)
    }

    pub(crate) fn by_reader_id(&self, reader_id: ReaderId) -> Option<u32> {
        let (number, generation) = (reader_id as u32, (reader_id >> 32) as u32);
        let (now, consumer) = self.slots.get(number as usize)?;
        (*now == generation && consumer.is_some()).then_some(number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Consumer> {
        self.slots.get_mut(number as usize)?.1.as_mut()
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Consumer> {
        self.slots.get(number as usize)?.1.as_ref()
    }

    pub(crate) fn find(&self, stream: usize, name: &str) -> Option<u32> {
        self.streams.get(stream)?.names.get(name).copied()
    }

    /// Returns the numbers of a stream's consumers, ascending.
    pub(crate) fn of_stream(&self, stream: usize) -> Vec<u32> {
        let names = self.streams.get(stream).map(|of| of.names.values().copied().collect());
        let mut numbers: Vec<u32> = names.unwrap_or_default();
        // The map's order depends on its key.
        numbers.sort_unstable();
        numbers
    }

    pub(crate) fn count_of_stream(&self, stream: usize) -> usize {
        self.streams.get(stream).map_or(0, |of| of.names.len())
    }

    /// Adds a consumer owned by `owner` if there is room; its name must be new in its stream.
    pub(crate) fn add(
        &mut self,
        owner: ClientId,
        spec: ConsumerSpec,
        now: Now,
    ) -> Result<u32, AddConsumerError> {
        let (owned, of_owner) = self.clients.get(&owner).map_or((0, 0), |of| (of.owned.len(), of.tokens));
        let tokens = spec.tokens();
        if self.len() >= CONSUMERS_MAX
            || owned >= CONSUMERS_PER_CLIENT_MAX
            || of_owner + tokens > CONSUMER_FILTER_TOKENS_PER_CLIENT_MAX
        {
            return Err(AddConsumerError::TooMany);
        }
        if self.is_full_for(&spec) {
            return Err(AddConsumerError::NoMemory);
        }
        let next = match spec.from {
            StartAt::Sequence(sequence) => Some(sequence),
            StartAt::Time(_) => None,
        };
        // As in nats-server: before its first record a consumer reports the sequence before its start, as if it had
        // delivered it.
        let last = next.map_or(0, |next| next.saturating_sub(1));
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        if let Some(of) = self.streams.get_mut(spec.stream) {
            of.names.insert(spec.name.clone(), number);
        }
        let of_owner = self.clients.entry(owner).or_default();
        of_owner.owned.insert(number);
        of_owner.tokens += tokens;
        self.configs_size += spec.config.get().len();
        self.tokens += tokens;
        self.slots[number as usize].1 = Some(Consumer {
            spec,
            owner,
            orphan_serial: None,
            created_ns: now.unix_ns,
            state: ConsumerState::Idle,
            next,
            delivered: 0,
            last,
            pulls: VecDeque::new(),
            gaps: VecDeque::new(),
            sent_to: None,
            active_ns: now.steady_ns,
            last_sent_ns: now.steady_ns,
            flow: 0,
            stalled: false,
            is_due: false,
            entries: None,
        });
        Ok(number)
    }

    /// Removes and returns a consumer. The caller answers its pull requests.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Consumer> {
        let (generation, slot) = self.slots.get_mut(number as usize)?;
        let consumer = slot.take()?;
        *generation = generation.wrapping_add(1) & GENERATION_MASK;
        self.free.push(number);
        if let Some(of) = self.streams.get_mut(consumer.spec.stream) {
            of.names.remove(&consumer.spec.name);
            if let Some(entries) = &consumer.entries {
                of.followers.remove(&consumer.spec.filters, entries);
            }
        }
        let tokens = consumer.spec.tokens();
        self.configs_size -= consumer.spec.config.get().len();
        self.tokens -= tokens;
        self.count(consumer.owner, |of| {
            of.owned.remove(&number);
            of.tokens -= tokens;
        });
        if let Some(serial) = consumer.orphan_serial {
            self.orphans.remove(&serial);
        }
        if let ConsumerState::AwaitingMark(SubscriberTarget::Single(client), _) = consumer.state {
            self.count(client, |of| of.release(number));
        }
        if let Some(SubscriberTarget::Single(client)) = consumer.sent_to {
            self.count(client, |of| of.release(number));
        }
        for pull in &consumer.pulls {
            self.uncount_pull(number, pull);
        }
        if self.is_empty() {
            // Upkeep does not run without consumers, so the queues are cleared here.
            self.due.clear();
            self.without_room.clear();
            self.can_resume = false;
        }
        Some(consumer)
    }

    fn count(&mut self, client: ClientId, change: impl FnOnce(&mut ClientConsumers)) {
        let of = self.clients.entry(client).or_default();
        change(of);
        if *of == ClientConsumers::default() {
            self.clients.remove(&client);
        }
    }

    fn uncount_pull(&mut self, number: u32, pull: &Pull) {
        self.pulls -= 1;
        self.count(pull.client, |of| {
            of.pulls -= 1;
            of.release(number);
        });
    }

    pub(crate) fn start_following(&mut self, number: u32) {
        let Some((_, Some(consumer))) = self.slots.get_mut(number as usize) else { return };
        consumer.state = ConsumerState::Following;
        if consumer.entries.is_none()
            && let Some(of) = self.streams.get_mut(consumer.spec.stream)
        {
            consumer.entries = Some(of.followers.insert(&consumer.spec.filters, number));
        }
    }

    /// Appends the followers of a stream that match a subject. Some may have stopped following: the caller
    /// [unlists](ConsumerTable::unlist) them.
    pub(crate) fn find_following(&self, stream: usize, subject: &[u8], into: &mut Vec<u32>) {
        if let Some(of) = self.streams.get(stream) {
            of.followers.find(subject, into);
        }
    }

    /// Removes a consumer that no longer follows from the index.
    pub(crate) fn unlist(&mut self, number: u32) {
        let Some((_, Some(consumer))) = self.slots.get_mut(number as usize) else { return };
        if let Some(entries) = consumer.entries.take()
            && let Some(of) = self.streams.get_mut(consumer.spec.stream)
        {
            of.followers.remove(&consumer.spec.filters, &entries);
        }
    }

    /// Returns whether the stream's index of followers has entries; some may have stopped following.
    pub(crate) fn has_following(&self, stream: usize) -> bool {
        self.streams.get(stream).is_some_and(|of| !of.followers.is_empty())
    }

    pub(crate) fn note_offered(&mut self, stream: usize, sequence: u64) {
        if let Some(of) = self.streams.get_mut(stream) {
            of.followers.advance(sequence);
        }
    }

    pub(crate) fn has_unoffered_before(&self, stream: usize, sequence: u64) -> bool {
        self.streams.get(stream).is_some_and(|of| of.followers.has_unoffered_before(sequence))
    }

    pub(crate) fn next_of(&self, number: u32) -> Option<u64> {
        let consumer = self.get(number)?;
        match (&consumer.state, self.streams.get(consumer.spec.stream)) {
            (ConsumerState::Following, Some(of)) => of.followers.position(consumer.next),
            _ => consumer.next,
        }
    }

    /// Moves a follower's position behind the records it was offered and did not match. Called before it stops
    /// following.
    pub(crate) fn catch_up(&mut self, number: u32) {
        let next = self.next_of(number);
        if let Some(consumer) = self.get_mut(number) {
            consumer.next = next;
        }
    }

    /// Makes a consumer wait until its messages have been sent. Returns the mark to await.
    pub(crate) fn wait_for(&mut self, number: u32, recipient: SubscriberTarget) -> u64 {
        self.marks = self.marks.wrapping_add(1) & MARK_MASK;
        let mark = u64::from(self.marks) << 32 | u64::from(number);
        if let Some(consumer) = self.get_mut(number) {
            consumer.state = ConsumerState::AwaitingMark(recipient, mark);
            self.attach(number, recipient);
        }
        mark
    }

    /// Handles a reached mark. Returns the consumer that waits for it, or `None` if it no longer waits or waits for
    /// another mark.
    pub(crate) fn reached(&mut self, mark: u64) -> Option<u32> {
        let number = mark as u32;
        (self.awaited_mark(number) == Some(mark) && self.end_wait(number)).then_some(number)
    }

    pub(crate) fn awaited_mark(&self, number: u32) -> Option<u64> {
        match self.get(number)?.state {
            ConsumerState::AwaitingMark(_, mark) => Some(mark),
            _ => None,
        }
    }

    /// Notes the recipient of a chunk's last message when the rest waits for room: the message must be sent before more
    /// is read.
    pub(crate) fn note_sent(&mut self, number: u32, to: Option<SubscriberTarget>) {
        if let Some(recipient) = to
            && let Some(consumer) = self.get_mut(number)
        {
            consumer.sent_to = Some(recipient);
            self.attach(number, recipient);
        }
    }

    pub(crate) fn take_sent(&mut self, number: u32) -> Option<SubscriberTarget> {
        let recipient = self.get_mut(number)?.sent_to.take()?;
        self.release(number, recipient);
        Some(recipient)
    }

    /// Ends a wait for a mark. Returns whether the consumer waited.
    fn end_wait(&mut self, number: u32) -> bool {
        let Some(consumer) = self.get_mut(number) else { return false };
        let ConsumerState::AwaitingMark(recipient, _) = consumer.state else { return false };
        consumer.state = ConsumerState::Idle;
        self.release(number, recipient);
        true
    }

    /// Counts a wait of a consumer for a connection, to end it when that disconnects. For a shared registration the
    /// shard ensures that one of its connections answers.
    fn attach(&mut self, number: u32, recipient: SubscriberTarget) {
        if let SubscriberTarget::Single(client) = recipient {
            self.count(client, |of| of.attach(number));
        }
    }

    fn release(&mut self, number: u32, recipient: SubscriberTarget) {
        if let SubscriberTarget::Single(client) = recipient {
            self.count(client, |of| of.release(number));
        }
    }

    /// Ends a consumer's wait for a disconnected client, and drops the client's pull requests unless another connection
    /// subscribes to their reply subject. Returns the number of pull requests checked.
    pub(crate) fn stop_waiting_for(&mut self, router: &mut Router, client: ClientId, number: u32) -> usize {
        let Some(consumer) = self.get(number) else { return 0 };
        let is_awaited = matches!(consumer.state, ConsumerState::AwaitingMark(ahead, _) if ahead == SubscriberTarget::Single(client));
        let is_last_recipient = consumer.sent_to == Some(SubscriberTarget::Single(client));
        if is_awaited {
            self.end_wait(number);
        }
        if is_last_recipient {
            self.take_sent(number);
        }
        let mut count = 0;
        self.take_pulls(number, |pull| {
            count += 1;
            (pull.client == client && !router.has_subscriber(&pull.reply)).then_some(())
        });
        count
    }

    pub(crate) fn has_client(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Returns the first consumer from number `from` on that holds pull requests of a client or waits for its mark.
    pub(crate) fn next_attached(&self, client: ClientId, from: u32) -> Option<u32> {
        self.clients.get(&client)?.attached.range(from..).next().map(|(number, _)| *number)
    }

    pub(crate) fn next_owned(&self, client: ClientId, from: u32) -> Option<u32> {
        self.clients.get(&client)?.owned.range(from..).next().copied()
    }

    /// Makes a consumer the latest orphan after its owner's disconnect: only subscribers and pull requests keep it.
    pub(crate) fn mark_orphan(&mut self, number: u32) {
        let serial = self.orphan_serial;
        let Some(consumer) = self.get_mut(number) else { return };
        let before = consumer.orphan_serial.replace(serial);
        if let Some(before) = before {
            self.orphans.remove(&before);
        }
        self.orphans.insert(serial, number);
        self.orphan_serial += 1;
    }

    pub(crate) fn first_orphan(&self) -> Option<u32> {
        self.orphans.first_key_value().map(|(_, number)| *number)
    }

    /// Returns whether there is no room for a further consumer with this configuration from any client.
    pub(crate) fn is_full_for(&self, spec: &ConsumerSpec) -> bool {
        self.len() >= CONSUMERS_MAX
            || self.configs_size + spec.config.get().len() > CONSUMER_CONFIGS_SIZE_MAX
            || self.tokens + spec.tokens() > CONSUMER_FILTER_TOKENS_MAX
    }

    pub(crate) fn make_due(&mut self, number: u32) {
        let Some(consumer) = self.get_mut(number) else { return };
        if !std::mem::replace(&mut consumer.is_due, true) {
            self.due.push_back(number);
        }
        self.can_resume = true;
    }

    /// Queues a consumer to be advanced when a shard without room has room again.
    pub(crate) fn wait_for_room(&mut self, number: u32) {
        let Some(consumer) = self.get_mut(number) else { return };
        if !std::mem::replace(&mut consumer.is_due, true) {
            self.without_room.push(number);
        }
    }

    /// Queues all consumers that wait for room: a shard may have room, or their targets may have changed.
    pub(crate) fn end_wait_for_room(&mut self) {
        self.due.extend(self.without_room.drain(..));
    }

    pub(crate) fn due(&self) -> usize {
        self.due.len()
    }

    pub(crate) fn next_due(&mut self) -> Option<u32> {
        loop {
            let number = self.due.pop_front()?;
            // The consumer may be removed and its number reused.
            if let Some(consumer) = self.get_mut(number)
                && std::mem::take(&mut consumer.is_due)
            {
                return Some(number);
            }
        }
    }

    /// Returns the next consumer of the round-robin check for expiry.
    pub(crate) fn next_checked(&mut self) -> Option<u32> {
        let number = self.check_from;
        self.check_from = (number + 1) % (self.slots.len() as u32).max(1);
        self.get(number).map(|_| number)
    }

    /// Number of slots that the check visits.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn add_pull(&mut self, number: u32, pull: Pull) -> Result<(), Pull> {
        let of_client = self.clients.get(&pull.client).map_or(0, |of| of.pulls);
        let is_full = self.pulls >= PULLS_MAX || of_client >= PULLS_PER_CLIENT_MAX;
        let Some(consumer) = self.get_mut(number) else { return Err(pull) };
        if is_full || consumer.pulls.len() >= consumer.spec.pulls_max {
            return Err(pull);
        }
        let client = pull.client;
        consumer.pulls.push_back(pull);
        self.pulls += 1;
        self.count(client, |of| {
            of.pulls += 1;
            of.attach(number);
        });
        Ok(())
    }

    /// Takes the pulls for which `ends` returns a reason, in their order; `ends` is called once for each.
    pub(crate) fn take_pulls<T>(
        &mut self,
        number: u32,
        mut ends: impl FnMut(&Pull) -> Option<T>,
    ) -> Vec<(Pull, T)> {
        let mut taken = Vec::new();
        let Some(consumer) = self.get_mut(number) else { return taken };
        for _ in 0..consumer.pulls.len() {
            let Some(pull) = consumer.pulls.pop_front() else { break };
            match ends(&pull) {
                Some(why) => taken.push((pull, why)),
                None => consumer.pulls.push_back(pull),
            }
        }
        for (pull, _) in &taken {
            self.uncount_pull(number, pull);
        }
        taken
    }

    pub(crate) fn take_pull(&mut self, number: u32) -> Option<Pull> {
        let pull = self.get_mut(number)?.pulls.pop_front()?;
        self.uncount_pull(number, &pull);
        Some(pull)
    }

    #[cfg(test)]
    fn holds_nothing(&self) -> bool {
        let counts = [self.pulls, self.configs_size, self.tokens, self.orphans.len(), self.clients.len()];
        self.is_empty() && counts == [0; 5]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PULLS_PER_CONSUMER_MAX;

    const NOW: Now = Now::simulated(0);
    const ALICE: ClientId = ClientId { shard: 0, token: 1 };
    const BOB: ClientId = ClientId { shard: 1, token: 2 };

    fn pull(client: ClientId) -> Pull {
        Pull {
            client,
            reply: b"r".to_vec(),
            messages_left: 1,
            bytes_left: None,
            no_wait: false,
            expires_ns: None,
            heartbeat_ns: None,
            last_sent_ns: SteadyNanos::START,
        }
    }

    #[test]
    fn a_client_has_as_many_consumers_and_pulls_as_it_may_and_leaves_none_behind() {
        let mut all = ConsumerTable::new(HashKey(1, 2), 1);
        for name in 0..CONSUMERS_PER_CLIENT_MAX {
            assert!(all.add(ALICE, ConsumerSpec::of_everything(0, name), NOW).is_ok());
        }
        assert_eq!(all.add(ALICE, ConsumerSpec::of_everything(0, 9999), NOW), Err(AddConsumerError::TooMany));
        let of_bob = all.add(BOB, ConsumerSpec::of_everything(0, 9999), NOW).expect("another client's share");
        let (mut number, mut asked) = (0, 0);
        while all.add_pull(number, pull(ALICE)).is_ok() {
            asked += 1;
            number = (asked / PULLS_PER_CONSUMER_MAX) as u32;
        }
        assert_eq!(asked, PULLS_PER_CLIENT_MAX);
        assert!(all.add_pull(of_bob, pull(BOB)).is_ok());
        assert!(all.take_pull(0).is_some());
        assert!(all.add_pull(of_bob, pull(ALICE)).is_ok(), "one that was satisfied makes room");
        assert_eq!(all.take_pulls(of_bob, |pull| (pull.client == BOB).then_some(())).len(), 1);
        for number in all.of_stream(0) {
            assert!(all.remove(number).is_some());
        }
        assert!(all.holds_nothing(), "{:?}", all.clients);
    }

    #[test]
    fn a_number_that_is_used_again_inherits_nothing() {
        let mut all = ConsumerTable::new(HashKey(1, 2), 2);
        let first = all.add(ALICE, ConsumerSpec::of_everything(0, 0), NOW).expect("there is room");
        all.start_following(first);
        all.make_due(first);
        all.remove(first);
        let second = all.add(ALICE, ConsumerSpec::of_everything(1, 0), NOW).expect("there is room");
        assert_eq!(second, first);
        let following = |all: &ConsumerTable, stream| {
            let mut found = Vec::new();
            all.find_following(stream, b"a", &mut found);
            found
        };
        assert_eq!((all.next_due(), following(&all, 0), all.has_following(0)), (None, vec![], false));
        all.start_following(second);
        assert_eq!((following(&all, 0), following(&all, 1)), (vec![], vec![second]));
        assert_eq!((all.find(0, "0"), all.find(1, "0")), (None, Some(second)));
    }
}
