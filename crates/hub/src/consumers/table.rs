//! The table of all consumers: what each wants and how far it is, whose they are, and which of them have something to do.
//!
//! Many may do nothing, so nothing walks over all of them: those that follow are indexed by stream and filter, those that can
//! go on stand in a queue, those of a client are listed with it, and some of all are checked for expiry in each turn.
//!
//! What they cost is bounded for each client that makes them or asks for messages, and for all together.

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

/// Why a consumer was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddConsumerError {
    TooMany,
    NoMemory,
}

/// All consumers; a number is used again with another generation.
#[derive(Debug)]
pub(crate) struct ConsumerTable {
    slots: Vec<(u32, Option<Consumer>)>,
    free: Vec<u32>,
    streams: Vec<StreamConsumers>,
    clients: HashMap<ClientId, ClientConsumers, HashKey>,
    /// Those that can go on.
    due: VecDeque<u32>,
    /// Those that wait for a shard that has no room.
    without_room: Vec<u32>,
    /// One of them can go on at once.
    pub(crate) can_resume: bool,
    pulls: usize,
    configs_size: usize,
    /// Tokens of the filters of all consumers.
    tokens: usize,
    /// Those whose makers have left, in the order in which these did.
    left: BTreeMap<u64, u32>,
    left_next: u64,
    pub(crate) checked_ns: SteadyNanos,
    /// The first to be looked at next.
    check_from: u32,
    /// Numbers marks, so that an old one is not taken for a new one.
    marks: u32,
}

#[derive(Debug)]
struct StreamConsumers {
    names: HashMap<String, u32, HashKey>,
    followers: Followers,
}

/// What there is because of a client: consumers that it made, and the tokens of their filters.
#[derive(PartialEq, Eq, Debug, Default)]
struct ClientConsumers {
    owned: BTreeSet<u32>,
    tokens: usize,
    pulls: usize,
    /// Consumers that hold pulls of it or wait until what they sent has left by its connection, and how many times each.
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

/// A consumer's number in the ticket of a read.
pub(crate) type ReadTicket = u64;

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
            left: BTreeMap::new(),
            left_next: 0,
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

    pub(crate) fn ticket(&self, number: u32) -> ReadTicket {
        u64::from(self.slots[number as usize].0) << 32 | u64::from(number)
    }

