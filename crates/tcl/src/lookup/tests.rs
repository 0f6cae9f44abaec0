//! The pool of look-ups, with names of this machine only.

use std::sync::atomic::AtomicUsize;

use super::*;

fn query(host: &str) -> Arc<HostQuery> {
    Arc::new(HostQuery { host: host.into(), port: 7, local_host: None, local_port: 0, family: Family::V4 })
}

fn keys(count: usize) -> Vec<SlabKey> {
    let mut slab = crate::slab::Slab::default();
    (0..count).map(|_| slab.insert(())).collect()
}

/// An inbox, and the number of its wakes.
fn inbox() -> (Arc<LookupInbox>, Arc<(Mutex<usize>, Condvar)>) {
    let wakes = Arc::new((Mutex::new(0), Condvar::new()));
    let counted = Arc::clone(&wakes);
    let wake = WakeHandle::new(move || {
        *lock(&counted.0) += 1;
        counted.1.notify_all();
    });
    (LookupInbox::new(wake), wakes)
}

fn wait_for(wakes: &(Mutex<usize>, Condvar), count: usize) {
    let mut seen = lock(&wakes.0);
    while *seen < count {
        let (guard, timeout) =
            wakes.1.wait_timeout(seen, Duration::from_secs(20)).unwrap_or_else(PoisonError::into_inner);
        seen = guard;
        assert!(!timeout.timed_out(), "{seen} of {count} look-ups have finished");
    }
}

#[test]
fn numeric_hosts_are_known() {
    for host in ["127.0.0.1", "::1", "127.1", "fe80::1"] {
        assert!(query(host).is_numeric(), "{host}");
    }
    for host in ["localhost", "example.com", "", "127.0.0.1.example.com"] {
        assert!(!query(host).is_numeric(), "{host}");
    }
    let by_name = HostQuery { local_host: Some("localhost".into()), ..(*query("127.0.0.1")).clone() };
    assert!(!by_name.is_numeric());
}

/// Row 3.33: every look-up that is not left has an outcome, however many there are, and threads are bounded.
#[test]
fn many_lookups_finish_on_few_threads() {
    static MOST_THREADS: AtomicUsize = AtomicUsize::new(0);
    let (inbox, wakes) = inbox();
    let keys = keys(2_000);
    let mut left = Vec::new();
    let lookups: Vec<Lookup> = keys
        .iter()
        .enumerate()
        .map(|(at, &key)| {
            // Equal queries share one look-up.
            let host = format!("localhost{}", if at % 2 == 0 { "" } else { "." });
            let lookup = Lookup::start(&query(&host), &inbox, key).expect("there is room");
            MOST_THREADS.fetch_max(LookupPool::get().threads, Ordering::Relaxed);
            lookup
        })
        .collect();
    wait_for(&wakes, keys.len());
    let mut outcomes = inbox.take();
    assert_eq!(outcomes.len(), keys.len());
    for (key, outcome) in outcomes.drain(..) {
        assert!(keys.contains(&key));
        left.push(outcome.map(|pairs| pairs[0].to.port()));
    }
    assert!(left.contains(&Ok(7)), "localhost has an address");
    assert!(MOST_THREADS.load(Ordering::Relaxed) <= LOOKUP_THREADS_MAX);
    drop(lookups);
    assert!(inbox.take().is_empty());
}

/// A look-up that is left has no recipient any more.
#[test]
fn a_left_lookup_has_no_recipient() {
    let (inbox, _) = inbox();
    let has_recipient = |key: SlabKey| {
        let pool = LookupPool::get();
        let mut recipients = pool.pending.values().flatten();
        recipients.any(|recipient| Arc::ptr_eq(&recipient.inbox, &inbox) && recipient.key == key)
    };
    for (at, &key) in keys(100).iter().enumerate() {
        let lookup = Lookup::start(&query(&format!("left{}.localhost", at % 7)), &inbox, key);
        drop(lookup.expect("there is room"));
        assert!(!has_recipient(key));
    }
}
