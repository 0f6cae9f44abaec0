//! Validity of JSON (RFC 8259), and JSON strings: without allocation, recursion or a tree.

use crate::swar;

/// Most levels of arrays and objects in a payload that counts as JSON: many parsers accept no more. Deeper: the payload
/// is text.
pub const JSON_DEPTH_MAX: u32 = 128;

/// Whether a text is one JSON value with at most [`JSON_DEPTH_MAX`] levels. As the grammar has it: unpaired surrogate
/// escapes, repeated names and numbers of any size are valid.
#[must_use]
pub fn is_json(text: &str) -> bool {
    let mut scanner = JsonScanner { bytes: text.as_bytes(), at: 0 };
    scanner.document().is_some()
}

struct JsonScanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The open arrays and objects: one bit per level, 1 for an object.
#[derive(Default)]
struct OpenLevels {
    depth: u32,
    objects: u128,
}

const _: () = assert!(JSON_DEPTH_MAX <= u128::BITS);

impl OpenLevels {
    fn open(&mut self, is_object: bool) -> Option<()> {
        self.depth = Some(self.depth + 1).filter(|&depth| depth <= JSON_DEPTH_MAX)?;
        self.objects = self.objects << 1 | u128::from(is_object);
        Some(())
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }
}

impl JsonScanner<'_> {
    fn document(&mut self) -> Option<()> {
        let mut levels = OpenLevels::default();
        loop {
            if !self.value(&mut levels)? {
                continue;
            }
            loop {
                self.skip_blanks();
                if levels.depth == 0 {
                    return (self.at == self.bytes.len()).then_some(());
                }
                match self.next()? {
                    b',' => break,
                    b'}' if levels.in_object() => levels.close(),
                    b']' if !levels.in_object() => levels.close(),
                    _ => return None,
                }
            }
            if levels.in_object() {
                self.name()?;
            }
        }
    }

    /// Scans a value, or the start of a non-empty array or object, up to its first value; tells whether it is complete.
    fn value(&mut self, levels: &mut OpenLevels) -> Option<bool> {
        self.skip_blanks();
        match self.next()? {
            b'"' => self.string()?,
            b'-' => {
                let first = self.next()?;
                self.number(first)?;
            }
            first @ b'0'..=b'9' => self.number(first)?,
            b't' => self.literal(b"rue")?,
            b'f' => self.literal(b"alse")?,
            b'n' => self.literal(b"ull")?,
            open @ (b'{' | b'[') => {
                let is_object = open == b'{';
                levels.open(is_object)?;
                self.skip_blanks();
                if self.peek() == Some(if is_object { b'}' } else { b']' }) {
                    self.at += 1;
                    levels.close();
                    return Some(true);
                }
                if is_object {
                    self.name()?;
                }
                return Some(false);
            }
            _ => return None,
        }
        Some(true)
    }

    /// Scans the name of a member and its colon.
    fn name(&mut self) -> Option<()> {
        self.skip_blanks();
        (self.next()? == b'"').then_some(())?;
        self.string()?;
        self.skip_blanks();
        (self.next()? == b':').then_some(())
    }

    /// Scans the rest of a string, its quotation mark included.
    #[inline]
    fn string(&mut self) -> Option<()> {
        loop {
            self.at = find_special(self.bytes, self.at);
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => match self.next()? {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                    b'u' => {
                        for _ in 0..4 {
                            self.next()?.is_ascii_hexdigit().then_some(())?;
                        }
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
    }

    /// Scans the rest of a number behind its first digit.
    fn number(&mut self, first: u8) -> Option<()> {
        match first {
            b'0' => {}
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        self.next()?.is_ascii_digit().then_some(())?;
        self.skip_digits();
        Some(())
    }

    fn skip_digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn literal(&mut self, rest: &[u8]) -> Option<()> {
        self.bytes[self.at..].starts_with(rest).then_some(())?;
        self.at += rest.len();
        Some(())
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }
}

/// Returns the offset at or after `from` of the first byte that a JSON string cannot contain as it is.
#[inline(always)]
fn find_special(bytes: &[u8], from: usize) -> usize {
    let is_special = |byte| byte < 0x20 || byte == b'"' || byte == b'\\';
    let marks = |word| swar::below(word, 0x20) | swar::equal(word, b'"') | swar::equal(word, b'\\');
    swar::find(bytes, from, marks, is_special)
}

/// Appends a text as a JSON string.
#[inline]
pub(crate) fn push_string(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    out.push(b'"');
    loop {
        let end = find_special(rest, 0);
        out.extend_from_slice(&rest[..end]);
        let Some(&byte) = rest.get(end) else { break };
        push_escape(out, byte);
        rest = &rest[end + 1..];
    }
    out.push(b'"');
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}
