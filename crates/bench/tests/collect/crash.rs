//! The judge of crashes: a server that keeps its word passes, and each way of breaking it has a name.

use std::net::SocketAddr;

use stilling_bench::collect::CollectError;
use stilling_bench::collect::crash::{self, CrashPlan, CrashReport, Process, Victim};

use crate::fake::{Fake, Lie};

struct Mortal(Fake);

impl Victim for Mortal {
    fn start(&mut self) -> Result<SocketAddr, CollectError> {
        self.0.live();
        Ok(self.0.address())
    }

    fn kill(&mut self) -> Result<(), CollectError> {
        self.0.die();
        Ok(())
    }
}

fn run(lie: Lie, kills: u32, clients: u16) -> CrashReport {
    let plan = CrashPlan { kills, clients, size: 64, window: 16, ..CrashPlan::default() };
    crash::run(&mut Mortal(Fake::start(lie)), &plan, |_| {}).expect("the server starts and answers")
}

/// Row 0.4: any side may die at any moment; what was acknowledged is there.
#[test]
fn a_server_that_keeps_its_word_passes() {
    let report = run(Lie::Nothing, 10, 4);
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.kills, report.acknowledged + report.found_unacknowledged()), (10, report.found));
}

#[test]
fn each_broken_word_has_its_name() {
    let check = |lie, kind: &str, count: fn(&CrashReport) -> u64| {
        // Of one client: its first message is acknowledged before any other.
        let report = run(lie, 3, 1);
        assert!(!report.is_good() && count(&report) > 0, "{lie:?}: {report:?}");
        assert!(report.evidence.contains_key(kind), "{lie:?}: {report:?}");
    };
    check(Lie::SwappedAtStart, "reordered", |report| report.reordered);
    check(Lie::InventedAtStart, "invented", |report| report.invented);
    check(Lie::TwiceAtStart, "stored_twice", |report| report.stored_twice);
    check(Lie::IdsIgnored, "stored_twice", |report| report.stored_twice);
    check(Lie::LostAtStart, "lost", |report| report.lost);
    check(Lie::LostLater, "lost", |report| report.lost);
    check(Lie::OtherStream(5), "refused", |report| report.refused);
    check(Lie::Forgotten(5), "lost", |report| report.lost);
}

#[test]
fn a_server_that_ends_by_itself_is_told_with_its_command() {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut victim =
        Process::new(&["false".to_owned(), "{port}".to_owned()], address, std::path::Path::new("nowhere"));
    let plan = CrashPlan { timeout: std::time::Duration::from_secs(2), ..CrashPlan::default() };
    let error = crash::run(&mut victim, &plan, |_| {}).expect_err("it does not serve");
    assert!(error.to_string().contains("`false 1` ended by itself"), "{error}");
}
