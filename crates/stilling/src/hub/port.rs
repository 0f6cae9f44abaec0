//! A shard's side of the hub: what its sessions ask for, gathered per turn, and what comes back for them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stilling_engine::Token;
use stilling_hub::{Counters, Deliveries, Delivery, Intake, Request, Routed, ShardTable, TooMany, Traits};
use stilling_ring::{Receiver, Sender, Wake, mailbox, planted};

use super::wait_queue::WaitQueue;

/// A payload goes by reference all the way, or is copied all the way.
const _: () = assert!(stilling_engine::limits::SHARED_MIN == stilling_hub::limits::SHARED_PAYLOAD_SIZE_MIN);

/// What a connection hears from the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HubMail {
    /// There is a delivery for it: [`Port::take_current`].
    Delivery,
    /// There may be room again for what it wanted to ask for.
    Room,
}

/// The shard's end of the mailboxes.
pub(crate) struct Port {
    intake: Option<Intake>,
    /// Requests that were made although every intake is with the hub. They take the place of the next one that comes
    /// back.
    overflow: Option<Intake>,
    intakes: Sender<Intake>,
    returned: Receiver<Intake>,
    routed: Receiver<Routed>,
    emptied: Sender<Routed>,
    /// The piece that is being expanded.
    piece: Option<Routed>,
    /// What came of it, and is being handed out. None while a session looks at it.
    current: Option<Deliveries>,
    /// The subscriptions of the shard's connections.
    table: ShardTable,
    /// Where their figures go, and the number of the shard.
    figures: Option<(Arc<Counters>, usize)>,
    hub: Arc<Wake>,
    /// Connections that want to ask for something.
    waiting: WaitQueue,
    /// Connections that the hub has parked because their stream is full, and whether each waits to be told of room. The hub
    /// bounds them by their requests.
    parked: HashMap<Token, bool>,
    /// A piece of deliveries has been handed out since one of those who wait was told of room.
    owes_room: bool,
    /// What the hub is to be told before anything else when an intake comes back, whoever waits in front of the port.
    errands: VecDeque<(Token, Errand)>,
    /// Tokens under which the shard itself waits for room.
    wanted: Vec<Token>,
    /// The hub has not begun: an intake is handed over only when it is full, so that the room for all lasts.
    is_gathering: bool,
}

/// What cannot be put off until its connection is called again.
#[derive(Clone, Copy, Debug)]
enum Errand {
    Reached(u64),
    EndPulls,
    Farewell,
    Leave,
}

impl Port {
    pub(super) fn new(
        (intakes, returned): (Sender<Intake>, Receiver<Intake>),
        (routed, emptied): (Receiver<Routed>, Sender<Routed>),
        table: ShardTable,
        hub: Arc<Wake>,
    ) -> Port {
        Port {
            intake: None,
            overflow: None,
            intakes,
            returned,
            routed,
            emptied,
            piece: None,
            current: Some(Deliveries::new()),
            table,
            figures: None,
            hub,
            waiting: WaitQueue::default(),
            parked: HashMap::new(),
            owes_room: false,
            errands: VecDeque::new(),
            wanted: Vec::new(),
            is_gathering: false,
        }
    }

    /// Has the figures of the shard go there; it has this number.
    pub(crate) fn set_figures(&mut self, counters: Arc<Counters>, shard: usize) {
        self.figures = Some((counters, shard));
    }

