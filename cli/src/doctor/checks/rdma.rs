//! RDMA: library, provider, devices, ports, GIDs. This module judges facts that other modules read.

use fabric::verbs::{Device, DevicePort, GidError, LibraryError, LinkLayer, NicOptions, VerbsError};

use crate::doctor::check::{Check, Verdict};
use crate::doctor::facts::KernelRdma;

/// The need of the hub for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// `--transports` names RDMA, or the machine has NICs for it.
    Wanted,
    /// No setting asks for RDMA, and the machine has no NIC for RDMA.
    Idle,
}

impl Need {
    /// Returns a failure if RDMA is needed; otherwise a note.
    fn missing(self, name: &str, seen: impl Into<String>, fix: impl Into<String>) -> Check {
        let check = Check::fail(name, seen, fix);
        match self {
            Need::Wanted => check,
            Need::Idle => Check { verdict: Verdict::Note, ..check },
        }
    }
}

/// The findings about RDMA: the kernel's devices, and the library.
#[derive(Debug)]
pub(crate) struct Found {
    pub kernel: KernelRdma,
    pub devices: Result<Vec<Device>, VerbsError>,
    /// The library's file.
    pub library: Vec<String>,
}

/// Judges whether libibverbs is installed.
pub(crate) fn library(need: Need, found: &Found) -> Check {
    const NAME: &str = "libibverbs";
    match &found.devices {
        Err(VerbsError::Library(LibraryError::Missing { name, why })) => need.missing(
            NAME,
            format!("{name} cannot be loaded: {why}"),
            "apt-get install libibverbs1 ibverbs-providers (Debian, Ubuntu), dnf install libibverbs (Fedora)",
        ),
        Err(VerbsError::Library(error)) => {
            need.missing(NAME, error.to_string(), "unset RDMAV_HUGEPAGES_SAFE")
        }
        _ => Check::pass(NAME, found.library.join(", ")),
    }
}

/// Judges whether the library shows the kernel's devices. Returns `None` if there is no library.
pub(crate) fn devices(need: Need, found: &Found) -> Option<Check> {
    const NAME: &str = "RDMA devices";
    let in_kernel = found.kernel.devices.join(", ");
    let uverbs = "modprobe ib_uverbs; in a container, also docker run --device /dev/infiniband";
    Some(match &found.devices {
        Err(VerbsError::Library(_)) => return None,
        Err(_) | Ok(_) if found.kernel.devices.is_empty() => need.missing(
            NAME,
            "this machine has none",
            "load the NIC's driver (rdma link show lists devices); for soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
        ),
        Err(error) => need.missing(NAME, format!("the kernel has {in_kernel}; {error}"), uverbs),
        Ok(devices) if devices.is_empty() && !found.kernel.for_programs => {
            need.missing(NAME, format!("the kernel has {in_kernel}, but programs cannot use them: ib_uverbs is not loaded"), uverbs)
        }
        Ok(devices) => {
            let is_shown = |name: &&String| devices.iter().any(|device| device.name == **name);
            let hidden: Vec<&str> =
                found.kernel.devices.iter().filter(|name| !is_shown(name)).map(String::as_str).collect();
            let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
            let fix = "apt-get install ibverbs-providers (Debian, Ubuntu); libibverbs warns of the driver that it lacks";
            match (names.is_empty(), hidden.is_empty()) {
                (_, true) => Check::pass(NAME, names.join(", ")),
                (true, _) => {
                    need.missing(NAME, format!("the kernel has {in_kernel}, and no provider of libibverbs supports them"), fix)
                }
                (false, _) => Check::warn(
                    NAME,
                    format!("{}; no provider of libibverbs supports {}", names.join(", "), hidden.join(", ")),
                    fix,
                ),
            }
        }
    })
}

/// The commands that give a user the right to open a device.
const OPEN: &str = "chmod or chown /dev/infiniband/uverbs* for this user (the group rdma, by udev); in a container: docker run --device /dev/infiniband";

/// The advice for a device that may open later.
const PASSES: &str = "dmesg may have messages of the NIC's driver; a hub opens the NIC again when a job begins, and \
    its log and GET /v1/hub show whether the NIC opened";

/// A device, and what the hub would do with it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    pub device: &'a Device,
    /// The options of the NIC; `None` if the list of NICs excludes the device.
    pub options: Option<NicOptions>,
    /// Whether the list of NICs names the device. Then the hub must use it.
    pub named: bool,
    /// Whether the plan uses this NIC.
    pub planned: bool,
    /// Whether the plan uses any NIC at all.
    pub plan_has_nics: bool,
    /// The network interface, according to the topology.
    pub netdev: Option<String>,
}

impl Candidate<'_> {
    /// Returns the device, and its port if it has several.
    pub fn name(&self) -> String {
        let port =
            self.options.as_ref().and_then(|options| options.port).filter(|_| self.device.ports.len() > 1);
        let device = &self.device.name;
        port.map_or(device.clone(), |port| format!("{device}:{port}"))
    }

    /// Returns the port that carries data, if the hub would use this NIC.
    pub fn port(&self) -> Option<&DevicePort> {
        let options = self.options.as_ref().filter(|_| self.planned)?;
        self.device.port(options.port).filter(|port| port.active)
    }

    /// Returns the check of a NIC that lacks something: a failure if the hub needs this NIC.
    fn is_missing(&self, name: String, seen: &str, fix: String) -> Check {
        if self.named || !self.plan_has_nics {
            return Check::fail(name, seen, fix);
        }
        let hub = "the hub does not use this NIC, and would not start if --nics named it";
        Check::warn(name, format!("{seen}; {hub}"), fix)
    }

    fn netdev<'a>(&'a self, port: &'a DevicePort) -> &'a str {
        port.netdev.as_deref().or(self.netdev.as_deref()).unwrap_or("ITS-INTERFACE")
    }
}

