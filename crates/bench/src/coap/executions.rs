//! Executions of POST requests, as the server counts them.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde::Serialize;
use stilling_wire::coap::{CoapMessage, Code, MessageType, MessageWriter, OptionNumber, Token};

use super::error::CoapBenchError;
use super::limits::{DATAGRAM_SIZE_MAX, REQUEST_SIZE_MAX};
use super::plan::CoapPlan;
use super::tally::{CoapFailure, CoapTally};

/// Wait for a response before the request is sent again.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500);

/// Executions of the requests of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CoapExecutions {
    /// Executed requests; each counts once.
    pub executed: u64,
    /// Further executions of these requests.
    pub repeated: u64,
}

impl CoapExecutions {
    fn parse(body: &[u8]) -> Option<CoapExecutions> {
        let (executed, repeated) = std::str::from_utf8(body).ok()?.split_once(' ')?;
        let value = |text: &str, name: &str| text.strip_prefix(name)?.parse().ok();
        Some(CoapExecutions {
            executed: value(executed, "executed=")?,
            repeated: value(repeated, "repeated=")?,
        })
    }

    /// Counts failures: repeated executions, and responses without an execution.
    pub(super) fn check(self, tally: &mut CoapTally) {
        tally.fail_times(CoapFailure::ExecutedTwice, self.repeated, || format!("{self:?}"));
        let missing = tally.completed.saturating_sub(self.executed);
        tally.fail_times(CoapFailure::NotExecuted, missing, || format!("{self:?}"));
    }
}

/// Has the server forget earlier executions; waits for its start.
pub(super) fn reset(plan: &CoapPlan) -> Result<(), CoapBenchError> {
    ask(plan, Code::DELETE, Code::DELETED).map(drop)
}

/// The executions since [`reset`].
pub(super) fn read(plan: &CoapPlan) -> Result<CoapExecutions, CoapBenchError> {
    let body = ask(plan, Code::GET, Code::CONTENT)?;
    CoapExecutions::parse(&body)
        .ok_or_else(|| CoapBenchError::Server(plan.to, format!("no executions: {}", body.escape_ascii())))
}

/// Sends one confirmable request from a source port of its own until it is answered. Returns the body.
fn ask(plan: &CoapPlan, method: Code, expected: Code) -> Result<Vec<u8>, CoapBenchError> {
    let any = if plan.to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(plan.to)?;
    socket.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
    let mut buffer = [0; REQUEST_SIZE_MAX];
    let request = encode(plan, method, &mut buffer)
        .map_err(|error| CoapBenchError::Server(plan.to, format!("the request is too long: {error}")))?;
    let (started, mut received) = (Instant::now(), [0; DATAGRAM_SIZE_MAX]);
    let mut problem = "no answer".to_owned();
    while started.elapsed() < plan.wait {
        // A server that does not listen yet refuses datagrams.
        let outcome = socket.send(request).and_then(|_| socket.recv(&mut received));
        let size = match outcome {
            Ok(size) => size,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::ConnectionRefused {
                    std::thread::park_timeout(ATTEMPT_TIMEOUT);
                }
                problem = error.to_string();
                continue;
            }
        };
        match CoapMessage::parse(&received[..size]) {
            Ok(response) if response.code == expected => return Ok(response.payload.to_vec()),
            Ok(response) => {
                let problem = format!("{} instead of {expected}: it counts no executions", response.code);
                return Err(CoapBenchError::Server(plan.to, problem));
            }
            Err(error) => problem = error.to_string(),
        }
    }
    Err(CoapBenchError::Server(plan.to, problem))
}

fn encode<'b>(
    plan: &CoapPlan,
    method: Code,
    buffer: &'b mut [u8],
) -> Result<&'b [u8], stilling_wire::coap::CoapEncodeError> {
    let token = Token::new(b"run").unwrap_or_default();
    let mut writer = MessageWriter::new(buffer, MessageType::Confirmable, method, 1, token)?;
    for segment in &plan.path {
        writer.option(OptionNumber::URI_PATH, segment.as_bytes())?;
    }
    for argument in &plan.query {
        writer.option(OptionNumber::URI_QUERY, argument.as_bytes())?;
    }
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_and_missing_executions_are_failures() {
        let executions = CoapExecutions::parse(b"executed=9 repeated=2").expect("it is valid");
        assert_eq!(executions, CoapExecutions { executed: 9, repeated: 2 });
        for wrong in [&b""[..], b"executed=9", b"executed=x repeated=2", b"repeated=2 executed=9", b"\xff"] {
            assert_eq!(CoapExecutions::parse(wrong), None);
        }
        let mut tally = CoapTally::new();
        for _ in 0..10 {
            tally.complete(0, 1);
        }
        executions.check(&mut tally);
        let failures: Vec<_> = tally.failures().into_iter().collect();
        assert_eq!(failures, [("executed_twice", 2), ("not_executed", 1)]);
    }
}
