//! The agreement of one job's hubs, as plain state. It has the cuts of hub 0, which are pauses between two
//! rounds. It also has the workers with links at all hubs, and the checkpoints of which all hubs have files.
//!
//! Does not depend on threads, connections or files, so that its tests can try any order of events.

use std::collections::{BTreeMap, HashMap, HashSet};

use pbox_core::Round;
use pbox_core::control::WholeRounds;
use serde::{Deserialize, Serialize};

/// The number of complete rounds whose files are kept. If a file turns out to be damaged, the job continues from the
/// previous complete round.
const GENERATIONS: usize = 2;
/// The limit on a hub's files of rounds that some other hub has perhaps not written yet. If the disk of one hub hangs, the
/// disks of the other hubs must not fill up.
const UNDECIDED: usize = 4;

/// The limit on the number of rounds that this hub remembers of another hub's files. The limit is several times
/// [`GENERATIONS`] and [`UNDECIDED`].
const MOST_FILES: usize = 64;

/// The cuts of hub 0, as another hub of the job sees them.
#[derive(Debug, Default)]
pub struct Follower {
    /// The highest number of a cut so far.
    last: u64,
    /// The number of the cut that is in progress, if there is one.
    held: Option<u64>,
}

/// An error: the request is for a cut that is over, or that was never begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cut {asked} is over or was never begun; the last cut is {last}")]
pub struct StaleCut {
    /// The number of the cut that was asked for.
    pub asked: u64,
    /// The highest number of a cut so far.
    pub last: u64,
}

impl Follower {
    /// Begins a cut. Each cut has a higher number than the previous cut, so a request that arrives too late has no
    /// effect.
    ///
    /// # Errors
    /// Returns an error if the cut is over.
    pub fn hold(&mut self, cut: u64) -> Result<(), StaleCut> {
        if cut <= self.last {
            return Err(StaleCut { asked: cut, last: self.last });
        }
        (self.last, self.held) = (cut, Some(cut));
        Ok(())
    }

    /// Ends the cut.
    ///
    /// # Errors
    /// Returns an error if this cut is not in progress.
    pub fn release(&mut self, cut: u64) -> Result<(), StaleCut> {
        let last = self.last;
        if !self.is_held_by(cut) {
            // A delayed request to begin this cut may arrive later. The new number makes that request fail.
            self.last = self.last.max(cut);
            return Err(StaleCut { asked: cut, last });
        }
        self.held = None;
        Ok(())
    }

    /// Whether this cut has begun and not ended.
    pub fn is_held_by(&self, cut: u64) -> bool {
        self.held == Some(cut)
    }
}

/// The newcomers that have links at some hubs. Hub 0 admits a newcomer once the newcomer has links at all hubs.
#[derive(Debug, Default)]
pub struct Arrivals {
    hubs: HashMap<u64, HashSet<u32>>,
}

impl Arrivals {
    /// Notes that a hub has a worker's links. Returns true if all `hubs` now have the worker's links.
    pub fn note(&mut self, worker: u64, hub: u32, hubs: u32) -> bool {
        let at = self.hubs.entry(worker).or_default();
        let is_new = at.insert(hub);
        is_new && at.len() == hubs as usize
    }

    /// Forgets a worker that was admitted, lost, or left.
    pub fn forget(&mut self, worker: u64) {
        self.hubs.remove(&worker);
    }
}

/// The rounds of the checkpoint files of each hub that owns chunks of a job. Each hub writes its files in the order of
/// their rounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    rounds: BTreeMap<u32, Vec<Round>>,
}

impl Files {
    /// Creates the record of the hubs' files. `rounds` has the rounds of each hub's files when the job begins.
    pub fn new(rounds: impl IntoIterator<Item = (u32, Vec<Round>)>) -> Self {
        Files { rounds: rounds.into_iter().map(|(hub, rounds)| (hub, latest(rounds))).collect() }
    }

    /// Notes the rounds of a hub's files.
    pub fn report(&mut self, hub: u32, rounds: Vec<Round>) {
        self.rounds.insert(hub, latest(rounds));
    }

    /// Returns the rounds of each hub.
    pub fn of_hubs(&self) -> impl Iterator<Item = (u32, &[Round])> {
        self.rounds.iter().map(|(&hub, rounds)| (hub, &rounds[..]))
    }

