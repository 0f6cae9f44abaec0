//! Configuration of a run, checked before the run starts.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use stilling_engine::driver::choice::DriverChoice;
use stilling_engine::limits::SEND_MAX;

use super::limits::{
    BACKLOG, CONNECTIONS_MAX, PIPELINE_MAX, RATE_MAX, STEPS_MAX, STEPS_SPAN_MAX, THREADS_MAX,
};
use super::request::{self, LoadRequest};
use super::schedule::{RateSchedule, RateStep};
use super::url::Url;

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// After this number of requests.
    Requests(u64),
    /// After this time; requests in flight finish.
    Duration(Duration),
    /// After one answered request per connection, then this time with all connections idle.
    Hold(Duration),
}

/// A range of local addresses in 127/8, used in turn: one address has only the ports of the system's ephemeral range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddresses {
    /// The first address.
    pub first: Ipv4Addr,
    /// Number of addresses.
    pub count: u32,
}

impl SourceAddresses {
    /// The local address of connection number `slot`.
    pub(crate) fn of(&self, slot: u32) -> SocketAddr {
        let address = u32::from(self.first) + slot % self.count;
        SocketAddr::from((Ipv4Addr::from(address), 0))
    }
}

/// Parses `127.0.1.1/20`: twenty addresses from 127.0.1.1 on. The default count is one.
impl std::str::FromStr for SourceAddresses {
    type Err = InvalidHttpPlan;

    fn from_str(text: &str) -> Result<Self, InvalidHttpPlan> {
        let (first, count) = text.split_once('/').unwrap_or((text, "1"));
        let (Ok(first), Ok(count)) = (first.parse::<Ipv4Addr>(), count.parse::<u32>()) else {
            return Err(InvalidHttpPlan(format!("`{text}` is not ADDRESS/COUNT, such as 127.0.1.1/20")));
        };
        let last = u32::from(first).checked_add(count.wrapping_sub(1)).map(Ipv4Addr::from);
        // The last address of 127/8 is a broadcast address.
        let within = last.is_some_and(|last| last.is_loopback() && last != Ipv4Addr::new(127, 255, 255, 255));
        if count == 0 || !first.is_loopback() || !within {
            return Err(InvalidHttpPlan(format!("`{text}` is not within 127.0.0.1 to 127.255.255.254")));
        }
        Ok(SourceAddresses { first, count })
    }
}

/// Steps of an open loop with a changing rate: `400:2,8000:5` is 400 requests per second for two seconds, then 8,000
/// for five.
#[derive(Clone, Debug, PartialEq)]
pub struct RateSteps(pub Vec<RateStep>);

impl std::str::FromStr for RateSteps {
    type Err = InvalidHttpPlan;

    fn from_str(text: &str) -> Result<Self, InvalidHttpPlan> {
        let step = |text: &str| {
            let (rate, span) = text.split_once(':')?;
            let (rate, span) = (rate.parse().ok()?, span.parse::<f64>().ok()?);
            Some(RateStep { rate, span: Duration::try_from_secs_f64(span).ok()? })
        };
        let steps: Option<Vec<RateStep>> = text.split(',').map(step).collect();
        steps
            .map(RateSteps)
            .ok_or_else(|| InvalidHttpPlan(format!("`{text}` is not RATE:SECONDS,…, such as 400:2,8000:5")))
    }
}

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct HttpPlan {
    /// Target of the requests.
    pub url: Url,
    /// The method, in capitals. Default: `GET`.
    pub method: String,
    /// Bytes of each request's body. Default: 0.
    pub body_size: u32,
    /// Concurrent connections over all threads. Default: 50.
    pub connections: u32,
    /// Threads, each with an engine of its own. Default: 1.
    pub threads: u32,
    /// Requests in flight per connection. Default: 1.
    pub pipeline: u16,
    /// Whether a connection carries many requests; else each request opens its own. Default: true.
    pub keep_alive: bool,
    /// Requests per second in total, by the clock (open loop); `None`: as fast as answers arrive.
    pub rate: Option<f64>,
    /// Steps of an open loop with a changing rate, each with its own figures; the run lasts as long as all steps.
    /// Default: none.
    pub steps: Vec<RateStep>,
    /// Maximum due requests per thread without a free connection. More are dropped and counted. Default: [`BACKLOG`].
    /// Open loop only.
    pub backlog_max: u32,
    /// End of the run. Default: after 10 s.
    pub length: RunLength,
    /// Time of uncounted requests before the measurement; failures in it count anyway. Default: none.
    pub warmup: Duration,
    /// Maximum time for a connect, for the next answer, and for a due request in the backlog. Default: 30 s.
    pub timeout: Duration,
    /// Status of a successful answer. Default: 200.
    pub expect_status: u16,
    /// Expected body of every answer; `None`: that of the first one.
    pub expect_body: Option<Vec<u8>>,
    /// I/O driver. Default: `auto`.
    pub driver: DriverChoice,
    /// Keeps connections in the rings' descriptor tables (io_uring only): the limit of open files then applies per
    /// thread, not to all together. Default: no.
    pub direct_descriptors: bool,
    /// Local addresses of the connections; `None`: chosen by the system.
    pub sources: Option<SourceAddresses>,
}

