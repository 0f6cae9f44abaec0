//! Hop-by-hop fields (RFC 9110 §7.6.1), which are not forwarded: a fixed list, and the fields named in `Connection`.

use stilling_wire::http1::Fields;

use super::limits::CONNECTION_OPTIONS_MAX;

/// Fields that describe a connection or frame a message, of a request or a response. The server writes its own.
const HOP_BY_HOP: [&[u8]; 9] = [
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

/// The hop-by-hop fields of one message.
pub(super) struct HopByHopFields<'a> {
    /// The names in `Connection` besides `close` and `keep-alive`.
    connection_options: [&'a [u8]; CONNECTION_OPTIONS_MAX],
    count: usize,
}

impl<'a> HopByHopFields<'a> {
    /// Collects the first [`CONNECTION_OPTIONS_MAX`] names of `Connection`; see [`has_too_many_connection_options`].
    pub(super) fn of(fields: Fields<'a>) -> Self {
        let mut hop_by_hop = HopByHopFields { connection_options: [b""; CONNECTION_OPTIONS_MAX], count: 0 };
        for (slot, name) in hop_by_hop.connection_options.iter_mut().zip(connection_options(fields)) {
            *slot = name;
            hop_by_hop.count += 1;
        }
        hop_by_hop
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        let known = |known: &&[u8]| known.len() == name.len() && name.eq_ignore_ascii_case(known);
        HOP_BY_HOP.iter().any(known) || self.connection_options[..self.count].iter().any(known)
    }
}

/// Whether `Connection` names more than [`CONNECTION_OPTIONS_MAX`] fields. Such a message is rejected: comparing all
/// its fields with all these names could take milliseconds.
pub(crate) fn has_too_many_connection_options(fields: Fields<'_>) -> bool {
    connection_options(fields).nth(CONNECTION_OPTIONS_MAX).is_some()
}

/// The names in all `Connection` fields, except `close` and `keep-alive`.
fn connection_options(fields: Fields<'_>) -> impl Iterator<Item = &[u8]> {
    fields
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|option| {
            !option.is_empty()
                && !option.eq_ignore_ascii_case(b"close")
                && !option.eq_ignore_ascii_case(b"keep-alive")
        })
}

#[cfg(test)]
mod tests {
    use stilling_wire::http1::{HttpLimits, RequestDecoder, RequestEvent};

    use super::*;

    fn with_fields<T>(count: usize, judge: impl Fn(Fields<'_>) -> T) -> T {
        let names: Vec<_> = (0..count).map(|number| format!("x-{number}")).collect();
        // Two fields, and empty list elements.
        let (first, second) = names.split_at(count / 2);
        let (first, second) = (first.join(", ,"), second.join(","));
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close,,{first}\r\nconnection: {second}\r\n\r\n"
        );
        let step = RequestDecoder::default().decode(&HttpLimits::default(), request.as_bytes());
        let Ok(RequestEvent::Head(head)) = step.map(|step| step.event) else { panic!("{request:?}") };
        judge(head.headers())
    }

    /// Row 1.3: a field is compared with a bounded number of names, whatever `Connection` lists.
    #[test]
    fn connection_options_are_limited() {
        let count_of = |fields: Fields<'_>| HopByHopFields::of(fields).count;
        for count in [0, 1, CONNECTION_OPTIONS_MAX, CONNECTION_OPTIONS_MAX + 1, 2000] {
            assert_eq!(
                with_fields(count, has_too_many_connection_options),
                count > CONNECTION_OPTIONS_MAX,
                "{count}"
            );
            assert_eq!(with_fields(count, count_of), count.min(CONNECTION_OPTIONS_MAX));
        }
        let last = format!("X-{}", CONNECTION_OPTIONS_MAX - 1);
        let has_last = |fields: Fields<'_>| HopByHopFields::of(fields).contains(last.as_bytes());
        assert!(with_fields(CONNECTION_OPTIONS_MAX, has_last));
        assert!(!with_fields(CONNECTION_OPTIONS_MAX - 1, has_last));
        assert!(with_fields(0, |fields| HopByHopFields::of(fields).contains(b"Keep-Alive")));
    }
}
