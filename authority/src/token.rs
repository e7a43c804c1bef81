//! Tokens: a right to a job, with the proof that the owner of the secret gave this right.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// The job name in a token for all jobs of a hub, and for the hub itself.
pub const ALL_JOBS: &str = "*";

/// A right that a token gives. Each right except [`Peer`](Right::Peer) contains the rights before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// The right to see what a hub does, and the state of jobs.
    Read,
    /// The right to take part in a job, and to have its checkpoints written.
    Join,
    /// The right to stop jobs, and to make a hub take no more jobs.
    Operate,
    /// The right to act as another hub of a job. No other right contains this right, and this right contains no other
    /// right. Only the owner of the secret has this right.
    Peer,
}

const RIGHTS: [(Right, &str); 4] =
    [(Right::Read, "read"), (Right::Join, "join"), (Right::Operate, "operate"), (Right::Peer, "peer")];

/// The suffix that is added to a job's name at the hubs above. The hubs above sum for the hubs of the job.
pub const ABOVE_SUFFIX: &str = ".above";

impl Right {
    /// Whether this right contains another one.
    pub fn contains(self, other: Right) -> bool {
        self == other || (self >= other && self != Right::Peer)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(RIGHTS.iter().find(|(right, _)| right == self).expect("the table has all rights").1)
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A token's text cannot give the right `peer`, which is only for hubs.
        let found = RIGHTS.iter().find(|(right, name)| *name == text && *right != Right::Peer);
        found.map(|(right, _)| *right).ok_or_else(|| "expected read, join or operate".into())
    }
}

/// A right to a job, with its proof. As a text, it is `phub-join.resnet.5f3c...`, or `phub-join@1800000000.resnet.5f3c...`
/// if it expires.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The right that the token gives.
    pub right: Right,
    /// The job, or [`ALL_JOBS`].
    pub job: String,
    /// The time at which the token expires, in seconds since 1970 began.
    pub expires: Option<u64>,
    /// The HMAC-SHA256, in hexadecimal digits.
    pub(crate) proof: String,
}

/// An error: the text is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a token; expected phub-RIGHT.JOB.PROOF or phub-RIGHT@SECONDS.JOB.PROOF, as `phub-server token` prints it"
)]
pub struct NotAToken;

impl Token {
    /// The prefix of every token's text.
    pub(crate) const BEGIN: &str = "phub-";

    /// Whether the token gives this right to this job.
    pub fn allows(&self, right: Right, job: &str) -> bool {
        self.right.contains(right) && self.covers(job)
    }

    /// Whether the token is for this job: the job that it names, or that job's sums at the hubs above.
    pub fn covers(&self, job: &str) -> bool {
        let mut rest = job.strip_prefix(&self.job);
        while let Some(above) = rest.and_then(|rest| rest.strip_prefix(ABOVE_SUFFIX)) {
            rest = Some(above);
        }
        self.job == ALL_JOBS || rest == Some("")
    }

    /// Whether the token has expired.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.expires.is_some_and(|expires| seconds >= expires)
    }

    /// Parses a right and the time at which it ends, as in the text of a token.
    pub(crate) fn right_of(text: &str) -> Option<(Right, Option<u64>)> {
        let (name, expires) = match text.split_once('@') {
            None => (text, None),
            // Each number has only one spelling.
            Some((name, at)) => {
                (name, Some(at.parse().ok().filter(|number: &u64| number.to_string() == at)?))
            }
        };
        let right = RIGHTS.iter().find(|(_, known)| *known == name)?.0;
        Some((right, expires))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.expires.map_or(String::new(), |at| format!("@{at}"));
        write!(f, "{}{}{until}.{}.{}", Self::BEGIN, self.right, self.job, self.proof)
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
            // The text is split at its last dot, because the name of a job may have dots.
            let (job, proof) = rest.rsplit_once('.')?;
            let (right, expires) = Self::right_of(right)?;
            Some(Token { right, expires, job: job.to_owned(), proof: proof.to_owned() })
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

    #[test]
    fn nobody_is_a_hub_by_another_right() {
        let secret = Secret::random().unwrap();
        let (operate, peer) = (secret.token(Right::Operate, ALL_JOBS), secret.token(Right::Peer, "a"));
        assert!(!operate.allows(Right::Peer, "a"));
        assert!(peer.allows(Right::Peer, "a") && !peer.allows(Right::Read, "a"));
        assert!("peer".parse::<Right>().is_err(), "nobody gives it away");
    }

    #[test]
    fn a_job_is_also_that_of_its_sums() {
        let token = Secret::random().unwrap().token(Right::Join, "a");
        assert!(token.covers("a.above") && token.covers("a.above.above"));
        for other in ["a.abov", "a.above.b", "aa.above", "a.", "", "above"] {
            assert!(!token.covers(other), "{other:?}");
        }
    }

    #[test]
    fn a_token_expires_at_its_second() {
        let token = Secret::random().unwrap().token_until(Right::Read, "a.b", Some(1000));
        assert_eq!(token.to_string().parse(), Ok(token.clone()));
        let at = |seconds| UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        assert!(!token.has_expired(at(999)) && token.has_expired(at(1000)));
        for wrong in ["phub-read@.a.00", "phub-read@+1.a.00", "phub-read@01.a.00", "phub-read@x.a.00"] {
            assert_eq!(wrong.parse::<Token>(), Err(NotAToken), "{wrong}");
        }
    }
}
