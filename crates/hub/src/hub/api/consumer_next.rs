//! Pull requests, received as `CONSUMER.MSG.NEXT`.

use super::api_requests::{ApiError, NextRequest, bad_request, fields, object, unknown_field};
use super::unsupported;
use crate::hub::{Hub, ShardSenders};
use crate::publication_batch::ClientId;
use crate::pull::Pull;
use crate::storage::Storage;
use crate::time::SteadyNanos;

impl<S: Storage, O: ShardSenders> Hub<S, O> {
    pub(super) fn consumer_next(
        &mut self,
        client: ClientId,
        (stream, name): (&str, &str),
        reply: &[u8],
        payload: &[u8],
        now_ns: SteadyNanos,
    ) -> Result<(), ApiError> {
        let (_, number) = self.open_consumer(stream, name)?;
        if reply.is_empty() {
            // The error cannot be sent without a reply subject.
            return Err(bad_request("Bad Request"));
        }
        // The payload is empty, a number, or an object.
        let next = match payload {
            b"" => NextRequest::default(),
            digits if digits.iter().all(u8::is_ascii_digit) => {
                let batch = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
                NextRequest { batch, ..NextRequest::default() }
            }
            _ => {
                let api_request = object(payload).map_err(|_| bad_request("Bad Request"))?;
                if let Some(setting) = unknown_field(&api_request, &NextRequest::KNOWN) {
                    return Err(unsupported(setting));
                }
                fields(api_request).map_err(|_| bad_request("Bad Request"))?
            }
        };
        let pull = Pull {
            client,
            reply: reply.to_vec(),
            messages_left: next.batch.unwrap_or(1).max(1),
            bytes_left: Some(next.max_bytes).filter(|bytes| *bytes > 0),
            no_wait: next.no_wait && next.expires == 0,
            expires_ns: Some(next.expires).filter(|span| *span > 0).map(|span| now_ns.after(span)),
            heartbeat_ns: Some(next.idle_heartbeat).filter(|every| *every > 0),
            last_sent_ns: now_ns,
        };
        self.delivery().pull(number, pull, now_ns);
        Ok(())
    }
}
