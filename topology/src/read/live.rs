//! The machine this process runs on, from hwloc and sysfs together.
//!
//! hwloc is better for the tree and for PCI locality, and sysfs for net devices, port speeds and soft-RoCE. This module
//! must not depend on how these two readers work.

use super::survey::Survey;
use super::{HostError, affinity, sysfs};
use crate::host::Host;
#[cfg(feature = "hwloc")]
use crate::host::Nic;
use std::path::Path;

const SYS: &str = "/sys";
const STATUS: &str = "/proc/self/status";

pub(crate) fn read() -> Result<Host, HostError> {
    let mut notes = Vec::new();
    let allowed = affinity::allowed_cpus(Path::new(STATUS), &mut notes);
    let mut survey = survey(allowed.as_deref(), &mut notes)?;
    survey.name = hostname();
    survey.notes.splice(0..0, notes);
    Ok(survey.into_host())
}

#[cfg(feature = "hwloc")]
fn survey(allowed: Option<&[u32]>, notes: &mut Vec<String>) -> Result<Survey, HostError> {
    let mut survey = match super::hwloc::read_live(allowed) {
        Ok(survey) => survey,
        Err(error) => {
            notes.push(format!("hwloc could not read this machine ({error}): sysfs alone was used."));
            return Ok(sysfs::read(Path::new(SYS), allowed)?);
        }
    };
    survey.slow = sysfs::slow_cpus(Path::new(SYS));
    let by_hwloc = std::mem::take(&mut survey.nics);
    survey.nics = match sysfs::read_nics(Path::new(SYS), &mut survey.notes) {
        Ok(by_sysfs) => merge(by_sysfs, &by_hwloc),
        Err(error) => {
            survey.notes.push(format!(
                "The NICs are described by hwloc alone, because sysfs could not be read: {error}"
            ));
            by_hwloc
        }
    };
    Ok(survey)
}

#[cfg(not(feature = "hwloc"))]
fn survey(allowed: Option<&[u32]>, _: &mut Vec<String>) -> Result<Survey, HostError> {
    Ok(sysfs::read(Path::new(SYS), allowed)?)
}

/// Returns the NICs of sysfs, with the facts that only hwloc knows about the same devices.
#[cfg(feature = "hwloc")]
fn merge(mut by_sysfs: Vec<Nic>, by_hwloc: &[Nic]) -> Vec<Nic> {
    for nic in &mut by_sysfs {
        let same_device = |other: &&Nic| match (nic.pci, other.pci) {
            (Some(a), Some(b)) => a == b,
            _ => other.has_name(&nic.name) || nic.netdevs.iter().any(|name| other.has_name(name)),
        };
        let Some(other) = by_hwloc.iter().find(same_device) else { continue };
        // hwloc corrects wrong firmware tables of some machines, so its locality takes precedence.
        if other.node.is_some() || nic.node.is_none() {
            nic.node = other.node.or(nic.node);
            nic.socket = other.socket.or(nic.socket);
        }
        nic.speed = nic.speed.or(other.speed);
    }
    by_sysfs
}

fn hostname() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(all(test, feature = "hwloc"))]
mod tests {
    use super::*;
    use crate::host::{NicKind, NodeId, Speed, SpeedSource};

    #[test]
    fn each_reader_fills_the_gaps_of_the_other() {
        let port = Speed::new(100, SpeedSource::Port);
        let pci = Speed::new(64, SpeedSource::PciLink);
        let by_sysfs = vec![
            Nic { pci: "0000:01:00.0".parse().ok(), speed: port, ..Nic::named("mlx5_0", NicKind::Roce) },
            Nic { netdevs: vec!["eth1".into()], ..Nic::named("rxe0", NicKind::Rxe) },
            Nic { node: Some(NodeId(1)), ..Nic::named("eth9", NicKind::Ethernet) },
        ];
        let by_hwloc = [
            Nic {
                pci: "0000:01:00.0".parse().ok(),
                node: Some(NodeId(1)),
                speed: pci,
                ..Nic::named("eth0", NicKind::Ethernet)
            },
            Nic { node: Some(NodeId(0)), speed: pci, ..Nic::named("eth1", NicKind::Ethernet) },
        ];
        let merged = merge(by_sysfs, &by_hwloc);
        assert_eq!((merged[0].node, merged[0].speed), (Some(NodeId(1)), port));
        assert_eq!((merged[1].node, merged[1].speed), (Some(NodeId(0)), pci));
        assert_eq!(merged[2].node, Some(NodeId(1)));
    }
}
