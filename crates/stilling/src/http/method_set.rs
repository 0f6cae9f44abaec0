//! A set of methods, as an `Allow` field lists them (RFC 9110 §10.2.1).

use stilling_wire::http1::Method;

/// The methods that the set can hold, in the order of the list.
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

/// Bytes of the longest list, with all methods.
const LIST_SIZE_MAX: usize = 64;

/// A set of methods. `GET` implies `HEAD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MethodSet(u8);

impl MethodSet {
    pub(super) const GET: MethodSet = MethodSet(0b11);
    pub(super) const POST: MethodSet = MethodSet(0b100);
    pub(super) const GET_AND_POST: MethodSet = MethodSet(0b111);

    pub(super) fn list(self) -> AllowField {
        let mut list = AllowField { bytes: [0; LIST_SIZE_MAX], len: 0 };
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

impl FromIterator<Method<'static>> for MethodSet {
    fn from_iter<T: IntoIterator<Item = Method<'static>>>(methods: T) -> Self {
        let mut set = MethodSet::default();
        for method in methods {
            if let Some(at) = LISTED.iter().position(|listed| *listed == method) {
                set.0 |= 1 << at;
            }
            if method == Method::Get {
                set.0 |= MethodSet::GET.0;
            }
        }
        set
    }
}

/// The value of an `Allow` field.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllowField {
    bytes: [u8; LIST_SIZE_MAX],
    len: usize,
}

impl AllowField {
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
        assert_eq!(MethodSet::POST.list().as_str(), "POST");
        assert_eq!(MethodSet::GET_AND_POST.list().as_str(), "GET, HEAD, POST");
        let all: MethodSet = LISTED.into_iter().collect();
        assert_eq!(all.list().as_str(), "GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");
        assert_eq!(MethodSet::from_iter([Method::Get]), MethodSet::GET);
        assert_eq!(MethodSet::from_iter([Method::Other(b"PURGE")]).list().as_str(), "");
    }
}
