//! Results of one run of a load generator.

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct BenchSample {
    pub(crate) requests: u64,
    pub(crate) took_s: f64,
    pub(crate) rate: f64,
    /// Latencies in milliseconds, if measured by the generator.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) p999_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
    pub(crate) mean_ms: Option<f64>,
    /// Requests without a response, or with a broken one.
    pub(crate) failures: u64,
    /// Messages that the server reports as lost.
    pub(crate) lost: u64,
    /// Requests with a complete response that is not 2xx.
    pub(crate) refused: u64,
    /// Server CPU seconds per million requests.
    pub(crate) cpu_s: f64,
    /// Instructions executed by the server per request, user and kernel, if the processor counts them.
    pub(crate) instructions: Option<f64>,
    /// Context switches of the server's threads per thousand requests, if counted.
    pub(crate) switches: Option<f64>,
    /// System calls of the server's driver per thousand requests, if the server publishes them.
    pub(crate) system_calls: Option<f64>,
    /// Largest resident memory of the server in bytes, if measured.
    pub(crate) memory: Option<u64>,
    /// Bytes of the server's own memory for each connection, if measured.
    pub(crate) memory_each: Option<f64>,
    /// Megabytes that the clients received per second, protocol included, if measured.
    pub(crate) received_mb_s: Option<f64>,
    /// Subscriptions of disturbing subscribers per second, on open and on new connections, if there were any.
    pub(crate) disturbances_per_s: Option<f64>,
}
