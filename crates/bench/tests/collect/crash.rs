//! The crash test: a correct server passes, and each kind of violation is reported under its name.

use std::net::SocketAddr;

use stilling_bench::collect::CollectError;
use stilling_bench::collect::crash::{self, CrashPlan, CrashReport, CrashTarget, TargetProcess};

use crate::fake::{CollectFault, FakeCollectServer};

struct RestartableServer(FakeCollectServer);

impl CrashTarget for RestartableServer {
    fn start(&mut self) -> Result<SocketAddr, CollectError> {
        self.0.live();
        Ok(self.0.address())
    }

    fn kill(&mut self) -> Result<(), CollectError> {
        self.0.die();
        Ok(())
    }
}

fn run(fault: CollectFault, kills: u32, clients: u16) -> CrashReport {
    let plan = CrashPlan { kills, clients, size: 64, window: 16, ..CrashPlan::default() };
    crash::run(&mut RestartableServer(FakeCollectServer::start(fault)), &plan, |_| {})
        .expect("the server starts and answers")
}

/// Row 0.4: after a kill at any moment acknowledged messages still exist.
#[test]
fn a_correct_server_passes() {
    let report = run(CollectFault::Nothing, 10, 4);
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.kills, report.acknowledged + report.stored_unacknowledged()), (10, report.stored));
}

#[test]
fn each_violation_is_reported_by_name() {
    let check = |fault, kind: &str, count: fn(&CrashReport) -> u64| {
        // One client: its first message is acknowledged before any other.
        let report = run(fault, 3, 1);
        assert!(!report.is_good() && count(&report) > 0, "{fault:?}: {report:?}");
        assert!(report.evidence.contains_key(kind), "{fault:?}: {report:?}");
    };
    check(CollectFault::SwappedAtStart, "reordered", |report| report.reordered);
    check(CollectFault::InventedAtStart, "invented", |report| report.invented);
    check(CollectFault::TwiceAtStart, "stored_twice", |report| report.stored_twice);
    check(CollectFault::IdsIgnored, "stored_twice", |report| report.stored_twice);
    check(CollectFault::LostAtStart, "lost", |report| report.lost);
    check(CollectFault::LostLater, "lost", |report| report.lost);
    check(CollectFault::OtherStream(5), "refused", |report| report.refused);
    check(CollectFault::AcknowledgedNotStored(5), "lost", |report| report.lost);
}

#[test]
fn a_server_that_exits_is_reported_with_its_command() {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut target = TargetProcess::new(
        &["false".to_owned(), "{port}".to_owned()],
        address,
        std::path::Path::new("nowhere"),
    );
    let plan = CrashPlan { timeout: std::time::Duration::from_secs(2), ..CrashPlan::default() };
    let error = crash::run(&mut target, &plan, |_| {}).expect_err("it does not serve");
    assert!(error.to_string().contains("`false 1` ended by itself"), "{error}");
}
