//! A set of methods, as an `Allow` field lists them (RFC 9110 §10.2.1).

use stilling_wire::http1::Method;

/// The methods that have a place in the set, in the order in which they are listed.
const LISTED: [Method<'static>; 8] = [
    Method::Get,
    Method::Head,
    Method::Post,
    Method::Put,
    Method::Delete,
    Method::Options,
    Method::Trace,
    Method::Patch,
];

/// The longest list, all methods.
const LIST_SIZE_MAX: usize = 64;

/// Some of the methods. Whoever answers `GET` answers `HEAD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Methods(u8);

impl Methods {
    pub(super) const GET: Methods = Methods(0b11);
    pub(super) const POST: Methods = Methods(0b100);
    pub(super) const GET_AND_POST: Methods = Methods(0b111);

    /// The list, without allocation.
    pub(super) fn list(self) -> List {
        let mut list = List { bytes: [0; LIST_SIZE_MAX], len: 0 };
        for (at, method) in LISTED.iter().enumerate() {
            if self.0 & 1 << at != 0 {
                if list.len > 0 {
                    list.push(b", ");
                }
                list.push(method.as_bytes());
            }
        }
        list
    }
}

impl FromIterator<Method<'static>> for Methods {
    fn from_iter<T: IntoIterator<Item = Method<'static>>>(methods: T) -> Self {
        let mut set = Methods::default();
        for method in methods {
            if let Some(at) = LISTED.iter().position(|listed| *listed == method) {
                set.0 |= 1 << at;
            }
            if method == Method::Get {
                set.0 |= Methods::GET.0;
            }
        }
        set
    }
}

/// A list as it is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    bytes: [u8; LIST_SIZE_MAX],
    len: usize,
}

impl List {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).expect("methods are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_methods_can_be_listed() {
        assert_eq!(Methods::POST.list().as_str(), "POST");
        assert_eq!(Methods::GET_AND_POST.list().as_str(), "GET, HEAD, POST");
        let all: Methods = LISTED.into_iter().collect();
        assert_eq!(all.list().as_str(), "GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");
        assert_eq!(Methods::from_iter([Method::Get]), Methods::GET);
        assert_eq!(Methods::from_iter([Method::Other(b"PURGE")]).list().as_str(), "");
    }
}
