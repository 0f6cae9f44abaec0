//! What a thread's sockets are known by: entries of its table of channels, and places in its shards.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use stilling_engine::Token;

use crate::datagram::DatagramSocket;
use crate::listener::{AcceptedChannel, Listener};
use crate::lookup_command::ScriptLookup;
use crate::stream::Stream;
use crate::tcl::{Channel, Interest};

/// A socket in a shard of this thread: the shard's number in the top byte, which a token leaves free, and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardSocket(u64);

impl ShardSocket {
    pub(super) fn new(shard: usize, token: Token) -> Self {
        ShardSocket((shard as u64) << 56 | token.bits())
    }

    pub(super) fn shard(self) -> usize {
        (self.0 >> 56) as usize
    }

    pub(super) fn token(self) -> Token {
        Token::from_bits(self.0)
    }
}

/// A listening socket in a shard of this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardListener {
    pub(super) shard: u32,
    pub(super) number: u32,
}

/// An accepted connection without a channel.
#[derive(Debug)]
pub(crate) enum AcceptedConnection {
    InShard(ShardSocket),
    /// It came from another thread with its listener.
    Detached(OwnedFd),
}

/// An entry of the table of channels.
#[derive(Clone)]
pub(crate) enum SocketChannel {
    Stream(Rc<Stream>),
    Listener(Rc<Listener>),
    Datagram(Rc<DatagramSocket>),
    /// No channel, but a script that waits for a look-up.
    Lookup(Rc<ScriptLookup>),
}

/// What an event of a channel does.
pub(super) enum ChannelEvent {
    /// Tcl runs the scripts of these directions.
    Ready(Channel, Interest),
    /// The listener's script runs for a new connection.
    Accepted(AcceptedChannel),
    /// The script of a look-up runs.
    LookedUp(Rc<ScriptLookup>),
}

impl SocketChannel {
    pub(super) fn next_event(&self) -> Option<ChannelEvent> {
        let ready = |(channel, directions)| ChannelEvent::Ready(channel, directions);
        match self {
            SocketChannel::Stream(stream) => stream.next_event().map(ready),
            SocketChannel::Datagram(socket) => socket.next_event().map(ready),
            SocketChannel::Listener(listener) => listener.next_channel().map(ChannelEvent::Accepted),
            SocketChannel::Lookup(lookup) => Some(ChannelEvent::LookedUp(Rc::clone(lookup))),
        }
    }

    pub(super) fn interest_changed(&self) {
        match self {
            SocketChannel::Stream(stream) => stream.interest_changed(),
            SocketChannel::Datagram(socket) => socket.interest_changed(),
            // They ask for their next event themselves.
            SocketChannel::Listener(_) | SocketChannel::Lookup(_) => {}
        }
    }
}
