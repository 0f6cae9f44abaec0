//! A closure that moves through a queue without an allocation.
//!
//! A boxed closure would cost the shard an allocation per request. Instead the captures are stored inline, beside two
//! function pointers for the erased type:
//!
//! ```text
//!   0                                96        104       112
//!   │ captures, at most 96 bytes      │ call     │ discard │       aligned to 16
//! ```
//!
//! A closure that does not fit is rejected at compile time, at the line that makes it: put the large part into a `Box`
//! or an `Arc`.
//!
//! A job is constructed in its slot of the queue, without an allocation. A worker copies it (two cache lines)
//! out of the slot before it runs: a slow job in its slot would block the queue of its shard. `call` then moves the
//! captures to its own stack, as a `FnOnce` by value requires.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};

/// Largest size of a closure's captures, in bytes.
pub const CAPTURE_SIZE_MAX: usize = 96;

/// Strictest alignment of a closure's captures, in bytes.
pub const CAPTURE_ALIGN_MAX: usize = 16;

/// A `FnOnce(&mut A) -> R` that is `Send` and `'static`, with its type erased and its captures stored inline.
///
/// Dropping it without a call drops the captures. Captures above 96 bytes do not compile:
///
/// ```compile_fail
/// use stilling_ring::InlineFn;
/// let captured = [7_u8; 97];
/// let too_large = InlineFn::<(), u8>::new(move |_| captured[0]);
/// ```
///
/// 96 bytes do:
///
/// ```
/// use stilling_ring::InlineFn;
/// let captured = [7_u8; 96];
/// let fits = InlineFn::<(), u8>::new(move |_| captured[0]);
/// assert_eq!(fits.call(&mut ()), 7);
/// ```
///
/// Captures with an alignment above 16 bytes do not compile either:
///
/// ```compile_fail
/// use stilling_ring::InlineFn;
/// #[repr(align(32))]
/// struct Wide(u8);
/// let wide = Wide(1);
/// let too_aligned = InlineFn::<(), u8>::new(move |_| { let wide = wide; wide.0 });
/// ```
pub struct InlineFn<A, R> {
    captures: Captures,
    call: unsafe fn(*mut u8, &mut A) -> R,
    discard: unsafe fn(*mut u8),
}

#[repr(C, align(16))]
struct Captures([MaybeUninit<u8>; CAPTURE_SIZE_MAX]);

const _: () = assert!(align_of::<Captures>() == CAPTURE_ALIGN_MAX);

impl<A, R> InlineFn<A, R> {
    /// Stores `function`.
    #[inline(always)]
    #[must_use]
    pub fn new<F>(function: F) -> InlineFn<A, R>
    where
        F: FnOnce(&mut A) -> R + Send + 'static,
    {
        const {
            assert!(
                size_of::<F>() <= CAPTURE_SIZE_MAX,
                "the closure captures more than 96 bytes: put the large part into a Box or an Arc"
            );
            assert!(
                align_of::<F>() <= CAPTURE_ALIGN_MAX,
                "the closure captures something aligned to more than 16 bytes: put it into a Box or an Arc"
            );
        }
        let mut inline = InlineFn {
            captures: Captures([MaybeUninit::uninit(); CAPTURE_SIZE_MAX]),
            call: call::<F, A, R>,
            discard: discard::<F>,
        };
        // SAFETY: the assertions above ensure that an `F` fits into the area in size and alignment.
        unsafe { inline.captures.0.as_mut_ptr().cast::<F>().write(function) };
        inline
    }

    /// Runs the closure. If it panics, unwinding drops its captures.
    #[inline]
    pub fn call(self, argument: &mut A) -> R {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `captures` holds the closure that `call` was made for; `ManuallyDrop` makes this the only use.
        unsafe { (this.call)(this.captures.0.as_mut_ptr().cast(), argument) }
    }
}

impl<A, R> Drop for InlineFn<A, R> {
    fn drop(&mut self) {
        // SAFETY: `captures` holds the closure that `discard` was made for; `call` suppresses this drop.
        unsafe { (self.discard)(self.captures.0.as_mut_ptr().cast()) }
    }
}

impl<A, R> fmt::Debug for InlineFn<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InlineFn(..)")
    }
}

/// # Safety
/// `captures` points to an initialised `F`, which this call consumes.
unsafe fn call<F: FnOnce(&mut A) -> R, A, R>(captures: *mut u8, argument: &mut A) -> R {
    // SAFETY: guaranteed by the caller.
    let function = unsafe { captures.cast::<F>().read() };
    function(argument)
}

/// # Safety
/// `captures` points to an initialised `F`, which this call consumes.
unsafe fn discard<F>(captures: *mut u8) {
    // SAFETY: guaranteed by the caller.
    unsafe { captures.cast::<F>().drop_in_place() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;

    type Job = InlineFn<u64, u64>;

    /// Rows 4.10 and 4.11: a whole job, its queue entry included, is two cache lines.
    #[test]
    fn an_inline_closure_is_its_captures_and_two_pointers() {
        assert_eq!(size_of::<Job>(), CAPTURE_SIZE_MAX + 2 * size_of::<usize>());
        assert_eq!(align_of::<Job>(), CAPTURE_ALIGN_MAX);
    }

    fn check<F: FnOnce(&mut u64) -> u64 + Send + 'static>(function: F, expected: u64) {
        let mut argument = 1;
        assert_eq!(Job::new(function).call(&mut argument), expected);
        assert_eq!(argument, 2, "the closure works on the caller's argument");
    }

    /// Row 4.10: captures of every size up to the limit arrive unchanged.
    #[test]
    fn closures_of_every_size_see_their_captures() {
        let bump = |argument: &mut u64| *argument += 1;
        check(
            move |a| {
                bump(a);
                11
            },
            11,
        );
        let byte = 3_u8;
        check(
            move |a| {
                bump(a);
                u64::from(byte)
            },
            3,
        );
        let words: [u64; 12] = std::array::from_fn(|i| 1 << i);
        check(
            move |a| {
                bump(a);
                words.iter().sum()
            },
            4095,
        );
        let wide = [u128::from(u64::MAX); 6];
        check(
            move |a| {
                bump(a);
                (wide.iter().sum::<u128>() / 6) as u64
            },
            u64::MAX,
        );
    }

    #[test]
    fn captures_are_dropped_once_whether_called_dropped_or_panicking() {
        for way in ["call", "drop", "panic"] {
            let witness = Arc::new(());
            let job = Job::new({
                let witness = Arc::clone(&witness);
                move |_| {
                    if way == "panic" {
                        resume_unwind(Box::new(way));
                    }
                    Arc::strong_count(&witness) as u64
                }
            });
            assert_eq!(Arc::strong_count(&witness), 2, "{way}: held while stored");
            match way {
                "call" => assert_eq!(job.call(&mut 0), 2),
                "drop" => drop(job),
                _ => assert!(catch_unwind(AssertUnwindSafe(|| job.call(&mut 0))).is_err()),
            }
            assert_eq!(Arc::strong_count(&witness), 1, "{way}: released exactly once");
        }
    }

    #[test]
    fn a_job_may_run_on_another_thread() {
        let name = String::from("carried");
        let job = InlineFn::<(), usize>::new(move |()| name.len());
        assert_eq!(std::thread::spawn(move || job.call(&mut ())).join().unwrap(), 7);
    }
}
