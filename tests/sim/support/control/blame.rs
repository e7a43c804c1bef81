//! Blame: what the test has done to members, and whether the coordinator names the right member and the right cause.
//!
//! | the coordinator says | what the test has done before |
//! | --- | --- |
//! | `Link`, "worker 2 is gone" | killed worker 2, or cut its links; or the job has failed at another hub |
//! | `Silent`, "worker 2 was silent" | killed worker 2, or hung it, so that it sends no heartbeat |
//! | `Late`, "worker 2 lives and holds up round 7" | stalled worker 2, so that it sends only heartbeats |
//! | `HubLost`, `Other`, in the words of another party | that party has reported the loss of this member in these words |
//! | `Other`, "could not be admitted" | a hub did not answer the hold or the release of a cut |
//! | the job fails | this member is lost, or a hub stops, dies or does not answer |

use coordinator::Cause;

use super::Control;

/// A harm that the test does to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Harm {
    /// The member is killed. Its links and its heartbeat end.
    Killed,
    /// The member hangs. It sends no heartbeat.
    Hangs,
    /// The member pushes nothing, and sends heartbeats.
    Late,
    /// The links of the member are cut.
    Cut,
    /// A core has seen that the member broke the protocol.
    BreaksProtocol,
    /// The member gives up, because the job has failed at another hub.
    GivesUp,
    /// Another party reports the loss of the member, in these words.
    Reported(String),
}

impl Control {
    /// Notes what the test does to a member.
    pub fn harms(&mut self, rank: u32, harm: Harm) {
        self.harms[rank as usize].push(harm);
    }

    /// Checks that the test has harmed a lost member in a way that explains the loss.
    pub(super) fn check_lost(&mut self, rank: u32, cause: Cause, reason: &str) {
        let (who, harms) = (self.job().spec.spoken(rank), &self.harms[rank as usize]);
        let is_any = |of: &[Harm]| of.iter().any(|harm| harms.contains(harm));
        let is_right = match cause {
            Cause::Link => {
                // The job has failed at another hub. That hub's request may arrive after the member's links have ended.
                let may_give_up = !self.job().hubs.share.is_whole() && is_any(&[Harm::GivesUp]);
                let is_harmed = may_give_up || is_any(&[Harm::Killed, Harm::Cut, Harm::BreaksProtocol]);
                reason.starts_with(&format!("{who} is gone: ")) && is_harmed
            }
            Cause::Silent => {
                reason.starts_with(&format!("{who} was silent for ")) && is_any(&[Harm::Killed, Harm::Hangs])
            }
            Cause::HubLost | Cause::Other => {
                let is_refused = reason.starts_with(&format!("{who} could not be admitted: "));
                is_any(&[Harm::Reported(reason.to_owned())]) || cause == Cause::Other && is_refused
            }
            Cause::Late => {
                reason.starts_with(&format!("{who} lives and holds up round ")) && is_any(&[Harm::Late])
            }
        };
        assert!(is_right, "{who} is lost, {cause:?}: {reason:?}, and the story has done {harms:?} to it");
        self.lost = Some(reason.to_owned());
    }

    /// Checks that the job fails because a member is lost, with the reason of this loss, or because another hub does
    /// not answer.
    pub(super) fn check_fails(&self, reason: &str) {
        let is_of_loss = self.lost.as_deref().is_some_and(|lost| reason.starts_with(lost));
        assert!(
            is_of_loss || reason.starts_with("a cut did not end: "),
            "the job fails: {reason:?}, and the last loss is {:?}",
            self.lost
        );
    }
}
