//! The length of a time at the start of a text. Times are returned as text: most have no year and no zone, so their
//! meaning depends on the sender.

/// The length of `2003-10-11T22:14:15.003Z` at the start of `text` (RFC 3339); the zone may be missing.
pub(crate) fn rfc3339(text: &[u8]) -> Option<usize> {
    let mut at = date(text)?;
    if !matches!(text.get(at), Some(b'T' | b't')) {
        return None;
    }
    at += 1;
    at += clock(&text[at..])?;
    Some(at + zone(&text[at..]))
}

/// The length of a BSD time at the start of `text`, in the variants in use: `Oct 11 22:14:15`, `Oct  1 22:14:15.003`,
/// `Oct 11 2003 22:14:15`, `2003 Oct 11 22:14:15 UTC` (the zone only before a colon).
pub(crate) fn bsd(text: &[u8]) -> Option<usize> {
    let mut at = year(text).unwrap_or(0);
    at += month(&text[at..])?;
    at += day(&text[at..])?;
    at += year(&text[at..]).unwrap_or(0);
    at += clock(&text[at..])?;
    // Routers append the zone and a colon.
    if let Some([b' ', rest @ ..]) = text.get(at..) {
        let letters = rest.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
        if (2..=5).contains(&letters) && rest.get(letters) == Some(&b':') {
            at += 1 + letters;
        }
    }
    Some(at)
}

/// `2003-10-11`.
fn date(text: &[u8]) -> Option<usize> {
    let [a, b, c, d, b'-', month_tens, month, b'-', day_tens, day, ..] = text else { return None };
    let is_year = [a, b, c, d].iter().all(|byte| byte.is_ascii_digit());
    let is_date = number(*month_tens, *month, 1, 12) && number(*day_tens, *day, 1, 31);
    (is_year && is_date).then_some(10)
}

/// `22:14:15` or `22:14:15.003`; accepts leap seconds.
fn clock(text: &[u8]) -> Option<usize> {
    let [hour_tens, hour, b':', minute_tens, minute, b':', second_tens, second, rest @ ..] = text else {
        return None;
    };
    let is_time = number(*hour_tens, *hour, 0, 23)
        && number(*minute_tens, *minute, 0, 59)
        && number(*second_tens, *second, 0, 60);
    if !is_time {
        return None;
    }
    let fraction = match rest {
        [b'.' | b',', digits @ ..] => digits.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        _ => 0,
    };
    // Nine digits are nanoseconds; a longer fraction is not part of the time.
    let fraction = if (1..=9).contains(&fraction) { fraction + 1 } else { 0 };
    Some(8 + fraction)
}

/// `Z`, `+01:00`, `-0100`, or nothing.
fn zone(text: &[u8]) -> usize {
    match text {
        [b'Z' | b'z', ..] => 1,
        [b'+' | b'-', a, b, b':', c, d, ..] if number(*a, *b, 0, 23) && number(*c, *d, 0, 59) => 6,
        [b'+' | b'-', a, b, c, d, ..] if number(*a, *b, 0, 23) && number(*c, *d, 0, 59) => 5,
        _ => 0,
    }
}

fn year(text: &[u8]) -> Option<usize> {
    let [b'1' | b'2', digits @ .., b' '] = text.get(..5)? else { return None };
    digits.iter().all(u8::is_ascii_digit).then_some(5)
}

fn month(text: &[u8]) -> Option<usize> {
    const MONTHS: [&[u8; 3]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let [name @ .., b' '] = text.get(..4)? else { return None };
    MONTHS.iter().any(|month| month.eq_ignore_ascii_case(name)).then_some(4)
}

/// A one- or two-digit day and the blank after it.
fn day(text: &[u8]) -> Option<usize> {
    match text {
        [b' ', b'1'..=b'9', b' ', ..] => Some(3),
        [tens, day, b' ', ..] if number(*tens, *day, 1, 31) => Some(3),
        [b'1'..=b'9', b' ', ..] => Some(2),
        _ => None,
    }
}

fn number(tens: u8, ones: u8, least: u8, most: u8) -> bool {
    tens.is_ascii_digit()
        && ones.is_ascii_digit()
        && (least..=most).contains(&((tens - b'0') * 10 + (ones - b'0')))
}
