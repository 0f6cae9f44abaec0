//! The bodies that the variants of a request must have.

use super::limits::COAP_BODY_SIZE_MAX;

#[derive(Debug)]
pub(super) struct ExpectedBodies {
    bodies: Vec<Vec<u8>>,
    /// First requests record the bodies.
    is_recording: bool,
}

impl ExpectedBodies {
    pub(super) fn recording(variants: u32) -> ExpectedBodies {
        ExpectedBodies { bodies: vec![Vec::new(); variants as usize], is_recording: true }
    }

    pub(super) fn complete(mut self) -> ExpectedBodies {
        self.is_recording = false;
        self
    }

    pub(super) fn sizes(&self) -> (usize, usize) {
        let sizes = || self.bodies.iter().map(Vec::len);
        (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0))
    }

    /// Whether `payload` is the part of the variant's body at `offset`, and the body ends with it if `is_last`.
    pub(super) fn accept(&mut self, variant: u32, offset: usize, payload: &[u8], is_last: bool) -> bool {
        let body = &mut self.bodies[variant as usize];
        if self.is_recording {
            body.truncate(offset);
            body.extend_from_slice(payload);
            return body.len() <= COAP_BODY_SIZE_MAX;
        }
        let end = offset + payload.len();
        body.get(offset..end) == Some(payload) && is_last == (end == body.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_the_length_count() {
        let mut bodies = ExpectedBodies::recording(2);
        assert!(bodies.accept(0, 0, b"ab", false) && bodies.accept(0, 2, b"c", true));
        assert!(bodies.accept(1, 0, b"x", true));
        let mut bodies = bodies.complete();
        assert_eq!(bodies.sizes(), (1, 3));
        assert!(bodies.accept(0, 0, b"abc", true) && bodies.accept(0, 0, b"ab", false));
        assert!(!bodies.accept(0, 0, b"ab", true), "it is not the whole body");
        assert!(!bodies.accept(0, 0, b"abc", false) && !bodies.accept(0, 2, b"cd", true));
        assert!(!bodies.accept(1, 0, b"abc", true), "it is the body of another variant");
    }
}
