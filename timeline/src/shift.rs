//! The times of several machines on one clock. Each file says how far other clocks are ahead of its own.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::clock::Ahead;
use crate::process::Process;

/// The time to add to the times of a clock, and the largest possible error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shift {
    ns: i64,
    within_ns: u64,
}

/// Converts all events to the clock of the first process, and adds each process's shift to the metadata. Returns the names
/// of the processes whose clock is unknown: their times do not change.
pub(crate) fn to_one_clock(processes: &mut [Process]) -> Vec<String> {
    let shifts = shifts(processes);
    let mut apart = Vec::new();
    let mut by_number = HashMap::new();
    for Process { about, .. } in &mut *processes {
        match shifts.get(id(about)) {
            Some(Shift { ns: 0, .. }) => {}
            Some(&Shift { ns, within_ns }) => {
                about["clock"]["shifted_ns"] = json!(ns);
                about["clock"]["within_ns"] = json!(within_ns);
                by_number.insert(about["pid"].as_u64(), ns);
            }
            None => apart.push(about["name"].as_str().unwrap_or_default().to_owned()),
        }
    }
    if !by_number.is_empty() {
        processes.iter_mut().for_each(|process| shift_lines(&mut process.lines, &by_number));
    }
    apart
}

fn id(about: &Value) -> &str {
    about["clock"]["id"].as_str().unwrap_or_default()
}

/// Computes the shift of each clock, from one clock to the next, with the most exact step first.
fn shifts(processes: &[Process]) -> HashMap<String, Shift> {
    let mut steps = Vec::new();
    for Process { about, .. } in processes {
        let others = serde_json::from_value::<Vec<Ahead>>(about["clock"]["others"].clone());
        for Ahead { id: other, ns, within_ns } in others.unwrap_or_default() {
            let own = id(about).to_owned();
            steps.push((own.clone(), other.clone(), Shift { ns, within_ns }));
            steps.push((other, own, Shift { ns: -ns, within_ns }));
        }
    }
    let first = processes.first().map(|first| id(&first.about).to_owned()).unwrap_or_default();
    let mut known = HashMap::from([(first, Shift { ns: 0, within_ns: 0 })]);
    // A step leads from a clock to another clock, which is ahead by the step's time. The step can be used when the
    // shift of the other clock is known.
    while let Some((from, shift)) = steps
        .iter()
        .filter(|(from, ..)| !known.contains_key(from))
        .filter_map(|(from, to, step)| {
            let Shift { ns, within_ns } = known.get(to)?;
            Some((from, Shift { ns: ns + step.ns, within_ns: within_ns + step.within_ns }))
        })
        .min_by_key(|(_, shift)| shift.within_ns)
    {
        known.insert(from.clone(), shift);
    }
    known
}

fn shift_lines(lines: &mut String, by_number: &HashMap<Option<u64>, i64>) {
    let mut shifted = String::with_capacity(lines.len());
    for line in lines.lines() {
        let event = serde_json::from_str::<Value>(line.trim_end_matches(',')).ok();
        let times = event.and_then(|event| {
            let ns = by_number.get(&event["pid"].as_u64())?;
            Some((event["ts"].as_f64()? + *ns as f64 / 1e3, event))
        });
        match times {
            Some((time, mut event)) => {
                event["ts"] = json!(time);
                shifted.push_str(&format!("{event},\n"));
            }
            None => shifted.push_str(&format!("{line}\n")),
        }
    }
    *lines = shifted;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Event};

    fn process(name: &str, clock: &str, at_ns: u64, others: &[(&str, i64, u64)]) -> Process {
        let mut process = Process::new(name, 0, &Clock::start(), 0);
        process.about["clock"]["id"] = json!(clock);
        let ahead = |&(id, ns, within_ns): &(&str, i64, u64)| Ahead { id: id.to_owned(), ns, within_ns };
        process.add_clocks(&others.iter().map(ahead).collect::<Vec<_>>());
        process.instant(1, "arrival", at_ns, Event::default());
        process
    }

    fn times(processes: &[Process]) -> Vec<f64> {
        let lines = processes.iter().flat_map(|process| process.lines.lines());
        let events = lines.map(|line| serde_json::from_str::<Value>(line.trim_end_matches(',')).unwrap());
        events.filter_map(|event| event["ts"].as_f64()).collect()
    }

    /// The shift of a clock comes from the most exact chain of clocks. Four machines have events at the same
    /// moment. Worker 1 knows the clocks of two hubs.
    #[test]
    fn clocks_are_found_by_the_way_that_is_the_most_exact() {
        let mut all = [
            process("hub a", "a", 5_000_000, &[]),
            process("worker 0", "w", 4_000_000, &[("a", 1_000_000, 70), ("a", 1_000_003, 900)]),
            process("worker 1", "x", 9_000_000, &[("a", -4_000_000, 50), ("b", -8_000_000, 20)]),
            process("hub b", "b", 1_000_000, &[]),
            process("worker 2", "elsewhere", 123_000, &[]),
        ];
        assert_eq!(to_one_clock(&mut all), ["worker 2"]);
        assert_eq!(times(&all), [5000.0, 5000.0, 5000.0, 5000.0, 123.0]);
        let said = |process: &Process| {
            (process.about["clock"]["shifted_ns"].as_i64(), process.about["clock"]["within_ns"].as_u64())
        };
        let said: Vec<_> = all.iter().map(said).collect();
        let expected = [(0, 0), (1_000_000, 70), (-4_000_000, 50), (4_000_000, 70)];
        assert_eq!(said[0], (None, None), "the first one's clock is that of all");
        for (said, (ns, within)) in said[1..4].iter().zip(&expected[1..]) {
            assert_eq!(*said, (Some(*ns), Some(*within)));
        }
        assert_eq!(said[4], (None, None));
    }

    #[test]
    fn processes_of_one_machine_stay_as_they_are() {
        let mut all = [process("hub", "a", 7_000, &[]), process("worker", "a", 8_001, &[("a", 30, 40)])];
        assert_eq!(to_one_clock(&mut all), Vec::<String>::new());
        assert_eq!(times(&all), [7.0, 8.001]);
    }
}
