//! Tests of the codec; `properties` compares it with another implementation.

mod encoded;
mod options;
mod parsed;
mod properties;
mod values;

use super::{CoapFault, CoapMessage, Reaction};

/// Checks that a datagram is refused.
#[track_caller]
fn refused(datagram: &[u8], fault: CoapFault, offset: u16, reaction: Reaction) {
    let error = CoapMessage::parse(datagram).expect_err("a fault");
    assert_eq!((error.fault(), error.offset(), error.reaction()), (fault, offset, reaction));
    super::check::message(datagram);
}
