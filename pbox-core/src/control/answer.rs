//! Limits on the numbers in answers. An answer comes from another process, which may be hostile. So each number is checked
//! when the answer is parsed. Before the check, no number is used as a size of memory, a count or a time to wait.

use serde::de::DeserializeOwned;

use super::{
    CheckpointReply, ClockReply, DrainReply, FailedReply, HeartbeatReply, HoldReply, HubReply, JobState,
    JoinReply, LastReply, LeaveReply, MeetReply, OfferReply, PartState, PartsReply, StateReply, StopReply,
    TransportAddress, WrittenReply, check_address,
};
use crate::job::{MAX_HUBS, MAX_WORKERS};
use crate::layout::Round;

/// The limit on the ports of a hub. The first message of the data path has no room for more ports.
pub const MAX_PORTS: u32 = 4096;
/// The limit on the time for which a hub tolerates a member's silence. It is also the limit of `--heartbeat-limit-s`.
const MAX_HEARTBEAT_LIMIT_MS: u64 = 3_600_000;
/// The limit on the number of checkpoint files whose rounds are in an answer. A hub keeps only a few files of each job.
const MAX_FILES: usize = 1 << 16;

/// The limit on the length of a state, or of a hub's part of it, in bytes. The sum over all hubs then fits in 64 bits.
const MAX_STATE_BYTES: u64 = 1 << 50;

/// An answer of a hub, with limits.
pub trait Answer: DeserializeOwned {
    /// Checks that the answer's numbers are possible for a hub.
    ///
    /// # Errors
    /// Returns the fault in words.
    fn check(&self) -> Result<(), String>;
}

