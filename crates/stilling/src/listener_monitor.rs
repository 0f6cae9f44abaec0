//! Watches the TCP listeners of the server for SYN floods and full accept queues: log lines, and figures for `/status`
//! and `/metrics`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stilling_engine::listen_watch::{
    BacklogChange, ListenEvent, ListenWatch, ListenWatchCounters, ListenerCounters,
};
use stilling_engine::net::DEFAULT_BACKLOG;
use stilling_ring::{Clock, Time};

use crate::listeners::{ListenerProtocol, ListeningSocket};
use crate::syslog::SyslogTransport;

/// Log lines about backlogs within [`BACKLOG_LINES_INTERVAL`]. More are counted in the next line.
const BACKLOG_LINES_MAX: u32 = 10;

/// Interval of [`BACKLOG_LINES_MAX`].
const BACKLOG_LINES_INTERVAL: Duration = Duration::from_secs(60);

/// The watch of the server's TCP listeners.
#[derive(Debug, Default)]
pub struct ListenerMonitor {
    watch: ListenWatch,
    log: Option<fn(&str)>,
    /// The distinct sockets of each address, once they are watched.
    groups: OnceLock<Vec<ListenerGroupCounters>>,
}

#[derive(Debug)]
struct ListenerGroupCounters {
    url: String,
    sockets: Vec<Arc<ListenerCounters>>,
}

/// The accept queues of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerFigures<'a> {
    pub(crate) url: &'a str,
    /// Smallest effective backlog of its sockets.
    pub(crate) backlog: u64,
    /// Connections that wait in all its queues.
    pub(crate) queue: u64,
    /// Most connections in one queue.
    pub(crate) queue_max: u64,
    /// Dropped connection requests and connections.
    pub(crate) drops: u64,
}

impl ListenerMonitor {
    pub(crate) fn new(log: Option<fn(&str)>) -> ListenerMonitor {
        ListenerMonitor { log, ..ListenerMonitor::default() }
    }

    /// Starts to watch the TCP listeners. One that cannot be watched is served all the same; the log reports it.
    pub(crate) fn start<'a>(&self, sockets: impl Iterator<Item = &'a mut ListeningSocket>) {
        let mut groups: Vec<ListenerGroupCounters> = Vec::new();
        let mut urls = HashMap::new();
        for listener in sockets.filter(|listener| is_tcp(listener.protocol)) {
            let url = format!("{}://{}", listener.protocol.scheme(), listener.address);
            match self.watch.register(&listener.socket, DEFAULT_BACKLOG.cast_unsigned()) {
                Ok(watched) => {
                    let counters = Arc::clone(watched.counters());
                    urls.insert(counters.address, url.clone());
                    listener.watched = Some(watched);
                    add_socket(&mut groups, url, counters);
                }
                Err(error) => self.report(&format!("SYN floods at {url} are not watched: {error}")),
            }
        }
        let _ = self.groups.set(groups);
        if let Some(log) = self.log {
            let log = ListenLog::new(log, urls);
            let clock = Clock::real();
            self.watch.on_change(move |event| log.write(event, clock.now()));
        }
    }

    fn report(&self, line: &str) {
        if let Some(log) = self.log {
            log(line);
        }
    }

    /// Waits for the end of the thread after all listeners were closed.
    pub(crate) fn join(&self) {
        self.watch.join();
    }

    pub(crate) fn counters(&self) -> &ListenWatchCounters {
        self.watch.counters()
    }

    /// Time since the detection of the present SYN flood.
    pub(crate) fn flood_age(&self, now: Time) -> Option<Duration> {
        self.counters().flood_since().map(|since| now.since(since))
    }

    pub(crate) fn figures(&self) -> impl Iterator<Item = ListenerFigures<'_>> {
        self.groups.get().into_iter().flatten().map(|group| {
            let values = |value: fn(&ListenerCounters) -> u64| group.sockets.iter().map(move |of| value(of));
            ListenerFigures {
                url: &group.url,
                backlog: values(|of| of.backlog.get()).min().unwrap_or(0),
                queue: values(|of| of.queue.get()).sum(),
                queue_max: values(|of| of.queue_max.get()).max().unwrap_or(0),
                drops: values(|of| of.drops.get()).sum(),
            }
        })
    }
}

/// Adds a socket to the group of its URL, unless it is another descriptor of a known one.
fn add_socket(groups: &mut Vec<ListenerGroupCounters>, url: String, counters: Arc<ListenerCounters>) {
    match groups.iter_mut().find(|group| group.url == url) {
        Some(group) if group.sockets.iter().any(|known| Arc::ptr_eq(known, &counters)) => {}
        Some(group) => group.sockets.push(counters),
        None => groups.push(ListenerGroupCounters { url, sockets: vec![counters] }),
    }
}

pub(crate) const fn is_tcp(protocol: ListenerProtocol) -> bool {
    match protocol {
        ListenerProtocol::Http
        | ListenerProtocol::Nats
        | ListenerProtocol::NatsWebSocket
        | ListenerProtocol::Syslog(SyslogTransport::Tcp)
        | ListenerProtocol::Custom(_) => true,
        ListenerProtocol::Syslog(SyslogTransport::Udp | SyslogTransport::Unix) | ListenerProtocol::Coap => {
            false
        }
    }
}

