//! The hub counts what has happened to its members and jobs.

use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{config, describe, hub, join_all, refused, says};
use pbox_core::control::{CountsReply, LostReply};

#[test]
fn joins_refusals_losses_and_failures_are_counted() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let counts = || describe(&hub.address().to_string()).counts;
    assert_eq!(counts(), CountsReply::default());
    let config = |rank| config(&hub, "job", rank, 2);
    let mut sessions = join_all(2, config);
    let joined = CountsReply { joins: 2, ..CountsReply::default() };
    assert_eq!(counts(), joined);
    says(refused(config(0)), &["rank 0"]);
    assert_eq!(counts(), CountsReply { refused_joins: 1, ..joined });
    drop(sessions.pop()); // without a leave
    until("the job has failed", || counts().failed_jobs == 1);
    drop(sessions);
    let lost = LostReply { link: 1, ..LostReply::default() };
    assert_eq!(counts(), CountsReply { refused_joins: 1, lost, failed_jobs: 1, ..joined });
}