/// Judges the port of a NIC: state, link layer, MTU, speed.
pub(crate) fn port(candidate: &Candidate) -> Check {
    let name = format!("NIC {}", candidate.name());
    let all: Vec<String> = candidate.device.ports.iter().map(describe).collect();
    let Some(options) = &candidate.options else {
        return Check::note(name, format!("{}; the list of NICs excludes it", all.join(", ")));
    };
    if let Some(fault) = &candidate.device.fault {
        let fix = if fault.may_pass() { PASSES } else { OPEN };
        return candidate.is_missing(name, &fault.to_string(), fix.to_owned());
    }
    let Some(port) = candidate.device.port(options.port).filter(|port| port.active) else {
        return not_active(candidate, name, &all.join(", "), options.port);
    };
    if !candidate.planned {
        if let Err(error) = candidate.device.gid(port, options.gid_index) {
            let fix = format!("ip address add IP/BITS dev {}", candidate.netdev(port));
            return candidate.is_missing(name, &error.to_string(), fix);
        }
        return Check::note(
            name,
            format!("{}; the hub would not use this NIC (see the check NUMA and NICs)", describe(port)),
        );
    }
    let seen = describe(port);
    let mtu = port.mtu.map_or(0, |mtu| mtu.bytes());
    if port.link_layer == LinkLayer::Ethernet && mtu < 4096 {
        let fix = format!(
            "ip link set {} mtu 4200 on this machine, at the other ends, and on the switch: then RDMA packets have 4096 bytes instead of {mtu}",
            candidate.netdev(port)
        );
        let verdict = if mtu < 1024 { Verdict::Warn } else { Verdict::Note };
        return Check { verdict, ..Check::warn(name, seen, fix) };
    }
    Check::pass(name, seen)
}

fn describe(port: &DevicePort) -> String {
    let mtu = port.mtu.map_or("no MTU".to_owned(), |mtu| format!("MTU {}", mtu.bytes()));
    let speed = port.gbps.map_or("speed unknown".to_owned(), |gbps| format!("{gbps} Gb/s"));
    let netdev = port.netdev.as_deref().map(|name| format!(", interface {name}")).unwrap_or_default();
    format!("port {} {}, {}, {mtu}, {speed}{netdev}", port.number, port.state, port.link_layer)
}

fn not_active(candidate: &Candidate, name: String, ports: &str, wanted: Option<u8>) -> Check {
    let first = candidate.device.ports.iter().find(|port| wanted.is_none_or(|wanted| port.number == wanted));
    let fix = match first {
        None => {
            format!(
                "give --nics {} without a port, or with a port that the device has",
                candidate.device.name
            )
        }
        Some(port) if port.link_layer == LinkLayer::Ethernet => {
            format!(
                "ip link set {} up; if the interface is up already, look at cable and switch",
                candidate.netdev(port)
            )
        }
        Some(_) => "look at cable and switch, and whether a subnet manager runs (sminfo)".to_owned(),
    };
    let wanted = wanted.map(|port| format!(" {port}")).unwrap_or_default();
    candidate.is_missing(name, &format!("{ports}; expected an ACTIVE port{wanted}"), fix)
}

/// Judges the GID of a used port. The check shows the reason for the choice, or the whole table if no GID is
/// good.
pub(crate) fn gid(candidate: &Candidate, port: &DevicePort) -> Check {
    let device = &candidate.device.name;
    let name = format!("GID {}", candidate.name());
    let wanted = candidate.options.as_ref().and_then(|options| options.gid_index);
    let netdev = candidate.netdev(port);
    let give = format!("ip address add IP/BITS dev {netdev}");
    match candidate.device.gid(port, wanted) {
        Ok(chosen) => {
            let seen = format!("index {}, {}: {}", chosen.entry.index, chosen.entry.gid, chosen.reason);
            if chosen.entry.elsewhere && wanted.is_none() {
                let netdev = chosen.entry.netdev.as_deref().unwrap_or(netdev);
                let fix = format!(
                    "ip link set {netdev} netns PID in the namespace that has the interface, with the PID of a process of this namespace; in a container: docker run --network host"
                );
                return Check::warn(
                    name,
                    format!("{seen}: the NIC's connections may not reach the peer"),
                    fix,
                );
            }
            let local = chosen.entry.gid.ip().is_unicast_link_local();
            if port.link_layer == LinkLayer::Ethernet && local && wanted.is_none() {
                return Check::warn(name, seen, give);
            }
            Check::pass(name, seen)
        }
        Err(error) => {
            let GidError { entries, .. } = &error;
            let fix = match (wanted, entries.is_empty()) {
                (Some(_), false) => {
                    format!(
                        "--nics {device} takes the best entry of the GID table; --nics {device}@INDEX takes the entry INDEX"
                    )
                }
                (None, false) => {
                    format!(
                        "--nics {device}@INDEX takes the entry INDEX of the GID table; or make the port speak RoCE v2"
                    )
                }
                (_, true) => format!("{give}; ip link set {netdev} up"),
            };
            Check::fail(name, error.to_string(), fix)
        }
    }
}

#[cfg(test)]
mod tests;
