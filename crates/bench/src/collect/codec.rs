//! Selects the codec of a client's protocol.

use super::nats::Nats;
use super::plan::Protocol;
use super::redis::Redis;
use super::shared::Run;
use super::speech::Speech;
use super::syslog::Syslog;

/// The codec of one client.
pub(super) fn of(run: &Run, client: u16) -> Box<dyn Speech> {
    match run.plan.protocol {
        Protocol::Nats => Box::new(Nats::new(run, client)),
        Protocol::Redis => Box::new(Redis::new(run, client)),
        Protocol::Syslog => Box::new(Syslog::new(run, client)),
    }
}
