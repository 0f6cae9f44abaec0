//! On-demand connections: the owner of a shard in a foreign event loop waits for readiness, and receives and sends by
//! itself, on every driver of the system.
#![cfg(target_os = "linux")]

mod connects;
mod datagrams;
mod ends;
mod harness;
mod listeners;
mod moving;
mod waits;

use stilling_probe::allocations::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Defines a test of each name for every driver.
macro_rules! on_every_driver {
    ($($module:ident::$name:ident,)+) => {
        mod poll {
            use stilling_engine::driver::poll::Poll;
            $(#[test] fn $name() { crate::$module::$name::<Poll>(); })+
        }
        mod uring {
            use stilling_engine::driver::uring::Uring;
            $(#[test] fn $name() { crate::$module::$name::<Uring>(); })+
        }
        mod uring_direct {
            use stilling_simulation::suite::system::DirectUring;
            $(#[test] fn $name() { crate::$module::$name::<DirectUring>(); })+
        }
    };
}

on_every_driver! {
    waits::ten_thousand_exchanges_need_no_busy_loop,
    waits::readable_is_called_for_bytes_that_are_already_there,
    waits::readable_is_not_called_again_for_received_bytes,
    waits::unread_bytes_are_reported_again,
    waits::an_ignored_wait_causes_no_call,
    waits::an_ignored_wait_can_be_requested_again,
    waits::a_wait_after_an_outdated_event_is_for_new_bytes,
    waits::both_waits_are_independent,
    waits::partial_sends_continue_when_writable,
    waits::an_outdated_writable_is_not_reported,
    waits::a_closed_connection_is_refused,
    ends::the_peers_end_is_found_by_the_owner,
    ends::a_half_closed_connection_still_carries_bytes,
    ends::a_reset_while_idle_is_found_by_the_owner,
    ends::a_shared_descriptor_is_silent_after_the_close,
    ends::a_reset_is_readable,
    ends::a_reset_is_writable_if_only_that_is_awaited,
    ends::a_close_takes_one_turn,
    ends::a_close_with_armed_waits_takes_one_turn,
    ends::a_drain_closes_at_once,
    connects::a_connect_opens_an_on_demand_connection,
    connects::a_refused_connect_is_reported,
    connects::a_connect_without_a_slot_returns_the_session,
    connects::a_foreign_source_address_is_an_error,
    connects::a_source_port_is_reused,
    connects::an_unreachable_destination_is_an_error,
    connects::pending_connects_disturb_nothing,
    connects::a_reset_while_connecting_is_reported,
    datagrams::datagrams_are_whole_and_reported_until_received,
    datagrams::a_refused_datagram_is_reported_once,
    datagrams::a_datagram_socket_moves_to_another_shard,
    moving::a_connection_moves_to_another_shard_mid_stream,
    moving::unread_bytes_come_first,
    listeners::a_closed_listener_refuses_connections,
    listeners::connections_without_a_slot_are_closed_with_their_listener,
    listeners::a_number_is_reused_and_not_confused,
    listeners::a_detached_listener_loses_no_connection,
    listeners::ten_thousand_listeners_leave_nothing,
    listeners::addresses_and_descriptors_are_available,
}
