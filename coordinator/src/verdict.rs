//! The verdict: one line about the speed of a job's rounds and the rank that is late. Only this file writes it.

use std::time::Duration;

use pbox_core::Round;
use pbox_core::control::{
    GradientNorm, GradientsReply, JobState, Late, Latest, MAX_PATH, MemberReply, RankReply, RoundsReply,
};

/// The verdict names a rank only if the waits for this rank take at least this share of the time.
const WORTH_A_WORD: f64 = 0.05;
/// The verdict names a rank only if the rank was last in at least one of every `OFTEN` rounds.
const OFTEN: u32 = 10;
/// The most ranks that a verdict names.
const NAMED: usize = 8;
/// The shortest wait in the round in flight that the verdict reports. If a wait is at least this long, the verdict
/// describes the wait, and not the speed of rounds.
const STANDS: Duration = Duration::from_secs(1);

/// Describes the progress of a job in one line.
pub fn verdict(
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
            ([], None) => format!("round {}: the hub has not waited for any worker yet", round.0),
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
    if rounds.per_second == 0.0 {
        return format!(
            "round {}: no round has ended since the hub began to measure; look again",
            rounds.round.0
        );
    }
    let head = format!("round {}, {}", rounds.round.0, rate(rounds.per_second));
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

/// Returns the wait in the round in flight, if the verdict reports this wait.
fn stands(rounds: &RoundsReply) -> Option<Duration> {
    Some(Duration::from_micros(rounds.waited_us)).filter(|&waited| waited >= STANDS)
}

/// Returns the rank that makes rounds slow, if there is such a rank.
fn latest(rounds: &RoundsReply) -> Option<&RankReply> {
    // A few long waits do not make a rank slow.
    let often = rounds.ranks.iter().filter(|rank| rank.last.saturating_mul(OFTEN) >= rounds.window);
    let latest = often.max_by_key(|rank| u64::from(rank.last) * rank.late_us);
    let round_s = 1.0 / rounds.per_second.max(1e-9);
    let share = |rank: &RankReply| {
        f64::from(rank.last) * rank.late_us as f64 / 1e6 / (f64::from(rounds.window) * round_s)
    };
    latest.filter(|rank| share(rank) >= WORTH_A_WORD)
}

/// Describes which workers are late on the machines of these ranks, as reported by the machines' hubs. Describes at
/// most the first few of these workers.
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

/// Describes how many values of the last gradients are not finite.
pub fn not_finite(gradients: &GradientsReply) -> String {
    match gradients.last {
        GradientNorm { not_finite: 0, .. } => String::new(),
        GradientNorm { round, not_finite, .. } => {
            format!("; {not_finite} values of the gradients of round {} were not finite", round.0)
        }
    }
}

/// Writes `rank 3`, or `ranks 3, 5`. If there are many numbers, writes only the first numbers.
fn names(what: &str, numbers: &[u32]) -> String {
    let first: Vec<String> = numbers.iter().take(NAMED).map(u32::to_string).collect();
    let (plural, more) = (if numbers.len() == 1 { "" } else { "s" }, numbers.len().saturating_sub(NAMED));
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{what}{plural} {}{more}", first.join(", "))
}

fn rate(per_second: f64) -> String {
    match per_second {
        10.0.. => format!("{per_second:.0} a second"),
        1.0.. => format!("{per_second:.1} a second"),
        _ => format!("one each {:.1} s", 1.0 / per_second),
    }
}

fn spoken(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.2} ms", s * 1e3),
    }
}

/// Returns the late worker below a hub, if there is one. `said` returns a rank's report about its own workers.
pub(crate) fn latest_below(rounds: &RoundsReply, said: impl FnOnce(u32) -> Option<Latest>) -> Option<Latest> {
    let (rank, waited_us) = match stands(rounds) {
        Some(_) => (*rounds.waits_for.first()?, rounds.waited_us),
        None => (latest(rounds)?.rank, 0),
    };
    let RankReply { last, late_us, .. } = *rounds.ranks.get(rank as usize)?;
    let below = said(rank).filter(|below| below.path.len() < MAX_PATH);
    let below = below.unwrap_or(Latest { path: vec![], window: rounds.window, last, late_us, waited_us });
    let path = [&[rank], &below.path[..]].concat();
    Some(Latest { path, ..below })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::LastRounds;
    use crate::pace::tests::rows;
    use pbox_core::{Gauged, Watched};
    use std::time::Instant;

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
    fn how_fast_rounds_are_is_known_once_one_has_ended_between_looks_also_where_it_takes_minutes() {
        let mut rounds = LastRounds::default();
        let begun = Instant::now();
        let look = |rounds: &mut LastRounds, last: u32, after_s: u64| {
            let rows: Vec<_> = (0..last).map(|round| (Round(round), vec![0, 0, 60_000_000])).collect();
            let watched = Watched { first: Round(0), last: Round(last), rows, waits_for: vec![] };
            rounds.note(watched, Gauged::default(), begun + Duration::from_secs(after_s));
        };
        look(&mut rounds, 59, 0);
        look(&mut rounds, 59, 100);
        assert_eq!(said(&rounds), "round 59: no round has ended since the hub began to measure; look again");
        look(&mut rounds, 60, 300);
        look(&mut rounds, 61, 600);
        assert_eq!(
            said(&rounds),
            "round 61, one each 300.0 s, waiting for rank 2: last in 98% of rounds, by 60 s"
        );
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
