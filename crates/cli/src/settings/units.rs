//! Sizes, times and addresses with units: 64MiB, 10s. A bare number has the unit of the option.

use std::net::SocketAddr;
use std::ops::{Bound, RangeBounds};
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};

/// Suffixes of sizes, with their bytes.
const SIZES: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// Suffixes of times, with their seconds. Milliseconds come before seconds: both end with an s.
const TIMES: [(&str, f64); 5] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Parses an address to listen on. Names are not resolved, because their addresses may change.
pub(crate) fn address() -> impl TypedValueParser<Value = SocketAddr> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let wrong = "it must be an IP address and a port, such as 127.0.0.1:9000 or [::]:9000";
        text.parse::<SocketAddr>().map_err(|_| wrong)
    })
}

pub(crate) fn read_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a number of bytes, such as 65536, 64KiB, 1MiB or 10GiB");
    let (number, unit) = SIZES
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes)))
        .unwrap_or((text, 1));
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

/// Parses a time in seconds; the caller checks its range.
pub(crate) fn read_seconds(text: &str) -> Result<f64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let with_unit = |(unit, seconds): &(&str, f64)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Some(number * seconds)
    };
    let wrong = || format!("`{text}` is not a number of seconds, nor one with ms, s, m, h or d");
    TIMES.iter().find_map(with_unit).ok_or_else(wrong)
}

pub(crate) fn read_duration(text: &str) -> Result<Duration, String> {
    let seconds = read_seconds(text)?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is out of the range of times"))
}

/// Parses a size within bounds.
pub(crate) fn bytes(range: impl RangeBounds<u64>) -> impl TypedValueParser<Value = u64> {
    let (least, most) = bounds(&range);
    StringValueParser::new().try_map(move |text| {
        let bytes = read_bytes(&text)?;
        if (least..=most).contains(&bytes) {
            Ok(bytes)
        } else {
            Err(format!("{bytes} is not in the range {least} to {most}"))
        }
    })
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let least = match range.start_bound() {
        Bound::Included(least) => *least,
        Bound::Excluded(below) => below.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let most = match range.end_bound() {
        Bound::Included(most) => *most,
        Bound::Excluded(above) => above.saturating_sub(1),
        Bound::Unbounded => u64::MAX,
    };
    (least, most)
}

/// Formats a size as a whole number of the largest possible unit.
pub(crate) fn write_bytes(bytes: u64) -> String {
    let whole = SIZES[..4].iter().rev().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Formats a time as a whole number of the largest possible unit.
pub(crate) fn write_seconds(time: Duration) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let milliseconds = time.as_millis();
    let whole =
        units.into_iter().find(|(_, unit)| milliseconds >= *unit && milliseconds.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{time:?}"), |(name, unit)| format!("{}{name}", milliseconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("64KiB", 65_536),
            ("1 MiB", 1 << 20),
            ("10GiB", 10 << 30),
            ("1TiB", 1 << 40),
            ("1kB", 1_000),
            ("3MB", 3_000_000),
            ("7B", 7),
        ] {
            assert_eq!(read_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "+1",
            "1.5MiB",
            "1M",
            "1mib",
            "many",
            "99999999999999999999",
            "18446744073709551615KiB",
        ] {
            let refused = read_bytes(text).expect_err(text);
            assert!(refused.starts_with(&format!("`{text}` is not a number of bytes")), "{refused}");
        }
        for (bytes, text) in
            [(0, "0B"), (1000, "1000B"), (1024, "1KiB"), (1536, "1536B"), (10 << 30, "10GiB")]
        {
            assert_eq!(write_bytes(bytes), text);
            assert_eq!(read_bytes(text), Ok(bytes));
        }
        assert_eq!(bounds(&(1..=5)), (1, 5));
        assert_eq!(bounds(&(1..5)), (1, 4));
        assert_eq!(bounds(&..), (0, u64::MAX));
    }

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        for (text, milliseconds) in [
            ("1", 1000),
            ("0.5", 500),
            ("500ms", 500),
            ("10s", 10_000),
            ("1.5 m", 90_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(read_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["500ms", "90s", "5m", "2h", "7d", "1s"] {
            assert_eq!(read_duration(text).map(write_seconds), Ok(text.to_owned()));
        }
        assert_eq!(write_seconds(Duration::from_nanos(5)), "5ns");
        for text in ["", "s", "soon", "1y", "1m30s", "1S"] {
            let refused = read_duration(text).expect_err(text);
            assert!(refused.starts_with(&format!("`{text}` is not a number of seconds")), "{refused}");
        }
        for text in ["-1", "nan", "inf", "-3ms", "1e30d"] {
            let refused = read_duration(text).expect_err(text);
            assert!(refused.contains("is out of the range of times"), "{refused}");
        }
    }
}
