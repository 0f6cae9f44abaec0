//! Freed blocks are joined at once. A program without the test harness: the setting is process-wide, and is refused
//! once there are threads.
#![allow(unsafe_code)]

use stilling_engine::driver::allocator::disable_fastbins;

/// Bytes of freed blocks in the allocator's separate lists.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn unmerged_bytes() -> usize {
    // SAFETY: mallinfo2 takes no argument and returns numbers.
    unsafe { libc::mallinfo2() }.fsmblks
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn unmerged_bytes() -> usize {
    0
}

/// The list of the blocks is short enough that freeing it joins nothing.
fn free_many() {
    drop((0..1000).map(|number: u64| Box::new([number; 8])).collect::<Vec<_>>());
}

fn main() {
    let is_glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
    let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || end_receiver.recv());
    assert!(!disable_fastbins(), "there are two threads");
    drop(end_sender);
    let _ = other.join().expect("it does not panic");
    let before = unmerged_bytes();
    free_many();
    assert!(!is_glibc || unmerged_bytes() > before, "no blocks are kept apart: the setting is not needed");
    // The system may list an ended thread for a moment.
    let is_joined = (0..10_000).any(|_| {
        std::thread::yield_now();
        disable_fastbins()
    });
    assert_eq!(is_joined, is_glibc);
    // Blocks freed by the other thread stay in the lists of its own arena.
    let rest = unmerged_bytes();
    assert!(!is_glibc || rest <= before, "{rest} bytes are kept apart, {before} before");
    for _ in 0..100 {
        free_many();
        assert_eq!(unmerged_bytes(), rest);
    }
}
