//! Resources and their states.

use stilling_wire::coap::MessageType::{Confirmable, NonConfirmable};

use super::super::limits::{
    FILTER_READS_MAX, OBSERVED_STATE_SIZE_MAX, OBSERVED_STATES_SIZE_MAX, STATE_OWNERS_TRIED_MAX,
};
use super::*;

fn filter(number: usize) -> ObservableKey {
    ObservableKey::Filter(number.to_string().into_bytes().into())
}

fn path(address: u8) -> DatagramPath {
    DatagramPath { socket: 0, peer: ([127, 0, 0, address], 1).into(), local: None }
}

fn client(address: u8) -> ClientAddress {
    ClientAddress::of(&path(address))
}

/// Adds a resource whose filter has been read, for a client.
fn add(all: &mut Observations, number: usize, address: u8) -> ResourceId {
    let resource = all.resource(&filter(number), client(address)).expect("there is room");
    all.set_complete(resource);
    resource
}

fn registration(token: u8) -> Registration {
    Registration {
        path: path(1),
        token: Token::new(&[token]).expect("a short token"),
        request: token.into(),
        block2: None,
        format: None,
        cache_key: Box::default(),
    }
}

/// A state that is too long, or for which its client has no room, leaves the older one in place.
#[test]
fn states_are_bounded() {
    let mut all = Observations::new(HashKey(1, 2), Time::ZERO);
    let long = vec![1; OBSERVED_STATE_SIZE_MAX];
    let fitting = OBSERVED_STATES_SIZE_MAX / OBSERVED_STATE_SIZE_MAX / 2;
    for number in 0..fitting {
        let resource = add(&mut all, number, 1);
        assert!(!all.set_state(resource, &vec![1; OBSERVED_STATE_SIZE_MAX + 1]));
        assert!(all.set_state(resource, &long) && all.set_state(resource, &long), "{number}");
    }
    let last = add(&mut all, fitting, 1);
    assert!(!all.set_state(last, b"x"));
    assert_eq!(all.state(last), None);
    // Another client has room, and the first keeps what it has.
    let other = add(&mut all, fitting + 1, 2);
    assert!(all.set_state(other, &long));
    let first = add(&mut all, 0, 1);
    assert!(all.set_state(first, &long));
    // A released resource returns its room.
    while all.release().is_some() {}
    let next = add(&mut all, 0, 1);
    assert!(all.set_state(next, &long));
}

/// A filter that clients have in common counts for one that observes it and has room.
#[test]
fn a_state_counts_for_an_observer_that_has_room() {
    let mut all = Observations::new(HashKey(1, 2), Time::ZERO);
    let long = vec![1; OBSERVED_STATE_SIZE_MAX];
    let fitting = OBSERVED_STATES_SIZE_MAX / OBSERVED_STATE_SIZE_MAX / 2;
    let shared = add(&mut all, 0, 1);
    for number in 1..=fitting {
        let resource = add(&mut all, number, 1);
        assert!(all.set_state(resource, &long));
    }
    assert!(all.register(registration(1), shared, Time::ZERO).is_some());
    assert!(!all.set_state(shared, &long), "its client has no room");
    let second = Registration { path: path(2), ..registration(2) };
    assert!(all.register(second, shared, Time::ZERO).is_some());
    assert!(all.set_state(shared, &long));
    let owner = |all: &Observations| all.resources.get(shared).and_then(|resource| resource.owner);
    assert_eq!(owner(&all), Some(client(2)));
    // It counts for a client only as long as that observes it.
    all.deregister(&path(2), registration(2).token);
    assert_eq!(owner(&all), Some(client(1)));
}

/// A state tries a few clients, each once, however many observers there are.
#[test]
fn a_state_tries_few_clients() {
    let mut all = Observations::new(HashKey(1, 2), Time::ZERO);
    let shared = add(&mut all, 0, 1);
    let full = STATE_OWNERS_TRIED_MAX as u8 + 1;
    let half = OBSERVED_STATE_SIZE_MAX / 2;
    let mut numbers = 1..;
    for address in 1..=full {
        // All but the last leave 64 KiB, and the last half of them.
        let size = if address == full { half } else { OBSERVED_STATE_SIZE_MAX };
        let added = numbers.by_ref().take_while(|number| {
            let resource = add(&mut all, *number, address);
            all.set_state(resource, &vec![1; size])
        });
        assert!(added.count() > 0, "{address}");
        for token in 0..2 {
            let observer = Registration { path: path(address), ..registration(token) };
            assert!(all.register(observer, shared, Time::ZERO).is_some());
        }
    }
    let last = Registration { path: path(full + 1), ..registration(0) };
    assert!(all.register(last, shared, Time::ZERO).is_some());
    let state = vec![1; half];
    assert!(!all.set_state(shared, &state), "the client with room is beyond those that are tried");
    (0..2).for_each(|token| all.deregister(&path(full), registration(token).token));
    assert!(all.set_state(shared, &state));
}