    /// Whether something may be asked of the hub now. If not, [`wait`](Port::wait).
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        match &self.intake {
            Some(intake) if !intake.is_full() => true,
            _ => self.next_intake(),
        }
    }

    /// The same for a connection, which may be parked.
    #[inline]
    pub(crate) fn has_room_for(&mut self, token: Token) -> bool {
        (self.parked.is_empty() || !self.parked.contains_key(&token)) && self.has_room()
    }

    fn next_intake(&mut self) -> bool {
        loop {
            if let Some(full) = self.intake.take() {
                self.hand_over(full);
                self.publish();
            }
            self.intake = self.returned.pop().map(|empty| self.overflow.take().unwrap_or(empty));
            let Some(intake) = &mut self.intake else { return false };
            // Connections that wait for room take all there is: what is short, and cannot wait, goes in first.
            tell(&mut self.table, intake, &mut self.errands);
            if !intake.is_full() {
                return true;
            }
        }
    }

    /// Whether connections wait for room.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Has the connection told when there may be room again.
    pub(crate) fn wait(&mut self, token: Token) {
        match self.parked.get_mut(&token) {
            Some(waits) => *waits = true,
            None => self.waiting.push(token),
        }
    }

    /// The tokens under which the shard itself waits for room: it is called again when there may be some for one of
    /// them.
    pub(crate) fn set_wanted(&mut self, wanted: impl Iterator<Item = Token>) {
        self.wanted.clear();
        self.wanted.extend(wanted);
    }

    /// Whether the hub has not begun yet, so that nothing comes back for now.
    pub(crate) fn set_gathering(&mut self, is_gathering: bool) {
        if planted!("dropped wait") && self.is_gathering && !is_gathering {
            self.intake.iter_mut().for_each(Intake::clear);
        }
        self.is_gathering = is_gathering;
    }

    /// Asks for something. There has to be [room](Port::has_room).
    #[inline]
    pub(crate) fn ask(&mut self, token: Token, traits: Traits, request: &Request<'_>) {
        let has_room = self.has_room();
        debug_assert!(has_room, "asked without room: {request:?}");
        self.ask_more(token, traits, request);
    }

    /// Asks for something more of what has begun when there was [room](Port::has_room), however much there is now. No
    /// request is lost.
    #[inline]
    pub(crate) fn ask_more(&mut self, token: Token, traits: Traits, request: &Request<'_>) {
        let intake = match &mut self.intake {
            Some(intake) => intake,
            None => self.overflow.get_or_insert_with(Intake::new),
        };
        self.table.push(intake, token.bits(), traits, request);
    }

    /// Subscribes a connection to a filter, as a member of a queue if that has a name; like [`ask_more`](Self::ask_more).
    ///
    /// # Errors
    /// There is no room for one more subscription.
    pub(crate) fn subscribe(
        &mut self,
        token: Token,
        traits: Traits,
        subscription: (&[u8], &[u8], &[u8]),
    ) -> Result<(), TooMany> {
        let subscribed = self.table.subscribe(token.bits(), traits, subscription);
        self.tell_changes();
        subscribed
    }

    /// Ends a subscription of a connection, at once or after so many messages in all.
    pub(crate) fn unsubscribe(&mut self, token: Token, sid: &[u8], after: Option<u32>) {
        self.table.unsubscribe(token.bits(), sid, after);
        self.tell_changes();
    }

    /// Tells the hub which filters the shard's connections are subscribed to.
    fn tell_changes(&mut self) {
        if self.table.has_changes() {
            let intake = match &mut self.intake {
                Some(intake) => intake,
                None => self.overflow.get_or_insert_with(Intake::new),
            };
            self.table.push_changes(intake);
        }
    }

    /// Removes some subscriptions of connections that have left, if the hub can be told.
    fn remove_left(&mut self) {
        if self.table.has_left() && self.errands.is_empty() && self.has_room() {
            self.table.remove_left();
            self.tell_changes();
        }
    }

    /// Whether subscriptions of connections that have left are to be removed in the next turns.
    pub(crate) fn has_left(&self) -> bool {
        self.table.has_left()
    }

    /// Tells the hub that a connection is gone, at the end of the turn or in the next intake that comes back.
    pub(crate) fn leave(&mut self, token: Token) {
        self.table.leave(token.bits());
        self.errands.push_back((token, Errand::Leave));
    }

    /// Has the hub end the connection's requests for messages of consumers, since the server drains.
    pub(crate) fn end_pulls(&mut self, token: Token) {
        self.errands.push_back((token, Errand::EndPulls));
    }

    /// Has the connection closed behind everything that is promised to it.
    pub(crate) fn bid_farewell(&mut self, token: Token) {
        self.errands.push_back((token, Errand::Farewell));
    }

    /// Tells the hub that what stood before a mark has left.
    pub(crate) fn reach(&mut self, token: Token, mark: u64) {
        self.errands.push_back((token, Errand::Reached(mark)));
    }

    /// Whether everything has been handed over, or there is nobody to hand it to.
    pub(crate) fn is_settled(&self) -> bool {
        self.intakes.is_closed()
            || self.errands.is_empty()
                && self.overflow.is_none()
                && self.intake.as_ref().is_none_or(Intake::is_empty)
    }

    /// Connections that are parked.
    #[cfg(test)]
    pub(crate) fn parked(&self) -> usize {
        self.parked.len()
    }

    #[cfg(test)]
    pub(super) fn errands_are_done(&self) -> bool {
        self.errands.is_empty()
    }

    /// The next connection that hears something. Between two pieces one of the connections that wait for room has its
    /// turn: where deliveries never end, they would have none.
    pub(crate) fn next_mail(&mut self) -> Option<(Token, HubMail)> {
        loop {
            if let Some(mail) = self.next_delivery() {
                return Some(mail);
            }
            if self.piece.is_some() {
                self.expand();
                continue;
            }
            if std::mem::take(&mut self.owes_room)
                && let Some(token) = self.next_with_room()
            {
                return Some((token, HubMail::Room));
            }
            self.piece = self.routed.pop();
            if self.piece.is_none() {
                return self.next_with_room().map(|token| (token, HubMail::Room));
            }
        }
    }

    /// The next connection of the current deliveries.
    fn next_delivery(&mut self) -> Option<(Token, HubMail)> {
        let current = self.current.as_mut()?;
        while let Some(to) = current.advance() {
            let token = Token::from_bits(to);
            match current.current() {
                Some(Delivery::Pause) => {
                    self.parked.insert(token, false);
                }
                Some(Delivery::Resume) if self.parked.remove(&token) == Some(true) => {
                    // Room for all is asked for like by others.
                    return Some((token, HubMail::Room));
                }
                Some(Delivery::Resume) => {}
                // Its connection cannot say that what was sent has left.
                Some(Delivery::Mark(mark)) if !self.table.has_client(to) => {
                    self.errands.push_back((token, Errand::Reached(mark)));
                }
                _ => return Some((token, HubMail::Delivery)),
            }
        }
        None
    }

    /// Makes deliveries of the rest of the piece, as many as are handed out at once, or gives the piece back.
    fn expand(&mut self) {
        let (Some(piece), Some(current)) = (&mut self.piece, &mut self.current) else { return };
        current.clear();
        if piece.is_empty() {
            if let Some(mut piece) = self.piece.take() {
                piece.clear();
                // There is a place for every piece there is.
                let _ = self.emptied.push(piece);
                self.owes_room = true;
            }
            return;
        }
        self.table.expand(piece, current);
        current.group();
        while let Some(mark) = self.table.next_unheard_mark() {
            self.errands.push_back((Token::from_bits(0), Errand::Reached(mark)));
        }
        self.tell_changes();
    }

    /// Of those who wait for room the one who has waited longest, if there is some.
    fn next_with_room(&mut self) -> Option<Token> {
        if self.waiting.is_empty() || !self.has_room() {
            return None;
        }
        self.waiting.pop()
    }

    /// Whether [`next_mail`](Port::next_mail) would find something.
    pub(crate) fn has_mail(&self) -> bool {
        let has_room =
            || self.intake.as_ref().is_some_and(|intake| !intake.is_full()) || !self.returned.is_empty();
        let is_wanted = self.wanted.iter().any(|token| !self.parked.contains_key(token));
        let is_behind = !self.errands.is_empty() || self.overflow.is_some();
        let wants_room = !self.waiting.is_empty() || is_behind || is_wanted;
        let has_deliveries = self.current.as_ref().is_some_and(|current| !current.is_empty());
        has_deliveries || self.piece.is_some() || !self.routed.is_empty() || wants_room && has_room()
    }

    /// The deliveries that are being handed out, to be looked at and put [back](Port::put_back).
    pub(crate) fn take_current(&mut self) -> Option<Deliveries> {
        self.current.take()
    }

    /// Puts the deliveries back.
    pub(crate) fn put_back(&mut self, current: Deliveries) {
        self.current = Some(current);
    }

    /// Ends a turn: hands over what has been asked for.
    pub(crate) fn flush(&mut self) {
        self.remove_left();
        while (!self.errands.is_empty() || self.overflow.is_some()) && self.has_room() {
            if let Some(intake) = &mut self.intake {
                tell(&mut self.table, intake, &mut self.errands);
            }
        }
        let gathers = |intake: &Intake| self.is_gathering && !intake.is_full();
        if self.intake.as_ref().is_some_and(|intake| !intake.is_empty() && !gathers(intake))
            && let Some(intake) = self.intake.take()
        {
            self.hand_over(intake);
        }
        self.publish();
        if let Some((counters, shard)) = &self.figures
            && let Some(figures) = counters.shards.get(*shard)
        {
            self.table.publish_figures(figures);
        }
    }

    fn hand_over(&mut self, intake: Intake) {
        // There is a place for every intake there is.
        let _ = self.intakes.push(intake);
    }

    fn publish(&mut self) {
        let has_asked = self.intakes.publish();
        if self.emptied.publish() || has_asked {
            self.hub.notify();
        }
    }
}