/// Writes events to the log: one line per begin and end of a flood, and a bounded number about backlogs.
struct ListenLog {
    log: fn(&str),
    urls: HashMap<SocketAddr, String>,
    budget: RefCell<LineBudget>,
    /// The last change of each address: the sockets of all shards change alike.
    last_changes: RefCell<HashMap<SocketAddr, BacklogChange>>,
}

impl ListenLog {
    fn new(log: fn(&str), urls: HashMap<SocketAddr, String>) -> ListenLog {
        ListenLog { log, urls, budget: RefCell::default(), last_changes: RefCell::default() }
    }

    fn write(&self, event: &ListenEvent, now: Time) {
        if let Some(line) = self.line(event, now) {
            (self.log)(&line);
        }
    }

    fn line(&self, event: &ListenEvent, now: Time) -> Option<String> {
        Some(match event {
            ListenEvent::FloodBegan { unanswered, has_cookies: true, .. } => format!(
                "SYN flood: {unanswered} connection requests were not completed; the system answers with SYN cookies, \
                 so other clients are served"
            ),
            ListenEvent::FloodBegan { unanswered, has_cookies: false, .. } => format!(
                "SYN flood: {unanswered} connection requests were dropped, also of other clients: set \
                 net.ipv4.tcp_syncookies to 1"
            ),
            ListenEvent::FloodEnded { lasted, .. } => {
                format!("the SYN flood has ended; it lasted {} s", lasted.as_secs())
            }
            ListenEvent::BacklogRaised(change) => self.backlog_line("raised", *change, now)?,
            ListenEvent::BacklogLowered(change) => self.backlog_line("lowered", *change, now)?,
            ListenEvent::CountersUnavailable { error } => {
                format!("SYN floods are not detected: cannot read the system's TCP counters: {error}")
            }
            _ => return None,
        })
    }

    fn backlog_line(&self, verb: &str, change: BacklogChange, now: Time) -> Option<String> {
        let BacklogChange { listener, from, to } = change;
        if self.last_changes.borrow_mut().insert(listener, change) == Some(change) {
            return None;
        }
        let url = self.urls.get(&listener).cloned().unwrap_or_else(|| listener.to_string());
        let omitted = match self.budget.borrow_mut().admit(now)? {
            0 => String::new(),
            omitted => format!(" ({omitted} lines about backlogs before this one were omitted)"),
        };
        Some(format!("backlog of {url} {verb} from {from} to {to}{omitted}"))
    }
}

/// Bounds the lines about backlogs.
#[derive(Debug, Default)]
struct LineBudget {
    begin: Time,
    lines: u32,
    omitted: u64,
}

impl LineBudget {
    /// Admits a line, with the number of lines omitted before it.
    fn admit(&mut self, now: Time) -> Option<u64> {
        if now.since(self.begin) >= BACKLOG_LINES_INTERVAL {
            self.begin = now;
            self.lines = 0;
        }
        if self.lines == BACKLOG_LINES_MAX {
            self.omitted += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(from: u32, to: u32) -> ListenEvent {
        let listener = SocketAddr::from(([127, 0, 0, 1], 9000));
        ListenEvent::BacklogRaised(BacklogChange { listener, from, to })
    }

    fn log() -> ListenLog {
        let listener = SocketAddr::from(([127, 0, 0, 1], 9000));
        ListenLog::new(|_| (), HashMap::from([(listener, "http://127.0.0.1:9000".to_owned())]))
    }

    /// Row 3.9: a clear line for each change; the same change of all shards is one line.
    #[test]
    fn changes_are_lines() {
        let (log, now) = (log(), Time::ZERO);
        let line = |event| log.line(&event, now).unwrap_or_default();
        assert_eq!(line(raised(128, 256)), "backlog of http://127.0.0.1:9000 raised from 128 to 256");
        assert_eq!(line(raised(128, 256)), "");
        assert_eq!(line(raised(256, 512)), "backlog of http://127.0.0.1:9000 raised from 256 to 512");
        let lasted = Duration::from_millis(12_900);
        assert_eq!(
            line(ListenEvent::FloodEnded { sample: 7, lasted }),
            "the SYN flood has ended; it lasted 12 s"
        );
        let flood = |has_cookies| ListenEvent::FloodBegan { sample: 7, unanswered: 90, has_cookies };
        assert!(line(flood(true)).starts_with("SYN flood: 90 connection requests were not completed"));
        assert!(line(flood(false)).ends_with("set net.ipv4.tcp_syncookies to 1"));
    }

    #[test]
    fn lines_about_backlogs_are_bounded() {
        let log = log();
        let lines = |range: std::ops::Range<u32>, at: Duration| -> Vec<String> {
            let event = |number| log.line(&raised(number, number + 1), Time::ZERO.after(at));
            range.filter_map(event).collect()
        };
        assert_eq!(lines(0..100, Duration::ZERO).len(), 10);
        assert_eq!(lines(200..300, Duration::from_secs(59)).len(), 0);
        let later = lines(300..400, Duration::from_secs(60));
        assert_eq!(later.len(), 10);
        assert!(later[0].ends_with(" (190 lines about backlogs before this one were omitted)"), "{later:?}");
        assert!(!later[1].contains("omitted"), "{later:?}");
    }
}
