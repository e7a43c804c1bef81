//! How a job's rounds go: how fast, who is late, and the verdict in one line, which is made here alone.
//!
//! Cores keep [windows](Watched) of their waits. They are asked at each look at the rounds, and when somebody asks the hub. On
//! the control thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pbox_core::Members;
use pbox_core::control::{
    GradientNorm, GradientsReply, JobState, Late, LatenessReply, Latest, MAX_PATH, MemberReply, RankReply,
    RoundsReply,
};
use pbox_core::{Gauged, GaugedRound, JobId, Round, Watched};

use super::Registry;
use super::job::Job;
use crate::cores::{Command, Measured};

/// What was asked so lately is not asked again, whoever wants to know.
const FRESH: Duration = Duration::from_millis(200);
/// How long the cores may take to say it: one that hangs has its job described without.
const LIMIT: Duration = Duration::from_millis(500);
/// The time over which rounds a second are counted; with slower rounds, the last two changes.
const RATE_OVER: Duration = Duration::from_secs(10);
/// A rank is named if all waits for it are at least this part of the time of the rounds.
const WORTH_A_WORD: f64 = 0.05;
/// And if it was last at least in one of so many rounds.
const OFTEN: u32 = 10;
/// Of many ranks a verdict names so many.
const NAMED: usize = 8;
/// A wait so long is the verdict.
const STANDS: Duration = Duration::from_secs(1);
/// How often a hub tells those above it which of its workers is late, and how long they hold its heartbeats.
pub(super) const TOLD_EVERY: Duration = Duration::from_secs(1);

/// A job's last rounds, as they were when the cores were asked last.
#[derive(Debug, Default)]
pub(crate) struct LastRounds {
    watched: Watched,
    gauged: Gauged,
    asked: Option<Instant>,
    /// By rank, of the rounds before `counted`.
    all: Vec<LatenessReply>,
    counted: Round,
    /// When which round was seen first.
    seen: VecDeque<(Instant, Round)>,
}

impl LastRounds {
    fn note(&mut self, watched: Watched, gauged: Gauged) {
        let now = Instant::now();
        if self.seen.back().is_none_or(|&(_, round)| round != watched.last) {
            self.seen.push_back((now, watched.last));
        }
        while self.seen.len() > 2 && now - self.seen[0].0 > RATE_OVER {
            self.seen.pop_front();
        }
        self.count(&watched);
        (self.watched, self.gauged) = (watched, gauged);
    }

    /// Counts the rounds that are new and over: chunks are at most a round apart.
    fn count(&mut self, Watched { first, last, rows, .. }: &Watched) {
        let Some((_, ranks)) = rows.first() else { return };
        let (from, until) = (self.counted.max(*first), Round(last.0.saturating_sub(1)));
        if from >= until {
            return;
        }
        self.all.resize_with(ranks.len(), LatenessReply::default);
        let new = rows.iter().filter(|(round, _)| (from..until).contains(round));
        let waited = new.clone().count() as u64;
        new.for_each(|(_, waits)| {
            self.all.iter_mut().zip(waits).for_each(|(all, &wait)| all.add(wait, 1));
        });
        // In the others nobody was waited for.
        let rest = u64::from(until.0 - from.0) - waited;
        self.all.iter_mut().for_each(|all| all.add(0, rest));
        self.counted = until;
    }

    fn per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.seen.front(), self.seen.back()) else { return 0.0 };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds > 0.0 { f64::from(last.1.0.saturating_sub(first.1.0)) / seconds } else { 0.0 }
    }

    /// Nothing until a round was looked at.
    pub fn gradients(&self) -> Option<GradientsReply> {
        let norm = |GaugedRound { round, mean, .. }| GradientNorm {
            round,
            norm: mean.squares.sqrt(),
            not_finite: mean.not_finite,
        };
        let recent: Vec<GradientNorm> = self.gauged.whole().map(norm).collect();
        let last = *recent.last()?;
        Some(GradientsReply { every: self.gauged.every(), not_finite: self.gauged.not_finite, last, recent })
    }

    /// Nothing while nobody was waited for.
    pub fn reply(&self) -> Option<RoundsReply> {
        let Watched { first, last, rows, waits_for } = &self.watched;
        let ranks = rows.first()?.1.len();
        let window = last.0 - first.0 + 1;
        let longest: Vec<u32> =
            rows.iter().map(|(_, waits)| waits.iter().copied().max().unwrap_or(0)).collect();
        let of_rank = |rank: usize| {
            let mut all: Vec<u32> = rows.iter().map(|(_, waits)| waits[rank]).collect();
            let was_last = |&(&wait, &longest): &(&u32, &u32)| wait > 0 && wait == longest;
            let mut late: Vec<u32> =
                all.iter().zip(&longest).filter(was_last).map(|(&wait, _)| wait).collect();
            // In the other rounds of the window nobody was waited for.
            all.resize(all.len().max(window as usize), 0);
            RankReply {
                rank: rank as u32,
                last: late.len() as u32,
                late_us: median(&mut late),
                median_us: median(&mut all),
                greatest_us: all.last().copied().unwrap_or(0).into(),
                all: self.all.get(rank).copied().unwrap_or_default(),
            }
        };
        let now = rows.last().filter(|(round, _)| round == last).and_then(|(_, waits)| waits.iter().max());
        Some(RoundsReply {
            round: *last,
            per_second: (self.per_second() * 100.0).round() / 100.0,
            window,
            waits_for: waits_for.clone(),
            waited_us: now.copied().filter(|_| !waits_for.is_empty()).unwrap_or(0).into(),
            ranks: (0..ranks).map(of_rank).collect(),
            recent: rows.clone(),
        })
    }
}

