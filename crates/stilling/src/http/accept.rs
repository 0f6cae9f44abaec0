//! The field `Accept` (RFC 9110 §12.5.1).

use stilling_wire::http1::RequestHead;

/// A weight in thousandths (RFC 9110 §12.4.2): 0 is not acceptable, 1000 is preferred.
pub(super) type Weight = u16;

/// How specific a media range is; the most specific range decides (RFC 9110 §12.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Specificity {
    All,
    Type,
    Subtype,
    /// `type/subtype` with parameters that the server knows.
    Parameters,
}

/// A media type that the server can send.
#[derive(Clone, Copy, Debug)]
pub(super) struct MediaType {
    pub(super) kind: &'static str,
    pub(super) subtype: &'static str,
    pub(super) version: &'static str,
}

/// The weight of a media type, and the precision of the range that decides it. `None`: no range matches, so the type
/// is not acceptable.
///
/// A range with a different `version` or `charset` does not match; its other parameters are ignored. Elements that
/// are no media ranges are ignored.
pub(super) fn weight(head: &RequestHead<'_>, media: &MediaType) -> Option<(Weight, Specificity)> {
    let fields = head.headers().filter(|(name, _)| name.eq_ignore_ascii_case(b"accept"));
    let ranges =
        fields.flat_map(|(_, value)| split(value, b',')).filter_map(|range| match_range(range, media));
    // Among equally specific ranges, the greatest weight decides.
    ranges.max_by_key(|&(weight, specificity)| (specificity, weight))
}

fn match_range(range: &[u8], media: &MediaType) -> Option<(Weight, Specificity)> {
    let mut parts = split(range, b';');
    let name = parts.next()?;
    let slash = name.iter().position(|&byte| byte == b'/')?;
    let (kind, subtype) = (&name[..slash], &name[slash + 1..]);
    let mut specificity = match (kind, subtype) {
        (b"*", b"*") => Specificity::All,
        (_, b"*") if kind.eq_ignore_ascii_case(media.kind.as_bytes()) => Specificity::Type,
        _ if kind.eq_ignore_ascii_case(media.kind.as_bytes())
            && subtype.eq_ignore_ascii_case(media.subtype.as_bytes()) =>
        {
            Specificity::Subtype
        }
        _ => return None,
    };
    let mut weight = WEIGHT_MAX;
    for part in parts {
        let Some(at) = part.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) = (part[..at].trim_ascii(), unquoted(part[at + 1..].trim_ascii()));
        let supported = match () {
            () if name.eq_ignore_ascii_case(b"q") => {
                weight = thousandths(value)?;
                continue;
            }
            () if name.eq_ignore_ascii_case(b"version") => media.version,
            () if name.eq_ignore_ascii_case(b"charset") => "utf-8",
            () => continue,
        };
        if !value.eq_ignore_ascii_case(supported.as_bytes()) {
            return None;
        }
        specificity = specificity.max(Specificity::Parameters);
    }
    Some((weight, specificity))
}

/// The greatest weight of a media range, in thousandths (RFC 9110, section 12.4.2).
const WEIGHT_MAX: Weight = 1000;

/// Parses a weight: 0 or 1, with up to three decimals.
fn thousandths(text: &[u8]) -> Option<Weight> {
    let (whole, digits) = text.split_first()?;
    let digits = match digits {
        [] => digits,
        [b'.', digits @ ..] => digits,
        _ => return None,
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let decimals = digits.iter().copied().chain(std::iter::repeat(b'0')).take(3);
    let part = decimals.fold(0, |sum, digit| sum * 10 + Weight::from(digit - b'0'));
    match (whole, part) {
        (b'0', part) => Some(part),
        (b'1', 0) => Some(WEIGHT_MAX),
        _ => None,
    }
}

/// A parameter's value without quotes. Escapes are not decoded: the compared values contain none.
fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

/// The parts between separators outside of quoted strings, trimmed.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut in_quotes, mut is_escaped) = (false, false);
    let parts = text.split(move |&byte| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_quotes => is_escaped = true,
            b'"' => in_quotes = !in_quotes,
            _ => return byte == separator && !in_quotes,
        }
        false
    });
    parts.map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};

    use super::*;

    const TEXT: MediaType = MediaType { kind: "text", subtype: "plain", version: "0.0.4" };

    fn parsed_weight(fields: &str) -> Option<(Weight, Specificity)> {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut decoder = RequestDecoder::default();
        match decoder.decode(&HttpLimits::default(), request.as_bytes()).expect("a head").event {
            RequestEvent::Head(head) => weight(&head, &TEXT),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_most_exact_range_gives_the_weight() {
        use Specificity::{All, Parameters, Subtype, Type};
        for (fields, expected) in [
            ("", None),
            ("Accept:\r\n", None),
            ("Accept: */*\r\n", Some((1000, All))),
            ("Accept: text/*;q=0.5, */*\r\n", Some((500, Type))),
            ("Accept: */*, text/plain; q=0\r\n", Some((0, Subtype))),
            ("Accept: TEXT/Plain ; Q=0.25\r\n", Some((250, Subtype))),
            ("Accept: text/plain;q=0.1, text/plain;version=0.0.4;q=0.9\r\n", Some((900, Parameters))),
            ("Accept: text/plain;version=\"0.0.4\"\r\n", Some((1000, Parameters))),
            ("Accept: text/plain;charset=UTF-8\r\n", Some((1000, Parameters))),
            ("Accept: text/plain;charset=latin1\r\n", None),
            ("Accept: text/plain;version=1.0.0, */*;q=0.2\r\n", Some((200, All))),
            ("Accept: text/plain;escaping=underscores;q=0.3\r\n", Some((300, Subtype))),
            ("Accept: text/html\r\nAccept: text/plain\r\n", Some((1000, Subtype))),
            ("Accept: text/plain;a=\"b,text/plain;q=0\";q=0.7\r\n", Some((700, Subtype))),
            ("Accept: text/plain;a=\"\\\",\";q=0.7\r\n", Some((700, Subtype))),
            ("Accept: ,,text, plain/text, /, */plain, ;q=1\r\n", None),
            (
                "Accept: text/plain;q, text/plain;q=, text/plain;q=2, text/plain;q=0.1234\r\n",
                Some((1000, Subtype)),
            ),
            ("Accept: text/plain;q=1.001, text/plain;q=1.000x\r\n", None),
            ("Accept: text/plain;q=1.000\r\n", Some((1000, Subtype))),
            ("Accept: text/plain;q=0.001\r\n", Some((1, Subtype))),
        ] {
            assert_eq!(parsed_weight(fields), expected, "{fields}");
        }
    }
}
