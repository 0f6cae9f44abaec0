//! A setting of the system's memory allocator, for the whole process.
#![allow(unsafe_code)]

/// Has the allocator join freed blocks with their neighbours at once, whatever their size. To be called before the process
/// starts its threads; returns false, and changes nothing, if it has several, or if the allocator is not that of glibc.
///
/// By default the allocator of glibc keeps freed blocks of up to 128 bytes apart in lists ("fastbins") and joins all of them
/// when a block of 1 KiB or more is asked for next, under the lock of the arena. After ten clients with 10,000 subscriptions each
/// had left, one such call took up to 12 ms in the thread of the hub. Blocks that are used again soon stay in the
/// thread's own cache, which this does not change.
///
/// Source: mallopt(3), `M_MXFAST`.
pub fn join_freed_blocks_at_once() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1) {
        // SAFETY: mallopt takes two integers. It must not be called while another thread allocates; there is none.
        return unsafe { libc::mallopt(libc::M_MXFAST, 0) } == 1;
    }
    false
}
