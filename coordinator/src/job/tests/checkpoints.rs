//! Tests of snapshots whose cores answer in any order, and of the messages to hub 0 about a part.

use pbox_core::control::{WholeRounds, WrittenReply};
use pbox_core::{Selection, Tensor};

use super::*;
use crate::job::checkpoints::{Checkpoints, Over, TakenBy};
use crate::job::{AskedId, CutAt, NoState, NotBefore, Parts, Saving, Use, WantId};

/// Returns the effects of a core's answer: it has a part before a due round, or no part before the rounds of a range.
fn answers(job: &mut Job, core: usize, before: u32, through: Option<u32>) -> Vec<Effect> {
    let (before, refused) = (Round(before), through.map(|_| "passed".to_owned()));
    let (occasion, through) = (Occasion::Due(before), through.map(Round));
    Saving { job, now: Instant::now() }.note_taken(TakenBy { core, occasion, before, through, refused })
}

/// Returns the effects when all cores have answered for the due snapshots before a round.
fn over(before: u32, parts: Parts) -> Vec<Effect> {
    vec![Effect::Snapshot(Occasion::Due(Round(before)), Round(before), parts)]
}

fn taken(job: &mut Job, occasion: Occasion, before: u32, refused: Option<&str>) -> Vec<Over> {
    let (before, refused) = (Round(before), refused.map(str::to_owned));
    job.checkpoints.note_taken(TakenBy { core: 0, occasion, before, through: None, refused }, 1)
}

fn reply(before: u32, bytes: u64) -> CheckpointReply {
    CheckpointReply { round: Round(before), bytes, milliseconds: 1, error_before: None }
}

#[test]
fn a_core_that_has_passed_rounds_twice_is_not_waited_for_whichever_it_says_first() {
    let mut job = running();
    job.spec.made.owners = 2;
    assert_eq!(answers(&mut job, 1, 16, Some(16)), []);
    assert_eq!(answers(&mut job, 1, 6, Some(14)), []);
    for before in [16, 10] {
        let skipped = over(before, Parts::Skip("another core has passed it".into()));
        assert_eq!(answers(&mut job, 0, before, None), skipped, "before round {before}");
    }
}

#[test]
fn a_core_that_has_passed_rounds_is_not_waited_for() {
    let mut job = running();
    job.spec.made.owners = 2;
    assert_eq!(answers(&mut job, 0, 20, None), []);
    assert_eq!(
        answers(&mut job, 1, 10, Some(4_000_000_000)),
        over(20, Parts::Skip("passed".into())),
        "it has answered for each"
    );
    let late = answers(&mut job, 0, 30, None);
    let why = "another core has passed it".to_owned();
    assert_eq!(late, over(30, Parts::Skip(why)), "and for those that others come to later");
    assert!(job.checkpoints.error.as_ref().unwrap().contains("before round 30 was skipped"));
}

