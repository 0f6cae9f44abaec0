//! Which fields end at this hop (RFC 9110 §7.6.1): those that are known to, and those that `Connection` names.

use stilling_wire::http1::Fields;

/// The fields that speak about a connection or frame a message, of a request or an answer. Ours are written anew.
const OF_THE_HOP: [&[u8]; 9] = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"content-length",
    b"expect",
];

/// Judges the fields of one message.
pub(super) struct Hop<'a> {
    fields: Fields<'a>,
    /// `Connection` names more than `close` and `keep-alive`.
    nominates: bool,
}

impl<'a> Hop<'a> {
    pub(super) fn of(fields: Fields<'a>) -> Hop<'a> {
        let nominates = options(&fields).any(|option| {
            !option.is_empty()
                && !option.eq_ignore_ascii_case(b"close")
                && !option.eq_ignore_ascii_case(b"keep-alive")
        });
        Hop { fields, nominates }
    }

    /// Whether the field ends here.
    pub(super) fn ends(&self, name: &[u8]) -> bool {
        OF_THE_HOP.iter().any(|known| known.len() == name.len() && name.eq_ignore_ascii_case(known))
            || (self.nominates && options(&self.fields).any(|option| option.eq_ignore_ascii_case(name)))
    }
}

/// What all `Connection` fields list.
fn options<'a>(fields: &Fields<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    fields
        .clone()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}
