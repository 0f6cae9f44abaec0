//! Configuration of a run, checked before the run starts.

use std::net::SocketAddr;
use std::time::Duration;

use super::error::InvalidCoapPlan;
use super::limits::{COAP_EXECUTIONS_MAX, COAP_SOCKETS_MAX, COAP_VARIANTS_MAX, COAP_WINDOW_MAX};
use crate::http::{RateSchedule, RateStep};
use crate::plan_checks::{check_end, check_timeout, within};

/// Faults that the generator injects into its own datagrams, in both directions, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoapFaults {
    /// Datagrams that are dropped.
    pub loss: f64,
    /// Requests that are sent twice.
    pub duplication: f64,
    /// Requests that are sent after a later one.
    pub reordering: f64,
}

impl CoapFaults {
    pub(super) fn is_empty(&self) -> bool {
        *self == CoapFaults::default()
    }
}

/// A run: GET requests for one resource or several, or POST requests for one that counts executions.
#[derive(Clone, Debug, PartialEq)]
pub struct CoapPlan {
    /// Address of the server.
    pub to: SocketAddr,
    /// Segments of the path; `{n}` in one is replaced by the number of the variant.
    pub path: Vec<String>,
    /// Arguments of the query; `{n}` likewise.
    pub query: Vec<String>,
    /// Different requests, in turn. Default 1.
    pub variants: u32,
    /// POST requests, each with its number as body, for a resource that counts their executions by number: the run
    /// fails if one was executed twice. Default no. The resource answers with the number; it forgets all at a DELETE,
    /// and a GET returns `executed=N repeated=N`.
    pub counts_executions: bool,
    /// Whether requests are confirmable. Default yes.
    pub is_confirmable: bool,
    /// Source ports in use at a time. Default 64.
    pub sockets: u16,
    /// Requests in flight per source port. Default 16.
    pub window: u16,
    /// Number of requests.
    pub requests: Option<u64>,
    /// Time during which requests start.
    pub span: Option<Duration>,
    /// Requests per second, started by the clock; without it, as many as the window allows.
    pub rate: Option<f64>,
    /// Periods of a changing rate, instead of `rate`, `requests` and `span`.
    pub steps: Vec<RateStep>,
    /// Injected faults.
    pub faults: CoapFaults,
    /// Seed of faults and tokens.
    pub seed: u64,
    /// Time for a whole response. Default 10 s.
    pub timeout: Duration,
    /// Time for the server to start. Default 10 s.
    pub wait: Duration,
    /// Processes of the server, to report their CPU time.
    pub server_pids: Vec<u32>,
}

impl CoapPlan {
    /// Ten seconds of confirmable requests for the root of a server.
    #[must_use]
    pub fn new(to: SocketAddr) -> CoapPlan {
        CoapPlan {
            to,
            path: Vec::new(),
            query: Vec::new(),
            variants: 1,
            counts_executions: false,
            is_confirmable: true,
            sockets: 64,
            window: 16,
            requests: None,
            span: Some(Duration::from_secs(10)),
            rate: None,
            steps: Vec::new(),
            faults: CoapFaults::default(),
            seed: 1,
            timeout: Duration::from_secs(10),
            wait: Duration::from_secs(10),
            server_pids: Vec::new(),
        }
    }

    /// The intended starts of an open loop's requests.
    pub(super) fn schedule(&self) -> Option<RateSchedule> {
        match self.rate {
            Some(rate) => Some(RateSchedule::new(rate, 0, 1)),
            None if self.steps.is_empty() => None,
            None => Some(RateSchedule::stepped(&self.steps, 0, 1)),
        }
    }

    /// Time during which requests start.
    pub(super) fn whole_span(&self) -> Option<Duration> {
        if self.steps.is_empty() { self.span } else { Some(self.steps.iter().map(|step| step.span).sum()) }
    }

    /// Checks the plan.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), InvalidCoapPlan> {
        within("sockets", self.sockets.into(), 1, COAP_SOCKETS_MAX.into())?;
        within("requests in flight per socket", self.window.into(), 1, COAP_WINDOW_MAX.into())?;
        within("variants", self.variants.into(), 1, COAP_VARIANTS_MAX.into())?;
        if self.steps.is_empty() {
            check_end(self.requests, self.span)?;
        } else if self.rate.is_some() || self.requests.is_some() || self.span.is_some() {
            return Err(InvalidCoapPlan("steps have their own rates and lengths".into()));
        }
        check_timeout(self.timeout)?;
        let has_number = self.path.iter().chain(&self.query).any(|part| part.contains("{n}"));
        if self.variants > 1 && !has_number {
            return Err(InvalidCoapPlan(
                "variants differ by {n} in the path or query, which has none".into(),
            ));
        }
        if self.counts_executions {
            if self.variants > 1 {
                return Err(InvalidCoapPlan(
                    "executions of one resource are counted, without variants".into(),
                ));
            }
            let requests = self.requests.ok_or_else(|| {
                InvalidCoapPlan("a run that counts executions needs a number of requests".into())
            })?;
            within("counted requests", requests, 1, COAP_EXECUTIONS_MAX)?;
        }
        let CoapFaults { loss, duplication, reordering } = self.faults;
        if [loss, duplication, reordering].iter().any(|percent| !(0.0..=90.0).contains(percent)) {
            return Err(InvalidCoapPlan("loss, duplication and reordering are 0 to 90 percent".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let check = |change: &dyn Fn(&mut CoapPlan), words: &str| {
            let mut plan = CoapPlan::new(([127, 0, 0, 1], 5683).into());
            change(&mut plan);
            let error = plan.check().expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        };
        check(&|plan| plan.sockets = 0, "0 sockets");
        check(&|plan| plan.window = 2000, "2000 requests in flight");
        check(&|plan| plan.variants = 2, "variants differ by {n}");
        check(&|plan| plan.span = None, "a run ends after");
        let step = RateStep { rate: 5.0, span: Duration::from_secs(1) };
        check(&|plan| plan.steps = vec![step], "steps have their own");
        check(&|plan| plan.counts_executions = true, "needs a number of requests");
        check(&|plan| plan.faults.loss = 95.0, "0 to 90 percent");
        assert_eq!(CoapPlan::new(([127, 0, 0, 1], 5683).into()).check(), Ok(()));
    }
}
