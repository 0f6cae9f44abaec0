//! A connection to a process: an ordinary connection of the shard that carries one exchange after the other.
//!
//! When nobody waits for an answer any more the connection is half-closed. A program with an event loop sees that and
//! gives up; one that works without looking is seen to be through when it answers or closes. Until then the request has
//! its slot, so that the next one waits in the server's queue and not inside the process.

use std::io::{self, ErrorKind};

use stilling_engine::{CloseReason, Io, Token};
use stilling_workers::processes::Line;

use super::answer::Heard;
use super::desk::{Desk, Mail};
use super::exchange::{Exchange, Leftover, Progress, Trouble};
use crate::http::HttpService;

/// The session of a connection to a process.
pub(crate) struct AppSession {
    pub(super) process: usize,
    /// Which life of the process it is to.
    life: u64,
    /// It has carried an exchange, or has been kept for one: an exchange may find it dead through nobody's fault.
    was_used: bool,
    /// Its name, once it is open.
    token: Option<Token>,
    pub(super) exchange: Option<Box<Exchange>>,
    /// What the process may work on still; there is no exchange then, and no other one comes.
    leftover: Option<Leftover>,
    /// The service counts it among those with leftovers, until it is closed.
    is_counted: bool,
    /// Why there is no connection.
    error: Option<ErrorKind>,
    /// A send failed that was the first of its exchange.
    nothing_sent: bool,
    /// Counts it among the connections to the process.
    line: Option<Line>,
}

impl std::fmt::Debug for AppSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppSession").field("process", &self.process).finish_non_exhaustive()
    }
}

fn desk(service: &mut HttpService) -> &mut Desk {
    service.app.as_deref_mut().expect("a connection to a process is made by the desk")
}

impl AppSession {
    pub(super) fn new(exchange: Box<Exchange>, line: Line) -> Box<AppSession> {
        Box::new(AppSession {
            process: exchange.pass.process(),
            life: exchange.pass.life(),
            was_used: false,
            token: None,
            exchange: Some(exchange),
            leftover: None,
            is_counted: false,
            error: None,
            nothing_sent: false,
            line: Some(line),
        })
    }

    pub(crate) fn opened(&mut self, io: &mut Io<'_, HttpService>) {
        let token = io.token();
        self.token = Some(token);
        let Some(exchange) = &mut self.exchange else { return self.is_free(io) };
        if desk(io.service).is_connected(exchange.id, token) {
            exchange.begin(io);
            exchange.keep_time(io);
        } else {
            // It has not been sent.
            drop(self.exchange.take());
            self.is_free(io);
            let now = io.now();
            desk(io.service).serve(now);
        }
    }

    pub(crate) fn received(&mut self, bytes: &[u8], io: &mut Io<'_, HttpService>) -> usize {
        let Some(exchange) = &mut self.exchange else {
            match &mut self.leftover {
                _ if bytes.is_empty() => {}
                Some(leftover) => match leftover.hear(bytes) {
                    Some(consumed) => return consumed,
                    // The process has done its work, and finds nobody who takes the rest.
                    None => self.is_through(io),
                },
                // Nobody has asked for it.
                None => self.close(CloseReason::ProtocolError, io),
            }
            return bytes.len();
        };
        exchange.send_on(io);
        match exchange.hear(bytes, io) {
            Ok((consumed, Progress::GoesOn)) => consumed,
            Ok((_, Progress::Done(is_good))) => {
                self.is_done(is_good, io);
                bytes.len()
            }
            Err(trouble) => {
                self.fail(trouble, io);
                bytes.len()
            }
        }
    }

    pub(crate) fn ended(&mut self, io: &mut Io<'_, HttpService>) {
        if self.leftover.is_some() {
            return self.is_through(io);
        }
        let Some(exchange) = &mut self.exchange else { return self.close(CloseReason::PeerClosed, io) };
        match exchange.hear_the_end(self.was_used, io) {
            Ok(()) => self.is_done(false, io),
            Err(trouble) => self.fail(trouble, io),
        }
    }

    pub(crate) fn flushed(&mut self, io: &mut Io<'_, HttpService>) {
        if let Some(exchange) = &mut self.exchange {
            exchange.send_on(io);
            exchange.keep_time(io);
        }
    }

    pub(crate) fn delivered(&mut self, mail: Mail, io: &mut Io<'_, HttpService>) {
        let token = io.token();
        match (mail, &mut self.exchange) {
            (Mail::Begin, _) => match desk(io.service).take_handed(token) {
                Some(exchange) => {
                    let exchange = self.exchange.insert(exchange);
                    exchange.begin(io);
                    exchange.keep_time(io);
                }
                // The client has gone; the slot is free again.
                None => self.is_free(io),
            },
            (Mail::Heard(id, heard), Some(exchange)) if exchange.id == id => match heard {
                Heard::More => exchange.go_on(io),
                Heard::Body(body, is_last) => exchange.send_more(body, is_last, io),
            },
            (Mail::Gone(id), Some(exchange)) if exchange.id == id => self.let_go(io),
            (Mail::Look(id), Some(exchange)) if exchange.id == id && exchange.is_late(io) => self.is_late(io),
            (Mail::Close, None) => self.close(CloseReason::Done, io),
            _ => {}
        }
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_, HttpService>) {
        if let Some(exchange) = &mut self.exchange {
            match exchange.time_is_up(io) {
                Ok(()) => {}
                Err(Trouble::Late) => self.is_late(io),
                Err(trouble) => self.fail(trouble, io),
            }
        } else if let Some(leftover) = self.leftover.take() {
            match leftover.time_is_up(io.now()) {
                Some(leftover) => self.keep_slot(leftover, io),
                None => self.close(CloseReason::Done, io),
            }
        }
    }