/// Sorts.
fn median(values: &mut [u32]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0).into()
}

/// How a job goes, in one line.
pub(super) fn verdict(
    state: &JobState,
    round: Round,
    held_up_by: &[Late],
    rounds: Option<&RoundsReply>,
    members: &[MemberReply],
) -> String {
    match state {
        JobState::Gathering { missing, machines } if missing.is_empty() => {
            format!("waits for the hubs of {}", names("machine", machines))
        }
        JobState::Gathering { missing, .. } => format!("waits for {} to join", names("rank", missing)),
        JobState::Failed { reason, .. } => format!("failed: {reason}"),
        JobState::Running => match (held_up_by, rounds) {
            ([], None) => format!("round {}: nobody was waited for yet", round.0),
            ([], Some(rounds)) => verdict_of(rounds, members),
            (late, _) => late.iter().map(Late::to_string).collect::<Vec<_>>().join("; "),
        },
    }
}

fn verdict_of(rounds: &RoundsReply, members: &[MemberReply]) -> String {
    if let Some(waited) = stands(rounds) {
        let who = names("rank", &rounds.waits_for);
        let below = within(&rounds.waits_for, members);
        return format!("round {} has waited {} for {who}{below}", rounds.round.0, spoken(waited));
    }
    let head = format!("round {}, {} a second", rounds.round.0, rate(rounds.per_second));
    match latest(rounds) {
        Some(rank) => format!(
            "{head}, waiting for rank {}: {}{}",
            rank.rank,
            habit(rank.last, rounds.window, rank.late_us),
            within(&[rank.rank], members)
        ),
        None => format!("{head}, nobody is late"),
    }
}

/// For how long the round in flight has waited, if that is the verdict.
fn stands(rounds: &RoundsReply) -> Option<Duration> {
    Some(Duration::from_micros(rounds.waited_us)).filter(|&waited| waited >= STANDS)
}

/// The rank that makes rounds slow, if one does.
fn latest(rounds: &RoundsReply) -> Option<&RankReply> {
    // One long wait is no habit.
    let often = rounds.ranks.iter().filter(|rank| rank.last.saturating_mul(OFTEN) >= rounds.window);
    let latest = often.max_by_key(|rank| u64::from(rank.last) * rank.late_us);
    let round_s = 1.0 / rounds.per_second.max(1e-9);
    let share = |rank: &RankReply| {
        f64::from(rank.last) * rank.late_us as f64 / 1e6 / (f64::from(rounds.window) * round_s)
    };
    latest.filter(|rank| share(rank) >= WORTH_A_WORD)
}

/// Which workers are late on the machines of these ranks, as their hubs say it; of many the first ones.
fn within(ranks: &[u32], members: &[MemberReply]) -> String {
    let said = members.iter().filter(|member| ranks.contains(&member.rank)).filter_map(|member| {
        let latest = member.latest.as_ref()?;
        let who = latest.of_machine(member.rank);
        Some(match latest.waited_us {
            0 => format!("{who}, {}", habit(latest.last, latest.window, latest.late_us)),
            waited => format!("{who}, for {}", spoken(Duration::from_micros(waited))),
        })
    });
    let said: Vec<String> = said.take(NAMED).collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) }
}

fn habit(last: u32, window: u32, late_us: u64) -> String {
    let percent = 100 * u64::from(last) / u64::from(window.max(1));
    format!("last in {percent}% of rounds, by {}", spoken(Duration::from_micros(late_us)))
}

