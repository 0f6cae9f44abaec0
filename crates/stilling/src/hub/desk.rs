//! What the sessions of one shard share for their dealings with the hub.

use std::sync::Arc;
use std::time::Duration;

use stilling_engine::counters::Counter;
use stilling_hub::UnixNanos;
use stilling_wire::nats::{Info, Limits};

use super::opened::House;
use super::port::Port;
use super::runner::Runner;
use crate::nats::Users;
use crate::syslog::{Rules, SyslogDesk};

/// One shard's desk.
pub(crate) struct HubDesk {
    pub(crate) port: Port,
    pub(crate) users: Arc<Users>,
    /// What the NATS listeners say of themselves.
    pub(crate) info: Info<'static>,
    pub(crate) limits: Limits,
    pub(crate) syslog: SyslogDesk,
    /// Bytes of long messages whose ends have not come.
    pub(crate) assembled: usize,
    /// Memory for short texts.
    pub(crate) scratch: Vec<u8>,
    pub(crate) counters: Arc<DeskCounters>,
    /// The hub itself, on the shard that runs it.
    pub(crate) runner: Option<Runner<House>>,
    pub(crate) shard: usize,
}

/// What one shard's sessions have seen.
#[derive(Debug, Default)]
pub struct DeskCounters {
    /// Subscribers that were cut off because they did not read.
    pub slow_consumers: Counter,
    /// Clients that were not let in.
    pub shut_out: Counter,
    /// Publications by HTTP that found no room on the way to the hub for too long.
    pub publications_shed: Counter,
    /// Publications by HTTP whose verdicts did not come in time.
    pub publications_unanswered: Counter,
}

impl HubDesk {
    pub(crate) fn new(
        port: Port,
        users: Arc<Users>,
        (info, counters): (Info<'static>, Arc<DeskCounters>),
        runner: Option<Runner<House>>,
        shard: usize,
    ) -> HubDesk {
        let payload_size_max = u32::try_from(info.max_payload).unwrap_or(u32::MAX);
        let limits = Limits { payload_size_max, ..Limits::default() };
        let syslog = SyslogDesk::new(Arc::default(), payload_size_max);
        HubDesk {
            port,
            users,
            info,
            limits,
            syslog,
            assembled: 0,
            scratch: Vec::new(),
            counters,
            runner,
            shard,
        }
    }

    /// Has syslog dealt with by these rules.
    pub(crate) fn with_syslog(self, rules: &Arc<Rules>) -> HubDesk {
        HubDesk { syslog: SyslogDesk::new(Arc::clone(rules), self.limits.payload_size_max), ..self }
    }

    /// Ends a turn of the shard. Returns for how long it may sleep.
    pub(crate) fn turn(&mut self, now_ns: impl FnOnce() -> UnixNanos) -> Option<Duration> {
        self.syslog.settle(&mut self.port);
        self.port.set_wanted(!self.syslog.is_settled());
        self.port.flush();
        let runner = self.runner.as_mut()?;
        runner.turn(now_ns());
        runner.looks_again_in()
    }

    /// Whether there is something for a connection of the shard, or for the hub.
    pub(crate) fn has_mail(&self) -> bool {
        self.port.has_mail() || self.runner.as_ref().is_some_and(|runner| !runner.is_quiet())
    }

    /// Whether the shard may end: it has nothing to tell the hub, and, if it runs the hub, nobody else has.
    pub(crate) fn is_done(&self) -> bool {
        self.syslog.is_settled()
            && self.port.is_settled()
            && self.runner.as_ref().is_none_or(|runner| runner.is_done_but_for(self.shard))
    }
}
