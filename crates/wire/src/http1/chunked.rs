//! The chunked coding (RFC 9112 §7.1). The framing is consumed byte by byte, so nothing is scanned twice or buffered;
//! data is returned in place.

use super::byte_class::is_value;
use super::error::{HttpDecodeError, HttpElement, HttpFault};
use super::fields::{self, FieldPhase};
use super::limits::{
    CHUNK_EXTENSIONS_SIZE_MAX, CHUNK_LINE_SIZE_MAX, CHUNK_SIZE_DIGITS_MAX, HEADERS_MAX, TRAILERS_SIZE_MAX,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPhase {
    Size,
    BeforeExtension,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers(FieldPhase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkedDecoder {
    /// Data bytes remaining in this chunk; while its line is read, its size so far.
    remaining: u64,
    /// Data bytes of all chunks with a complete chunk line.
    received: u64,
    /// Bytes read of this chunk line or of the trailer section.
    line: u16,
    fields: u16,
    extensions: u16,
    phase: ChunkPhase,
}

pub(crate) enum BodyPiece<'a> {
    More,
    Data(&'a [u8]),
    End,
}

impl ChunkedDecoder {
    pub(crate) const START: Self =
        Self { remaining: 0, received: 0, line: 0, fields: 0, extensions: 0, phase: ChunkPhase::Size };

    /// Reads framing up to the next data; returns the bytes consumed and the result.
    pub(crate) fn step<'a>(
        &mut self,
        body_size_max: u64,
        input: &'a [u8],
    ) -> Result<(usize, BodyPiece<'a>), HttpDecodeError> {
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            match self.phase {
                ChunkPhase::Data => {
                    let left = usize::try_from(self.remaining).unwrap_or(usize::MAX);
                    let data = &input[at..at.saturating_add(left).min(input.len())];
                    self.remaining -= data.len() as u64;
                    if self.remaining == 0 {
                        self.phase = ChunkPhase::DataCr;
                    }
                    return Ok((at + data.len(), BodyPiece::Data(data)));
                }
                ChunkPhase::DataCr | ChunkPhase::DataLf => {
                    let (wanted, next, offset) = match self.phase {
                        ChunkPhase::DataCr => (b'\r', ChunkPhase::DataLf, 0),
                        _ => (b'\n', ChunkPhase::Size, 1),
                    };
                    if byte != wanted {
                        return Err(HttpDecodeError::new(
                            HttpFault::ChunkEnd,
                            HttpElement::ChunkEnd,
                            offset,
                            Some(byte),
                        ));
                    }
                    (self.phase, self.remaining, self.line) = (next, 0, 0);
                    at += 1;
                }
                ChunkPhase::Trailers(_) => {
                    let (consumed, ended) = self.trailers(&input[at..])?;
                    return Ok((at + consumed, if ended { BodyPiece::End } else { BodyPiece::More }));
                }
                _ => {
                    self.parse_line_byte(byte, body_size_max)?;
                    at += 1;
                }
            }
        }
        Ok((at, BodyPiece::More))
    }

    /// Parses one byte of `chunk-size [ chunk-ext ] CRLF`. Blanks are allowed only before an extension's ';'.
    fn parse_line_byte(&mut self, byte: u8, body_size_max: u64) -> Result<(), HttpDecodeError> {
        let offset = usize::from(self.line);
        let reject = |fault| Err(HttpDecodeError::new(fault, HttpElement::ChunkLine, offset, Some(byte)));
        if self.line >= CHUNK_LINE_SIZE_MAX {
            return reject(HttpFault::ChunkLineSize);
        }
        self.line += 1;
        match self.phase {
            ChunkPhase::Size => {
                if let Some(digit) = hex_digit(byte) {
                    // RFC 9112 §7.1: recipients must prevent an integer overflow.
                    if self.line > CHUNK_SIZE_DIGITS_MAX {
                        return reject(HttpFault::ChunkSize);
                    }
                    self.remaining = self.remaining << 4 | u64::from(digit);
                    return Ok(());
                }
                if offset == 0 {
                    return reject(HttpFault::ChunkSize);
                }
                match self.received.checked_add(self.remaining) {
                    Some(total) if total <= body_size_max => self.received = total,
                    _ => {
                        return Err(HttpDecodeError::new(
                            HttpFault::BodySize,
                            HttpElement::ChunkLine,
                            offset,
                            None,
                        ));
                    }
                }
                self.phase = match byte {
                    b'\r' => ChunkPhase::SizeLf,
                    b';' => ChunkPhase::Extension,
                    b' ' | b'\t' => ChunkPhase::BeforeExtension,
                    _ => return reject(HttpFault::ChunkSize),
                };
            }
            ChunkPhase::BeforeExtension => match byte {
                b' ' | b'\t' => {}
                b';' => self.phase = ChunkPhase::Extension,
                _ => return reject(HttpFault::ChunkSize),
            },
            ChunkPhase::Extension => {
                // RFC 9112 §7.1.1: unknown extensions are ignored; their total size is bounded.
                if byte == b'\r' {
                    self.phase = ChunkPhase::SizeLf;
                } else if !is_value(byte) {
                    return reject(HttpFault::ChunkExtension);
                } else if self.extensions >= CHUNK_EXTENSIONS_SIZE_MAX {
                    return reject(HttpFault::ChunkLineSize);
                } else {
                    self.extensions += 1;
                }
            }
            _ => {
                if byte != b'\n' {
                    return reject(HttpFault::LineEnd);
                }
                self.line = 0;
                self.phase = if self.remaining == 0 {
                    ChunkPhase::Trailers(FieldPhase::Start)
                } else {
                    ChunkPhase::Data
                };
            }
        }
        Ok(())
    }

    /// RFC 9112 §7.1.2: trailers are checked like fields and dropped.
    fn trailers(&mut self, input: &[u8]) -> Result<(usize, bool), HttpDecodeError> {
        let ChunkPhase::Trailers(mut phase) = self.phase else { return Ok((0, false)) };
        let before = usize::from(self.line);
        let window = &input[..input.len().min(usize::from(TRAILERS_SIZE_MAX) - before)];
        let ended = fields::scan(&mut phase, &mut self.fields, HEADERS_MAX, window, 0, &mut ())
            .map_err(|error| error.rebased(HttpElement::Trailers, before))?;
        if let Some(end) = ended {
            return Ok((end, true));
        }
        let scanned = before + window.len();
        if scanned == usize::from(TRAILERS_SIZE_MAX) {
            return Err(HttpDecodeError::new(HttpFault::TrailersSize, HttpElement::Trailers, scanned, None));
        }
        self.line += window.len() as u16;
        self.phase = ChunkPhase::Trailers(phase);
        Ok((window.len(), false))
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}
