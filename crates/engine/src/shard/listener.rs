//! The listeners and datagram sockets of a shard, their states, and their numbers.
//!
//! The number of a closed listener is reused under the next generation, so that no event of the former listener reaches
//! its successor. The number of a datagram socket is never reused, because paths to its peers contain it
//! ([`DatagramPath`](super::DatagramPath)).

use std::ops::{Index, IndexMut};

use crate::limits::LISTENERS_MAX;
use crate::token::Token;

#[cfg(target_os = "linux")]
use crate::listen_watch::WatchedListener;

/// Handling of connections in the backlog of a listener that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BacklogPolicy {
    /// They are left to other processes, or reset by the system.
    Leave,
    Accept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerState {
    Accepting,
    /// All slots are in use, or an accept failed recently.
    Paused,
    Datagrams,
    /// A datagram socket that stops receiving for good.
    StoppingDatagrams,
    /// A datagram socket that only sends.
    SendingDatagrams,
    /// The listener stops accepting for good.
    Stopping(BacklogPolicy),
    Closing,
    Closed,
}

#[derive(Debug)]
pub(super) struct ShardListener {
    /// Changed by [`ShardListeners::set_state`] only.
    state: ListenerState,
    generation: u32,
    /// The driver has an accept or receive armed.
    pub(super) armed: bool,
    pub(super) defer_accept: bool,
    /// Connections in its backlog are not accepted when it is closed.
    pub(super) leaves_backlog: bool,
    /// Its owner holds it back: it does not accept until the owner resumes it.
    pub(super) is_held: bool,
    /// Its owner has closed it: connections that it has accepted meanwhile are closed.
    pub(super) drops_accepted: bool,
    /// The system's count of dropped datagrams at the last read, modulo 2^32.
    pub(super) dropped: u32,
    pub(super) is_datagram_socket: bool,
    /// Its datagrams pass through the ring.
    pub(super) is_paced: bool,
    /// The datagram socket is closed when it has stopped receiving.
    pub(super) closes_when_stopped: bool,
    /// Dropped by [`ShardListeners::set_state`] before the driver closes the listener.
    #[cfg(target_os = "linux")]
    pub(super) watched: Option<WatchedListener>,
}

impl ShardListener {
    fn new(state: ListenerState) -> Self {
        ShardListener {
            state,
            generation: 0,
            armed: false,
            defer_accept: false,
            leaves_backlog: false,
            is_held: false,
            drops_accepted: false,
            dropped: 0,
            is_datagram_socket: false,
            is_paced: false,
            closes_when_stopped: false,
            #[cfg(target_os = "linux")]
            watched: None,
        }
    }

    /// A listener that does not accept yet.
    pub(super) fn of_streams(defer_accept: bool) -> Self {
        ShardListener { defer_accept, ..ShardListener::new(ListenerState::Paused) }
    }

    /// A datagram socket with an armed receive.
    pub(super) fn of_datagrams(is_paced: bool, dropped: u32) -> Self {
        ShardListener {
            armed: true,
            leaves_backlog: true,
            dropped,
            is_datagram_socket: true,
            is_paced,
            ..ShardListener::new(ListenerState::Datagrams)
        }
    }

    pub(super) fn state(&self) -> ListenerState {
        self.state
    }

    /// Whether it is a datagram socket that can still send.
    pub(super) fn can_send_datagrams(&self) -> bool {
        self.receives_datagrams() || self.state == ListenerState::SendingDatagrams
    }

    /// Whether it is a datagram socket of which the service may still get datagrams.
    pub(super) fn receives_datagrams(&self) -> bool {
        matches!(self.state, ListenerState::Datagrams | ListenerState::StoppingDatagrams)
    }

    fn is_open(&self) -> bool {
        self.state != ListenerState::Closed
    }
}

/// Listeners and datagram sockets by kind and state. Kept up to date, because a shard needs them in every turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListenerCounts {
    /// Not closed.
    pub(super) open: usize,
    pub(super) accepting: usize,
    pub(super) paused: usize,
    /// Datagram sockets that are not closed.
    pub(super) datagram_sockets: usize,
    /// Datagram sockets of which the service may still get datagrams.
    pub(super) receiving_datagrams: usize,
}

impl ListenerCounts {
    fn add(&mut self, listener: &ShardListener) {
        self.open += usize::from(listener.is_open());
        self.accepting += usize::from(listener.state == ListenerState::Accepting);
        self.paused += usize::from(listener.state == ListenerState::Paused);
        self.datagram_sockets += usize::from(listener.is_open() && listener.is_datagram_socket);
        self.receiving_datagrams += usize::from(listener.receives_datagrams());
    }

    fn subtract(&mut self, listener: &ShardListener) {
        self.open -= usize::from(listener.is_open());
        self.accepting -= usize::from(listener.state == ListenerState::Accepting);
        self.paused -= usize::from(listener.state == ListenerState::Paused);
        self.datagram_sockets -= usize::from(listener.is_open() && listener.is_datagram_socket);
        self.receiving_datagrams -= usize::from(listener.receives_datagrams());
    }
}

#[derive(Debug, Default)]
pub(super) struct ShardListeners {
    listeners: Vec<ShardListener>,
    /// Numbers of closed listeners.
    free: Vec<u32>,
    counts: ListenerCounts,
}