/// A plan that contradicts itself, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidHttpPlan(String);

impl fmt::Display for InvalidHttpPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidHttpPlan {}

impl HttpPlan {
    /// The defaults: 50 keep-alive connections send requests for ten seconds, as fast as they are answered.
    pub fn new(url: Url) -> HttpPlan {
        HttpPlan {
            url,
            method: "GET".to_owned(),
            body_size: 0,
            connections: 50,
            threads: 1,
            pipeline: 1,
            keep_alive: true,
            rate: None,
            steps: Vec::new(),
            backlog_max: BACKLOG,
            length: RunLength::Duration(Duration::from_secs(10)),
            warmup: Duration::ZERO,
            timeout: Duration::from_secs(30),
            expect_status: 200,
            expect_body: None,
            driver: DriverChoice::Auto,
            direct_descriptors: false,
            sources: None,
        }
    }

    /// Returns whether requests start by the clock.
    pub(crate) fn is_open_loop(&self) -> bool {
        self.rate.is_some() || !self.steps.is_empty()
    }

    /// The intended starts of one thread's requests in an open loop.
    pub(crate) fn schedule(&self, thread: u32, threads: u32) -> Option<RateSchedule> {
        match self.rate {
            Some(rate) => Some(RateSchedule::new(rate, thread, threads)),
            None if self.steps.is_empty() => None,
            None => Some(RateSchedule::stepped(&self.steps, thread, threads)),
        }
    }

    fn check_steps(&self) -> Result<(), InvalidHttpPlan> {
        let wrong = |why: &str| Err(InvalidHttpPlan(why.to_owned()));
        if self.steps.is_empty() {
            return Ok(());
        }
        if self.steps.len() > STEPS_MAX {
            return Err(InvalidHttpPlan(format!("{} steps are more than {STEPS_MAX}", self.steps.len())));
        }
        if self.steps.iter().any(|step| !is_rate(step.rate) || step.span.is_zero()) {
            return wrong("a step needs a rate above 0 and at most 1e9, and a duration above 0");
        }
        // Bounds the sum below: it cannot overflow.
        if self.steps.iter().any(|step| step.span > STEPS_SPAN_MAX) {
            return Err(InvalidHttpPlan(format!("a step lasts at most {} s", STEPS_SPAN_MAX.as_secs())));
        }
        let span: Duration = self.steps.iter().map(|step| step.span).sum();
        if self.rate.is_some() || self.length != RunLength::Duration(span) || !self.warmup.is_zero() {
            return wrong("steps fix the rate and the length of a run, which has no warm-up then");
        }
        Ok(())
    }

    pub(crate) fn request(&self) -> LoadRequest<'_> {
        LoadRequest {
            url: &self.url,
            method: &self.method,
            body_size: self.body_size,
            keep_alive: self.keep_alive,
        }
    }

    pub(crate) fn holds(&self) -> bool {
        matches!(self.length, RunLength::Hold(_))
    }

    /// The addresses to try: with sources, only those of their family.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = SocketAddr> {
        let only_v4 = self.sources.is_some();
        self.url.addresses().iter().copied().filter(move |address| !only_v4 || address.is_ipv4())
    }

    /// Checks the plan for contradictions.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), InvalidHttpPlan> {
        let wrong = |why: &str| Err(InvalidHttpPlan(why.to_owned()));
        let one_to = |name: &str, value: u64, max: u64| match value {
            0 => Err(InvalidHttpPlan(format!("{name} must be at least 1"))),
            value if value > max => Err(InvalidHttpPlan(format!("{value} {name} are more than {max}"))),
            _ => Ok(()),
        };
        one_to("connections", self.connections.into(), CONNECTIONS_MAX.into())?;
        one_to("threads", self.threads.into(), THREADS_MAX.into())?;
        one_to("requests in flight per connection", self.pipeline.into(), PIPELINE_MAX.into())?;
        one_to("requests in the backlog", self.backlog_max.into(), u32::MAX.into())?;
        if self.threads > self.connections {
            return wrong("more threads than connections");
        }
        if self.method.is_empty() || !self.method.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return wrong("a method consists of capital letters");
        }
        if self.method == "CONNECT" {
            return wrong("CONNECT is not supported");
        }
        if !self.keep_alive && self.pipeline > 1 {
            return wrong("a connection that closes after each request cannot be pipelined");
        }
        if self.timeout.is_zero() {
            return wrong("a timeout must be above 0");
        }
        if !(100..=599).contains(&self.expect_status) {
            return wrong("a status has three digits from 100 to 599");
        }
        if self.rate.is_some_and(|rate| !is_rate(rate)) {
            return wrong("a rate is above 0 and at most 1e9 requests per second");
        }
        self.check_steps()?;
        match self.length {
            RunLength::Requests(0) => return wrong("no requests at all"),
            RunLength::Duration(span) if span.is_zero() => return wrong("a duration must be above 0"),
            RunLength::Hold(_) if self.rate.is_some() || !self.keep_alive || self.pipeline > 1 => {
                return wrong("held connections have one request each: no rate, no pipeline, no close");
            }
            _ => {}
        }
        if self.sources.is_some()
            && !self.candidates().any(|to| matches!(to.ip(), IpAddr::V4(ip) if ip.is_loopback()))
        {
            return wrong("sources in 127/8 reach only a server in 127/8");
        }
        let in_flight = request::encode(&self.request()).len() * usize::from(self.pipeline);
        if in_flight > SEND_MAX {
            return Err(InvalidHttpPlan(format!(
                "the requests in flight on a connection have {in_flight} bytes, more than {SEND_MAX}"
            )));
        }
        Ok(())
    }
}

