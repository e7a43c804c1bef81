//! The result of a placement: the owner and the NIC of each item, the balance, and the reasons.
//!
//! This module must not depend on how the plan was decided.

use super::lpt::lpt_by_share;
use super::nic_choice::UsedNic;
use crate::host::{CoreId, Cpu, CpuId, Host, NicId, NodeId, SocketId};
use std::fmt;

/// The number of a core among the owning cores: 0, 1, 2, ..., without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreSlot(pub u32);

impl CoreSlot {
    /// Returns the slot as an index into [`Plan::cores`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CoreSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// An owning core.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedCore {
    /// The number of the core among the owners.
    pub slot: CoreSlot,
    /// The cpu to pin it to.
    pub cpu: CpuId,
    /// The physical core.
    pub core: CoreId,
    /// The socket.
    pub socket: SocketId,
    /// The NUMA node on which the core's memory should be.
    pub node: NodeId,
    /// The NICs that the core uses, ascending. Empty if the plan uses no NIC. A core has several NICs if its node has
    /// more NICs than cores.
    pub nics: Vec<NicId>,
    /// The number of items that the core owns.
    pub items: usize,
    /// The number of bytes it owns.
    pub load_bytes: u64,
}

impl PlacedCore {
    /// Returns the core's NIC, or the first of several.
    pub fn nic(&self) -> Option<NicId> {
        self.nics.first().copied()
    }
}

/// A NIC in use.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedNic {
    /// The index in the host.
    pub nic: NicId,
    /// The name.
    pub name: String,
    /// The cores that use the NIC, ascending; never empty.
    pub cores: Vec<CoreSlot>,
    /// The number of items that pass through the NIC.
    pub items: usize,
    /// The number of bytes that pass through the NIC.
    pub load_bytes: u64,
    /// The speed in bits per second. If the speed is unknown, the lowest known speed of the NICs, or 1.
    pub weight: u64,
}

/// The balance of loads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// The largest load.
    pub max_bytes: u64,
    /// The mean load.
    pub mean_bytes: f64,
    /// The largest load, divided by the mean. For NICs, each load is relative to the NIC's speed. 1 is
    /// perfect.
    pub max_over_mean: f64,
}

/// A placement: the owner of every item.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    cores: Vec<PlacedCore>,
    nics: Vec<PlacedNic>,
    owners: Vec<CoreSlot>,
    /// The NIC of each item. Empty if there are no NICs.
    nic_of_item: Vec<NicId>,
    total_bytes: u64,
    reasons: Vec<String>,
}

impl Plan {
    /// Returns the owner of each item.
    pub fn owners(&self) -> &[CoreSlot] {
        &self.owners
    }

    /// Returns the NIC that an item passes through, which is one of its owner's NICs. Returns `None` if there
    /// are no NICs, or if there is no such item.
    pub fn nic_of(&self, item: usize) -> Option<NicId> {
        self.nic_of_item.get(item).copied()
    }

    /// Returns the owners, by slot.
    pub fn cores(&self) -> &[PlacedCore] {
        &self.cores
    }

    /// Returns the NICs in use, in the host's order.
    pub fn nics(&self) -> &[PlacedNic] {
        &self.nics
    }

    /// Returns the bytes of all items.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the balance of the cores' loads.
    pub fn core_balance(&self) -> Balance {
        balance(self.cores.iter().map(|core| (core.load_bytes, 1)))
    }

    /// Returns the balance of the NICs' loads, relative to their speeds. Returns `None` if there are no NICs.
    pub fn nic_balance(&self) -> Option<Balance> {
        (!self.nics.is_empty()).then(|| balance(self.nics.iter().map(|nic| (nic.load_bytes, nic.weight))))
    }

    /// Returns sentences that say how the plan departs from the rules of [`place`](super::place), and why.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }
}

fn balance(loads: impl Iterator<Item = (u64, u64)> + Clone) -> Balance {
    let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.map(u128::from).sum::<u128>();
    let bytes = sum(&mut loads.clone().map(|(load, _)| load));
    let weight = sum(&mut loads.clone().map(|(_, weight)| weight));
    let count = loads.clone().count().max(1);
    // The result is (load / w) / (bytes / weight). The products are exact, so a perfect balance is exactly 1.
    let over_mean = |(load, w): (u64, u64)| {
        u128::from(load).saturating_mul(weight) as f64 / u128::from(w).saturating_mul(bytes) as f64
    };
    Balance {
        max_bytes: loads.clone().map(|(load, _)| load).max().unwrap_or(0),
        mean_bytes: bytes as f64 / count as f64,
        max_over_mean: if bytes == 0 { 1.0 } else { loads.map(over_mean).fold(0.0, f64::max) },
    }
}

