//! Selects the codec of a client's protocol.

use super::client_codec::ClientCodec;
use super::collect_run::CollectRun;
use super::nats::Nats;
use super::plan::CollectProtocol;
use super::redis::Redis;
use super::syslog::Syslog;

pub(super) fn codec_for(run: &CollectRun, client: u16) -> Box<dyn ClientCodec> {
    match run.plan.protocol {
        CollectProtocol::Nats => Box::new(Nats::new(run, client)),
        CollectProtocol::Redis => Box::new(Redis::new(run, client)),
        CollectProtocol::Syslog => Box::new(Syslog::new(run, client)),
    }
}
