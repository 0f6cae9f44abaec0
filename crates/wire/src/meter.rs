//! Counts the bytes a decoder scans, to prove linear cost for input in single bytes. Production decoders use `()`,
//! which compiles to nothing.

/// Receives the numbers of scanned bytes.
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
