//! Contract tests for all drivers: the same tests, the same expectations.
//!
//! A contract test is a generic function over a [`DriverRig`], which creates a driver and acts as the other side of its
//! sockets. [`contract_tests!`](crate::contract_tests) turns all of them into tests of one rig;
//! [`system_contract_tests!`](crate::system_contract_tests) adds those that only a driver on the real system supports:
//! threads, waits in real time, foreign event loops.
//!
//! Everything runs on one thread: a [`DriverFixture`] lets the peer act, then turns the driver, until the expected
//! event arrives. The duration is not judged; [`DriverRig::is_within_limit`] only ends a test that hangs.

mod accepting;
mod closing;
mod connecting;
mod datagrams;
mod detaching;
mod fixture;
mod pieces;
mod pipes;
mod receiving;
mod sending;
#[cfg(target_os = "linux")]
pub mod system;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;

use stilling_engine::driver::{Destination, Driver};
use stilling_ring::Time;

pub use fixture::{DriverFixture, ObservedEvent};

/// The contract tests, by mechanism; the macros define a test of the same name for each.
pub mod contracts {
    pub use super::accepting::*;
    pub use super::closing::*;
    pub use super::connecting::*;
    pub use super::datagrams::*;
    pub use super::detaching::*;
    pub use super::pieces::*;
    pub use super::pipes::*;
    pub use super::receiving::*;
    pub use super::sending::*;
}

/// Address family of a socket of a rig; the rig chooses ports and paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// An IPv4 loopback address.
    V4,
    /// An IPv6 loopback address.
    V6,
    /// A Unix socket.
    Unix,
}

/// Environment of one driver: sockets for it, and their other ends.
pub trait DriverRig: Sized {
    /// The driver under test.
    type Driver: Driver<Socket: Debug, Accepted: Debug>;
    /// The other end of a stream or pipe.
    type Peer: Peer;
    /// A listener on the other side.
    type PeerListener;
    /// A datagram socket on the other side.
    type DatagramPeer: DatagramPeer;

    /// Creates an independent environment.
    fn new() -> Self;
    /// Creates the driver; called once.
    fn driver(&mut self) -> Self::Driver;
    /// The clock that the driver's waits refer to.
    fn now(&self) -> Time;
    /// False when a test has taken so long that it must hang.
    fn is_within_limit(&self) -> bool;

    /// A listening socket for the driver, and its destination. Its connections have modest send buffers, so that a peer
    /// that does not read soon blocks a send.
    fn listener(&mut self, address_kind: AddressKind) -> (Socket<Self>, Destination);
    /// Connects to a listener of the driver; the connection need not be accepted yet.
    fn dial(&mut self, to: &Destination) -> Self::Peer;
    /// A listener on the other side, and its destination for the driver.
    fn peer_listener(&mut self, address_kind: AddressKind) -> (Self::PeerListener, Destination);
    /// Accepts a waiting connection of a listener on the other side.
    fn peer_accept(&mut self, listener: &mut Self::PeerListener) -> Option<Self::Peer>;
    /// A destination without a listener.
    fn unused_destination(&mut self, address_kind: AddressKind) -> Destination;
    /// A connected pair of Unix stream sockets.
    fn pair(&mut self) -> (Socket<Self>, Self::Peer);
    /// A pipe that the driver reads.
    fn pipe_to_driver(&mut self) -> (Socket<Self>, Self::Peer);
    /// A pipe that the driver writes.
    fn pipe_from_driver(&mut self) -> (Socket<Self>, Self::Peer);
    /// A bound datagram socket for the driver, and its address. Not for [`AddressKind::Unix`].
    fn datagram_socket(&mut self, address_kind: AddressKind) -> (Socket<Self>, SocketAddr);
    /// A datagram socket for the driver, bound to all IPv4 addresses including 127.0.0.0/8, and its port.
    fn datagram_socket_on_all(&mut self) -> (Socket<Self>, u16);
    /// A bound datagram socket on the other side. Not for [`AddressKind::Unix`].
    fn datagram_peer(&mut self, address_kind: AddressKind) -> Self::DatagramPeer;
}

/// Socket type of a rig's driver.
pub type Socket<R> = <<R as DriverRig>::Driver as Driver>::Socket;

/// Type of the connections that a rig's driver accepts.
pub type Accepted<R> = <<R as DriverRig>::Driver as Driver>::Accepted;

/// The other end of a stream or pipe; never blocks. Dropping it closes it.
pub trait Peer {
    /// Writes as many bytes as fit; `WouldBlock` if none do.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Reads available bytes; `WouldBlock` without any, 0 at the end.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;
    /// Ends its sending direction.
    fn shutdown(&mut self);
    /// Ends the connection with a reset. TCP only.
    fn reset(self);
    /// Address of the driver's side; TCP only.
    fn remote_addr(&self) -> Option<SocketAddr>;
}

/// A datagram socket on the other side; never blocks.
pub trait DatagramPeer {
    /// Local address.
    fn local_addr(&self) -> SocketAddr;
    /// Sends one datagram.
    fn send(&mut self, to: SocketAddr, payload: &[u8]);
    /// Receives the next datagram, if any.
    fn receive(&mut self) -> Option<(SocketAddr, Vec<u8>)>;
}