/// An answer that its receiver does not use, so its numbers have no limits.
impl Answer for serde_json::Value {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

fn at_most(what: &str, seen: impl TryInto<u64>, most: impl TryInto<u64>) -> Result<(), String> {
    let (seen, most) = (seen.try_into().unwrap_or(u64::MAX), most.try_into().unwrap_or(u64::MAX));
    if seen <= most { Ok(()) } else { Err(format!("{seen} {what}: expected {most} at most")) }
}

fn rounds(rounds: impl IntoIterator<Item = Round>) -> Result<(), String> {
    match rounds.into_iter().find(|&round| round > Round::LIMIT) {
        None => Ok(()),
        Some(round) => Err(format!("round {}: expected {} at most", round.0, Round::LIMIT.0)),
    }
}

/// Checks the rounds of a hub's files.
fn files(of: &[Round]) -> Result<(), String> {
    at_most("files", of.len(), MAX_FILES)?;
    if !of.is_sorted_by(|round, next| round < next) {
        return Err(
            "the rounds of the files do not ascend: expected each round once, in ascending order".into()
        );
    }
    rounds(of.iter().copied())
}

fn ranks(ranks: impl IntoIterator<Item = u32>) -> Result<(), String> {
    let mut count = 0;
    for rank in ranks {
        count += 1;
        at_most("as a rank", rank, MAX_WORKERS - 1)?;
    }
    at_most("ranks", count, u64::from(MAX_WORKERS))
}

impl Answer for JoinReply {
    fn check(&self) -> Result<(), String> {
        at_most("ports", self.ports, MAX_PORTS)?;
        at_most("cores", self.cores.len(), self.ports)?;
        at_most("ms for a heartbeat", self.heartbeat_limit_ms, MAX_HEARTBEAT_LIMIT_MS)?;
        if self.heartbeat_limit_ms == 0 {
            return Err("0 ms as the limit on heartbeats: expected 1 or more".into());
        }
        for offer in &self.transports {
            if let TransportAddress::Tcp { addresses } = offer {
                at_most("addresses", addresses.len(), MAX_PORTS)?;
            }
        }
        // `above` needs no check: its parser limits the number of cores, and the JSON parser limits the levels of hubs.
        at_most("transports", self.transports.len(), 16)?;
        rounds(self.pass.iter().map(|pass| pass.first_round))
    }
}

impl Answer for MeetReply {
    fn check(&self) -> Result<(), String> {
        at_most("hubs", self.hubs.len(), MAX_HUBS)?;
        self.hubs.iter().try_for_each(|hub| check_address(hub).map_err(|error| error.to_string()))
    }
}

impl Answer for HeartbeatReply {
    fn check(&self) -> Result<(), String> {
        if let JobState::Gathering { missing, machines } = &self.state {
            ranks(missing.iter().copied())?;
            ranks(machines.iter().copied())?;
        }
        ranks(self.members.iter().map(|member| member.rank))?;
        ranks(self.left.iter().map(|left| left.rank))?;
        ranks(self.held_up_by.iter().map(|late| late.rank))?;
        rounds(self.members.iter().map(|member| member.from))?;
        rounds(self.left.iter().map(|left| left.at.round))?;
        self.left.iter().try_for_each(|left| left.at.check_form())?;
        rounds(self.held_up_by.iter().map(|late| late.round))?;
        rounds(self.reached.into_iter().chain([Round(self.lost)]))
    }
}

impl Answer for OfferReply {
    fn check(&self) -> Result<(), String> {
        at_most("bytes of a state", self.state_bytes.unwrap_or(0), MAX_STATE_BYTES)
    }
}

impl Answer for StateReply {
    fn check(&self) -> Result<(), String> {
        rounds([self.round])
    }
}

impl Answer for LeaveReply {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Answer for CheckpointReply {
    fn check(&self) -> Result<(), String> {
        rounds([self.round])
    }
}

impl Answer for StopReply {
    fn check(&self) -> Result<(), String> {
        self.checkpoint.iter().try_for_each(CheckpointReply::check)
    }
}

/// The reply is only shown to people.
impl Answer for DrainReply {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Answer for PartsReply {
    fn check(&self) -> Result<(), String> {
        files(&self.rounds)
    }
}

impl Answer for HoldReply {
    fn check(&self) -> Result<(), String> {
        rounds(self.front)
    }
}

impl Answer for WrittenReply {
    fn check(&self) -> Result<(), String> {
        if let PartState::Written(bytes) = self.part {
            at_most("bytes of a part", bytes, MAX_STATE_BYTES)?;
        }
        files(&self.rounds)
    }
}

impl Answer for FailedReply {
    fn check(&self) -> Result<(), String> {
        rounds(self.rounds.iter().flat_map(|of| [of.lowest, of.highest]))
    }
}

impl Answer for LastReply {
    fn check(&self) -> Result<(), String> {
        at_most("bytes of a part", self.bytes, MAX_STATE_BYTES)
    }
}

/// The reply is only shown to people.
impl Answer for HubReply {
    fn check(&self) -> Result<(), String> {
        // The number of hubs has a limit, because a reader of weights sends a request to each hub above.
        self.jobs.iter().try_for_each(|job| at_most("hubs above a job", job.above.len(), MAX_HUBS))
    }
}

impl Answer for ClockReply {
    fn check(&self) -> Result<(), String> {
        // The difference of two times is a signed number. With this limit, it cannot overflow.
        at_most("ns", self.ns, i64::MAX.unsigned_abs() / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join() -> serde_json::Value {
        serde_json::json!({"protocol": 11, "token": "00", "cores": [0], "placement": "", "ports": 1,
            "transports": [], "heartbeat_limit_ms": 10_000})
    }

    fn checked<T: Answer>(answer: serde_json::Value) -> Result<(), String> {
        serde_json::from_value::<T>(answer).map_err(|error| error.to_string())?.check()
    }

    #[test]
    fn a_join_has_as_many_ports_as_a_hello_has_room_for() {
        assert_eq!(checked::<JoinReply>(join()), Ok(()));
        let address = "127.0.0.1:1";
        for (field, value, words) in [
            ("ports", serde_json::json!(u32::MAX), "4294967295 ports: expected 4096"),
            ("cores", serde_json::json!([0, 1]), "2 cores: expected 1"),
            ("heartbeat_limit_ms", serde_json::json!(u64::MAX), "ms for a heartbeat"),
            ("heartbeat_limit_ms", serde_json::json!(0), "0 ms"),
            (
                "transports",
                serde_json::json!([{"transport": "tcp", "addresses": vec![address; 4097]}]),
                "4097 addresses",
            ),
            ("nodes", serde_json::json!(4_294_967_295u32), "4294967295 cores of a hub"),
            (
                "pass",
                serde_json::json!({"secret": "", "worker": 0, "first_round": u32::MAX, "checkpoints": false}),
                "4294967295 is not a round",
            ),
        ] {
            let mut answer = join();
            answer[field] = value;
            let why = checked::<JoinReply>(answer).unwrap_err();
            assert!(why.contains(words), "{field}: {why}");
        }
    }

    #[test]
    fn a_job_has_few_hubs_above_it() {
        let messages: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/data/protocol-11.json")).unwrap();
        let hub = |above: u32| {
            let mut hub = messages["HubReply"].as_array().unwrap().last().unwrap().clone();
            hub["jobs"][0]["above"] = (0..above).map(|hub| format!("10.0.0.1:{hub}")).collect();
            checked::<HubReply>(hub)
        };
        assert_eq!(hub(MAX_HUBS), Ok(()));
        assert!(hub(MAX_HUBS + 1).unwrap_err().contains("hubs above a job: expected"));
    }

    #[test]
    fn rounds_and_ranks_are_such_as_a_job_comes_to() {
        let news = |member: serde_json::Value| {
            checked::<HeartbeatReply>(
                serde_json::json!({"version": 1, "state": {"state": "running"}, "members": [member], "left": []}),
            )
        };
        assert_eq!(news(serde_json::json!({"rank": 0, "from": 7})), Ok(()));
        assert!(news(serde_json::json!({"rank": 0, "from": u32::MAX})).unwrap_err().contains("round"));
        assert!(news(serde_json::json!({"rank": u32::MAX, "from": 7})).unwrap_err().contains("rank"));
        let hold = checked::<HoldReply>(serde_json::json!({"front": u32::MAX}));
        assert!(hold.unwrap_err().contains("round"));
        let parts = |rounds: serde_json::Value| {
            checked::<PartsReply>(serde_json::json!({"keeps": true, "every": null, "rounds": rounds}))
        };
        assert_eq!(parts(serde_json::json!([1, 2])), Ok(()));
        assert!(parts(serde_json::json!([2, 1])).unwrap_err().contains("ascending"));
        assert!(parts(serde_json::json!([1, u32::MAX])).unwrap_err().contains("4294967295 is not a round"));
        let part = serde_json::json!({"rounds": [], "part": {"written": u64::MAX}});
        assert!(checked::<WrittenReply>(part).unwrap_err().contains("bytes of a part"));
        let meet = checked::<MeetReply>(serde_json::json!({"hubs": ["a:1", "b:1/path"]}));
        assert!(meet.unwrap_err().contains("b:1/path"));
        assert!(checked::<MeetReply>(serde_json::json!({"hubs": vec!["a:1"; 5000]})).is_err());
    }
}
