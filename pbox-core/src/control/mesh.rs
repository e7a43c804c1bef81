//! Machines: their numbers, and the messages with which the hubs of a mesh find each other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::check_address;
use crate::job::MAX_HUBS;

/// A machine's number among the machines of a job, and the number of machines: `1/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Machine {
    /// The number, from 0.
    pub number: u32,
    /// The number of machines.
    pub of: u32,
}

/// A mesh of hubs, as one of its machines describes it: `1/4@10.0.0.1:7077` has that machine's number, the number of
/// machines, and the address of the first machine's hub. Each machine's hub owns a share of the chunks, and sums the
/// pushes of its own workers. It sends the sums of all other shares to the hubs that own them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mesh {
    /// The machine.
    pub machine: Machine,
    /// The control port of the first machine's hub, `host:port`. At this port, the hubs learn each other's addresses.
    pub meet: String,
}

/// An error: the text is not a machine, or not a mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAMachine {
    /// A number is missing.
    #[error("{0:?}: expected a machine's number from 0 and the count of machines, like 1/4")]
    Numbers(String),
    /// The machine's number is too large, or there are too many machines.
    #[error(
        "{0:?}: expected a machine's number below the count of machines, and at most {MAX_HUBS} machines"
    )]
    Range(String),
    /// The address of the first machine's hub is missing.
    #[error(
        "{0:?}: expected a machine and the host and port of the first machine's hub, like 1/4@10.0.0.1:7077"
    )]
    Place(String),
}

impl FromStr for Machine {
    type Err = NotAMachine;

    fn from_str(text: &str) -> Result<Self, NotAMachine> {
        let numbers = || NotAMachine::Numbers(text.to_owned());
        let (number, of) = text.split_once('/').ok_or_else(numbers)?;
        let parse = |part: &str| part.trim().parse::<u32>().map_err(|_| numbers());
        let machine = Machine { number: parse(number)?, of: parse(of)? };
        match machine.number < machine.of && machine.of <= MAX_HUBS {
            true => Ok(machine),
            false => Err(NotAMachine::Range(text.to_owned())),
        }
    }
}

impl FromStr for Mesh {
    type Err = NotAMachine;

    fn from_str(text: &str) -> Result<Self, NotAMachine> {
        let (machine, meet) = text.split_once('@').ok_or_else(|| NotAMachine::Place(text.to_owned()))?;
        match check_address(meet) {
            Ok(()) => Ok(Mesh { machine: machine.parse()?, meet: meet.to_owned() }),
            Err(_) => Err(NotAMachine::Place(text.chars().take(100).collect())),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.machine, self.meet)
    }
}

impl TryFrom<String> for Machine {
    type Error = NotAMachine;

    fn try_from(text: String) -> Result<Self, NotAMachine> {
        text.parse()
    }
}

impl TryFrom<String> for Mesh {
    type Error = NotAMachine;

    fn try_from(text: String) -> Result<Self, NotAMachine> {
        text.parse()
    }
}

impl From<Machine> for String {
    fn from(machine: Machine) -> Self {
        machine.to_string()
    }
}

impl From<Mesh> for String {
    fn from(mesh: Mesh) -> Self {
        mesh.to_string()
    }
}

/// `POST /v1/jobs/{job}/meet`, at the first machine's hub: a hub of the job's mesh has arrived. The hub replies when
/// the hubs of all machines have arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeetRequest {
    /// The newest version that the hub speaks.
    pub protocol: u32,
    /// The oldest version that the hub speaks, if it differs from the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_lowest: Option<u32>,
    /// The machine.
    pub machine: Machine,
    /// The address of the hub's control port, `host:port`, at which the other machines reach it.
    pub address: String,
    /// The time within which the hub wants a reply, in milliseconds.
    pub wait_ms: u64,
}

/// The reply once the hubs of all machines have arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeetReply {
    /// The control port of each machine's hub, `host:port`, by machine.
    pub hubs: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_a_number_below_another() {
        assert_eq!("1/4".parse(), Ok(Machine { number: 1, of: 4 }));
        for wrong in ["4/4", "1", "1/", "-1/2", "a/b", "0/0", "0/65537"] {
            assert!(wrong.parse::<Machine>().unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_mesh_is_a_machine_at_an_address() {
        let mesh = Mesh { machine: Machine { number: 0, of: 2 }, meet: "[::1]:7077".into() };
        assert_eq!("0/2@[::1]:7077".parse(), Ok(mesh.clone()));
        assert_eq!(serde_json::to_string(&mesh).unwrap(), "\"0/2@[::1]:7077\"");
        for wrong in
            ["0/2", "0/2@", "0/2@a", "0/2@a:0", "0/2@:7077", "0/2@a:1/path?", "0/2@me@a:1", "0/2@a/x?:1"]
        {
            assert!(wrong.parse::<Mesh>().unwrap_err().to_string().contains(wrong), "{wrong}");
        }
        assert_eq!("2/2@a:1".parse::<Mesh>(), Err(NotAMachine::Range("2/2".into())));
        assert!(serde_json::from_str::<Mesh>("\"7@a:1\"").is_err());
    }
}
