//! A check: one prerequisite, its state, and the fix if it is not met. This module has only data.

use serde::Serialize;

/// The state of a prerequisite, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The prerequisite is met.
    Pass,
    /// A fact that is of interest. The settings do not need the prerequisite.
    Note,
    /// The hub works, but more slowly than it could, or in another way.
    Warn,
    /// The hub or the job will not work.
    Fail,
}

/// One line of the doctor's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub name: String,
    pub verdict: Verdict,
    /// The observation, with figures. It has several lines if there is a table.
    pub seen: String,
    /// The command or setting that repairs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// Creates a check that passes.
    pub fn pass(name: impl Into<String>, seen: impl Into<String>) -> Self {
        Check { name: name.into(), verdict: Verdict::Pass, seen: seen.into(), fix: None }
    }

    /// Creates a check that reports a fact and judges nothing.
    pub fn note(name: impl Into<String>, seen: impl Into<String>) -> Self {
        Check { verdict: Verdict::Note, ..Check::pass(name, seen) }
    }

    /// Creates a check of something that works less well than it could.
    pub fn warn(name: impl Into<String>, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Check { verdict: Verdict::Warn, fix: Some(fix.into()), ..Check::pass(name, seen) }
    }

    /// Creates a check of something that does not work.
    pub fn fail(name: impl Into<String>, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Check { verdict: Verdict::Fail, ..Check::warn(name, seen, fix) }
    }
}