    /// Returns the latest round of which any hub has a file.
    pub fn newest(&self) -> Option<Round> {
        self.rounds.values().flatten().max().copied()
    }

    /// Returns the round from which a job continues: the latest round of which all hubs have a good file. `read` makes all
    /// hubs read their files of a round, and returns the hubs whose file is damaged. Damaged files no longer count. Files
    /// of later rounds do not count either, because the job writes them again.
    ///
    /// # Errors
    /// Returns an error if the files cannot be read at all.
    pub fn go_on<E>(
        &mut self,
        mut read: impl FnMut(Round) -> Result<Vec<u32>, E>,
    ) -> Result<Option<Round>, E> {
        while let Some(round) = self.whole().rounds.last().copied() {
            let damaged = read(round)?;
            let is_kept = |hub, of: Round| of != round || !damaged.contains(&hub);
            match damaged.is_empty() {
                true => {
                    self.rounds.values_mut().for_each(|rounds| rounds.retain(|&of| of <= round));
                    return Ok(Some(round));
                }
                false => {
                    self.rounds.iter_mut().for_each(|(&hub, rounds)| rounds.retain(|&of| is_kept(hub, of)))
                }
            }
        }
        Ok(None)
    }

    /// Returns the latest rounds of which all hubs have files.
    pub fn whole(&self) -> WholeRounds {
        let mut hubs = self.rounds.values();
        let first = hubs.next().cloned().unwrap_or_default();
        let mut rounds: Vec<Round> = hubs.fold(first, |mut all, of_hub| {
            all.retain(|round| of_hub.contains(round));
            all
        });
        rounds.sort_unstable();
        rounds.drain(..rounds.len().saturating_sub(GENERATIONS));
        // A hub without files gives `None`, which is less than any round.
        let decided = self.rounds.values().map(|rounds| rounds.iter().max().copied()).min().flatten();
        WholeRounds { rounds, decided }
    }
}

/// Returns the latest rounds of which a hub reports files, at most `MOST_FILES`. There is a limit because every round of one
/// hub is compared with the rounds of all hubs.
fn latest(mut rounds: Vec<Round>) -> Vec<Round> {
    rounds.sort_unstable();
    rounds.drain(..rounds.len().saturating_sub(MOST_FILES));
    rounds
}

/// Whether a hub must keep its file of a round.
pub fn is_needed(whole: &WholeRounds, round: Round) -> bool {
    whole.rounds.contains(&round) || whole.decided.is_none_or(|decided| round > decided)
}