impl ShardListeners {
    /// The token of the next listener or datagram socket; `None`: there are [`LISTENERS_MAX`].
    pub(super) fn next_token(&self) -> Option<Token> {
        match self.free.last() {
            Some(number) => {
                Some(Token::new(*number, self.listeners[*number as usize].generation.wrapping_add(1)))
            }
            None => Some(self.listeners.len() as u32)
                .filter(|number| *number < LISTENERS_MAX)
                .map(|number| Token::new(number, 0)),
        }
    }

    /// Adds a listener or datagram socket under the [next token](Self::next_token).
    pub(super) fn insert(&mut self, token: Token, listener: ShardListener) {
        self.counts.add(&listener);
        let listener = ShardListener { generation: token.generation(), ..listener };
        match self.free.pop() {
            Some(number) => self.listeners[number as usize] = listener,
            None => self.listeners.push(listener),
        }
    }

    pub(super) fn set_state(&mut self, number: u32, state: ListenerState) {
        let listener = &mut self.listeners[number as usize];
        self.counts.subtract(listener);
        let was_open = listener.is_open();
        listener.state = state;
        self.counts.add(listener);
        #[cfg(target_os = "linux")]
        if state == ListenerState::Closing {
            listener.watched = None;
        }
        if was_open && state == ListenerState::Closed && !listener.is_datagram_socket {
            self.free.push(number);
        }
    }

    /// The driver's token of the listener or datagram socket with this number.
    pub(super) fn token(&self, number: u32) -> Token {
        Token::new(number, self.listeners[number as usize].generation)
    }

    /// The number of a listener or datagram socket, unless the token is stale.
    pub(super) fn number_of(&self, token: Token) -> Option<u32> {
        let number = token.index();
        let listener = self.listeners.get(number as usize)?;
        (listener.is_open() && Token::new(number, listener.generation) == token).then_some(number)
    }

    pub(super) fn get(&self, number: u32) -> Option<&ShardListener> {
        self.listeners.get(number as usize)
    }

    /// Numbers in use now or earlier: all are below this.
    pub(super) fn end(&self) -> u32 {
        self.listeners.len() as u32
    }

    pub(super) fn counts(&self) -> ListenerCounts {
        self.counts
    }
}

impl Index<u32> for ShardListeners {
    type Output = ShardListener;

    fn index(&self, number: u32) -> &ShardListener {
        &self.listeners[number as usize]
    }
}

impl IndexMut<u32> for ShardListeners {
    fn index_mut(&mut self, number: u32) -> &mut ShardListener {
        &mut self.listeners[number as usize]
    }
}

/// A set of numbers of listeners or datagram sockets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListenerSet {
    /// One bit per word that is not zero.
    occupied: u64,
    words: [u64; LISTENERS_MAX.div_ceil(u64::BITS) as usize],
}

const _: () = assert!(LISTENERS_MAX <= u64::BITS * u64::BITS);

impl ListenerSet {
    pub(super) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    pub(super) fn insert(&mut self, number: u32) {
        let (word, bit) = (number / u64::BITS, number % u64::BITS);
        self.words[word as usize] |= 1 << bit;
        self.occupied |= 1 << word;
    }

    /// Removes and returns the lowest number.
    pub(super) fn pop(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let word = self.occupied.trailing_zeros();
        let bits = &mut self.words[word as usize];
        let bit = bits.trailing_zeros();
        *bits &= *bits - 1;
        if *bits == 0 {
            self.occupied &= self.occupied - 1;
        }
        Some(word * u64::BITS + bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_returns_every_number_once() {
        let numbers = [0, 1, 63, 64, LISTENERS_MAX / 2, LISTENERS_MAX - 1];
        let mut set = ListenerSet::default();
        for number in numbers.into_iter().rev().chain(numbers) {
            set.insert(number);
        }
        let popped: Vec<_> = std::iter::from_fn(|| set.pop()).collect();
        assert_eq!(popped, numbers);
        assert!(set.is_empty());
    }

    /// The number of a closed listener is reused under another token; that of a datagram socket is not.
    #[test]
    fn a_reused_number_has_another_token() {
        let mut listeners = ShardListeners::default();
        let add = |listeners: &mut ShardListeners, listener| {
            let token = listeners.next_token().expect("there is room");
            listeners.insert(token, listener);
            token
        };
        let first = add(&mut listeners, ShardListener::of_streams(false));
        let socket = add(&mut listeners, ShardListener::of_datagrams(false, 0));
        for number in [first.index(), socket.index()] {
            listeners.set_state(number, ListenerState::Closed);
            listeners.set_state(number, ListenerState::Closed);
        }
        assert_eq!(listeners.counts(), ListenerCounts::default());
        assert_eq!(listeners.number_of(first), None);
        let next = add(&mut listeners, ShardListener::of_streams(false));
        assert_eq!((next.index(), next == first), (first.index(), false));
        assert_eq!((listeners.number_of(next), listeners.number_of(first)), (Some(next.index()), None));
        assert_eq!(add(&mut listeners, ShardListener::of_streams(false)).index(), 2);
        assert_eq!((listeners.counts().open, listeners.counts().paused, listeners.end()), (2, 2, 3));
    }

    #[test]
    fn the_numbers_are_bounded() {
        let mut listeners = ShardListeners::default();
        for _ in 0..LISTENERS_MAX {
            let token = listeners.next_token().expect("there is room");
            listeners.insert(token, ShardListener::of_streams(false));
        }
        assert_eq!(listeners.next_token(), None);
        listeners.set_state(7, ListenerState::Closed);
        assert_eq!(listeners.next_token(), Some(Token::new(7, 1)));
    }
}
