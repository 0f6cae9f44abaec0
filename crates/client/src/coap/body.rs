//! Bodies in blocks (RFC 7959): the request's cut into `Block1`, the response's assembled from `Block2`.

use stilling_wire::coap::{BlockSize, BlockValue, OptionNumber};

use super::error::CoapClientError;
use super::response::CoapResponse;

/// The part of the request body that the current message carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upload {
    offset: usize,
    size: BlockSize,
    length: usize,
}

impl Upload {
    pub(crate) fn new(length: usize, size: BlockSize) -> Upload {
        Upload { offset: 0, size, length }
    }

    /// The value of `Block1`; `None` if the body fits one message.
    pub(crate) fn block(&self) -> Result<Option<BlockValue>, CoapClientError> {
        if self.offset == 0 && self.is_last() {
            return Ok(None);
        }
        let block = BlockValue::at_offset(self.offset, !self.is_last(), self.size);
        block.map(Some).ok_or(CoapClientError::TooManyBlocks)
    }

    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.length.min(self.offset + self.size.bytes())
    }

    pub(crate) fn is_last(&self) -> bool {
        self.offset + self.size.bytes() >= self.length
    }

    /// Moves behind the block that the server acknowledged with this value, which may have a smaller size for the rest
    /// (RFC 7959 §2.9.1).
    pub(crate) fn advance(&mut self, acknowledged: BlockValue) -> Result<(), CoapClientError> {
        // The number counts in the sent size, also if the server's size is smaller.
        let expected = self.offset / self.size.bytes();
        if acknowledged.number() as usize != expected {
            let received = Some(acknowledged.number() as usize * self.size.bytes());
            return Err(CoapClientError::WrongBlock { expected: self.offset, received });
        }
        self.offset += self.size.bytes();
        self.size = self.size.min(acknowledged.size);
        Ok(())
    }

    /// Begins again with smaller blocks, after 4.13 with a `Block1` that names a size (RFC 7959 §2.9.3). Returns whether
    /// the size is smaller.
    pub(crate) fn shrink(&mut self, size: BlockSize) -> bool {
        let is_smaller = size < self.size;
        if is_smaller {
            (self.offset, self.size) = (0, size);
        }
        is_smaller
    }
}

/// What follows a block of the response.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Assembled {
    /// The body is complete.
    Complete,
    /// The block at this place is missing.
    Next(BlockValue),
    /// The block is of another representation: the transfer begins again.
    Changed,
}

/// The response body received so far.
#[derive(Debug)]
pub(crate) struct Assembly {
    size_max: usize,
    first: Option<CoapResponse>,
}

impl Assembly {
    pub(crate) fn new(size_max: usize) -> Assembly {
        Assembly { size_max, first: None }
    }

    pub(crate) fn received(&self) -> usize {
        self.first.as_ref().map_or(0, |response| response.payload.len())
    }

    pub(crate) fn clear(&mut self) {
        self.first = None;
    }

    /// Takes the complete response.
    pub(crate) fn take(&mut self) -> Option<CoapResponse> {
        self.first.take()
    }

    /// Adds a message. `size_max` bounds the size of the next block.
    pub(crate) fn append(
        &mut self,
        response: CoapResponse,
        payload: &[u8],
        block_size: BlockSize,
    ) -> Result<Assembled, CoapClientError> {
        let expected = self.received();
        let block = match response.option(OptionNumber::BLOCK2).map(BlockValue::decode) {
            Some(Ok(block)) => Some(block),
            Some(Err(_)) => return Err(CoapClientError::WrongBlock { expected, received: None }),
            None => None,
        };
        if let Some(first) = &self.first {
            // A code without a body, such as 4.04 or 5.03, ends the transfer and is the response.
            if response.code != first.code {
                self.first = None;
                return self.append_at(
                    response,
                    payload,
                    (0, block.filter(|block| block.offset() == 0)),
                    block_size,
                );
            }
            if response.option(OptionNumber::ETAG) != first.option(OptionNumber::ETAG) {
                return Ok(Assembled::Changed);
            }
            if block.is_none() {
                return Err(CoapClientError::WrongBlock { expected, received: None });
            }
        }
        self.append_at(response, payload, (expected, block), block_size)
    }

    fn append_at(
        &mut self,
        response: CoapResponse,
        payload: &[u8],
        (expected, block): (usize, Option<BlockValue>),
        block_size: BlockSize,
    ) -> Result<Assembled, CoapClientError> {
        if let Some(block) = block {
            if block.offset() != expected {
                return Err(CoapClientError::WrongBlock { expected, received: Some(block.offset()) });
            }
            let bytes = block.size.bytes();
            if (block.more && payload.len() != bytes) || payload.len() > bytes {
                return Err(CoapClientError::BlockLength { expected: bytes, received: payload.len() });
            }
        }
        if payload.len() > self.size_max.saturating_sub(expected) {
            return Err(CoapClientError::ResponseTooLarge { size_max: self.size_max });
        }
        let first = self.first.get_or_insert(response);
        first.payload.extend_from_slice(payload);
        let Some(block) = block.filter(|block| block.more) else { return Ok(Assembled::Complete) };
        let offset = first.payload.len();
        // A smaller size is used only where its number can name the offset: always, since sizes are powers of two.
        let next = BlockValue::at_offset(offset, false, block.size.min(block_size));
        next.map(Assembled::Next).ok_or(CoapClientError::ResponseTooLarge { size_max: self.size_max })
    }
}