/// Defines a test for each contract test, for one [`DriverRig`].
#[macro_export]
macro_rules! contract_tests {
    ($rig:ty) => {
        $crate::define_contract_tests! { $rig:
            a_request_is_received_answered_and_closed,
            an_early_connection_is_served,
            a_burst_beyond_one_turns_accepts_is_accepted_whole,
            a_paused_listener_keeps_its_clients_waiting,
            accepting_twice_is_accepting_once,
            a_pause_taken_back_at_once_is_answered_and_accepting_goes_on,
            accepting_paused_at_once_is_answered,
            waiting_clients_can_be_accepted_at_once,
            the_oldest_waiting_client_can_be_refused,
            a_closed_listener_reports_it_once,
            a_unix_listener_accepts,
            a_request_split_at_every_byte_arrives_in_order,
            a_full_buffer_is_not_the_end_of_what_is_there,
            the_end_of_a_stream_comes_after_its_last_byte,
            a_half_closed_peer_is_still_answered,
            a_reset_fails_an_armed_receive,
            a_reset_wakes_an_armed_readable,
            a_reset_wakes_an_armed_writable,
            a_reset_while_nothing_is_armed_fails_the_next_receive,
            a_reset_after_the_end_shows_in_the_next_send,
            readable_takes_no_byte_and_completes_once,
            readable_waits_when_everything_was_read,
            data_expected_in_vain_is_waited_for,
            data_expected_in_vain_while_starved_is_waited_for,
            a_starved_receive_can_be_cancelled,
            a_starved_receive_that_is_asked_for_again_is_answered_once,
            a_failure_answers_everything_that_is_armed,
            a_cancelled_receive_leaves_the_bytes_alone,
            a_cancel_that_races_with_data_loses_nothing,
            a_cancel_without_anything_armed_is_silent,
            receives_without_a_buffer_wait_and_go_on,
            many_receives_share_few_buffers,
            a_peer_that_never_reads_stops_the_send,
            closing_with_the_send_waits_for_all_bytes,
            an_empty_send_with_close_closes,
            many_sources_in_one_turn,
            pieces_are_sent_in_their_order,
            pieces_that_stop_short_go_on_where_they_stopped,
            many_sends_in_pieces_in_one_turn,
            a_pipe_takes_pieces,
            shutdown_ends_our_direction_only,
            close_takes_back_a_receive,
            close_takes_back_a_readable,
            close_takes_back_a_writable,
            close_takes_back_a_connect,
            close_discards_pending_events,
            a_starved_receive_can_be_closed,
            a_shutdown_does_not_reach_the_next_tenant,
            a_close_without_another_turn_reaches_the_peer,
            a_reset_shows_without_a_receive_and_an_end_does_not,
            unread_bytes_show_without_being_taken,
            a_detached_socket_carries_on,
            detach_takes_back_what_is_armed,
            a_detach_that_races_with_data_loses_nothing,
            a_reset_while_detaching_is_reported_once,
            a_half_closed_connection_can_be_detached,
            a_starved_receive_can_be_detached,
            a_detached_socket_is_its_owners_alone,
            many_detach_in_one_turn,
            a_connect_succeeds_and_carries_bytes,
            a_connect_to_a_unix_socket_succeeds,
            a_connect_without_a_listener_fails,
            a_connect_comes_from_the_address_it_was_given,
            a_unix_pair_carries_bytes_both_ways,
            a_pipe_to_the_driver_ends_with_its_writer,
            a_pipe_from_the_driver_stops_and_goes_on,
            a_pipe_without_a_reader_is_an_error,
            datagrams_come_and_go_with_their_addresses,
            datagrams_over_ipv6_keep_their_addresses,
            a_long_datagram_is_cut_and_marked,
            an_empty_datagram_is_a_datagram,
            a_datagram_to_a_closed_port_does_not_stop_the_socket,
            datagrams_without_a_buffer_wait_in_the_socket,
            a_closed_datagram_socket_is_silent,
            a_datagram_can_leave_from_the_address_that_another_came_to,
            several_wakes_before_a_turn_are_one,
        }
    };
}

/// Defines a test for each contract test that only a driver on the real system supports.
#[macro_export]
macro_rules! system_contract_tests {
    ($driver:ty) => {
        $crate::define_contract_tests! { system $driver:
            a_wake_ends_a_wait_without_limit,
            no_wake_is_lost,
            a_timed_wait_is_never_early,
            what_is_no_listener_stops_with_its_error,
            refusing_without_a_waiting_client_does_not_block,
            a_socket_asked_for_ends_a_wait_without_limit,
            a_receive_at_once_delays_no_news,
            the_waitable_is_readable_when_there_is_work,
        }
    };
}

/// One test per name; used by [`contract_tests!`].
#[doc(hidden)]
#[macro_export]
macro_rules! define_contract_tests {
    (system $driver:ty: $($name:ident,)+) => {
        $(#[test] fn $name() { $crate::suite::system::$name::<$driver>(); })+
    };
    ($rig:ty: $($name:ident,)+) => {
        $(#[test] fn $name() { $crate::suite::contracts::$name::<$rig>(); })+
    };
}

/// Byte `at` of all bulk data in the suite: gaps, repetitions and swapped neighbours are detectable.
pub(crate) fn pattern(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}
