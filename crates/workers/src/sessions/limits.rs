//! Every bound of session state, with its unit and the effect of reaching it.

use std::time::Duration;

/// Sessions of a pool, by default. Reached: the session that the peer with the most has used least recently is evicted.
pub const SESSIONS_MAX: usize = 10_000;
/// The largest maximum of the sessions of a pool. More: rejected as an invalid setting.
pub const SESSIONS_MAX_LIMIT: usize = 1_000_000;
/// Bytes of all sessions of a pool, with [`SESSION_COST`] for each, per session of its maximum. Reached: as
/// [`SESSIONS_MAX`].
pub const SESSION_SIZE_MEAN_MAX: usize = 1536;
/// Bytes of the state of one session. More: rejected, and the session keeps its state.
pub const SESSION_STATE_SIZE_MAX: usize = 4 * 1024;
/// Bytes that a session costs in addition to its state: its entry and its part of four indexes.
pub const SESSION_COST: usize = 512;
/// Bytes of the name of a session that a client has chosen. More: the request is rejected.
pub const SESSION_NAME_SIZE_MAX: usize = 64;
/// Time without a request after which a session ends, by default.
pub const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The longest time without a request for which a session may be kept. More: rejected as an invalid setting.
pub const SESSION_IDLE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Sessions at most that one call removes because they were idle for too long. More: removed by later calls; such a
/// session is not found meanwhile.
pub const SESSIONS_EXPIRED_PER_CALL: usize = 8;
/// Updates of a shard that wait while another shard has the store. Reached: an update is lost and counted. Each access
/// of any shard makes all that wait.
pub const SESSION_UPDATES_MAX: usize = 256;
