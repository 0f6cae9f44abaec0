//! Reads the TCP counters and settings of the network namespace of the calling thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::flood::SynCounts;

/// Counters of the namespace, one row of names and one of values per group.
const NETSTAT: &str = "/proc/thread-self/net/netstat";
/// Largest backlog that the system grants.
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";
/// 0: SYN cookies are off.
const SYNCOOKIES: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// Initial size of the text of [`NETSTAT`] in bytes; a longer one makes the buffer grow.
const TEXT_SIZE: usize = 8192;

/// The open files of counters and settings, read anew for each sample: a sample needs no descriptor, so it neither
/// fails nor takes one from a shard when descriptors have run out.
#[derive(Debug)]
pub(super) struct NetstatReader {
    netstat: File,
    somaxconn: Option<File>,
    syncookies: Option<File>,
    text: Vec<u8>,
}

/// Settings of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListenSettings {
    /// `None`: unknown.
    pub(super) backlog_max: Option<u32>,
    pub(super) has_cookies: bool,
}

impl NetstatReader {
    pub(super) fn open() -> io::Result<NetstatReader> {
        Ok(NetstatReader {
            netstat: File::open(NETSTAT)?,
            somaxconn: File::open(SOMAXCONN).ok(),
            syncookies: File::open(SYNCOOKIES).ok(),
            text: vec![0; TEXT_SIZE],
        })
    }

    /// The counters now.
    pub(super) fn counts(&mut self) -> io::Result<SynCounts> {
        let text = read_text(&self.netstat, &mut self.text)?;
        parse(text).ok_or_else(|| io::Error::other(format!("{NETSTAT} has no TcpExt counters")))
    }

    /// The settings now.
    pub(super) fn settings(&mut self) -> ListenSettings {
        let text = &mut self.text;
        let mut value = |file: &Option<File>| read_text(file.as_ref()?, text).ok()?.trim().parse().ok();
        ListenSettings {
            backlog_max: value(&self.somaxconn),
            has_cookies: value(&self.syncookies) != Some(0),
        }
    }
}

/// Reads a whole file from its beginning; the buffer grows if necessary.
fn read_text<'a>(file: &File, text: &'a mut Vec<u8>) -> io::Result<&'a str> {
    let mut len = 0;
    loop {
        if len == text.len() {
            text.resize(2 * len, 0);
        }
        match file.read_at(&mut text[len..], len as u64)? {
            0 => break,
            count => len += count,
        }
    }
    std::str::from_utf8(&text[..len]).map_err(io::Error::other)
}

/// The counters in a text of names and values; absent ones are zero. `None` without the group `TcpExt`.
fn parse(text: &str) -> Option<SynCounts> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut counts = SynCounts::default();
    for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
        let count = match name {
            "SyncookiesSent" => &mut counts.cookies_sent,
            "SyncookiesRecv" => &mut counts.cookies_returned,
            "SyncookiesFailed" => &mut counts.cookies_failed,
            "ListenOverflows" => &mut counts.listen_overflows,
            "ListenDrops" => &mut counts.listen_drops,
            "TCPReqQFullDoCookies" => &mut counts.queue_full_cookies,
            "TCPReqQFullDrop" => &mut counts.queue_full_drops,
            _ => continue,
        };
        *count = value.parse().ok()?;
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "TcpExt: SyncookiesSent TW ListenDrops SyncookiesRecv New\nTcpExt: 1 2 3 4 5\n\
                    IpExt: SyncookiesSent\nIpExt: 9\n";
        let expected =
            SynCounts { cookies_sent: 1, listen_drops: 3, cookies_returned: 4, ..SynCounts::default() };
        assert_eq!(parse(text), Some(expected));
        for damaged in
            ["", "IpExt: A\nIpExt: 1\n", "TcpExt: SyncookiesSent\n", "TcpExt: ListenDrops\nTcpExt: x\n"]
        {
            assert_eq!(parse(damaged), None, "{damaged:?}");
        }
    }

    /// The files are read more than once, also by a buffer that is too small.
    #[test]
    fn the_system_has_the_counters_and_settings() {
        let mut reader = NetstatReader::open().unwrap();
        let first = reader.counts().unwrap();
        reader.text.truncate(100);
        let second = reader.counts().unwrap();
        assert!(second.listen_drops >= first.listen_drops);
        assert!(reader.text.len() > 1000, "the buffer has grown");
        for _ in 0..2 {
            assert!(reader.settings().backlog_max.is_some_and(|max| max > 0));
        }
    }

    /// The files outlast the thread that opened them.
    #[test]
    fn counters_are_read_after_their_thread_has_ended() {
        let mut reader = std::thread::spawn(|| NetstatReader::open().unwrap()).join().unwrap();
        reader.counts().unwrap();
        assert!(reader.settings().backlog_max.is_some());
    }
}
