//! Snapshots whose cores answer in any order, and the messages of a part to hub 0.

use super::*;

/// Returns a core's answer: its part before a round that is due, or none before the rounds from one to another.
fn answers(job: &mut Job, core: usize, before: u32, through: Option<u32>) -> Vec<Effect> {
    let (before, refused) = (Round(before), through.map(|_| "passed".to_owned()));
    let owners = job.spec.made.owners;
    job.checkpoints.taken(core, owners, (Occasion::Due(before), before, through.map(Round)), refused)
}

/// Returns the effects when all cores have answered for what is due before a round.
fn over(before: u32, whole: Result<(), &str>) -> Vec<Effect> {
    let before = Round(before);
    let whole = whole.map_err(str::to_owned);
    vec![Effect::Snapshot(Occasion::Due(before), before, whole), Effect::Wake]
}

#[test]
fn a_core_that_has_passed_rounds_is_not_waited_for() {
    let mut job = running();
    job.spec.made.owners = 2;
    assert_eq!(answers(&mut job, 0, 20, None), []);
    assert_eq!(
        answers(&mut job, 1, 10, Some(4_000_000_000)),
        over(20, Err("passed")),
        "it has answered for each"
    );
    let late = answers(&mut job, 0, 30, None);
    assert_eq!(late, over(30, Err("another core has passed it")), "and for those that others come to later");
    assert!(job.checkpoints.error.as_ref().unwrap().contains("before round 30 was skipped"));
}

#[test]
fn hub_0_hears_how_a_part_is() {
    let mut job = running();
    job.spec.made.owners = 1;
    assert_eq!(job.checkpoints.part_before(Round(7)), PartState::Collecting);
    let occasion = job.checkpoints.begin(Round(7), false);
    assert_eq!(job.checkpoints.part_before(Round(0)), PartState::Collecting, "it is under way");
    let whole = Effect::Snapshot(occasion, Round(7), Ok(()));
    assert_eq!(job.checkpoints.taken(0, 1, (occasion, Round(7), None), None), [whole, Effect::Wake]);
    job.checkpoints.begin_file(Round(7), &job.hubs).unwrap();
    assert_eq!(job.checkpoints.part_before(Round(7)), PartState::Writing);
    assert_eq!(job.checkpoints.end_file(Round(7), Err("full".into())), None);
    assert_eq!(job.checkpoints.part_before(Round(7)), PartState::Failed("full".into()));
    assert!(job.checkpoints.has_failed);
    job.checkpoints.begin_file(Round(8), &job.hubs).unwrap();
    let reply = CheckpointReply { round: Round(8), bytes: 5, milliseconds: 1, error_before: None };
    assert_eq!(
        job.checkpoints.end_file(Round(8), Ok(reply)),
        Some("full".into()),
        "it says what the one before was"
    );
    assert_eq!(job.checkpoints.part_before(Round(8)), PartState::Written(5));
    assert_eq!(job.checkpoints.part_before(Round(0)), PartState::Written(0), "nothing is under way");
    assert!(
        matches!(job.checkpoints.part_before(Round(6)), PartState::Failed(_)),
        "it is at another round by now"
    );
}

/// Seed 12 of the simulated lives: hub 0 waited for round 12 until a later checkpoint.
#[test]
fn a_part_that_failed_is_not_forgotten_when_an_earlier_one_ends_after_it() {
    let mut job = running();
    job.spec.made.owners = 1;
    let [earlier, later] =
        [9, 12].map(|before| (job.checkpoints.begin(Round(before), false), Round(before), None));
    job.checkpoints.taken(0, 1, later, Some("the one before it is not written yet".into()));
    job.checkpoints.taken(0, 1, earlier, None);
    job.checkpoints.begin_file(Round(9), &job.hubs).unwrap();
    assert!(matches!(job.checkpoints.part_before(Round(12)), PartState::Failed(_)));
    assert_eq!(job.checkpoints.part_before(Round(9)), PartState::Writing);
}