/// Whether a hub that has files of `rounds` may write one more file.
pub fn may_write(whole: &WholeRounds, rounds: &[Round]) -> bool {
    rounds.iter().filter(|&&round| whole.decided.is_none_or(|decided| round > decided)).count() < UNDECIDED
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cut_holds_once_and_a_late_request_holds_nothing() {
        let mut follower = Follower::default();
        follower.hold(1).unwrap();
        assert!(follower.hold(1).is_err() && follower.is_held_by(1));
        follower.release(1).unwrap();
        assert!(follower.release(1).is_err() && follower.hold(1).is_err() && !follower.is_held_by(1));
        follower.hold(3).unwrap();
        assert!(follower.release(1).is_err() && follower.is_held_by(3), "the release of an older cut");
        assert!(follower.hold(2).is_err() && follower.is_held_by(3));
        follower.release(3).unwrap();
        assert!(follower.release(4).is_err() && follower.hold(4).is_err(), "its hold came after its release");
    }

    #[test]
    fn a_worker_is_admitted_once_when_it_is_at_all_hubs() {
        let mut arrivals = Arrivals::default();
        assert!(!arrivals.note(7, 0, 3) && !arrivals.note(7, 2, 3) && !arrivals.note(7, 2, 3));
        assert!(!arrivals.note(8, 1, 3), "another worker");
        assert!(arrivals.note(7, 1, 3));
        assert!(!arrivals.note(7, 1, 3));
        arrivals.forget(7);
        assert!(!arrivals.note(7, 1, 3));
    }

    #[test]
    fn a_round_is_whole_when_all_hubs_have_it() {
        let rounds = |rounds: &[u32]| rounds.iter().copied().map(Round).collect::<Vec<_>>();
        let whole = |hubs: &[&[u32]]| Files::new((0..).zip(hubs.iter().map(|of_hub| rounds(of_hub)))).whole();
        let of = |those: &[u32], decided: Option<u32>| WholeRounds {
            rounds: rounds(those),
            decided: decided.map(Round),
        };
        assert_eq!(whole(&[&[10, 20, 30], &[10, 20, 30]]), of(&[20, 30], Some(30)));
        assert_eq!(whole(&[&[10, 20, 30], &[10, 20]]), of(&[10, 20], Some(20)));
        assert_eq!(whole(&[&[10, 20], &[20, 30], &[10]]), of(&[], Some(10)));
        assert_eq!(whole(&[&[10], &[]]), of(&[], None));
        let many = Vec::from_iter(0..1_000_000);
        let files = Files::new([(0, rounds(&many)), (1, rounds(&many))]);
        assert_eq!(files.whole(), of(&[999_998, 999_999], Some(999_999)));
        assert!(files.rounds.values().all(|rounds| rounds.len() == MOST_FILES), "no more is compared");
    }

    /// A hub of the test: its disk, and the last message that it got.
    #[derive(Clone, Debug, Default)]
    struct Hub {
        files: Vec<Round>,
        told: WholeRounds,
        /// The next round that it writes.
        next: u32,
    }

    proptest! {
        /// Requests of hub 0 arrive in any order, or not at all. Afterwards a job is paused only if the release of a cut
        /// was lost. Then a timer fails the job.
        #[test]
        fn only_a_lost_release_leaves_a_job_held(
            requests in proptest::sample::subsequence((0..16u64).collect::<Vec<_>>(), 0..=16).prop_shuffle(),
        ) {
            let mut follower = Follower::default();
            let (mut held, mut released) = (HashSet::new(), HashSet::new());
            for request in &requests {
                // Request 0 begins cut 1, request 1 releases cut 1, and so on.
                let cut = 1 + request / 2;
                if request % 2 == 0 {
                    held.extend(follower.hold(cut).ok().map(|()| cut));
                } else {
                    released.extend(follower.release(cut).ok().map(|()| cut));
                }
            }
            prop_assert!(released.is_subset(&held), "a release answers a hold");
            for cut in 1..=8 {
                let release = 2 * cut - 1;
                prop_assert!(!follower.is_held_by(cut) || !requests.contains(&release), "cut {}", cut);
            }
        }

        /// Hubs write, skip and fail in any order. They learn each other's rounds in any order, or not at all. Once all
        /// hubs have written one round, there is at any time at least one round whose files are on all disks. Once all
        /// hubs have written two rounds, there are at least two such rounds. No disk fills up.
        #[test]
        fn a_whole_round_is_never_lost(
            hubs in 2usize..5,
            events in proptest::collection::vec((0usize..5, 0u8..8), 1..200),
        ) {
            let mut all = vec![Hub::default(); hubs];
            let mut lead = Files::new((0..hubs as u32).map(|hub| (hub, Vec::new())));
            let mut most = 0;
            for (hub, what) in events {
                let (number, ahead) = (hub % hubs, all.iter().map(|hub| hub.next).max().unwrap());
                let hub = &mut all[number];
                match what {
                    // The hub's part of a round is written to its disk. No hub is far behind the other hubs, because
                    // workers push to all hubs.
                    0..=3 => {
                        hub.next = (hub.next + 1).max(ahead.saturating_sub(2));
                        if may_write(&hub.told, &hub.files) {
                            hub.files.push(Round(hub.next));
                            let told = hub.told.clone();
                            hub.files.retain(|&round| is_needed(&told, round));
                        }
                    }
                    // The hub skips a round, or its disk is full.
                    4 => hub.next += 1,
                    // Hub 0 receives the hub's rounds, and answers.
                    _ => {
                        lead.report(number as u32, hub.files.clone());
                        hub.told = lead.whole();
                    }
                }
                prop_assert!(hub.files.len() <= GENERATIONS + UNDECIDED, "{hub:?}");
                let whole = Files::new((0..).zip(all.iter().map(|hub| hub.files.clone()))).whole();
                most = most.max(whole.rounds.len());
                prop_assert_eq!(whole.rounds.len(), most, "{:?}", all);
            }
        }
    }
}