    pub(crate) fn draining(&mut self, io: &mut Io<'_, HttpService>) {
        // What is left over has its slot during the drain, too: others wait for it still.
        if self.exchange.is_none() && self.leftover.is_none() {
            self.close(CloseReason::Drained, io);
        }
    }

    pub(crate) fn refused(&mut self, error: &io::Error) {
        self.error = Some(error.kind());
    }

    pub(crate) fn unsendable(&mut self, nothing_sent: bool) -> bool {
        let Some(exchange) = &mut self.exchange else { return false };
        let may_be_answered = exchange.is_cut_short(nothing_sent && self.was_used);
        self.nothing_sent = !may_be_answered;
        may_be_answered
    }

    pub(crate) fn closed(&mut self, reason: CloseReason, service: &mut HttpService) {
        if self.is_counted {
            service.app_leftover_closed();
        }
        let desk = desk(service);
        if let Some(token) = self.token {
            desk.forget(self.process, token);
            if let Some(exchange) = desk.take_handed(token) {
                desk.fail(exchange, Trouble::Stale { nothing_sent: true });
            }
        }
        let Some(exchange) = self.exchange.take() else { return };
        let trouble = match reason {
            CloseReason::ConnectFailed => Trouble::Refused(self.error.unwrap_or(ErrorKind::TimedOut)),
            CloseReason::WriteTimeout => Trouble::Late,
            _ => exchange.lost(ErrorKind::ConnectionReset, self.was_used, self.nothing_sent),
        };
        desk.fail(exchange, trouble);
    }

    fn fail(&mut self, trouble: Trouble, io: &mut Io<'_, HttpService>) {
        if let Some(exchange) = self.exchange.take() {
            desk(io.service).fail(exchange, trouble);
        }
        self.close(CloseReason::Done, io);
    }

    /// The exchange is over.
    fn is_done(&mut self, is_good: bool, io: &mut Io<'_, HttpService>) {
        let exchange = self.exchange.take();
        if is_good {
            self.is_free(io);
        } else {
            self.close(CloseReason::Done, io);
        }
        if let Some(exchange) = exchange {
            let now = io.now();
            desk(io.service).finish(exchange, now);
        }
    }

    /// Nobody wants the answer any more.
    fn let_go(&mut self, io: &mut Io<'_, HttpService>) {
        let Some(exchange) = self.exchange.take() else { return };
        if io.has_unsent() {
            // It has not even got what was to be sent.
            drop(exchange);
            return self.close(CloseReason::Done, io);
        }
        let leftover = exchange.give_up(io);
        self.count_leftover(io);
        self.keep_slot(leftover, io);
    }

    /// The process has not answered in time, or has stopped in the middle of its answer.
    fn is_late(&mut self, io: &mut Io<'_, HttpService>) {
        let may_work = |exchange: &Exchange| !exchange.is_answered() && !io.has_unsent();
        let Some(mut exchange) = self.exchange.take_if(|exchange| may_work(exchange)) else {
            return self.fail(Trouble::Late, io);
        };
        desk(io.service).say_late(&exchange);
        let now = io.now();
        if exchange.pass.be_late(now) {
            return self.close(CloseReason::Done, io);
        }
        self.count_leftover(io);
        self.keep_slot(exchange.be_overdue(now), io);
    }

    fn count_leftover(&mut self, io: &mut Io<'_, HttpService>) {
        self.is_counted = true;
        io.service.app_leftover_opened();
    }

    /// Waits for the process to be through with what nobody waits for.
    fn keep_slot(&mut self, leftover: Leftover, io: &mut Io<'_, HttpService>) {
        io.end_output();
        io.set_deadline(Some(leftover.until()));
        self.leftover = Some(leftover);
        io.resume();
    }

    /// The process has shown that it is through with what was left over.
    fn is_through(&mut self, io: &mut Io<'_, HttpService>) {
        self.close(CloseReason::Done, io);
        if let Some(Leftover { pass, .. }) = self.leftover.take() {
            let now = io.now();
            pass.heard();
            pass.leave(now);
            desk(io.service).serve(now);
        }
    }

    /// Waits for the next exchange, if there may be one.
    fn is_free(&mut self, io: &mut Io<'_, HttpService>) {
        // The process may close it from now on, whether it has carried something or not.
        self.was_used = true;
        io.set_deadline(None);
        io.resume();
        let (now, token) = (io.now(), io.token());
        let is_kept = !io.service.is_draining() && desk(io.service).keep(self.process, self.life, token, now);
        if !is_kept {
            self.line = None;
            io.abort(CloseReason::Done);
        }
    }

    fn close(&mut self, reason: CloseReason, io: &mut Io<'_, HttpService>) {
        let token = io.token();
        desk(io.service).forget(self.process, token);
        // It is closed before another one is opened.
        self.line = None;
        io.abort(reason);
    }
}
