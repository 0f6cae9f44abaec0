//! Masking of payloads (RFC 6455 §5.3), eight bytes per step.

/// A masking key, rotated to the first byte it applies to. Masking twice with one key is the identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    key: [u8; 4],
}

impl Mask {
    /// The key of unmasked frames, which changes nothing.
    pub const NONE: Self = Self { key: [0; 4] };

    /// Creates the mask of a frame's key. A client takes the key from a strong source of entropy (RFC 6455 §5.3).
    #[must_use]
    pub const fn new(key: [u8; 4]) -> Self {
        Self { key }
    }

    /// Returns the mask of the bytes behind the first `count`.
    #[inline]
    #[must_use]
    pub const fn after(self, count: usize) -> Self {
        let shift = (count % 4) as u32 * 8;
        Self { key: u32::from_le_bytes(self.key).rotate_right(shift).to_le_bytes() }
    }

    /// Masks or unmasks `bytes` in place.
    #[inline]
    pub fn apply(self, bytes: &mut [u8]) {
        if self == Self::NONE {
            return;
        }
        let [a, b, c, d] = self.key;
        let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        let (chunks, rest) = bytes.as_chunks_mut::<8>();
        for chunk in chunks {
            *chunk = (u64::from_ne_bytes(*chunk) ^ word).to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(self.key.iter().cycle()) {
            *byte ^= key;
        }
    }
}

/// Payload as received: masked bytes of the input, and their mask. The caller unmasks while it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedPayload<'a> {
    bytes: &'a [u8],
    mask: Mask,
}

impl<'a> MaskedPayload<'a> {
    pub(crate) fn new(bytes: &'a [u8], mask: Mask) -> Self {
        Self { bytes, mask }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the payload behind the first `count` bytes.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[must_use]
    pub fn after(&self, count: usize) -> Self {
        Self { bytes: &self.bytes[count..], mask: self.mask.after(count) }
    }

    /// Returns the bytes as received: a slice of the decoder's input.
    #[must_use]
    pub fn masked_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the mask of the bytes, for callers that own the input and unmask it in place.
    #[must_use]
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// Returns the payload itself if it is not masked, as all that a server sends.
    #[must_use]
    pub fn unmasked(&self) -> Option<&'a [u8]> {
        (self.mask == Mask::NONE).then_some(self.bytes)
    }

    /// Appends the unmasked bytes to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.bytes);
        self.mask.apply(&mut out[start..]);
    }

    /// Returns the unmasked bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        self.mask.apply(&mut bytes);
        bytes
    }

    /// Calls `visit` with each unmasked part in order, until it fails. Parts are at most `UNMASKED_PART_SIZE` bytes.
    #[inline]
    pub(crate) fn try_for_each_part<E>(
        &self,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(bytes) = self.unmasked() {
            return visit(0, bytes);
        }
        let mut part = [0; UNMASKED_PART_SIZE];
        for (number, masked) in self.bytes.chunks(UNMASKED_PART_SIZE).enumerate() {
            let part = &mut part[..masked.len()];
            part.copy_from_slice(masked);
            // The size of a part is a multiple of the key's.
            self.mask.apply(part);
            visit(number * UNMASKED_PART_SIZE, part)?;
        }
        Ok(())
    }
}

/// Bytes that are unmasked at a time for validation, on the stack.
const UNMASKED_PART_SIZE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    fn naive(key: [u8; 4], bytes: &[u8]) -> Vec<u8> {
        bytes.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect()
    }

    #[test]
    fn every_length_and_every_split_is_masked_as_byte_by_byte() {
        let bytes: Vec<u8> = (0..=255).cycle().take(600).collect();
        for length in 0..40 {
            let mut masked = bytes[..length].to_vec();
            Mask::new(KEY).apply(&mut masked);
            assert_eq!(masked, naive(KEY, &bytes[..length]));
            for cut in 0..=length {
                let mut parts = bytes[..length].to_vec();
                Mask::new(KEY).apply(&mut parts[..cut]);
                Mask::new(KEY).after(cut).apply(&mut parts[cut..]);
                assert_eq!(parts, masked, "cut at {cut} of {length}");
            }
        }
        let payload = MaskedPayload::new(&bytes, Mask::new(KEY));
        let mut visited = Vec::new();
        let visit = |at: usize, part: &[u8]| {
            assert_eq!(at, visited.len());
            visited.extend_from_slice(part);
            Ok::<(), ()>(())
        };
        assert_eq!(payload.try_for_each_part(visit), Ok(()));
        assert_eq!((visited, payload.to_vec()), (naive(KEY, &bytes), naive(KEY, &bytes)));
        assert_eq!((payload.unmasked(), payload.len()), (None, 600));
        for cut in 0..9 {
            assert_eq!(payload.after(cut).to_vec(), naive(KEY, &bytes)[cut..]);
        }
        assert_eq!(MaskedPayload::new(&bytes, Mask::NONE).unmasked(), Some(&bytes[..]));
    }
}