/// The decisions that [`place`](super::place) has made, from which it makes the plan.
pub(super) struct PlanParts<'a> {
    pub host: &'a Host,
    pub weights: &'a [u64],
    pub total_bytes: u64,
    pub cpus: Vec<Cpu>,
    pub nics: Vec<UsedNic>,
    pub nics_of_core: Vec<Vec<usize>>,
    pub owners: Vec<u32>,
    pub reasons: Vec<String>,
}

/// The largest imbalance of the NICs' loads (max/mean) without a remark in the plan.
const NIC_BALANCE_LIMIT: f64 = 1.05;

impl PlanParts<'_> {
    pub fn into_plan(self) -> Plan {
        let nic_of_item = self.nic_of_item();
        let mut cores = self.cores();
        let mut nics = self.nics();
        for (item, &owner) in self.owners.iter().enumerate() {
            let core = &mut cores[owner as usize];
            core.items += 1;
            core.load_bytes += self.weights[item];
            if let Some(&nic) = nic_of_item.get(item) {
                nics[nic].items += 1;
                nics[nic].load_bytes += self.weights[item];
            }
        }
        let mut plan = Plan {
            nic_of_item: nic_of_item.iter().map(|&nic| self.nics[nic].id).collect(),
            cores,
            nics,
            owners: self.owners.into_iter().map(CoreSlot).collect(),
            total_bytes: self.total_bytes,
            reasons: self.reasons,
        };
        let remarks = remarks(self.host, &plan);
        plan.reasons.extend(remarks);
        plan
    }

    /// Returns one of the owner's NICs for each item, as an index into the NICs in use. Returns an empty list
    /// without NICs.
    fn nic_of_item(&self) -> Vec<usize> {
        if self.nics.is_empty() {
            return Vec::new();
        }
        let mut nic_of_item: Vec<usize> =
            self.owners.iter().map(|&owner| self.nics_of_core[owner as usize][0]).collect();
        for (slot, own) in self.nics_of_core.iter().enumerate().filter(|(_, own)| own.len() > 1) {
            let items: Vec<usize> =
                (0..self.owners.len()).filter(|&item| self.owners[item] as usize == slot).collect();
            let weights: Vec<u64> = items.iter().map(|&item| self.weights[item]).collect();
            let speeds: Vec<u64> = own.iter().map(|&nic| self.nics[nic].weight).collect();
            for (item, at) in items.into_iter().zip(lpt_by_share(&weights, &speeds)) {
                nic_of_item[item] = own[at as usize];
            }
        }
        nic_of_item
    }

    fn cores(&self) -> Vec<PlacedCore> {
        let core = |(slot, cpu): (usize, &Cpu)| PlacedCore {
            slot: CoreSlot(slot as u32),
            cpu: cpu.id,
            core: cpu.core,
            socket: cpu.socket,
            node: cpu.node,
            nics: self.nics_of_core[slot].iter().map(|&nic| self.nics[nic].id).collect(),
            items: 0,
            load_bytes: 0,
        };
        self.cpus.iter().enumerate().map(core).collect()
    }

    fn nics(&self) -> Vec<PlacedNic> {
        let nic = |(at, nic): (usize, &UsedNic)| PlacedNic {
            nic: nic.id,
            name: nic.name.clone(),
            cores: (0..self.cpus.len())
                .filter(|&slot| self.nics_of_core[slot].contains(&at))
                .map(|slot| CoreSlot(slot as u32))
                .collect(),
            items: 0,
            load_bytes: 0,
            weight: nic.weight,
        };
        self.nics.iter().enumerate().map(nic).collect()
    }
}

fn remarks(host: &Host, plan: &Plan) -> Vec<String> {
    let mut remarks = Vec::new();
    let idle = plan.cores.iter().filter(|core| core.items == 0).count();
    // A request without items asks only for cores and NICs, so its cores without items need no remark.
    if idle > 0 && !plan.owners.is_empty() {
        remarks.push(format!("{idle} of {} cores own nothing: there are too few items.", plan.cores.len()));
    } else if plan.nic_balance().is_some_and(|balance| balance.max_over_mean > NIC_BALANCE_LIMIT) {
        remarks.push(
            "Cores are loaded evenly, so a NIC that has many cores for its speed carries more. Use a number of cores \
             that the NICs can share evenly."
                .into(),
        );
    }
    let forbidden = host.cpus.iter().filter(|cpu| !cpu.allowed).count();
    if forbidden > 0 {
        let cpus = host.cpus.len();
        remarks.push(format!("{forbidden} of the host's {cpus} cpus are not allowed to this process."));
    }
    remarks
}
