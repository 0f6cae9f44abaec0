//! Address ranges that may use syslog and CoAP, which have no authentication.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// All addresses with the same prefix, such as 10.0.0.0/8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRange {
    first: IpAddr,
    prefix: u8,
}

impl SourceRange {
    /// 127.0.0.0/8 and ::1.
    #[must_use]
    pub fn loopback() -> Vec<Self> {
        let v4 = SourceRange { first: IpAddr::from([127, 0, 0, 0]), prefix: 8 };
        let v6 = SourceRange { first: IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16]), prefix: 128 };
        vec![v4, v6]
    }

    /// Whether an address is in the range. An IPv4-mapped address (::ffff:10.0.0.1) counts as its IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
            (first, address) => first_of(address, self.prefix) == first,
        }
    }

    /// Whether it holds all addresses of its family.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }

    /// Whether it holds only loopback addresses.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.first.is_loopback() && self.prefix >= if self.first.is_ipv4() { 8 } else { 128 }
    }
}

/// The address with all bits after the prefix cleared.
fn first_of(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

/// Parses a range; an address without a prefix is a range of one.
impl FromStr for SourceRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an address range, such as 10.0.0.0/8, 192.0.2.7 or fd00::/8");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(|_| wrong())?;
        if prefix > bits {
            return Err(format!("`{text}` has a prefix of {prefix} bits, and its addresses have {bits}"));
        }
        // Addresses are compared in their canonical form, so an IPv4-mapped range is one of IPv4 addresses.
        let (address, prefix) = match address.to_canonical() {
            canonical if canonical.is_ipv4() && prefix >= 128 - 32 && address.is_ipv6() => {
                (canonical, prefix - 96)
            }
            _ => (address, prefix),
        };
        let first = first_of(address, prefix);
        if first != address {
            return Err(format!(
                "`{text}` has bits set after its prefix; write {first}/{prefix} for the range, or {address} for one address"
            ));
        }
        Ok(SourceRange { first, prefix })
    }
}

impl fmt::Display for SourceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_begins_with_its_bits() {
        for (range, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
            ("::ffff:10.0.0.0/104", "10.255.0.1", "11.0.0.0"),
            ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.6/31", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "ffff::1", "127.0.0.1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::1/128", "::1", "::2"),
        ] {
            let read: SourceRange = range.parse().expect(range);
            assert!(read.contains(inside.parse().expect(inside)), "{range} {inside}");
            assert!(!read.contains(outside.parse().expect(outside)), "{range} {outside}");
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        let loopback = SourceRange::loopback();
        assert_eq!(loopback.iter().map(ToString::to_string).collect::<Vec<_>>(), ["127.0.0.0/8", "::1/128"]);
        assert!(loopback.iter().all(SourceRange::is_loopback));
        assert!(!"127.0.0.0/7".parse::<SourceRange>().is_ok_and(|range| range.is_loopback()));
        assert!(!SourceRange { first: IpAddr::from([126, 0, 0, 0]), prefix: 7 }.is_loopback());
    }

    #[test]
    fn an_invalid_range_is_refused_with_an_example() {
        for (text, expected) in [
            ("", "`` is not an address range, such as 10.0.0.0/8"),
            ("localhost", "is not an address range"),
            ("10.0.0.0/x", "is not an address range"),
            ("10.0.0.0/", "is not an address range"),
            ("10.0.0.0/256", "is not an address range"),
            ("10.0.0.0/33", "has a prefix of 33 bits, and its addresses have 32"),
            ("::/129", "have 128"),
            ("10.1.2.3/8", "write 10.0.0.0/8 for the range, or 10.1.2.3 for one address"),
        ] {
            let refused = text.parse::<SourceRange>().expect_err(text);
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
