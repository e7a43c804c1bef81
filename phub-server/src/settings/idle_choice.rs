//! `--idle`: how core threads wait, in the user's words.

use fabric::IdlePolicy;

/// The way in which a core waits when nothing arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum IdleChoice {
    /// Spin if the hub leaves cpus to other programs; otherwise sleep.
    #[default]
    Auto,
    /// Spin for some microseconds, then sleep.
    Spin,
    /// Sleep at once.
    Sleep,
    /// Never sleep.
    BusyPoll,
}

impl IdleChoice {
    /// Returns the policy, and the reason for the log. The hub uses `cores` of the machine's `cpus` cpus.
    pub fn policy(self, cores: usize, cpus: usize) -> (IdlePolicy, String) {
        match self {
            IdleChoice::Spin => (IdlePolicy::DEDICATED, "spin, then sleep (as set)".into()),
            IdleChoice::Sleep => (IdlePolicy::SHARED, "sleep at once (as set)".into()),
            IdleChoice::BusyPoll => (IdlePolicy::BUSY_POLL, "busy-poll (as set)".into()),
            IdleChoice::Auto if cores < cpus => (
                IdlePolicy::DEDICATED,
                format!("spin, then sleep (auto: the hub uses {cores} of {cpus} cpus)"),
            ),
            IdleChoice::Auto => (
                IdlePolicy::SHARED,
                format!(
                    "sleep at once (auto: the hub uses all {cpus} cpus, which workers on this machine need, too)"
                ),
            ),
        }
    }
}