#[test]
fn hub_0_hears_how_a_part_is() {
    let mut job = running();
    job.spec.made.owners = 1;
    assert_eq!(job.checkpoints.part_before(Round(7)), PartState::Collecting);
    let occasion = job.checkpoints.begin(Round(7), None, None);
    assert_eq!(job.checkpoints.part_before(Round(0)), PartState::Collecting, "it is under way");
    assert!(taken(&mut job, occasion, 7, None)[0].refused.is_none());
    job.checkpoints.begin_file(Round(7), &job.hubs).unwrap();
    assert_eq!(job.checkpoints.part_before(Round(7)), PartState::Writing);
    assert_eq!(job.checkpoints.end_file(Round(7), Err("full".into())), None);
    assert_eq!(job.checkpoints.part_before(Round(7)), PartState::Failed("full".into()));
    assert!(job.checkpoints.has_failed);
    job.checkpoints.begin_file(Round(8), &job.hubs).unwrap();
    assert_eq!(
        job.checkpoints.end_file(Round(8), Ok(reply(8, 5))),
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

/// Seed 12 of the simulation found this case. Hub 0 waited for the part before round 12, which had failed, until a
/// later checkpoint.
#[test]
fn a_part_that_failed_is_not_forgotten_when_an_earlier_one_ends_after_it() {
    let mut job = running();
    job.spec.made.owners = 1;
    let [earlier, later] = [9, 12].map(|before| job.checkpoints.begin(Round(before), None, None));
    taken(&mut job, later, 12, Some("the previous checkpoint is not written yet"));
    taken(&mut job, earlier, 9, None);
    job.checkpoints.begin_file(Round(9), &job.hubs).unwrap();
    assert!(matches!(job.checkpoints.part_before(Round(12)), PartState::Failed(_)));
    assert_eq!(job.checkpoints.part_before(Round(9)), PartState::Writing);
}

/// A job whose states are wanted, with a clock.
struct Wanted {
    job: Job,
    now: Instant,
}

const LIMIT: Duration = Duration::from_secs(30);

impl Wanted {
    fn new(owners: usize) -> Self {
        let mut job = running();
        job.spec.made.owners = owners;
        Wanted { job, now: Instant::now() }
    }

    fn saving(&mut self) -> Saving<'_> {
        Saving { job: &mut self.job, now: self.now }
    }

    fn want(&mut self, purpose: Use) -> (WantId, Vec<Effect>) {
        self.saving().want(purpose, CutAt::ThisHub, LIMIT)
    }

    fn happens(&mut self, event: crate::Event) -> Vec<Effect> {
        self.job.handle(event, self.now)
    }

    /// Carries out the steps of a cut before a round, as the driver does. Returns the snapshot.
    fn cut(&mut self, mut effects: Vec<Effect>, before: u32) -> Occasion {
        let mut occasion = None;
        while let Some((cut, step)) = effects.iter().find_map(|effect| match effect {
            Effect::Cut(_, Step::TakeSnapshot(of, _)) => {
                occasion = Some(*of);
                None
            }
            Effect::Cut(cut, step) => Some((*cut, step.clone())),
            _ => None,
        }) {
            let stepped = match step {
                Step::Hold => Stepped::Held(Some(Round(before))),
                _ => Stepped::Released,
            };
            effects = self.happens(crate::Event::Cut(cut, stepped));
        }
        occasion.expect("the cut is for one")
    }

    fn taken(&mut self, core: usize, occasion: Occasion, refused: Option<&str>) -> Vec<Effect> {
        let refused = refused.map(str::to_owned);
        self.happens(crate::Event::Taken { core, occasion, before: Round(7), through: None, refused })
    }

    fn passes(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        let now = self.now;
        Saving { job: &mut self.job, now }.time_passes()
    }
}

fn is_cut(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Cut(_, Step::Hold)])
}

#[test]
fn a_want_tries_again_when_the_cores_that_had_no_part_have_their_memory() {
    let mut wanted = Wanted::new(3);
    let (_, effects) = wanted.want(Use::File);
    let occasion = wanted.cut(effects, 7);
    assert_eq!(wanted.taken(0, occasion, None), []);
    assert_eq!(wanted.taken(1, occasion, Some("it is out")), []);
    assert_eq!(wanted.happens(crate::Event::Freed(1)), [], "before the last core answers");
    let dropped = Effect::Snapshot(occasion, Round(7), Parts::Drop);
    assert_eq!(wanted.taken(2, occasion, Some("it is out")), [dropped]);
    assert_eq!(wanted.happens(crate::Event::Freed(0)), [], "it had a part");
    let effects = wanted.happens(crate::Event::Freed(2));
    assert!(is_cut(&effects), "{effects:?}");
    let occasion = wanted.cut(effects, 7);
    for core in [0, 1] {
        assert_eq!(wanted.taken(core, occasion, None), []);
    }
    let write = Effect::Snapshot(occasion, Round(7), Parts::Write);
    assert_eq!(wanted.taken(2, occasion, None), [write]);
}

