//! TCP's congestion control: the algorithm that connections of the data path get, and the algorithms that the kernel allows.

use std::net::Ipv4Addr;

use fabric::tcp::{Congestion, CongestionRules, Controlled, Listener};

use crate::doctor::check::Check;

const NAME: &str = "TCP congestion control";

/// Checks TCP's congestion control with a new socket, which is never connected.
pub(crate) fn congestion(asked: &Congestion) -> Check {
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into());
    match listener.and_then(|listener| listener.with_congestion(asked.clone())) {
        Ok((_, got)) => judge(asked, &got, &CongestionRules::read()),
        Err(error) => Check::fail(NAME, error.to_string(), "--tcp-congestion auto"),
    }
}

fn judge(asked: &Congestion, got: &Controlled, rules: &CongestionRules) -> Check {
    let says = |names: &Option<String>| {
        names.clone().unwrap_or("unknown algorithms (the kernel does not show them)".into())
    };
    let (available, allowed) = (says(&rules.available), says(&rules.allowed));
    let seen = format!("{got}; the kernel has {available}, and lets every process have {allowed}");
    if *asked == Congestion::Auto && got.is_paced() {
        let fix = "as root: modprobe tcp_cubic; sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno cubic\", and append the algorithms that the setting has now";
        return Check::warn(NAME, seen, fix);
    }
    Check::pass(NAME, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    #[test]
    fn bbr_between_near_machines_is_a_warning_unless_it_was_asked_for() {
        let got = |name: &str| Controlled { name: name.into(), why: "a test".into() };
        let rules = CongestionRules { allowed: Some("reno bbr".into()), ..CongestionRules::default() };
        let judged = judge(&Congestion::Auto, &got("bbr"), &rules);
        assert_eq!(judged.verdict, Verdict::Warn);
        assert!(judged.seen.contains("lets every process have reno bbr"), "{}", judged.seen);
        assert_eq!(judge(&Congestion::Auto, &got("cubic"), &rules).verdict, Verdict::Pass);
        assert_eq!(judge(&Congestion::System, &got("bbr"), &rules).verdict, Verdict::Pass);
    }

    #[test]
    fn what_the_kernel_refuses_is_a_failure() {
        let judged = congestion(&Congestion::Named("nonesuch".into()));
        assert!(judged.verdict == Verdict::Fail && judged.seen.contains("nonesuch"), "{judged:?}");
        assert!(congestion(&Congestion::Named("reno".into())).seen.contains("reno (as set)"));
    }
}
