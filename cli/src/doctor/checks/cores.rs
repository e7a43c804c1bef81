//! The cores of the hub: the other programs that run on them, and their speed. This module judges facts that
//! other modules read.

use phub_server::IdleChoice;
use topology::cpulist;

use crate::doctor::check::Check;
use crate::doctor::facts::Cpus;

/// Judges whether other programs run on the hub's cores. `--idle busy-poll` needs cores without other work.
pub(crate) fn isolation(hub: &[u32], idle: IdleChoice, facts: &Cpus) -> Check {
    const NAME: &str = "core isolation";
    let bare: Vec<u32> = hub.iter().copied().filter(|cpu| !facts.isolated.contains(cpu)).collect();
    let cores = format!("the hub's cores: cpus {}", list(hub));
    if !facts.isolated.is_empty() && bare.len() == hub.len() {
        let isolated = list(&facts.isolated);
        return Check::warn(
            NAME,
            format!("{cores}; cpus {isolated} are isolated, and the hub uses none of them"),
            format!(
                "taskset -c {isolated} phub-server serve --cores {isolated}, with the other settings unchanged"
            ),
        );
    }
    if idle == IdleChoice::BusyPoll && !bare.is_empty() {
        let bare = list(&bare);
        return Check::warn(
            NAME,
            format!(
                "{cores}; --idle busy-poll always occupies cpus {bare}, but these cpus are not isolated: other programs may run on them, too"
            ),
            format!("put isolcpus={bare} nohz_full={bare} on the kernel's command line, or give --idle auto"),
        );
    }
    let ticking: Vec<u32> = hub.iter().copied().filter(|cpu| !facts.tickless.contains(cpu)).collect();
    if idle == IdleChoice::BusyPoll && !ticking.is_empty() {
        let cpus = list(&ticking);
        let note =
            Check::note(NAME, format!("{cores}, isolated; the kernel's tick still interrupts cpus {cpus}"));
        return Check { fix: Some(format!("put nohz_full={cpus} on the kernel's command line")), ..note };
    }
    let others = facts.online.iter().filter(|cpu| !hub.contains(cpu)).count();
    let allowed = match facts.allowed.len() {
        n if n < facts.online.len() => format!(" (this process may use cpus {})", list(&facts.allowed)),
        _ => String::new(),
    };
    let isolated = match (bare.len(), idle) {
        (0, _) => "all isolated",
        (n, _) if n < hub.len() => "some isolated",
        _ => "none isolated; only --idle busy-poll needs isolated cpus",
    };
    Check::pass(NAME, format!("{cores}, {others} cpus left to other programs{allowed}; {isolated}"))
}

/// Judges whether the hub's cores run at full speed.
pub(crate) fn governor(hub: &[u32], facts: &Cpus) -> Check {
    const NAME: &str = "cpu governor";
    let ours = || facts.governors.iter().filter(|(cpu, _)| hub.contains(cpu));
    let slow: Vec<u32> =
        ours().filter(|(_, governor)| governor != "performance").map(|&(cpu, _)| cpu).collect();
    match ours().find(|(_, governor)| governor != "performance") {
        Some((_, governor)) => Check::warn(
            NAME,
            format!("{governor} on cpus {}, which slow down between rounds", list(&slow)),
            format!("as root: cpupower --cpu {} frequency-set --governor performance", list(&slow)),
        ),
        None if ours().next().is_some() => Check::pass(NAME, "performance"),
        None => Check::note(NAME, "sysfs shows no governor (a virtual machine, or the firmware decides)"),
    }
}

fn list(cpus: &[u32]) -> String {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    cpulist::format(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    fn eight(isolated: &[u32], tickless: &[u32]) -> Cpus {
        let all: Vec<u32> = (0..8).collect();
        let governors = vec![(0, "performance".into()), (1, "powersave".into()), (4, "performance".into())];
        let (isolated, tickless) = (isolated.to_vec(), tickless.to_vec());
        Cpus { online: all.clone(), allowed: all, isolated, tickless, governors }
    }

    #[test]
    fn busy_polling_wants_cores_of_its_own() {
        let judge = |hub: &[u32], idle, facts: &Cpus| isolation(hub, idle, facts);
        let shared = judge(&[4, 5], IdleChoice::BusyPoll, &eight(&[], &[]));
        assert_eq!(shared.verdict, Verdict::Warn);
        assert!(shared.fix.unwrap().contains("isolcpus=4-5 nohz_full=4-5"));
        assert_eq!(judge(&[4, 5], IdleChoice::Auto, &eight(&[], &[])).verdict, Verdict::Pass);
        assert_eq!(judge(&[4, 5], IdleChoice::BusyPoll, &eight(&[4, 5], &[4, 5])).verdict, Verdict::Pass);
        let ticking = judge(&[4, 5], IdleChoice::BusyPoll, &eight(&[4, 5], &[4]));
        assert_eq!(ticking.verdict, Verdict::Note);
        assert!(ticking.fix.unwrap().contains("nohz_full=5"));
    }

    #[test]
    fn isolated_cores_that_lie_idle_are_pointed_out() {
        let check = isolation(&[0, 1], IdleChoice::Auto, &eight(&[4, 5, 6, 7], &[]));
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.fix.unwrap().contains("taskset -c 4-7 phub-server serve --cores 4-7"));
    }

    #[test]
    fn a_governor_matters_on_the_hubs_cores_only() {
        assert_eq!(governor(&[0, 4], &eight(&[], &[])).verdict, Verdict::Pass);
        let slow = governor(&[0, 1], &eight(&[], &[]));
        assert_eq!(slow.verdict, Verdict::Warn);
        assert!(slow.seen.contains("powersave on cpus 1") && slow.fix.unwrap().contains("--cpu 1 "));
        assert_eq!(governor(&[2, 3], &eight(&[], &[])).verdict, Verdict::Note);
    }
}