/// Puts errands into an intake, as far as it has room.
fn tell(table: &mut ShardTable, intake: &mut Intake, errands: &mut VecDeque<(Token, Errand)>) {
    while !intake.is_full()
        && let Some((token, errand)) = errands.pop_front()
    {
        let request = match errand {
            Errand::Reached(mark) => Request::Reached { mark },
            Errand::EndPulls => Request::EndPulls,
            Errand::Farewell => Request::Farewell,
            Errand::Leave => Request::Leave,
        };
        table.push(intake, token.bits(), Traits::default(), &request);
    }
}

impl Drop for Port {
    /// The hub's runner looks whether its shards are gone, which it sees by the end of the mailbox.
    fn drop(&mut self) {
        let (intakes, _) = mailbox(1);
        drop(std::mem::replace(&mut self.intakes, intakes));
        self.hub.force();
    }
}

#[cfg(test)]
mod tests {
    use stilling_hub::HashKey;

    use super::*;

    /// A port with one intake, and the hub's ends of its mailboxes.
    struct Stage {
        port: Port,
        pieces: Sender<Routed>,
        handed_over: Receiver<Intake>,
        returned: Sender<Intake>,
        _emptied: Receiver<Routed>,
    }

    fn table() -> ShardTable {
        ShardTable::new(HashKey(1, 2), 8)
    }