#[test]
fn a_want_ends_with_its_time_and_says_why() {
    let mut wanted = Wanted::new(1);
    let (late, effects) = wanted.want(Use::File);
    let occasion = wanted.cut(effects, 7);
    assert_eq!(wanted.passes(LIMIT / 2), []);
    let [Effect::Wanted(id, Err(NoState::Other(why)))] = &wanted.passes(LIMIT / 2)[..] else { panic!() };
    assert!(*id == late && why.contains("round 6 did not end in time"), "{why}");
    let dropped = Effect::Snapshot(occasion, Round(7), Parts::Drop);
    assert_eq!(wanted.taken(0, occasion, None), [dropped], "nobody wants it any more");
    let (id, effects) = wanted.want(Use::File);
    let occasion = wanted.cut(effects, 7);
    wanted.taken(0, occasion, Some("it is out"));
    let why = NoState::Other("it is out".into());
    assert_eq!(wanted.passes(LIMIT), [Effect::Wanted(id, Err(why))]);
    assert_eq!(wanted.happens(crate::Event::Freed(0)), []);
}

/// Formerly, a job's last checkpoint waited only two seconds for the previous file. With a slower disk, the last
/// checkpoint was not written.
#[test]
fn a_file_waits_for_the_file_before_it_as_long_as_the_disk_takes() {
    let mut wanted = Wanted::new(1);
    let (_, effects) = wanted.want(Use::File);
    let first = wanted.cut(effects, 7);
    assert_eq!(wanted.taken(0, first, None), [Effect::Snapshot(first, Round(7), Parts::Write)]);
    let (_, effects) = wanted.want(Use::File);
    let occasion = wanted.cut(effects, 7);
    wanted.taken(0, occasion, Some("it is out"));
    assert_eq!(wanted.passes(2 * LIMIT), [], "a file is being written");
    wanted.saving().end_file(first, Round(7), Ok(reply(7, 5)));
    assert_eq!(wanted.passes(LIMIT / 2), [], "the core gets its memory in a moment");
    let effects = wanted.happens(crate::Event::Freed(0));
    assert!(is_cut(&effects), "{effects:?}");
    let occasion = wanted.cut(effects, 7);
    assert_eq!(wanted.taken(0, occasion, None), [Effect::Snapshot(occasion, Round(7), Parts::Write)]);
}

#[test]
fn clients_read_one_after_another() {
    let mut wanted = Wanted::new(1);
    let (first, effects) = wanted.want(Use::Client(Selection::All));
    let occasion = wanted.cut(effects, 7);
    let give = Effect::Snapshot(occasion, Round(7), Parts::Give(first));
    assert_eq!(wanted.taken(0, occasion, None), [give]);
    let weights = Selection::One(Tensor::Weights);
    let [(second, effects), (third, others)] =
        [weights, Selection::All].map(|of| wanted.want(Use::Client(of)));
    assert_eq!((effects, others), (vec![], vec![]));
    assert_eq!(wanted.passes(LIMIT / 2), []);
    let effects = wanted.happens(crate::Event::Read(first));
    assert!(is_cut(&effects), "{effects:?}");
    let [Effect::Wanted(id, Err(NoState::Other(why)))] = &wanted.passes(LIMIT / 2)[..] else { panic!() };
    assert!(
        *id == third && why.contains("another client"),
        "the time of the second one has begun again: {why}"
    );
    let occasion = wanted.cut(effects, 7);
    assert_eq!(occasion.selection(), weights, "cores copy what the client wants");
    let give = Effect::Snapshot(occasion, Round(7), Parts::Give(second));
    assert_eq!(wanted.taken(0, occasion, None), [give]);
}

