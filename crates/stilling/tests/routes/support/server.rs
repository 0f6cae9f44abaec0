//! A server in this process: started on a free port, ended with its test.

use std::net::SocketAddr;
use std::sync::Arc;

use stilling::engine::CloseReason;
use stilling::http::{Routes, Status};
use stilling::{DriverChoice, Overview, RunningServer, ServeConfig, Server, Stopper};

use super::{TestPeer, eventually};

pub(crate) struct HttpTestServer {
    running: RunningServer,
}

impl HttpTestServer {
    /// A server with two shards and two workers.
    pub(crate) fn start(driver: DriverChoice, routes: Routes) -> HttpTestServer {
        Self::with(driver, routes, |_| ())
    }

    /// The same with a changed configuration.
    pub(crate) fn with(
        driver: DriverChoice,
        routes: Routes,
        change: impl FnOnce(&mut ServeConfig),
    ) -> HttpTestServer {
        let mut config = ServeConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            shards: 2,
            worker_threads: 2,
            capacity: 1000,
            driver,
            ..ServeConfig::default()
        };
        change(&mut config);
        let server = Server::bind(config, routes).expect("a free port and the driver");
        HttpTestServer { running: server.start().expect("a thread") }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.running.addresses()[0]
    }

    /// A new connection to the separate `admin` listener.
    pub(crate) fn connect_admin(&self) -> TestPeer {
        TestPeer::connect(self.running.admin_address().expect("the pages have a listener of their own"))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    pub(crate) fn connect(&self) -> TestPeer {
        TestPeer::connect(self.address())
    }

    pub(crate) fn overview(&self) -> &Overview {
        self.running.overview()
    }

    /// Bytes held by requests.
    pub(crate) fn held(&self) -> u64 {
        self.overview().http.iter().map(|counters| counters.requests_held()).sum()
    }

    /// Bytes of handlers' responses that wait for their clients.
    pub(crate) fn responses_held(&self) -> u64 {
        self.overview().http.iter().map(|counters| counters.responses_held()).sum()
    }

    /// Bytes of responses that the system has not taken.
    pub(crate) fn unsent(&self) -> u64 {
        self.overview().engine(|counters| &counters.output_held)
    }

    /// Connections with this close reason.
    pub(crate) fn closed(&self, reason: CloseReason) -> u64 {
        self.overview().engine(|counters| counters.closed(reason))
    }

    /// Responses with this status.
    pub(crate) fn answered(&self, status: Status) -> u64 {
        self.overview().http(|counters| counters.responses(status))
    }

    /// Waits until so many connections have this close reason.
    #[track_caller]
    pub(crate) fn until_closed(&self, reason: CloseReason, count: u64) {
        eventually(reason.name(), || (self.closed(reason) >= count).then_some(()));
        assert_eq!(self.closed(reason), count, "{reason:?}");
    }

    /// A handle to stop the server.
    pub(crate) fn stopper(&self) -> Stopper {
        self.running.stopper()
    }

    /// Waits until the server has been stopped.
    #[track_caller]
    pub(crate) fn wait(self) -> Arc<Overview> {
        self.running.wait().expect("no shard has failed")
    }

    /// Ends the server without the checks of [`finish`](Self::finish).
    #[track_caller]
    pub(crate) fn end(self) -> Arc<Overview> {
        self.running.end().expect("no shard has failed")
    }

    /// Ends the server and checks for leaks: every connection has one close reason, no memory is held, and no request
    /// was shed for lack of memory unless the test expects that.
    #[track_caller]
    pub(crate) fn finish(self) -> Arc<Overview> {
        let overview = self.end();
        let came = overview.engine(|counters| &counters.accepted);
        let went: u64 =
            CloseReason::ALL.into_iter().map(|reason| overview.engine(|c| c.closed(reason))).sum();
        assert_eq!(came, went, "every connection ends for one reason");
        assert_eq!(overview.engine(|counters| &counters.open), 0);
        assert_eq!(overview.engine(|counters| &counters.input_held), 0);
        assert_eq!(overview.engine(|counters| &counters.output_held), 0);
        let held: u64 = overview.http.iter().map(|counters| counters.requests_held()).sum();
        assert_eq!(held, 0, "bytes of requests are held at the end");
        let held: u64 = overview.http.iter().map(|counters| counters.responses_held()).sum();
        assert_eq!(held, 0, "bytes of answers are held at the end");
        overview
    }
}
