//! Checks with a counting allocator that a warm generator allocates nothing per request.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use stilling::http::Routes;
use stilling::{DriverChoice, ServeConfig, Server};
use stilling_bench::http::{self, HttpPlan, RunLength, Url};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct TrackingAllocator;

// SAFETY: every call is forwarded unchanged; the counter is plain data that needs no allocation.
unsafe impl GlobalAlloc for TrackingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees hold for the system's allocator, too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator;

/// Number of allocations of a whole run, including the server.
fn allocated(plan: &HttpPlan) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(http::run(plan).expect("a report").is_good());
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Row 4.6, for the generator: ten thousand more requests cost no more allocations than the random growth of a few
/// tables.
#[test]
fn more_requests_need_no_more_memory() {
    for driver in [DriverChoice::Uring, DriverChoice::Poll] {
        let config = ServeConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            shards: 1,
            driver,
            ..ServeConfig::default()
        };
        let server = Server::bind(config, Routes::new()).and_then(Server::start).expect("a server starts");
        let url = Url::parse(&format!("http://{}/test/fast", server.addresses()[0])).expect("a URL");
        let modes: [fn(&mut HttpPlan); 4] = [
            |_| {},
            |plan| plan.pipeline = 8,
            |plan| plan.keep_alive = false,
            |plan| plan.rate = Some(50_000.0),
        ];
        for (mode, change) in modes.into_iter().enumerate() {
            let mut plan = HttpPlan::new(url.clone());
            plan.driver = driver;
            change(&mut plan);
            plan.length = RunLength::Requests(1_000);
            let few = allocated(&plan);
            plan.length = RunLength::Requests(11_000);
            let many = allocated(&plan);
            assert!(few > 0 && many < few + 100, "mode {mode}, {driver:?}: {few} grew to {many}");
        }
        server.end().expect("the server ends well");
    }
}