#[test]
fn a_client_joins_those_whose_cut_is_ahead_or_that_name_its_round() {
    let mut wanted = Wanted::new(1);
    let (first, effects) = wanted.want(Use::Client(Selection::All));
    let may_share = |wanted: &Wanted, id| wanted.job.checkpoints.may_share(id);
    assert!(may_share(&wanted, first), "its cut is ahead");
    let (second, _) = wanted.want(Use::Client(Selection::All));
    assert!(may_share(&wanted, second));
    let occasion = wanted.cut(effects, 7);
    assert!(!may_share(&wanted, first), "its state may be older than the next request");
    wanted.taken(0, occasion, None);
    let effects = wanted.happens(crate::Event::Read(first));
    assert!(!may_share(&wanted, first) && may_share(&wanted, second), "its turn has come");
    wanted.cut(effects, 8);
    assert!(!may_share(&wanted, second));
    let mut wanted = Wanted::new(1);
    let (named, effects) = wants_before(&mut wanted, 9);
    assert!(may_share(&wanted, named), "it has its turn, and the round is the same");
    let occasion = wanted.cut(effects, 9);
    wanted.taken(0, occasion, None);
    assert!(!may_share(&wanted, named), "it is met");
}

#[test]
fn hub_0_gets_its_answer_when_the_part_is_decided_or_its_wait_is_over() {
    let mut wanted = Wanted::new(1);
    wanted.job.hubs.share.hub = 1;
    let asks = |wanted: &mut Wanted| wanted.saving().asked_for(Round(7), WholeRounds::default(), LIMIT);
    let answer = |id: AskedId, part| Effect::Part(id, WrittenReply { rounds: Vec::new(), part });
    let (id, effects) = asks(&mut wanted);
    assert_eq!((effects, wanted.passes(LIMIT / 2)), (vec![], vec![]));
    assert_eq!(wanted.passes(LIMIT / 2), [answer(id, PartState::Collecting)]);
    let (id, _) = asks(&mut wanted);
    let occasion = wanted.job.checkpoints.begin(Round(7), None, None);
    assert_eq!(wanted.taken(0, occasion, None).len(), 1, "it is not written yet");
    let (_, effects) = wanted.saving().end_file(occasion, Round(7), Ok(reply(7, 5)));
    assert_eq!(effects, [answer(id, PartState::Written(5))]);
    let (id, effects) = asks(&mut wanted);
    assert_eq!(effects, [answer(id, PartState::Written(5))]);
}

/// Makes hub 0 of a job of three hubs write its file before round 7, within a time limit. Returns its questions to the
/// other hubs.
fn follows(wanted: &mut Wanted) -> (WantId, Vec<Effect>) {
    wanted.job.hubs.share.hubs = 3;
    for hub in 0..3 {
        wanted.job.hubs.note_files(hub, Vec::new());
    }
    let (id, effects) = wanted.want(Use::File);
    let occasion = wanted.cut(effects, 7);
    wanted.taken(0, occasion, None);
    let (_, effects) = wanted.saving().end_file(occasion, Round(7), Ok(reply(7, 5)));
    (id, effects)
}

fn says(wanted: &mut Wanted, question: &Effect, part: PartState) -> Vec<Effect> {
    let &Effect::FollowPart { follow, hub, .. } = question else { panic!("{question:?}") };
    wanted.happens(crate::Event::Part { follow, hub, said: Ok((Vec::new(), part)) })
}

#[test]
fn a_checkpoint_is_whole_when_all_hubs_have_written_their_parts() {
    let mut wanted = Wanted::new(1);
    let (id, asked) = follows(&mut wanted);
    assert_eq!(asked.len(), 2);
    assert_eq!(says(&mut wanted, &asked[1], PartState::Written(7)), []);
    wanted.now += 2 * LIMIT;
    assert_eq!(says(&mut wanted, &asked[0], PartState::Writing), asked[..1], "a disk may be slow");
    assert_eq!(says(&mut wanted, &asked[0], PartState::Written(8)), [Effect::Wanted(id, Ok(reply(7, 20)))]);
}

#[test]
fn a_checkpoint_is_not_whole_without_a_part() {
    let mut wanted = Wanted::new(1);
    let (id, asked) = follows(&mut wanted);
    wanted.now += 2 * LIMIT;
    assert_eq!(says(&mut wanted, &asked[0], PartState::Collecting), []);
    let told = says(&mut wanted, &asked[1], PartState::Written(7));
    let [Effect::NotWhole(Round(7), why), Effect::Wanted(of, Err(NoState::Other(told)))] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(
        *of == id && told == why && why.contains("hub 1 of the job has no part of the checkpoint"),
        "{why}"
    );
    assert!(why.contains("round 6 did not end in time"), "{why}");
    assert_eq!(wanted.job.checkpoints.error.as_ref(), Some(why));
}