/// What the verdict says of gradients that are not finite.
pub(super) fn not_finite(gradients: &GradientsReply) -> String {
    match gradients.last {
        GradientNorm { not_finite: 0, .. } => String::new(),
        GradientNorm { round, not_finite, .. } => {
            format!("; {not_finite} values of the gradients of round {} were not finite", round.0)
        }
    }
}

/// `rank 3`, or `ranks 3, 5`; of many the first ones.
fn names(what: &str, numbers: &[u32]) -> String {
    let first: Vec<String> = numbers.iter().take(NAMED).map(u32::to_string).collect();
    let (plural, more) = (if numbers.len() == 1 { "" } else { "s" }, numbers.len().saturating_sub(NAMED));
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{what}{plural} {}{more}", first.join(", "))
}

fn rate(per_second: f64) -> String {
    if per_second >= 10.0 { format!("{per_second:.0}") } else { format!("{per_second:.1}") }
}

fn spoken(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.2} ms", s * 1e3),
    }
}

impl Job {
    /// A member lives, and says this of its own workers. Returns how long the hub may hold a heartbeat that brings news.
    pub fn heard_of(&mut self, rank: u32, latest: Option<Latest>) -> Result<Option<Duration>, String> {
        let is_hub = self.terms.level.members != Members::Workers;
        match &latest {
            Some(_) if !is_hub => {
                return Err("it is a worker, and only a hub has workers; leave it out".to_owned());
            }
            Some(latest) => latest.check()?,
            None => {}
        }
        if let Some(member) = &mut self.members[rank as usize] {
            (member.heard, member.hung_up, member.latest) = (Instant::now(), false, latest);
        }
        Ok(is_hub.then_some(TOLD_EVERY))
    }

    /// Which of all workers below this hub is late here, if one is.
    pub(super) fn latest(&self) -> Option<Latest> {
        let rounds = self.last_rounds.reply()?;
        let (rank, waited_us) = match stands(&rounds) {
            Some(_) => (*rounds.waits_for.first()?, rounds.waited_us),
            None => (latest(&rounds)?.rank, 0),
        };
        let RankReply { last, late_us, .. } = *rounds.ranks.get(rank as usize)?;
        let below = self.members[rank as usize].as_ref().and_then(|member| member.latest.clone());
        let below = below.filter(|below| below.path.len() < MAX_PATH);
        let said = below.unwrap_or(Latest { path: vec![], window: rounds.window, last, late_us, waited_us });
        let path = [&[rank], &said.path[..]].concat();
        Some(Latest { path, ..said })
    }
}

