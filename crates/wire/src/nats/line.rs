//! Elements of lines in both directions: case-insensitive operation, arguments between blanks, numbers.

use super::error::{NatsDecodeError, NatsFault};
use super::limits::{DIGITS_MAX, NatsLimits};
use super::subject::is_control;
use crate::swar;

pub(crate) type Operations<O> = [(&'static [u8], O)];

pub(crate) const fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Returns the line without its line end. Like nats-server, accepts a bare LF, for operations typed by hand.
#[inline(always)]
pub(crate) fn strip_line_end(line: &[u8]) -> &[u8] {
    match line {
        [rest @ .., b'\r', b'\n'] | [rest @ .., b'\n'] => rest,
        _ => line,
    }
}

/// Offset of the first blank at or after `from`, or the length.
#[inline(always)]
fn word_end(line: &[u8], from: usize) -> usize {
    let mut at = from;
    loop {
        at = swar::find(line, at, |word| swar::below(word, b' ' + 1), |byte| byte <= b' ');
        if at == line.len() || is_blank(line[at]) {
            return at;
        }
        // Another control byte: the argument's check rejects it.
        at += 1;
    }
}

/// Finds the operation that `line`, line end included, begins with, and the length of its name. `None`: more of the
/// line is needed.
///
/// # Errors
/// At the first byte after which no operation is possible, so that a peer of another protocol is rejected at once and
/// at the same byte for every split of the input.
pub(crate) fn operation<O: Copy>(
    operations: &Operations<O>,
    line: &[u8],
) -> Result<Option<(O, usize)>, NatsDecodeError> {
    let mut common = 0;
    for (name, operation) in operations {
        let alike = name.iter().zip(line).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
        common = common.max(alike);
        if alike < name.len() {
            continue;
        }
        match line.get(alike) {
            None => return Ok(None),
            Some(&next) if is_blank(next) || next == b'\r' || next == b'\n' => {
                return Ok(Some((*operation, alike)));
            }
            // nats-server accepts an object without a blank before it.
            Some(b'{') if matches!(*name, b"CONNECT" | b"INFO") => return Ok(Some((*operation, alike))),
            Some(_) => {}
        }
    }
    match line.get(common) {
        None => Ok(None),
        Some(&found) => Err(NatsDecodeError::line(NatsFault::Operation, common, Some(found))),
    }
}

/// [`operation`] of a complete line: its LF is in no name, so the result is always known.
pub(crate) fn complete_operation<O: Copy>(
    operations: &Operations<O>,
    line: &[u8],
) -> Result<(O, usize), NatsDecodeError> {
    operation(operations, line)?.ok_or_else(|| NatsDecodeError::line(NatsFault::Operation, line.len(), None))
}

/// The arguments of a line without its end: their count, and the spans of the first `N`.
pub(crate) struct LineArguments<'a, const N: usize> {
    line: &'a [u8],
    spans: [(usize, usize); N],
    count: usize,
}

impl<'a, const N: usize> LineArguments<'a, N> {
    /// Splits the part after the operation's name into `at_least` to `at_most` arguments, otherwise an error.
    #[inline(always)]
    pub(crate) fn split(
        line: &'a [u8],
        name_end: usize,
        at_least: usize,
        at_most: usize,
    ) -> Result<Self, NatsDecodeError> {
        let (mut spans, mut count, mut at) = ([(0, 0); N], 0, name_end);
        loop {
            while at < line.len() && is_blank(line[at]) {
                at += 1;
            }
            if at == line.len() {
                break;
            }
            if count == at_most {
                return Err(NatsDecodeError::line(NatsFault::Arguments, at, Some(line[at])));
            }
            let start = at;
            at = word_end(line, at);
            spans[count] = (start, at);
            count += 1;
        }
        if count < at_least {
            return Err(NatsDecodeError::line(NatsFault::Arguments, line.len(), None));
        }
        Ok(Self { line, spans, count })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> &'a [u8] {
        let (start, end) = self.spans[index];
        &self.line[start..end]
    }

    pub(crate) fn start(&self, index: usize) -> usize {
        self.spans[index].0
    }

    #[inline(always)]
    pub(crate) fn number(&self, index: usize, fault: NatsFault) -> Result<u32, NatsDecodeError> {
        number(self.get(index)).map_err(|at| {
            NatsDecodeError::line(fault, self.start(index) + at, self.get(index).get(at).copied())
        })
    }

    /// Parses the sizes at the end of a message's line: the headers' size, if `HEADERS`, and the total size.
    #[inline(always)]
    pub(crate) fn sizes<const HEADERS: bool>(
        &self,
        limits: &NatsLimits,
    ) -> Result<(u32, u32), NatsDecodeError> {
        let last = self.count - 1;
        let size = self.number(last, NatsFault::PayloadDigits)?;
        let headers_size = if HEADERS { self.number(last - 1, NatsFault::HeaderDigits)? } else { 0 };
        if headers_size > size {
            return Err(NatsDecodeError::line(NatsFault::HeaderSize, self.start(last - 1), None));
        }
        if size > limits.payload_size_max {
            return Err(NatsDecodeError::line(NatsFault::PayloadSize, self.start(last), None));
        }
        Ok((headers_size, size))
    }

    /// Returns the argument, which must have no control bytes and at most `size_max` bytes.
    #[inline(always)]
    pub(crate) fn word(
        &self,
        index: usize,
        size_max: usize,
        fault: NatsFault,
    ) -> Result<&'a [u8], NatsDecodeError> {
        let word = self.get(index);
        if word.len() > size_max {
            return Err(NatsDecodeError::line(fault, self.start(index) + size_max, None));
        }
        match word.iter().position(|&byte| is_control(byte)) {
            Some(at) => Err(NatsDecodeError::line(fault, self.start(index) + at, Some(word[at]))),
            None => Ok(word),
        }
    }
}

