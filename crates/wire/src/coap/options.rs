//! The options of a message (RFC 7252 §3.1), in the order of their numbers.
//!
//! ```text
//!   delta:4 length:4 │ delta extended: 0 to 2 bytes │ length extended: 0 to 2 bytes │ value
//! ```

use super::error::CoapFault;
use super::option_number::OptionNumber;

/// Ends the options; a payload follows.
pub(crate) const PAYLOAD_MARKER: u8 = 0xff;
/// The nibble that means one byte more, and the least value that needs it.
pub(crate) const EXTENDED_8: u8 = 13;
/// The nibble that means two bytes more.
pub(crate) const EXTENDED_16: u8 = 14;
/// The least value that needs two bytes more.
pub(crate) const EXTENDED_16_MIN: usize = 269;

/// An option; the value is a slice of the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoapOption<'a> {
    /// The number.
    pub number: OptionNumber,
    /// The value.
    pub value: &'a [u8],
}

/// The checked options of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    rest: &'a [u8],
    last: u16,
}

impl<'a> Options<'a> {
    /// Checks the options that `bytes` begin with. Returns them and the payload; a fault with its offset.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), (CoapFault, usize)> {
        let (mut rest, mut last) = (bytes, 0);
        loop {
            let at = bytes.len() - rest.len();
            match rest {
                [] => return Ok((Self { rest: bytes, last: 0 }, &[])),
                [PAYLOAD_MARKER] => return Err((CoapFault::PayloadMissing, at)),
                [PAYLOAD_MARKER, ..] => return Ok((Self { rest: &bytes[..at], last: 0 }, &rest[1..])),
                _ => {}
            }
            let (option, behind) = step(rest, last).map_err(|fault| (fault, at))?;
            (rest, last) = (behind, option.number.0);
        }
    }

    /// Returns the options that a recipient processes: those that `is_supported` accepts, with a length in their range and
    /// not repeated against their definition. All others count as unknown (RFC 7252 §5.4.3, §5.4.5): a critical one is an
    /// error, an elective one is skipped.
    pub fn recognised<F: Fn(OptionNumber) -> bool>(self, is_supported: F) -> Recognised<'a, F> {
        Recognised { options: self, previous: None, is_supported }
    }

    /// Returns the values of all options with this number.
    pub fn values(self, number: OptionNumber) -> impl Iterator<Item = &'a [u8]> {
        self.skip_while(move |option| option.number < number)
            .take_while(move |option| option.number == number)
            .map(|option| option.value)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = CoapOption<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (option, rest) = step(self.rest, self.last).ok()?;
        (self.rest, self.last) = (rest, option.number.0);
        Some(option)
    }
}

/// An option that its recipient must not ignore and does not recognise. In a confirmable request it is answered with
/// 4.02; any other message that has it is rejected (RFC 7252 §5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnrecognisedOption(pub OptionNumber);

/// See [`Options::recognised`].
#[derive(Clone, Debug)]
pub struct Recognised<'a, F> {
    options: Options<'a>,
    previous: Option<OptionNumber>,
    is_supported: F,
}

impl<'a, F: Fn(OptionNumber) -> bool> Iterator for Recognised<'a, F> {
    type Item = Result<CoapOption<'a>, UnrecognisedOption>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let option = self.options.next()?;
            let is_repeated = self.previous.replace(option.number) == Some(option.number);
            let is_recognised = option.number.definition().is_some_and(|definition| {
                let size = option.value.len();
                (usize::from(definition.size_min)..=usize::from(definition.size_max)).contains(&size)
                    && (definition.is_repeatable || !is_repeated)
            });
            if is_recognised && (self.is_supported)(option.number) {
                return Some(Ok(option));
            }
            if option.number.is_critical() {
                return Some(Err(UnrecognisedOption(option.number)));
            }
        }
    }
}

/// Parses the option that `bytes`, which are not empty, begin with. Returns it and what follows.
#[inline]
fn step(bytes: &[u8], last: u16) -> Result<(CoapOption<'_>, &[u8]), CoapFault> {
    let (&first, rest) = bytes.split_first().ok_or(CoapFault::OptionEnd)?;
    let (delta, rest) = extended(first >> 4, rest)?;
    let (size, rest) = extended(first & 0x0f, rest)?;
    let number = u16::try_from(usize::from(last) + delta).map_err(|_| CoapFault::OptionNumber)?;
    let (value, rest) = rest.split_at_checked(size).ok_or(CoapFault::OptionEnd)?;
    Ok((CoapOption { number: OptionNumber(number), value }, rest))
}

/// Returns the value of a nibble and of the bytes that extend it, and what follows.
#[inline]
fn extended(nibble: u8, rest: &[u8]) -> Result<(usize, &[u8]), CoapFault> {
    match nibble {
        EXTENDED_8 => {
            let (&byte, rest) = rest.split_first().ok_or(CoapFault::OptionEnd)?;
            Ok((usize::from(byte) + usize::from(EXTENDED_8), rest))
        }
        EXTENDED_16 => {
            let (&bytes, rest) = rest.split_first_chunk::<2>().ok_or(CoapFault::OptionEnd)?;
            Ok((usize::from(u16::from_be_bytes(bytes)) + EXTENDED_16_MIN, rest))
        }
        nibble if nibble > EXTENDED_16 => Err(CoapFault::OptionNibble),
        nibble => Ok((usize::from(nibble), rest)),
    }
}
