//! A first request before the load: checks that the server is reachable and records the expected body.
//!
//! It uses a plain connection. A missing server is one error here instead of thousands of failures, and the reference
//! body is known before the first measured answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use stilling_ring::Clock;
use stilling_wire::http1::{
    AnsweredMethod, HttpLimits, InputEnd, ResponseDecoder, ResponseEvent, ResponseStep,
};

use super::error::HttpBenchError;
use super::error::error_detail;
use super::limits::REFERENCE_SIZE_MAX;
use super::plan::HttpPlan;
use super::tally::RequestFailure;

const READ_SIZE: usize = 64 * 1024;

/// Connects to the first address of the URL that accepts.
pub(crate) fn connect(plan: &HttpPlan) -> Result<(TcpStream, SocketAddr), HttpBenchError> {
    let mut last = None;
    for to in plan.candidates() {
        match TcpStream::connect_timeout(&to, plan.timeout) {
            Ok(stream) => return Ok((stream, to)),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into());
    Err(HttpBenchError::Connect(plan.url.authority().to_owned(), error))
}

/// Sends one request and returns the body of its answer.
pub(crate) fn first_body(
    plan: &HttpPlan,
    stream: TcpStream,
    request: &[u8],
    reply_to: AnsweredMethod,
    limits: &HttpLimits,
) -> Result<Vec<u8>, HttpBenchError> {
    let mut request_connection = ReferenceRequest { stream, reply_to, limits, status: 0, body: Vec::new() };
    let found = request_connection.execute(plan, request).and_then(|()| {
        if request_connection.status == plan.expect_status {
            Ok(())
        } else {
            let detail = format!("status {} instead of {}", request_connection.status, plan.expect_status);
            Err((RequestFailure::UnexpectedStatus, detail))
        }
    });
    match found {
        Ok(()) => Ok(request_connection.body),
        Err((failure, evidence)) => Err(HttpBenchError::FirstAnswer(failure, evidence)),
    }
}

struct ReferenceRequest<'a> {
    stream: TcpStream,
    reply_to: AnsweredMethod,
    limits: &'a HttpLimits,
    status: u16,
    body: Vec<u8>,
}

impl ReferenceRequest<'_> {
    fn execute(&mut self, plan: &HttpPlan, request: &[u8]) -> Result<(), (RequestFailure, String)> {
        let clock = Clock::real();
        let deadline = clock.now().after(plan.timeout);
        let broken = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                (RequestFailure::Timeout, format!("no answer within {} s", plan.timeout.as_secs_f64()))
            }
            _ => (RequestFailure::Reset, error.to_string()),
        };
        self.stream.set_write_timeout(Some(plan.timeout)).map_err(broken)?;
        self.stream.write_all(request).map_err(broken)?;
        let mut decoder = ResponseDecoder::default();
        let mut unread = Vec::new();
        let mut piece = vec![0; READ_SIZE];
        loop {
            let left = deadline.since(clock.now());
            if left.is_zero() {
                return Err(broken(ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left)).map_err(broken)?;
            let count = match self.stream.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                outcome => outcome.map_err(broken)?,
            };
            if count == 0 {
                return match decoder.finish() {
                    Ok(InputEnd::End) => Ok(()),
                    _ => Err((
                        RequestFailure::CutOff,
                        "the server closed the connection before the end".to_owned(),
                    )),
                };
            }
            unread.extend_from_slice(&piece[..count]);
            if self.read(&mut decoder, &mut unread)? {
                return Ok(());
            }
        }
    }

    /// Decodes bytes from `unread`; returns whether the answer is complete.
    fn read(
        &mut self,
        decoder: &mut ResponseDecoder,
        unread: &mut Vec<u8>,
    ) -> Result<bool, (RequestFailure, String)> {
        let mut at = 0;
        let mut complete = false;
        while !complete {
            let step = decoder.decode(self.limits, self.reply_to, &unread[at..]);
            let ResponseStep { consumed, event } =
                step.map_err(|error| (RequestFailure::BadResponse, error_detail(&error)))?;
            at += consumed;
            match event {
                ResponseEvent::NeedMore => break,
                ResponseEvent::Interim(_) => {}
                ResponseEvent::Head(head) => {
                    self.status = head.status;
                    complete = head.body == stilling_wire::http1::ResponseBodyLength::None;
                }
                ResponseEvent::Body(piece) => {
                    if self.body.len() + piece.len() > REFERENCE_SIZE_MAX {
                        let detail = format!("the body has more than {REFERENCE_SIZE_MAX} bytes");
                        return Err((RequestFailure::Local, detail));
                    }
                    self.body.extend_from_slice(piece);
                }
                ResponseEvent::End => complete = true,
            }
        }
        unread.drain(..at);
        if complete && !unread.is_empty() {
            return Err((
                RequestFailure::ExtraBytes,
                format!("{} bytes after the end of the answer", unread.len()),
            ));
        }
        Ok(complete)
    }
}