    impl Stage {
        fn new() -> Stage {
            let (intakes, to_hub) = mailbox(1);
            let (mut returned, from_hub) = mailbox(1);
            let (pieces, to_shard) = mailbox(1);
            let (emptied, from_shard) = mailbox(8);
            let _ = returned.push(Intake::new());
            returned.publish();
            let hub = Arc::new(Wake::new(|| ()));
            let port = Port::new((intakes, from_hub), (to_shard, emptied), table(), hub);
            Stage { port, pieces, handed_over: to_hub, returned, _emptied: from_shard }
        }

        /// Has the hub hand a piece over. Returns which connections are called.
        fn deliver(&mut self, write: impl FnOnce(&mut Routed)) -> Vec<(Token, HubMail)> {
            let mut piece = Routed::new();
            write(&mut piece);
            let _ = self.pieces.push(piece);
            self.pieces.publish();
            assert!(self.port.has_mail());
            std::iter::from_fn(|| self.port.next_mail()).collect()
        }
    }

    const PARKED: u64 = 7;
    const OTHER: u64 = 8;

    #[test]
    fn a_parked_connection_has_no_room_before_it_is_resumed_and_others_have() {
        let (parked, other) = (Token::from_bits(PARKED), Token::from_bits(OTHER));
        let mut stage = Stage::new();
        assert!(stage.port.has_room_for(parked));
        assert_eq!(stage.deliver(|piece| piece.pause(PARKED)), []);
        assert!(!stage.port.has_room_for(parked) && stage.port.has_room_for(other));
        stage.port.wait(parked);
        stage.port.wait(other);
        assert_eq!(stage.port.next_mail(), Some((other, HubMail::Room)), "the parked one is not in its way");
        assert!(stage.port.next_mail().is_none() && !stage.port.has_mail());
        assert_eq!(stage.deliver(|piece| piece.resume(PARKED)), [(parked, HubMail::Room)]);
        assert!(stage.port.has_room_for(parked) && stage.port.parked.is_empty());
    }

