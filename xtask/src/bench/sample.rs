//! What one run of a load generator found.

/// What one run of a generator found.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct BenchSample {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// How long all took.
    pub(crate) took_s: f64,
    /// Answers per second.
    pub(crate) rate: f64,
    /// Latencies in milliseconds, where the generator measured them.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) p999_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
    pub(crate) mean_ms: Option<f64>,
    /// Requests without an answer, or with a broken one.
    pub(crate) failures: u64,
    /// Messages that the server's ledger names as lost.
    pub(crate) lost: u64,
    /// Requests with a whole answer that is not 2xx.
    pub(crate) refused: u64,
    /// Seconds of CPU that the server used per million requests.
    pub(crate) cpu_s: f64,
    /// Instructions that the server executed per request, user and kernel, where the processor counts them.
    pub(crate) instructions: Option<f64>,
    /// Context switches of the server's threads per thousand requests, where they are counted.
    pub(crate) switches: Option<f64>,
    /// System calls of the server's driver per thousand requests, of a server that tells.
    pub(crate) system_calls: Option<f64>,
}