#[test]
fn a_checkpoint_is_not_whole_if_a_hub_does_not_answer() {
    let mut wanted = Wanted::new(1);
    let (id, asked) = follows(&mut wanted);
    assert_eq!(says(&mut wanted, &asked[1], PartState::Written(7)), []);
    let &Effect::FollowPart { follow, hub, .. } = &asked[0] else { panic!("{asked:?}") };
    let said = Err("no answer came".to_owned());
    let told = wanted.happens(crate::Event::Part { follow, hub, said });
    let why = || "no answer came".to_owned();
    assert_eq!(told, [Effect::NotWhole(Round(7), why()), Effect::Wanted(id, Err(NoState::Other(why())))]);
}

fn wants_before(wanted: &mut Wanted, before: u32) -> (WantId, Vec<Effect>) {
    wanted.saving().want(Use::Client(Selection::All), CutAt::Before(Round(before)), LIMIT)
}

/// Takes all steps of a cut of a job that has reached `front`. Returns the last effects.
fn cut_at(wanted: &mut Wanted, effects: Vec<Effect>, front: u32) -> Vec<Effect> {
    let [Effect::Cut(cut, Step::Hold)] = effects[..] else { panic!("{effects:?}") };
    let held = wanted.happens(crate::Event::Cut(cut, Stepped::Held(Some(Round(front)))));
    let released = wanted.happens(crate::Event::Cut(cut, Stepped::Released));
    held.into_iter().chain(released).collect()
}

#[test]
fn a_reader_gets_the_state_before_the_round_that_it_names() {
    let mut wanted = Wanted::new(1);
    for (before, front) in [(7, 7), (9, 7), (7 + 1024, 7)] {
        let (id, effects) = wants_before(&mut wanted, before);
        let effects = cut_at(&mut wanted, effects, front);
        let [Effect::Cut(_, Step::TakeSnapshot(occasion, of)), Effect::Cut(_, release), over] = &effects[..]
        else {
            panic!("{effects:?}")
        };
        let (occasion, before) = (*occasion, Round(before));
        assert!(matches!(occasion, Occasion::Ahead(..)) && *of == before, "{effects:?}");
        assert!(matches!(release, Step::Release { .. }), "the hold ends at once");
        assert!(matches!(over, Effect::CutOver(_, Ok(_))), "nobody waits for the round");
        assert_eq!(wanted.passes(LIMIT / 2), []);
        let taken = crate::Event::Taken { core: 0, occasion, before, through: None, refused: None };
        assert_eq!(wanted.happens(taken), [Effect::Snapshot(occasion, before, Parts::Give(id))]);
        wanted.happens(crate::Event::Read(id));
    }
}

#[test]
fn a_round_that_has_passed_or_is_too_far_is_refused_with_the_round_of_the_job() {
    let mut wanted = Wanted::new(1);
    for (asked, front) in [(6, 7), (0, 1), (7 + 1025, 7), (u32::MAX, 7)] {
        let (id, effects) = wants_before(&mut wanted, asked);
        let effects = cut_at(&mut wanted, effects, front);
        let (asked, front) = (Round(asked), Round(front));
        let why = match asked < front {
            true => NotBefore::Passed { asked, front },
            false => NotBefore::TooFar { asked, front },
        };
        assert!(effects.contains(&Effect::Wanted(id, Err(NoState::Before(why)))), "{effects:?}");
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Cut(_, Step::TakeSnapshot(..)))));
        wanted.happens(crate::Event::Read(id));
    }
    let (id, effects) = wants_before(&mut wanted, 1);
    let effects = cut_at(&mut wanted, effects, 0);
    assert!(effects.contains(&Effect::Wanted(id, Err(NoState::NoWeights))), "{effects:?}");
}

