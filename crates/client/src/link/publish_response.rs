//! Classification of a server's answer to a message: stored, retry later, or refused.

use std::time::Duration;

use stilling_wire::nats::{DISK_FULL, DISK_HUNG, Headers, PubAckResponse};

use crate::connection_error::quote;
use crate::limits::RETRY_AFTER_MAX;
use crate::outcome::DropReason;

/// Header with the seconds until a retry.
const RETRY_AFTER: &str = "Retry-After";

/// Error number of a stream that cannot store: frozen after a disk error, or full.
const STORE_FAILED: u32 = 10077;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PublishResponse {
    /// A stream has stored the message.
    Stored { stream: String, sequence: u64, duplicate: bool },
    /// Retry later, not before the server's hint if there is one.
    RetryLater(Option<Duration>),
    /// No stream stores the subject, or the stream cannot store; perhaps temporarily.
    StreamUnavailable(DropReason),
    /// The disk of the message's stream hangs: the stream accepts the message when the disk responds, however late.
    DiskHung(DropReason),
    /// The message is refused permanently.
    Refused(DropReason),
}

pub(super) fn parse_response(headers: &[u8], payload: &[u8]) -> PublishResponse {
    let headers = Headers::parse(headers).ok();
    let retry_after = headers.and_then(|headers| retry_after(headers.find(RETRY_AFTER)?));
    match headers.and_then(|headers| headers.status()).map(|status| status.code) {
        Some(503) if payload.is_empty() && retry_after.is_none() => {
            return PublishResponse::StreamUnavailable(DropReason::NoStream);
        }
        Some(429 | 503) => return PublishResponse::RetryLater(retry_after),
        _ => {}
    }
    match PubAckResponse::parse(payload) {
        Ok(PubAckResponse::Stored(ack)) => PublishResponse::Stored {
            stream: ack.stream.into_owned(),
            sequence: ack.sequence,
            duplicate: ack.duplicate,
        },
        Ok(PubAckResponse::Rejected(refusal)) => {
            let (code, error_code) = (refusal.code, refusal.error_code);
            let is_hung = [DISK_HUNG, DISK_FULL].contains(&&*refusal.description);
            let reason = DropReason::Refused {
                stream: refusal.stream.into_owned(),
                code,
                error_code,
                description: quote(refusal.description.as_bytes()),
            };
            match code {
                500.. if error_code == STORE_FAILED && retry_after.is_none() => {
                    PublishResponse::StreamUnavailable(reason)
                }
                500.. if is_hung && retry_after.is_none() => PublishResponse::DiskHung(reason),
                429 | 500.. => PublishResponse::RetryLater(retry_after),
                _ => PublishResponse::Refused(reason),
            }
        }
        Err(_) => PublishResponse::Refused(DropReason::NoAcknowledgement(quote(payload))),
    }
}

/// Seconds, possibly with a fraction. A date is no hint, because the two clocks may differ.
fn retry_after(text: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds: f64 = text.parse().ok().filter(|_| is_plain)?;
    Some(
        Duration::try_from_secs_f64(seconds)
            .map_or(RETRY_AFTER_MAX, |retry_after| retry_after.min(RETRY_AFTER_MAX)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_responses_are_parsed() {
        let check = |headers: &str, payload: &str, expected: PublishResponse| {
            assert_eq!(
                parse_response(headers.as_bytes(), payload.as_bytes()),
                expected,
                "{headers}{payload}"
            );
        };
        let stored = |duplicate| PublishResponse::Stored { stream: "s".to_owned(), sequence: 7, duplicate };
        let later = |ms| PublishResponse::RetryLater(Some(Duration::from_millis(ms)));
        check("", "{\"stream\":\"s\",\"seq\":7}", stored(false));
        check("NATS/1.0\r\nA: b\r\n\r\n", "{\"stream\":\"s\",\"seq\":7,\"duplicate\":true}", stored(true));
        check("NATS/1.0 503\r\n\r\n", "", PublishResponse::StreamUnavailable(DropReason::NoStream));
        check("NATS/1.0 503\r\nRetry-After: 2\r\n\r\n", "", later(2000));
        check("NATS/1.0 429 Too Many\r\nRetry-After: 0.25\r\n\r\n", "", later(250));
        check("NATS/1.0 429\r\n\r\n", "", PublishResponse::RetryLater(None));
        check("NATS/1.0 503\r\nRetry-After: 1e9\r\n\r\n", "x", PublishResponse::RetryLater(None));
        check(
            "NATS/1.0 503\r\nRetry-After: 99999999999999999999999\r\n\r\n",
            "",
            PublishResponse::RetryLater(Some(RETRY_AFTER_MAX)),
        );
        check("NATS/1.0 503\r\nRetry-After: -1\r\n\r\n", "x", PublishResponse::RetryLater(None));
        let overload = "{\"error\":{\"code\":503,\"err_code\":10023,\"description\":\"busy\"}}";
        check("", overload, PublishResponse::RetryLater(None));
        check("NATS/1.0\r\nRetry-After: 1\r\n\r\n", overload, later(1000));
        check("", "{\"error\":{\"code\":429}}", PublishResponse::RetryLater(None));
        let frozen =
            "{\"error\":{\"code\":503,\"err_code\":10077,\"description\":\"frozen\"},\"stream\":\"s\"}";
        let reason = DropReason::Refused {
            stream: "s".to_owned(),
            code: 503,
            error_code: 10077,
            description: "frozen".to_owned(),
        };
        check("", frozen, PublishResponse::StreamUnavailable(reason));
        check("NATS/1.0\r\nRetry-After: 1\r\n\r\n", frozen, later(1000));
        let hung = format!(
            "{{\"error\":{{\"code\":503,\"err_code\":10023,\"description\":\"{DISK_HUNG}\"}},\"stream\":\"s\"}}"
        );
        let reason = DropReason::Refused {
            stream: "s".to_owned(),
            code: 503,
            error_code: 10023,
            description: DISK_HUNG.to_owned(),
        };
        check("", &hung, PublishResponse::DiskHung(reason));
        check("NATS/1.0\r\nRetry-After: 1\r\n\r\n", &hung, later(1000));
        let refused = PublishResponse::Refused(DropReason::Refused {
            stream: "s".to_owned(),
            code: 400,
            error_code: 10071,
            description: "wrong last sequence".to_owned(),
        });
        let text = "{\"error\":{\"code\":400,\"err_code\":10071,\"description\":\"wrong last sequence\"},\"stream\":\"s\",\"seq\":0}";
        check("", text, refused);
        let other = |detail: &str| PublishResponse::Refused(DropReason::NoAcknowledgement(detail.to_owned()));
        check("", "thank you", other("thank you"));
        check("", "{\"stream\":\"s\",\"seq\":0}", other("{\"stream\":\"s\",\"seq\":0}"));
        check("", "", other(""));
        check("NATS/1.0 404\r\n\r\n", "", other(""));
    }

    #[test]
    fn evidence_is_cut_to_what_can_be_read() {
        let PublishResponse::Refused(DropReason::NoAcknowledgement(detail)) =
            parse_response(b"", &[b'\n'; 10_000])
        else {
            panic!("it is no acknowledgement")
        };
        assert_eq!(detail.len(), crate::limits::QUOTED_TEXT_SIZE_MAX);
        assert!(detail.chars().all(|letter| letter == ' '));
    }
}
