//! The watch of this process's listeners: SYN floods, and backlogs that rise and fall with the need.
//!
//! The watch is the engine's ([`ListenWatch`]), with its own thread, which exists while there are listeners. A SYN of a
//! flood costs this process nothing: the system keeps half-open connections, so there is no channel for them.

use std::io;
use std::os::fd::BorrowedFd;

use stilling_engine::listen_watch::{ListenWatch, ListenerReport, WatchedListener};

use crate::addresses::host_number;
use crate::tcl::Value;

/// The registrations of one listener, one per listening socket. Empty: it is not watched.
#[derive(Debug, Default)]
pub(crate) struct WatchedSockets(Vec<WatchedListener>);

impl WatchedSockets {
    /// Registers a listening socket with its configured backlog.
    pub(crate) fn add(&mut self, descriptor: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
        let backlog = u32::try_from(backlog).unwrap_or(0);
        self.0.push(ListenWatch::global().register(&descriptor, backlog)?);
        Ok(())
    }

    /// Changes the configured backlog. Returns false if no socket is registered.
    pub(crate) fn set_backlog(&self, backlog: i32) -> io::Result<bool> {
        let backlog = u32::try_from(backlog).unwrap_or(0);
        self.0.iter().try_for_each(|watched| watched.set_backlog(backlog))?;
        Ok(!self.0.is_empty())
    }
}

/// The dictionary `floods` of `stilling::stats`.
pub(crate) fn flood_stats() -> Value {
    let report = ListenWatch::global().report();
    let count = |count: u64| Value::integer(count as i64);
    Value::dict([
        ("floods", count(report.floods)),
        ("flood_now", Value::integer(i64::from(report.flood_since.is_some()))),
        ("cookies_sent", count(report.cookies_sent)),
        ("cookies_returned", count(report.cookies_returned)),
        ("cookies_failed", count(report.cookies_failed)),
        ("overflows", count(report.overflows)),
        ("drops", count(report.drops)),
        ("raises", count(report.raises)),
        ("lowers", count(report.lowers)),
        ("samples", count(report.samples)),
        ("listeners", Value::list(report.listeners.iter().map(listener_stats))),
    ])
}

fn listener_stats(report: &ListenerReport) -> Value {
    let count = |count: u64| Value::integer(count as i64);
    Value::dict([
        ("address", Value::text(&host_number(report.address))),
        ("port", Value::integer(i64::from(report.address.port()))),
        ("configured", count(report.configured)),
        ("backlog", count(report.backlog)),
        ("queue", count(report.queue)),
        ("queue_max", count(report.queue_max)),
        ("drops", count(report.drops)),
        ("raises", count(report.raises)),
        ("lowers", count(report.lowers)),
    ])
}