#[test]
fn a_reader_whose_round_does_not_come_ends_with_its_time_and_holds_up_no_cut() {
    let mut wanted = Wanted::new(1);
    let (id, effects) = wants_before(&mut wanted, 100);
    cut_at(&mut wanted, effects, 7);
    // Meanwhile, another request for the state gets its cut. Here it is a request for a file.
    let (_, effects) = wanted.want(Use::File);
    let occasion = wanted.cut(effects, 8);
    assert_eq!(wanted.taken(0, occasion, None).len(), 1);
    assert_eq!(wanted.passes(LIMIT / 2), []);
    let late = wanted.passes(LIMIT / 2);
    let [Effect::Wanted(of, Err(NoState::Other(why)))] = &late[..] else { panic!("{late:?}") };
    assert!(*of == id && why.contains("round 99 did not end in time"), "{why}");
    wanted.happens(crate::Event::Read(id));
    let (_, effects) = wants_before(&mut wanted, 9);
    assert!(is_cut(&effects), "the next reader has its turn: {effects:?}");
}

#[test]
fn a_reader_whose_snapshot_gave_way_tries_again_and_hears_if_the_round_has_passed() {
    let mut wanted = Wanted::new(1);
    let (id, effects) = wants_before(&mut wanted, 9);
    let effects = cut_at(&mut wanted, effects, 7);
    let Effect::Cut(_, Step::TakeSnapshot(occasion, before)) = effects[0] else { panic!("{effects:?}") };
    let refused = Some("another snapshot came before it".to_owned());
    let gave_way = crate::Event::Taken { core: 0, occasion, before, through: None, refused };
    assert_eq!(wanted.happens(gave_way), [Effect::Snapshot(occasion, before, Parts::Drop)]);
    let effects = wanted.happens(crate::Event::Freed(0));
    assert!(is_cut(&effects), "{effects:?}");
    let effects = cut_at(&mut wanted, effects, 10);
    let passed = NotBefore::Passed { asked: Round(9), front: Round(10) };
    assert!(effects.contains(&Effect::Wanted(id, Err(NoState::Before(passed)))), "{effects:?}");
}

/// The time limit of a request for the state is at most a year. A replayed record may have any duration, and a clock's
/// time plus a very long duration would overflow.
#[test]
fn a_time_is_never_longer_than_a_year() {
    let mut wanted = Wanted::new(1);
    let (id, effects) = wanted.saving().want(Use::Client(Selection::All), CutAt::ThisHub, Duration::MAX);
    let occasion = wanted.cut(effects, 7);
    assert_eq!(wanted.passes(Duration::from_secs(1 << 20)), []);
    assert_eq!(wanted.taken(0, occasion, None), [Effect::Snapshot(occasion, Round(7), Parts::Give(id))]);
    wanted.job.hubs.share.hub = 1;
    let (id, _) = wanted.saving().asked_for(Round(9), WholeRounds::default(), Duration::MAX);
    let part = PartState::Collecting;
    let answer = Effect::Part(id, WrittenReply { rounds: Vec::new(), part });
    assert_eq!(wanted.passes(Duration::from_secs(366 * 86_400)), [answer]);
}

/// Formerly, a hub refused its first checkpoint after a kill, because hub 0 had not yet sent it the rounds of complete
/// checkpoints.
#[test]
fn a_hub_that_begins_with_a_checkpoint_writes_the_next_one_and_keeps_two() {
    let rounds = [10, 20, 30, 40].map(Round);
    let share = Share { hub: 1, hubs: 2, ..Share::WHOLE };
    let files = Files::new([(1, rounds.to_vec())]);
    let hubs = Hubs::new((share, Vec::new()), Vec::new(), Secret([7; 16]), Round(40), files);
    let whole = Checkpoints::default().begin_file(Round(50), &hubs).unwrap();
    let kept: Vec<Round> = rounds.into_iter().filter(|&round| crate::is_needed(&whole, round)).collect();
    assert_eq!(kept, [Round(30), Round(40)]);
}
