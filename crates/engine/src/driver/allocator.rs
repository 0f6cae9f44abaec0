//! A setting of the system's memory allocator, for the whole process.
#![allow(unsafe_code)]

/// From now on the allocator joins freed blocks with their neighbours at once, whatever their size.
///
/// By default the allocator of glibc keeps freed blocks of up to 128 bytes apart in lists ("fastbins") and joins all of them
/// when a block of 1 KiB or more is asked for next, under the lock of the arena. After ten clients with 10,000 subscriptions each
/// had left, one such call took up to 12 ms in the thread of the hub. Blocks that are used again soon stay in the
/// thread's own cache, which this does not change. Does nothing where the allocator is another one.
///
/// Source: mallopt(3), `M_MXFAST`.
pub fn join_freed_blocks_at_once() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt takes two integers and locks what it changes; any thread may call it at any time.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Bytes of freed blocks that are kept apart.
    fn kept_apart() -> usize {
        // SAFETY: mallinfo2 takes nothing and returns numbers.
        unsafe { libc::mallinfo2() }.fsmblks
    }

    #[test]
    fn freed_blocks_are_not_kept_apart() {
        // The blocks' own list is short enough to join nothing when it is freed.
        let free_many = || drop((0..1000).map(|number: u64| Box::new([number; 8])).collect::<Vec<_>>());
        // Another test may ask for a large block between the two calls, which joins the blocks.
        let was_kept = (0..1000).any(|_| {
            free_many();
            kept_apart() > 0
        });
        assert!(was_kept, "the allocator never keeps blocks apart, and the setting is not needed");
        join_freed_blocks_at_once();
        // Joins what was kept before.
        drop(vec![0_u8; 100_000]);
        for _ in 0..1000 {
            free_many();
            assert_eq!(kept_apart(), 0);
        }
    }
}
