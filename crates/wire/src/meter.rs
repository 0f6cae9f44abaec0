//! Counts the bytes that a decoder looks at, to prove that input in single bytes costs linear work. A server's decoder
//! runs with `()`, for which nothing of it is left.

/// Takes the numbers of bytes looked at.
pub(crate) trait Meter {
    fn add(&mut self, bytes: usize);
}

impl Meter for () {
    #[inline(always)]
    fn add(&mut self, _: usize) {}
}

#[cfg(any(test, feature = "check"))]
impl Meter for u64 {
    fn add(&mut self, bytes: usize) {
        *self += bytes as u64;
    }
}
