//! Messages to subscriptions.

use crate::payload::Payload;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutboundMessage<'a> {
    pub(crate) subject: &'a [u8],
    pub(crate) reply: &'a [u8],
    pub(crate) headers: &'a [u8],
    pub(crate) payload: Payload<'a>,
}
