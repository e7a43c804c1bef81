//! Tokens: a right to a job, with the proof that somebody who has the secret gave it.

use std::fmt;
use std::str::FromStr;

/// In a token: all jobs of a hub, and the hub itself.
pub const ALL_JOBS: &str = "*";

/// What somebody may do. Each right contains the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// See what a hub does, and the state of jobs.
    Read,
    /// Take part in a job, and have its checkpoints written.
    Join,
    /// Stop jobs, and have a hub take no more.
    Operate,
}

const RIGHTS: [(Right, &str); 3] =
    [(Right::Read, "read"), (Right::Join, "join"), (Right::Operate, "operate")];

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(RIGHTS.iter().find(|(right, _)| right == self).expect("all are there").1)
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = RIGHTS.iter().find(|(_, name)| *name == text);
        found.map(|(right, _)| *right).ok_or_else(|| "expected read, join or operate".into())
    }
}

/// A right to a job, and its proof. As a text: `phub-join.resnet.5f3c...`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// What it allows.
    pub right: Right,
    /// The job, or [`ALL_JOBS`].
    pub job: String,
    /// HMAC-SHA256, in hexadecimal digits.
    pub(crate) proof: String,
}

/// A text is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token; expected phub-RIGHT.JOB.PROOF, as `phub-server token` prints it")]
pub struct NotAToken;

impl Token {
    /// What the text of every token begins with.
    pub(crate) const BEGIN: &str = "phub-";

    /// Whether it gives this right to this job.
    pub fn allows(&self, right: Right, job: &str) -> bool {
        self.right >= right && self.covers(job)
    }

    /// Whether it is about this job.
    pub fn covers(&self, job: &str) -> bool {
        self.job == ALL_JOBS || self.job == job
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}.{}.{}", Self::BEGIN, self.right, self.job, self.proof)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} {})", self.right, self.job)
    }
}

impl FromStr for Token {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let parts = || {
            let (right, rest) = text.strip_prefix(Self::BEGIN)?.split_once('.')?;
            // A job's name may have dots.
            let (job, proof) = rest.rsplit_once('.')?;
            Some(Token { right: right.parse().ok()?, job: job.to_owned(), proof: proof.to_owned() })
        };
        parts().ok_or(NotAToken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn a_token_is_read_as_it_is_written_and_shows_no_proof_in_logs() {
        let token = Secret::random().unwrap().token(Right::Operate, "a.b-c_1");
        assert_eq!(token.to_string().parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(&token.proof));
        for wrong in ["", "phub-", "phub-join", "phub-join.job", "phub-eat.job.00", "join.job.00"] {
            assert_eq!(wrong.parse::<Token>(), Err(NotAToken), "{wrong:?}");
        }
    }

    #[test]
    fn a_right_contains_the_ones_before_it() {
        let secret = Secret::random().unwrap();
        let (join, all) = (secret.token(Right::Join, "a"), secret.token(Right::Read, ALL_JOBS));
        assert!(join.allows(Right::Join, "a") && join.allows(Right::Read, "a"));
        assert!(!join.allows(Right::Operate, "a") && !join.allows(Right::Join, "b"));
        assert!(all.allows(Right::Read, "b") && !all.allows(Right::Join, "b"));
    }
}
