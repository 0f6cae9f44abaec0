//! Results of runs: all figures and all parameters.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::disturbance::DisturbanceReport;
use super::plan::{BroadcastPlan, ThrashPlan};
use super::resuming::ResumingReport;
use super::server_memory::ServerMemory;
use super::tally::{BroadcastTally, DeliveryFailure};
use crate::statistics::LatencySummary;

/// Parameters of a fan-out run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BroadcastParameters {
    /// Address of the server.
    pub to: String,
    /// Protocol of the server.
    pub protocol: &'static str,
    /// Publishing connections.
    pub publishers: u16,
    /// Subscribing connections.
    pub subscribers: u32,
    /// Bytes of each payload.
    pub size: u32,
    /// Messages of each publisher that not all subscribers have received.
    pub window: u32,
    /// Subjects with one subscriber each.
    pub subjects: Option<u32>,
    /// Whether each subscriber has a subscription id of its own.
    pub distinct_sids: bool,
}

/// CPU time of a process during the load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTimes {
    pub(super) generator: Duration,
    pub(super) server: Option<Duration>,
}

impl CpuTimes {
    fn server_s(&self) -> Option<f64> {
        self.server.map(|time| time.as_secs_f64())
    }

    fn server_s_per_million(&self, count: u64) -> Option<f64> {
        Some(self.server_s()? * 1e6 / count.max(1) as f64)
    }
}

fn per_second(count: u64, elapsed_s: f64) -> f64 {
    if elapsed_s > 0.0 { count as f64 / elapsed_s } else { 0.0 }
}

/// Latencies, failures and CPU times of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadFigures {
    /// The latencies that the report defines.
    pub latency: LatencySummary,
    /// Failures by kind.
    pub failures: BTreeMap<&'static str, u64>,
    /// All failures.
    pub failures_total: u64,
    /// First evidence of each kind.
    pub evidence: BTreeMap<&'static str, String>,
    /// CPU time of the server during the load, in seconds, if its process was given.
    pub server_cpu_s: Option<f64>,
    /// The same per million deliveries.
    pub server_cpu_s_per_million: Option<f64>,
    /// CPU time of the generator's process during the load, in seconds.
    pub cpu_s: f64,
}

impl LoadFigures {
    fn new(tally: &BroadcastTally, cpu: CpuTimes) -> LoadFigures {
        LoadFigures {
            latency: LatencySummary::of(&tally.latency),
            failures: tally.failures(),
            failures_total: tally.failures_total(),
            evidence: tally.evidence(),
            server_cpu_s: cpu.server_s(),
            server_cpu_s_per_million: cpu.server_s_per_million(tally.deliveries),
            cpu_s: cpu.generator.as_secs_f64(),
        }
    }

    /// Failures of one kind.
    pub fn failed(&self, failure: DeliveryFailure) -> u64 {
        self.failures.get(failure.name()).copied().unwrap_or(0)
    }
}

/// Results of a fan-out run besides its tally.
#[derive(Debug, Default)]
pub(super) struct FanOutFigures {
    pub(super) messages: u64,
    pub(super) received_bytes: u64,
    pub(super) cpu: CpuTimes,
    pub(super) server_memory: Option<ServerMemory>,
    pub(super) disturbance: Option<DisturbanceReport>,
    pub(super) resuming: Option<ResumingReport>,
}

/// Report of a fan-out run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BroadcastReport {
    /// Parameters of the run.
    pub parameters: BroadcastParameters,
    /// From the start to the last delivery, in seconds.
    pub elapsed_s: f64,
    /// Published messages.
    pub messages: u64,
    /// Messages per second.
    pub messages_per_s: f64,
    /// Correct deliveries of all subscribers.
    pub deliveries: u64,
    /// Correct deliveries per second.
    pub deliveries_per_s: f64,
    /// Megabytes of payload delivered per second.
    pub megabytes_per_s: f64,
    /// Megabytes received by all subscribers per second, protocol included.
    pub received_megabytes_per_s: f64,
    /// Memory of the server, if its process was given.
    pub server_memory: Option<ServerMemory>,
    /// Results of disturbing subscribers, if there were any.
    pub disturbance: Option<DisturbanceReport>,
    /// Results of resuming subscribers, if there were any.
    pub resuming: Option<ResumingReport>,
    /// Latencies run from the write of a batch to its last delivery. A batch is half a window; with a window of 1, a
    /// message.
    #[serde(flatten)]
    pub figures: LoadFigures,
}

