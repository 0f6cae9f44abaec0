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
mod immediate;
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
    pub use super::immediate::*;
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
    fn listener(&mut self, address_kind: AddressKind) -> (RigSocket<Self>, Destination);
    /// Connects to a listener of the driver; the connection need not be accepted yet.
    fn dial(&mut self, to: &Destination) -> Self::Peer;
    /// A listener on the other side, and its destination for the driver.
    fn peer_listener(&mut self, address_kind: AddressKind) -> (Self::PeerListener, Destination);
    /// Accepts a waiting connection of a listener on the other side.
    fn peer_accept(&mut self, listener: &mut Self::PeerListener) -> Option<Self::Peer>;
    /// A destination without a listener.
    fn unused_destination(&mut self, address_kind: AddressKind) -> Destination;
    /// A connected pair of Unix stream sockets.
    fn pair(&mut self) -> (RigSocket<Self>, Self::Peer);
    /// A pipe that the driver reads.
    fn pipe_to_driver(&mut self) -> (RigSocket<Self>, Self::Peer);
    /// A pipe that the driver writes.
    fn pipe_from_driver(&mut self) -> (RigSocket<Self>, Self::Peer);
    /// A bound datagram socket for the driver, and its address. Not for [`AddressKind::Unix`].
    fn datagram_socket(&mut self, address_kind: AddressKind) -> (RigSocket<Self>, SocketAddr);
    /// A datagram socket for the driver, bound to all IPv4 addresses including 127.0.0.0/8, and its port.
    fn datagram_socket_on_all(&mut self) -> (RigSocket<Self>, u16);
    /// A bound datagram socket on the other side. Not for [`AddressKind::Unix`].
    fn datagram_peer(&mut self, address_kind: AddressKind) -> Self::DatagramPeer;
}

/// Socket type of a rig's driver.
pub type RigSocket<R> = <<R as DriverRig>::Driver as Driver>::Socket;

/// Type of the connections that a rig's driver accepts.
pub type RigAccepted<R> = <<R as DriverRig>::Driver as Driver>::Accepted;

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
            a_revoked_pause_completes_and_accepting_continues,
            an_accept_paused_at_once_completes,
            waiting_clients_can_be_accepted_at_once,
            the_oldest_waiting_client_can_be_refused,
            a_closed_listener_reports_it_once,
            a_unix_listener_accepts,
            a_request_split_at_every_byte_arrives_in_order,
            input_longer_than_a_buffer_arrives_whole,
            the_end_of_a_stream_comes_after_its_last_byte,
            a_half_closed_peer_is_still_answered,
            a_reset_fails_an_armed_receive,
            a_reset_wakes_an_armed_readable,
            a_reset_wakes_an_armed_writable,
            a_reset_while_nothing_is_armed_fails_the_next_receive,
            a_reset_after_the_end_fails_the_next_send,
            readable_consumes_no_byte_and_completes_once,
            readable_waits_when_everything_was_read,
            a_receive_waits_if_expected_data_is_missing,
            a_starved_receive_waits_if_expected_data_is_missing,
            a_starved_receive_can_be_cancelled,
            a_starved_receive_armed_again_completes_once,
            a_failure_completes_all_armed_operations,
            a_cancelled_receive_leaves_the_bytes_alone,
            a_cancel_that_races_with_data_loses_nothing,
            a_cancel_without_anything_armed_is_silent,
            receives_without_a_buffer_wait_and_continue,
            many_receives_share_few_buffers,
            an_immediate_send_keeps_the_order,
            immediate_sends_stop_and_continue_when_writable,
            an_immediate_send_to_a_reset_peer_fails,
            both_waits_complete_independently,
            a_check_for_input_consumes_nothing,
            a_peer_that_never_reads_stops_the_send,
            a_peer_that_has_ended_and_never_reads_stops_the_send,
            closing_with_the_send_waits_for_all_bytes,
            an_empty_send_with_close_closes,
            many_sources_in_one_turn,
            pieces_are_sent_in_their_order,
            a_short_send_in_pieces_continues_where_it_stopped,
            many_sends_in_pieces_in_one_turn,
            a_pipe_accepts_pieces,
            shutdown_ends_our_direction_only,
            close_cancels_a_receive,
            close_cancels_a_readable,
            close_cancels_a_writable,
            close_cancels_a_connect,
            close_discards_pending_events,
            a_starved_receive_can_be_closed,
            a_shutdown_does_not_reach_the_next_source_of_its_slot,
            a_close_without_another_turn_reaches_the_peer,
            a_reset_is_visible_without_a_receive_and_an_end_is_not,
            unread_bytes_are_visible_without_a_receive,
            a_detached_socket_still_works,
            detach_cancels_armed_operations,
            a_detach_that_races_with_data_loses_nothing,
            a_reset_while_detaching_is_reported_once,
            a_half_closed_connection_can_be_detached,
            a_starved_receive_can_be_detached,
            a_detached_socket_has_one_owner,
            many_detach_in_one_turn,
            a_connect_succeeds_and_carries_bytes,
            a_connect_to_a_unix_socket_succeeds,
            a_connect_without_a_listener_fails,
            a_connect_comes_from_the_address_it_was_given,
            a_unix_pair_carries_bytes_both_ways,
            a_pipe_to_the_driver_ends_with_its_writer,
            a_full_pipe_from_the_driver_blocks_and_continues,
            a_pipe_without_a_reader_is_an_error,
            datagrams_over_ipv4_keep_their_addresses,
            datagrams_over_ipv6_keep_their_addresses,
            a_long_datagram_is_cut_and_marked,
            an_empty_datagram_is_a_datagram,
            a_datagram_to_a_closed_port_does_not_stop_the_socket,
            datagrams_without_a_buffer_wait_in_the_socket,
            a_closed_datagram_socket_is_silent,
            a_datagram_can_be_sent_from_the_address_of_a_received_one,
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
            accepting_on_a_non_listener_stops_with_its_error,
            refusing_without_a_waiting_client_does_not_block,
            a_detach_ends_a_wait_without_limit,
            an_immediate_receive_delays_no_event,
            an_immediate_send_delays_no_event,
            immediate_datagrams_leave_the_others_readable,
            a_lent_descriptor_is_the_socket_of_its_source,
            a_close_without_another_turn_stops_a_listener,
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