    pub(crate) fn by_ticket(&self, ticket: ReadTicket) -> Option<u32> {
        let (number, generation) = (ticket as u32, (ticket >> 32) as u32);
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

    /// The numbers of a stream's consumers, in their order.
    pub(crate) fn of_stream(&self, stream: usize) -> Vec<u32> {
        let names = self.streams.get(stream).map(|of| of.names.values().copied().collect());
        let mut numbers: Vec<u32> = names.unwrap_or_default();
        // The table's order depends on its key.
        numbers.sort_unstable();
        numbers
    }

    pub(crate) fn count_of_stream(&self, stream: usize) -> usize {
        self.streams.get(stream).map_or(0, |of| of.names.len())
    }

    /// Adds one of a client, under a name that its stream does not have yet, if there is room.
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
        if self.are_full(&spec) {
            return Err(AddConsumerError::NoMemory);
        }
        let next = match spec.from {
            StartAt::Sequence(sequence) => Some(sequence),
            StartAt::Time(_) => None,
        };
        // As nats-server has it: who follows again behind the last one they got begins at the same place.
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
            left: None,
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

    /// Removes one. Its pulls are with it, and are to be answered.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Consumer> {
        let (generation, slot) = self.slots.get_mut(number as usize)?;
        let consumer = slot.take()?;
        *generation = generation.wrapping_add(1);
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
        if let Some(slot) = consumer.left {
            self.left.remove(&slot);
        }
        if let ConsumerState::AwaitingMark(SubscriberTarget::ClientId(client), _) = consumer.state {
            self.count(client, |of| of.release(number));
        }
        if let Some(SubscriberTarget::ClientId(client)) = consumer.sent_to {
            self.count(client, |of| of.release(number));
        }
        for pull in &consumer.pulls {
            self.uncount_pull(number, pull);
        }
        if self.is_empty() {
            // Nobody looks any more at who was called.
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

    /// Has a consumer get each record as it becomes visible.
    pub(crate) fn start_following(&mut self, number: u32) {
        let Some((_, Some(consumer))) = self.slots.get_mut(number as usize) else { return };
        consumer.state = ConsumerState::Following;
        if consumer.entries.is_none()
            && let Some(of) = self.streams.get_mut(consumer.spec.stream)
        {
            consumer.entries = Some(of.followers.insert(&consumer.spec.filters, number));
        }
    }

    /// Appends the consumers that follow a stream and want records of a subject. Some may have stopped following: they are
    /// to be [removed from the index](ConsumerTable::unlist).
    pub(crate) fn find_following(&self, stream: usize, subject: &[u8], into: &mut Vec<u32>) {
        if let Some(of) = self.streams.get(stream) {
            of.followers.find(subject, into);
        }
    }

    /// Takes a consumer that follows no more out of the index.
    pub(crate) fn unlist(&mut self, number: u32) {
        let Some((_, Some(consumer))) = self.slots.get_mut(number as usize) else { return };
        if let Some(entries) = consumer.entries.take()
            && let Some(of) = self.streams.get_mut(consumer.spec.stream)
        {
            of.followers.remove(&consumer.spec.filters, &entries);
        }
    }

    /// Whether a consumer follows a stream, or did a moment ago.
    pub(crate) fn has_following(&self, stream: usize) -> bool {
        self.streams.get(stream).is_some_and(|of| !of.followers.is_empty())
    }

    /// Notes that all records of a stream up to `sequence` were offered to those that follow it.
    pub(crate) fn note_offered(&mut self, stream: usize, sequence: u64) {
        if let Some(of) = self.streams.get_mut(stream) {
            of.followers.advance(sequence);
        }
    }

    /// Whether records of a stream before `sequence` were never offered to those that follow it.
    pub(crate) fn has_hole_before(&self, stream: usize, sequence: u64) -> bool {
        self.streams.get(stream).is_some_and(|of| of.followers.has_hole_before(sequence))
    }

    /// The sequence that a consumer looks at next.
    pub(crate) fn next_of(&self, number: u32) -> Option<u64> {
        let consumer = self.get(number)?;
        match (&consumer.state, self.streams.get(consumer.spec.stream)) {
            (ConsumerState::Following, Some(of)) => of.followers.position(consumer.next),
            _ => consumer.next,
        }
    }

    /// Moves the position of a consumer that follows behind the records that were offered to it and that it did not want.
    /// To be called before it stops following.
    pub(crate) fn catch_up(&mut self, number: u32) {
        let next = self.next_of(number);
        if let Some(consumer) = self.get_mut(number) {
            consumer.next = next;
        }
    }

    /// Has a consumer wait until what it sent has left. Returns the mark that is to be answered then.
    pub(crate) fn wait_for(&mut self, number: u32, listener: SubscriberTarget) -> u64 {
        self.marks = self.marks.wrapping_add(1);
        let mark = u64::from(self.marks) << 32 | u64::from(number);
        if let Some(consumer) = self.get_mut(number) {
            consumer.state = ConsumerState::AwaitingMark(listener, mark);
            self.attach(number, listener);
        }
        mark
    }

    /// A mark is answered. Returns the consumer that has waited for it; none if that waits no longer, or for another.
    pub(crate) fn reached(&mut self, mark: u64) -> Option<u32> {
        let number = mark as u32;
        (self.awaited_mark(number) == Some(mark) && self.end_wait(number)).then_some(number)
    }

    /// The mark that a consumer waits for.
    pub(crate) fn awaited_mark(&self, number: u32) -> Option<u64> {
        match self.get(number)?.state {
            ConsumerState::AwaitingMark(_, mark) => Some(mark),
            _ => None,
        }
    }

    /// Notes what got the last message of a chunk whose rest waits for room: that has to leave before more is read.
    pub(crate) fn note_sent(&mut self, number: u32, to: Option<SubscriberTarget>) {
        if let Some(listener) = to
            && let Some(consumer) = self.get_mut(number)
        {
            consumer.sent_to = Some(listener);
            self.attach(number, listener);
        }
    }

    /// Takes what that was.
    pub(crate) fn take_sent(&mut self, number: u32) -> Option<SubscriberTarget> {
        let listener = self.get_mut(number)?.sent_to.take()?;
        self.release(number, listener);
        Some(listener)
    }

    /// What it sent has left, or cannot leave any more. Returns whether it waited for that.
    fn end_wait(&mut self, number: u32) -> bool {
        let Some(consumer) = self.get_mut(number) else { return false };
        let ConsumerState::AwaitingMark(listener, _) = consumer.state else { return false };
        consumer.state = ConsumerState::Idle;
        self.release(number, listener);
        true
    }

    /// A connection is awaited by a consumer, which has to know when it leaves. Where a shard has several, the shard sees to
    /// it that one of them answers.
    fn attach(&mut self, number: u32, listener: SubscriberTarget) {
        if let SubscriberTarget::ClientId(client) = listener {
            self.count(client, |of| of.attach(number));
        }
    }

    /// It is awaited no longer.
    fn release(&mut self, number: u32, listener: SubscriberTarget) {
        if let SubscriberTarget::ClientId(client) = listener {
            self.count(client, |of| of.release(number));
        }
    }

    /// A connection is gone: a consumer is not to wait for it, and its requests for messages are dropped unless another
    /// connection listens for the answers. Returns how many requests were looked at.
    pub(crate) fn stop_waiting_for(&mut self, router: &mut Router, client: ClientId, number: u32) -> usize {
        let Some(consumer) = self.get(number) else { return 0 };
        let is_awaited = matches!(consumer.state, ConsumerState::AwaitingMark(ahead, _) if ahead == SubscriberTarget::ClientId(client));
        let has_got_last = consumer.sent_to == Some(SubscriberTarget::ClientId(client));
        if is_awaited {
            self.end_wait(number);
        }
        if has_got_last {
            self.take_sent(number);
        }
        let mut count = 0;
        self.take_pulls(number, |pull| {
            count += 1;
            (pull.client == client && !router.has_subscriber(&pull.reply)).then_some(())
        });
        count
    }

    /// Whether there is anything because of a client.
    pub(crate) fn has_client(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// The first consumer from the number `from` on that holds pulls of a client, or waits for it.
    pub(crate) fn next_attached(&self, client: ClientId, from: u32) -> Option<u32> {
        self.clients.get(&client)?.attached.range(from..).next().map(|(number, _)| *number)
    }

    /// The first consumer from the number `from` on that a client has made.
    pub(crate) fn next_owned(&self, client: ClientId, from: u32) -> Option<u32> {
        self.clients.get(&client)?.owned.range(from..).next().copied()
    }

    /// Notes that the maker of a consumer has left: it stays only for those that listen to it.
    pub(crate) fn note_left(&mut self, number: u32) {
        let slot = self.left_next;
        let Some(consumer) = self.get_mut(number) else { return };
        let before = consumer.left.replace(slot);
        if let Some(before) = before {
            self.left.remove(&before);
        }
        self.left.insert(slot, number);
        self.left_next += 1;
    }

    /// The consumer whose maker left first.
    pub(crate) fn first_left(&self) -> Option<u32> {
        self.left.first_key_value().map(|(_, number)| *number)
    }

    /// Whether there is no room for one more consumer with this configuration, from any client.
    pub(crate) fn are_full(&self, spec: &ConsumerSpec) -> bool {
        self.len() >= CONSUMERS_MAX
            || self.configs_size + spec.config.get().len() > CONSUMER_CONFIGS_SIZE_MAX
            || self.tokens + spec.tokens() > CONSUMER_FILTER_TOKENS_MAX
    }

    /// Has a consumer called as soon as it is its turn.
    pub(crate) fn call(&mut self, number: u32) {
        let Some(consumer) = self.get_mut(number) else { return };
        if !std::mem::replace(&mut consumer.is_due, true) {
            self.due.push_back(number);
        }
        self.can_resume = true;
    }

    /// Has a consumer called when a shard that has no room has some again.
    pub(crate) fn wait_for_room(&mut self, number: u32) {
        let Some(consumer) = self.get_mut(number) else { return };
        if !std::mem::replace(&mut consumer.is_due, true) {
            self.without_room.push(number);
        }
    }

    /// Has those that wait for room called: there may be some, or they may want it elsewhere by now.
    pub(crate) fn end_wait_for_room(&mut self) {
        self.due.extend(self.without_room.drain(..));
    }

    /// How many can go on.
    pub(crate) fn due(&self) -> usize {
        self.due.len()
    }

    /// The next one that can go on.
    pub(crate) fn next_due(&mut self) -> Option<u32> {
        loop {
            let number = self.due.pop_front()?;
            // It may be gone, and the number another's.
            if let Some(consumer) = self.get_mut(number)
                && std::mem::take(&mut consumer.is_due)
            {
                return Some(number);
            }
        }
    }

    /// The next one to be looked at because of the time. All have their turn.
    pub(crate) fn next_checked(&mut self) -> Option<u32> {
        let number = self.check_from;
        self.check_from = (number + 1) % (self.slots.len() as u32).max(1);
        self.get(number).map(|_| number)
    }

    /// How many places there are to be looked at.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Adds a pull, or hands it back without room.
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

    /// Takes the pulls that `ends` says something of, in their order; it is asked once for each.
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

    /// Takes the oldest pull.
    pub(crate) fn take_pull(&mut self, number: u32) -> Option<Pull> {
        let pull = self.get_mut(number)?.pulls.pop_front()?;
        self.uncount_pull(number, &pull);
        Some(pull)
    }

    /// Whether nothing is kept for anybody.
    #[cfg(test)]
    fn holds_nothing(&self) -> bool {
        let counts = [self.pulls, self.configs_size, self.tokens, self.left.len(), self.clients.len()];
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
            left: 1,
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
        all.call(first);
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
