//! Bodies that follow from an id and a size, so that any byte of another body, or of another place, shows.

use crate::SplitMix64;

/// Distinguishes the bodies of requests, answers and versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    Request,
    Answer,
    Version,
}

/// Bytes of a request's body at least: its id and the size of its answer.
pub(super) const REQUEST_SIZE_MIN: usize = 12;

/// The bytes of a body.
pub(super) fn content(kind: ContentKind, id: u64, size: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(SplitMix64::mix(id ^ ((kind as u64) << 62)));
    let mut body = Vec::with_capacity(size + 8);
    while body.len() < size {
        body.extend_from_slice(&random.bits().to_be_bytes());
    }
    body.truncate(size);
    body
}

/// A request's body of `size` bytes, at least [`REQUEST_SIZE_MIN`], that asks for `answer_size` bytes.
pub(super) fn request_body(id: u64, size: usize, answer_size: usize) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend_from_slice(&(answer_size as u32).to_be_bytes());
    body.extend(content(ContentKind::Request, id, size.saturating_sub(REQUEST_SIZE_MIN)));
    body
}

/// The id and the size of the answer that a request's body names; an error if any of its bytes is wrong.
pub(super) fn read_request_body(body: &[u8]) -> Result<(u64, usize), String> {
    let broken = || format!("a request body has wrong bytes: {}", body.escape_ascii());
    let (head, rest) = body.split_first_chunk::<8>().ok_or_else(broken)?;
    let (size, filler) = rest.split_first_chunk::<4>().ok_or_else(broken)?;
    let id = u64::from_be_bytes(*head);
    if content(ContentKind::Request, id, filler.len()) != filler {
        return Err(broken());
    }
    Ok((id, u32::from_be_bytes(*size) as usize))
}

/// The size of a version of the resource that changes: always several blocks of 64 bytes, and many sizes.
pub(super) fn version_size(version: u64) -> usize {
    200 + (SplitMix64::mix(version) % 1400) as usize
}