fn is_rate(rate: f64) -> bool {
    rate > 0.0 && rate <= RATE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> HttpPlan {
        HttpPlan::new(Url::parse("http://127.0.0.1:9/").unwrap())
    }

    #[test]
    fn contradictions_are_found_before_anything_is_sent() {
        assert_eq!(plan().check(), Ok(()));
        let check = |change: fn(&mut HttpPlan), detail: &str| {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(detail), "{error}");
        };
        check(|plan| plan.connections = 0, "connections must be at least 1");
        check(|plan| plan.threads = 51, "more threads than connections");
        check(|plan| plan.pipeline = 5000, "more than 4096");
        check(|plan| plan.method = "get".to_owned(), "capital");
        check(|plan| (plan.keep_alive, plan.pipeline) = (false, 2), "cannot be pipelined");
        check(|plan| plan.rate = Some(f64::NAN), "a rate");
        check(|plan| plan.rate = Some(0.0), "a rate");
        check(|plan| plan.length = RunLength::Requests(0), "no requests");
        check(|plan| (plan.length, plan.keep_alive) = (RunLength::Hold(Duration::ZERO), false), "held");
        check(|plan| plan.body_size = 65_536, "more than 65536");
        check(|plan| plan.expect_status = 99, "three digits");
    }

    #[test]
    fn steps_are_read_and_fix_the_length() {
        let RateSteps(steps) = "400:0.5,8000:5".parse().unwrap();
        let millis = |rate, millis| RateStep { rate, span: Duration::from_millis(millis) };
        assert_eq!(steps, [millis(400.0, 500), millis(8000.0, 5000)]);
        for text in ["", "400", "400:", "400:-1", "x:1", "400:1,"] {
            assert!(text.parse::<RateSteps>().is_err(), "{text}");
        }
        let check = |steps: Vec<RateStep>, length_ms: u64| {
            let length = RunLength::Duration(Duration::from_millis(length_ms));
            HttpPlan { steps, length, ..plan() }.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(steps.clone(), 5500), Ok(()));
        assert!(check(steps, 5000).unwrap_err().contains("fix the rate and the length"));
        assert!(check(vec![millis(0.0, 1000)], 1000).unwrap_err().contains("above 0"));
        assert!(check(vec![millis(1.0, 3_600_001)], 3_600_001).unwrap_err().contains("at most 3600 s"));
        assert!(check(vec![millis(1.0, 1); 17], 17).unwrap_err().contains("more than 16"));
    }

    #[test]
    fn sources_stay_in_their_network_and_take_turns() {
        let sources: SourceAddresses = "127.0.1.254/3".parse().unwrap();
        let addresses: Vec<String> = (0..4).map(|slot| sources.of(slot).to_string()).collect();
        assert_eq!(addresses, ["127.0.1.254:0", "127.0.1.255:0", "127.0.2.0:0", "127.0.1.254:0"]);
        assert_eq!("127.0.0.9".parse(), Ok(SourceAddresses { first: Ipv4Addr::new(127, 0, 0, 9), count: 1 }));
        for text in ["10.0.0.1/2", "127.0.0.1/0", "127.255.255.250/9", "127.0.0.1/x", "::1", ""] {
            assert!(text.parse::<SourceAddresses>().is_err(), "{text}");
        }
    }
}