    /// Nothing stays of a connection that did not wait, has left meanwhile, or was parked when it had left.
    #[test]
    fn nothing_is_left_of_connections_that_were_parked() {
        let parked = Token::from_bits(PARKED);
        let mut stage = Stage::new();
        assert_eq!(stage.deliver(|piece| piece.pause(PARKED)), []);
        assert_eq!(stage.deliver(|piece| piece.resume(PARKED)), [], "it does not wait");
        stage.port.leave(parked);
        let both = stage.deliver(|piece| {
            piece.pause(PARKED);
            piece.pause(OTHER);
            piece.resume(PARKED);
            piece.resume(OTHER);
        });
        assert_eq!(both, []);
        assert!(stage.port.parked.is_empty() && stage.port.waiting.is_empty());
    }

    /// A shard whose own publications are parked sleeps meanwhile, although there is room for others.
    #[test]
    fn a_shard_that_waits_for_room_under_a_parked_token_has_no_mail() {
        let mut stage = Stage::new();
        stage.port.set_wanted(std::iter::once(Token::from_bits(PARKED)));
        assert!(stage.port.has_mail());
        stage.deliver(|piece| piece.pause(PARKED));
        assert!(!stage.port.has_mail());
        stage.deliver(|piece| piece.resume(PARKED));
        assert!(stage.port.has_mail());
    }

    /// A request that is made although there is no room goes to the hub all the same, before anything later.
    #[test]
    fn a_request_without_an_intake_is_in_the_next_one() {
        let token = Token::from_bits(OTHER);
        let mut stage = Stage::new();
        stage.port.ask(token, Traits::default(), &Request::Barrier);
        stage.port.flush();
        let mut first = stage.handed_over.pop().expect("it is handed over");
        assert!(!stage.port.has_room() && stage.port.is_settled());
        stage.port.ask_more(token, Traits::default(), &Request::EndPulls);
        stage.port.flush();
        assert!(!stage.port.is_settled() && !stage.port.has_mail(), "the only intake is with the hub");
        first.clear();
        let _ = stage.returned.push(first);
        stage.returned.publish();
        assert!(stage.port.has_mail());
        stage.port.ask(token, Traits::default(), &Request::Farewell);
        stage.port.flush();
        assert!(stage.port.is_settled());
        let next = stage.handed_over.pop().expect("it is handed over");
        let requests: Vec<_> =
            (0..next.len()).filter_map(|at| next.get(at)).map(|(.., request)| request).collect();
        assert_eq!(requests, [Request::EndPulls, Request::Farewell]);
        assert!(stage.handed_over.pop().is_none());
    }
}