/// Parses 1 to [`DIGITS_MAX`] digits; the error is the offset of the first byte that does not fit.
#[inline(always)]
fn number(digits: &[u8]) -> Result<u32, usize> {
    let mut value = 0;
    for (at, &digit) in digits.iter().enumerate() {
        if !digit.is_ascii_digit() || at == DIGITS_MAX {
            return Err(at);
        }
        value = value * 10 + u32::from(digit - b'0');
    }
    Ok(value)
}

/// Parses the number at `from` of `input` and returns its end; `None` if it has no or too many digits, or reaches the
/// end of the input.
#[inline(always)]
pub(crate) fn parse_number_at(input: &[u8], from: usize) -> Option<(u32, usize)> {
    let (mut value, mut at) = (0, from);
    loop {
        let digit = input.get(at)?.wrapping_sub(b'0');
        if digit > 9 {
            return (at > from).then_some((value, at));
        }
        if at - from == DIGITS_MAX {
            return None;
        }
        value = value * 10 + u32::from(digit);
        at += 1;
    }
}

/// Returns the rest of a line after the operation's name, without surrounding blanks.
pub(crate) fn rest(line: &[u8], name_end: usize) -> &[u8] {
    let mut rest = &line[name_end..];
    while let [first, inner @ ..] = rest
        && is_blank(*first)
    {
        rest = inner;
    }
    while let [inner @ .., last] = rest
        && is_blank(*last)
    {
        rest = inner;
    }
    rest
}

#[inline(always)]
pub(crate) fn no_arguments(line: &[u8], name_end: usize) -> Result<(), NatsDecodeError> {
    match line[name_end..].iter().position(|&byte| !is_blank(byte)) {
        None => Ok(()),
        Some(at) => {
            Err(NatsDecodeError::line(NatsFault::Arguments, name_end + at, Some(line[name_end + at])))
        }
    }
}
