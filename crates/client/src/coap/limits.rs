//! Transmission parameters (RFC 7252 §4.8) and bounds of the CoAP client.

use std::time::Duration;

/// Least wait for an acknowledgement before the first retransmission (RFC 7252 §4.8). Each further wait is twice as long.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Percent of the timeout up to which the first wait is chosen at random (`ACK_RANDOM_FACTOR` 1.5, RFC 7252 §4.8).
pub const ACK_RANDOM_PERCENT: u32 = 150;

/// Retransmissions of a confirmable message (RFC 7252 §4.8). After the wait that follows the last one the request fails.
pub const MAX_RETRANSMIT: u32 = 4;

/// Time for which a message id identifies one message of a peer (RFC 7252 §4.8.2). Later: the id is that of a new message.
pub const EXCHANGE_LIFETIME: Duration = Duration::from_secs(247);

/// Ids of the server's messages that are remembered to recognise duplicates. More: the oldest is forgotten.
pub const RECENT_IDS_MAX: usize = 256;

/// Bytes of a message that the client sends. Longer: the request is refused as too long.
pub const REQUEST_MESSAGE_SIZE_MAX: usize = 4096;

/// Bytes of a datagram that the client receives; longer ones do not exist over UDP.
pub const RECEIVE_SIZE: usize = 65_536;

/// Default of the maximum bytes of a response body. Longer: the request fails.
pub const RESPONSE_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Default time for a request with all its blocks. Exceeded: the request fails.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Transfers of a response body that begin again because the `ETag` changed. More: the request fails.
pub const BODY_RESTARTS_MAX: u32 = 3;

/// Repetitions of a request with an `Echo` value of the server (RFC 9175 §2.3), and with smaller blocks after 4.13
/// (RFC 7959 §2.9.3). More: the response is returned.
pub const REPEATS_MAX: u32 = 3;

/// Freshness of a notification without `Max-Age` (RFC 7252 §5.10.5).
pub const MAX_AGE_DEFAULT: Duration = Duration::from_secs(60);

/// Time after the end of a notification's freshness until the client registers again (RFC 7641 §3.3.1). A random time
/// of up to twice this is added.
pub const REREGISTRATION_DELAY: Duration = Duration::from_secs(5);

/// Time after which a notification is newer whatever its sequence is (RFC 7641 §3.4).
pub const NOTIFICATION_AGE_MAX: Duration = Duration::from_secs(128);

/// Options of a request beside those of its blocks. More: the request is refused as too long.
pub const REQUEST_OPTIONS_MAX: usize = 256;

/// Groups of message ids that are freed together. All in use: the request fails, since ids would repeat.
pub const MESSAGE_ID_GROUPS: usize = 64;