impl Registry {
    /// Asks the cores how the rounds of running jobs go, unless they have just been asked.
    pub async fn look_at_waits(self: &Arc<Self>) {
        let now = Instant::now();
        let stale = |job: &mut &mut Job| {
            let stale = job.runs() && job.last_rounds.asked.is_none_or(|at| now - at > FRESH);
            job.last_rounds.asked = if stale { Some(now) } else { job.last_rounds.asked };
            stale
        };
        let jobs: Vec<JobId> =
            self.lock().jobs.values_mut().filter_map(|mut job| stale(&mut job).then_some(job.id)).collect();
        let deadline = tokio::time::Instant::now() + LIMIT;
        for id in jobs {
            let asked = self.ask(id, |reply| Command::Measure { job: id, reply });
            let Ok(Ok(cores)) = tokio::time::timeout_at(deadline, asked).await else { continue };
            let _ = self.of_job(id, |job| {
                let (mut all, mut gauges) = (Watched::default(), Gauged::default());
                for (core, Measured { watched, gauged, crossed }) in cores.into_iter().enumerate() {
                    (all, gauges) = (all.with(watched), gauges.with(gauged));
                    crossed.into_iter().for_each(|(rank, crossed)| job.note_crossed(rank, core, crossed));
                }
                job.last_rounds.note(all, gauges);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(waits: impl Iterator<Item = [u32; 3]>) -> LastRounds {
        let rows: Vec<_> = (0..).map(Round).zip(waits.map(|waits| waits.to_vec())).collect();
        let last = rows.last().unwrap().0;
        let at = Instant::now();
        LastRounds {
            watched: Watched { first: Round(0), last, rows, waits_for: vec![] },
            gauged: Gauged::default(),
            asked: None,
            all: Vec::new(),
            counted: Round(0),
            seen: [(at, Round(0)), (at + Duration::from_secs(2), last)].into(),
        }
    }

    fn said(rounds: &LastRounds) -> String {
        let reply = rounds.reply();
        verdict(&JobState::Running, Round(0), &[], reply.as_ref(), &[])
    }

    #[test]
    fn the_verdict_names_who_is_last_most_of_the_time() {
        let rounds = rows((0..201).map(|round| if round % 10 == 0 { [900, 0, 0] } else { [0, 300, 7_000] }));
        assert_eq!(
            said(&rounds),
            "round 200, 100 a second, waiting for rank 2: last in 89% of rounds, by 7.00 ms"
        );
        let reply = rounds.reply().unwrap();
        assert_eq!(
            reply.ranks[1],
            RankReply {
                rank: 1,
                last: 0,
                late_us: 0,
                median_us: 300,
                greatest_us: 300,
                all: Default::default()
            }
        );
        assert_eq!((reply.ranks[0].last, reply.ranks[0].median_us, reply.ranks[0].late_us), (21, 0, 900));
    }

    #[test]
    fn each_round_that_is_over_is_counted_once() {
        let mut rounds = LastRounds::default();
        let watched = |first: u32, last: u32, waits: &[(u32, [u32; 2])]| Watched {
            first: Round(first),
            last: Round(last),
            rows: waits.iter().map(|&(round, waits)| (Round(round), waits.to_vec())).collect(),
            waits_for: vec![],
        };
        rounds.count(&watched(0, 4, &[(1, [0, 100]), (2, [0, 101]), (3, [0, 1])]));
        let [none, late] = rounds.all[..] else { panic!("{:?}", rounds.all) };
        assert_eq!((none.sum_us, none.rounds), (0, [3, 0, 0, 0, 0, 0, 0]));
        assert_eq!((late.sum_us, late.rounds), (201, [2, 1, 0, 0, 0, 0, 0]), "round 3 may not be over");
        // Rounds 3 to 9 are out of the window by now.
        rounds.count(&watched(10, 14, &[(11, [20_000_000, 0])]));
        rounds.count(&watched(10, 14, &[(11, [20_000_000, 0])]));
        let [first, second] = rounds.all[..] else { unreachable!() };
        assert_eq!((first.sum_us, first.rounds), (20_000_000, [5, 0, 0, 0, 0, 0, 1]));
        assert_eq!((second.sum_us, second.rounds), (201, [5, 1, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn short_waits_are_nobodys_fault() {
        let rounds = rows((0..101).map(|round| [20 + round % 7, 30, 9]));
        assert_eq!(said(&rounds), "round 100, 50 a second, nobody is late");
    }

    #[test]
    fn a_round_that_stands_is_the_verdict() {
        let mut rounds =
            rows((0..101).map(|round| if round == 100 { [0, 12_000_000, 0] } else { [0, 0, 5_000] }));
        rounds.watched.waits_for = vec![1];
        assert_eq!(said(&rounds), "round 100 has waited 12 s for rank 1");
        rounds.watched.waits_for.clear();
        assert!(said(&rounds).contains("rank 2: last in 99%"), "{}", said(&rounds));
    }

    #[test]
    fn the_verdict_names_the_worker_that_its_own_hub_names() {
        let rounds = rows((0..101).map(|_| [0, 7_000, 0])).reply().unwrap();
        let member = |rank, path, waited_us| {
            let latest = Some(Latest { path, window: 100, last: 98, late_us: 6_500, waited_us });
            MemberReply {
                rank,
                silent_ms: 0,
                address: None,
                host: None,
                transport: None,
                links: Vec::new(),
                latest,
            }
        };
        let members = [member(0, vec![3], 0), member(1, vec![4, 2], 0)];
        assert_eq!(
            verdict_of(&rounds, &members),
            "round 100, 50 a second, waiting for rank 1: last in 100% of rounds, by 7.00 ms (machine 1: machine 4: worker 2, \
             last in 98% of rounds, by 6.50 ms)"
        );
        let stands = RoundsReply { waited_us: 12_000_000, waits_for: vec![0, 1], ..rounds };
        let members = [member(0, vec![3], 11_000_000)];
        assert_eq!(
            verdict_of(&stands, &members),
            "round 100 has waited 12 s for ranks 0, 1 (machine 0: worker 3, for 11 s)"
        );
    }

    #[test]
    fn the_verdict_on_a_job_that_does_not_run() {
        let gathering = JobState::Gathering { missing: (1..12).collect(), machines: vec![] };
        let said = verdict(&gathering, Round(0), &[], None, &[]);
        assert_eq!(said, "waits for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more to join");
        let failed = JobState::Failed { reason: "worker 1 is gone".into(), hub_stops: false };
        assert_eq!(verdict(&failed, Round(0), &[], None, &[]), "failed: worker 1 is gone");
        assert!(verdict(&JobState::Running, Round(4), &[], None, &[]).starts_with("round 4"));
    }
}