impl BroadcastReport {
    pub(super) fn new(plan: &BroadcastPlan, tally: &BroadcastTally, found: FanOutFigures) -> BroadcastReport {
        let FanOutFigures { messages, received_bytes, cpu, server_memory, disturbance, resuming } = found;
        let elapsed_s = Duration::from_nanos(tally.last_ns).as_secs_f64();
        let deliveries_per_s = per_second(tally.deliveries, elapsed_s);
        BroadcastReport {
            parameters: BroadcastParameters {
                to: plan.to.to_string(),
                protocol: plan.protocol.name(),
                publishers: plan.publishers,
                subscribers: plan.subscriber_count(),
                size: plan.size,
                window: plan.window,
                subjects: plan.subjects,
                distinct_sids: plan.distinct_sids,
            },
            elapsed_s,
            messages,
            messages_per_s: per_second(messages, elapsed_s),
            deliveries: tally.deliveries,
            deliveries_per_s,
            megabytes_per_s: deliveries_per_s * f64::from(plan.size) / 1e6,
            received_megabytes_per_s: per_second(received_bytes, elapsed_s) / 1e6,
            server_memory,
            disturbance,
            resuming,
            figures: LoadFigures::new(tally, cpu),
        }
    }

    /// Returns whether nothing failed and something was delivered.
    pub fn is_good(&self) -> bool {
        self.figures.failures_total == 0 && self.deliveries > 0
    }
}

/// Parameters of a run of bidding clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThrashParameters {
    /// Address of the server.
    pub to: String,
    /// Bidding clients.
    pub clients: u32,
    /// Name of the auction.
    pub auction: String,
}

/// Report of a run of bidding clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThrashReport {
    /// Parameters of the run.
    pub parameters: ThrashParameters,
    /// From the first bid to the last delivery of a bid, in seconds.
    pub elapsed_s: f64,
    /// Bids that the clients sent.
    pub bids_in: u64,
    /// Bids that the server accepted.
    pub bids_accepted: u64,
    /// Deliveries of accepted bids.
    pub bids_out: u64,
    /// Average of sent bids per second.
    pub in_per_s: f64,
    /// Sent bids in the best second.
    pub in_peak_per_s: u64,
    /// Average of deliveries per second.
    pub out_per_s: f64,
    /// Deliveries in the best second.
    pub out_peak_per_s: u64,
    /// Latencies run from the write of an accepted bid to its delivery to its bidder.
    #[serde(flatten)]
    pub figures: LoadFigures,
}

/// Counts of a run of bidding clients.
#[derive(Debug, Default)]
pub(super) struct BidCounts {
    pub(super) sent: u64,
    pub(super) accepted: u64,
    /// Sent bids and deliveries in each second.
    pub(super) seconds: Vec<(u64, u64)>,
}

impl ThrashReport {
    pub(super) fn new(
        plan: &ThrashPlan,
        auction: String,
        counts: &BidCounts,
        tally: &BroadcastTally,
        cpu: CpuTimes,
    ) -> ThrashReport {
        let elapsed_s = Duration::from_nanos(tally.last_ns).as_secs_f64();
        let peak = |of: fn(&(u64, u64)) -> u64| counts.seconds.iter().map(of).max().unwrap_or(0);
        ThrashReport {
            parameters: ThrashParameters { to: plan.to.to_string(), clients: plan.clients, auction },
            elapsed_s,
            bids_in: counts.sent,
            bids_accepted: counts.accepted,
            bids_out: tally.deliveries,
            in_per_s: per_second(counts.sent, elapsed_s),
            in_peak_per_s: peak(|second| second.0),
            out_per_s: per_second(tally.deliveries, elapsed_s),
            out_peak_per_s: peak(|second| second.1),
            figures: LoadFigures::new(tally, cpu),
        }
    }

    /// Returns whether nothing failed and a bid was delivered.
    pub fn is_good(&self) -> bool {
        self.figures.failures_total == 0 && self.bids_out > 0
    }
}
