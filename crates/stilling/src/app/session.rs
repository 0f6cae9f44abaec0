//! A connection to a process: an ordinary connection of the shard that carries one exchange after the other.

use std::io::{self, ErrorKind};

use stilling_engine::{CloseReason, Io, Token};
use stilling_workers::processes::Line;

use super::answer::Heard;
use super::desk::{Desk, Mail};
use super::exchange::{Exchange, Progress, Trouble};
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
    exchange: Option<Box<Exchange>>,
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
            if !bytes.is_empty() {
                // Nobody has asked for it.
                self.close(CloseReason::ProtocolError, io);
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
        let Some(exchange) = &mut self.exchange else { return self.close(CloseReason::PeerClosed, io) };
        match exchange.hear_the_end(self.was_used, io) {
            Ok(()) => self.is_done(false, io),
            Err(trouble) => self.fail(trouble, io),
        }
    }

    pub(crate) fn drained(&mut self, io: &mut Io<'_, HttpService>) {
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
            (Mail::Gone(id), Some(exchange)) if exchange.id == id => {
                self.let_go(io);
                self.close(CloseReason::Done, io);
            }
            (Mail::Look(id), Some(exchange)) if exchange.id == id && exchange.is_late(io) => {
                self.fail(Trouble::Late, io);
            }
            (Mail::Close, None) => self.close(CloseReason::Done, io),
            _ => {}
        }
    }

    pub(crate) fn deadline(&mut self, io: &mut Io<'_, HttpService>) {
        if let Some(exchange) = &mut self.exchange
            && let Err(trouble) = exchange.time_is_up(io)
        {
            self.fail(trouble, io);
        }
    }

    pub(crate) fn draining(&mut self, io: &mut Io<'_, HttpService>) {
        if self.exchange.is_none() {
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
        if let Some(exchange) = self.exchange.take() {
            exchange.abandon();
            let now = io.now();
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