/// A client with many filters leaves room for others.
#[test]
fn a_client_has_a_share_of_the_resources() {
    let mut all = Observations::new(HashKey(1, 2), Time::ZERO);
    let added = OBSERVED_RESOURCES_MAX / 2;
    for number in 0..added {
        add(&mut all, number, 1);
    }
    assert!(all.resource(&filter(added), client(1)).is_none());
    assert!(all.resource(&filter(added), client(2)).is_some());
}

/// A client that reads many filters leaves room for reads of others, until a read is complete or nothing waits for it.
#[test]
fn a_client_has_a_share_of_the_reads() {
    let mut all = Observations::new(HashKey(1, 2), Time::ZERO);
    let read = |all: &mut Observations, number| all.resource(&filter(number), client(1));
    let reads: Vec<_> = (0..).map_while(|number| read(&mut all, number)).collect();
    assert_eq!(reads.len(), FILTER_READS_MAX / 2);
    assert!(all.resource(&filter(1000), client(2)).is_some());
    assert_eq!(read(&mut all, 1001), None);
    assert_eq!(read(&mut all, 1), Some(reads[1]), "one that others read as well");
    all.set_complete(reads[0]);
    all.set_complete(reads[1]);
    assert!(read(&mut all, 1001).is_some());
    while all.release().is_some() {}
    let again = (0..).take_while(|number| read(&mut all, *number).is_some());
    assert_eq!(again.count(), FILTER_READS_MAX / 2);
}

/// A resource stays while something needs it, and its slot gets another generation.
#[test]
fn a_resource_ends_with_its_last_observer() {
    let mut all = Observations::new(HashKey(1, 2), Time::ZERO);
    let resource = add(&mut all, 1, 1);
    assert!(all.register(registration(1), resource, Time::ZERO).is_some());
    assert!(all.register(registration(2), resource, Time::ZERO).is_some());
    assert_eq!(all.release(), None);
    all.deregister(&registration(1).path, registration(1).token);
    assert_eq!((all.release(), all.len()), (None, 1));
    all.deregister(&registration(2).path, registration(2).token);
    assert_eq!(all.release(), Some((resource, filter(1))));
    let next = add(&mut all, 2, 1);
    assert!(next != resource && all.key(resource).is_none());
    assert!(all.set_state(resource, b"late"), "a state of the released one is ignored");
    assert_eq!(all.state(next), None);
}

/// A state for an observer that is being notified is sent after the acknowledgement.
#[test]
fn a_state_during_a_notification_follows_it() {
    let mut all = Observations::new(HashKey(1, 2), Time::ZERO);
    let resource = add(&mut all, 1, 1);
    all.register(registration(1), resource, Time::ZERO);
    assert_eq!(all.next_due(Time::ZERO), None, "the response has the state");
    all.set_state(resource, b"1");
    let slot = all.next_due(Time::ZERO).expect("it is due");
    assert!(all.is_confirmable_due(slot, Time::ZERO));
    all.notified(slot, Confirmable, 7, Time::ZERO);
    all.set_state(resource, b"2");
    assert_eq!(all.next_due(Time::ZERO), None);
    let path = registration(1).path;
    assert_eq!(all.outdated(&path, 7), Some(slot));
    all.acknowledged(&path, 7, Time::ZERO);
    assert_eq!(all.next_due(Time::ZERO), Some(slot));
    assert!(!all.is_confirmable_due(slot, Time::ZERO));
    all.notified(slot, NonConfirmable, 8, Time::ZERO);
    assert_eq!((all.outdated(&path, 8), all.rejected(&path, 7)), (None, false), "an older message");
    assert!(all.rejected(&path, 8));
}
