//! Placement: weighted items onto cores, cores onto NICs of their own NUMA node.
//!
//! ```text
//!   Request ── choice ──> NICs in use ── choice ──> cores ── wiring ──> NICs of each core
//!                                                     │
//!   weights ─────────────── lpt ─────────────────> owner of each item ──> Plan
//! ```
//!
//! Placement is a pure function without clock, randomness or hash order: equal inputs give equal plans on
//! every machine and build. This module must not depend on what an item is, and must not read the machine
//! itself.

mod apportion;
mod core_choice;
mod lpt;
mod nic_choice;
mod plan;
mod wiring;

pub use lpt::{lpt, lpt_by_share};
pub use plan::{Balance, CoreSlot, PlacedCore, PlacedNic, Plan};

use crate::host::{CpuId, Host};

/// The items to place, and the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// Each item's weight in bytes.
    pub weights: &'a [u64],
    /// The owner of each item, if the caller has decided it: a core, by its index in [`Plan::cores`].
    pub owners: Option<&'a [u32]>,
    /// The cores that may own items.
    pub cores: CoreChoice,
    /// The NICs that may be used.
    pub nics: NicChoice,
}

impl<'a> Request<'a> {
    /// Creates a request for these items on every core and NIC, with even loads on cores.
    pub fn new(weights: &'a [u64]) -> Self {
        Self { weights, owners: None, cores: CoreChoice::default(), nics: NicChoice::default() }
    }
}

/// The cores that own items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// One cpu of every physical core that this process may run on. [Slow](crate::Cpu::slow) cpus are left
    /// out if there are faster ones.
    #[default]
    EveryCore,
    /// Every core, as in [`EveryCore`](Self::EveryCore), if no NIC has RDMA. With RDMA, the fastest NIC gets two to
    /// four cores of its node. Each other NIC gets as many cores as fit its speed, compared with the fastest NIC. If
    /// there are too few cores for that, every core is used.
    EvenOverNics,
    /// Half of the cores of [`EveryCore`](Self::EveryCore), at least one; the rest is for workers on the same
    /// host. The cores are spread like the cores of [`Count`](Self::Count). If NICs have RDMA, only as many
    /// cores are used as [`EvenOverNics`](Self::EvenOverNics) would choose.
    HalfOfTheCores,
    /// This number of cpus, spread over the nodes in proportion to the speed of their NICs. Each node with NICs gets
    /// its first cpu before any node gets a second cpu. One cpu of each physical core is used before a second cpu of
    /// any core. Slow cpus are used only if all faster cpus are used.
    Count(usize),
    /// Exactly these cpus, in this order. The first is slot 0.
    Cpus(Vec<CpuId>),
}

/// The NICs that may be used, by any of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicChoice {
    /// The names of the only NICs to use, even if they are not fit. If `None`, every fit NIC is used. A fit NIC has a
    /// link, and at least an eighth of the fastest NIC's speed. If any NIC has RDMA, only NICs with RDMA are fit. A
    /// slower NIC, such as a management port next to ports of 100 Gb/s, would slow down all other NICs.
    pub only: Option<Vec<String>>,
    /// NICs that must not be used.
    pub except: Vec<String>,
}

/// The reason why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The request was for 0 cores.
    #[error("placement: asked for 0 cores, expected at least 1; omit the number to use every core")]
    NoCores,
    /// The process is not allowed to run on any cpu of this host.
    #[error(
        "placement: none of the host's {cpus} cpus is allowed to this process; widen its cpuset or affinity mask"
    )]
    NoAllowedCpu {
        /// The number of cpus the host has.
        cpus: usize,
    },
    /// The request was for more cores than there are allowed cpus.
    #[error(
        "placement: asked for {asked} cores, but only {allowed} cpus are allowed; ask for at most {allowed}"
    )]
    TooManyCores {
        /// The requested number of cores.
        asked: usize,
        /// The number of cpus this process may use.
        allowed: usize,
    },
    /// The request names a cpu that the host does not have.
    #[error("placement: {cpu} does not exist; the host has cpus {known}")]
    UnknownCpu {
        /// The requested cpu.
        cpu: CpuId,
        /// The host's cpus, as a list.
        known: String,
    },
    /// The request names a cpu outside the cpuset or affinity mask.
    #[error(
        "placement: {cpu} is not allowed to this process, which may use cpus {allowed}; choose among these or widen its cpuset or affinity mask"
    )]
    CpuNotAllowed {
        /// The requested cpu.
        cpu: CpuId,
        /// The allowed cpus, as a list.
        allowed: String,
    },
    /// The request names a cpu twice.
    #[error("placement: {cpu} is named twice; name each cpu once")]
    RepeatedCpu {
        /// The cpu.
        cpu: CpuId,
    },
    /// The request names a NIC that the host does not have.
    #[error("placement: no NIC is called \"{name}\"; the host has {known}")]
    UnknownNic {
        /// The requested name.
        name: String,
        /// The names of the host's NICs.
        known: String,
    },
    /// The sum of the weights does not fit in 64 bits.
    #[error(
        "placement: the {items} items' bytes do not fit in 64 bits; check that the items' weights are in bytes"
    )]
    BytesOverflow {
        /// The number of items.
        items: usize,
    },
}

/// Places the request's items on the host.
///
/// The rules follow PHub's:
/// - items go to cores by LPT ([`lpt`]), so that loads are even, unless the request names their owners;
/// - a core uses NICs of its own NUMA node; if the node has none, NICs of its own socket; if the socket has none, any
///   NIC;
/// - every NIC in use has a core, and its number of cores is in proportion to its speed;
/// - if a node has more NICs than cores, a core has several NICs, and its items are spread over them in
///   proportion to their speeds.
///
/// [`Plan::reasons`] lists how the plan departs from these rules, with the reasons.
///
/// # Panics
///
/// Panics if the request has owners, but not one for each item, or if an owner is none of the cores.
pub fn place(host: &Host, request: &Request<'_>) -> Result<Plan, PlaceError> {
    let items = request.weights.len();
    let total = request.weights.iter().try_fold(0u64, |sum, &weight| sum.checked_add(weight));
    let total_bytes = total.ok_or(PlaceError::BytesOverflow { items })?;
    let mut reasons = Vec::new();
    let nics = nic_choice::choose(host, &request.nics, &mut reasons)?;
    let cpus = core_choice::choose(host, &request.cores, &nics, &mut reasons)?;
    let nics_of_core = wiring::assign_nics(&cpus, &nics, &mut reasons);
    assert!(request.owners.is_none_or(|owners| owners.len() == items), "placement: an owner for each item");
    let owners = request.owners.map_or_else(|| lpt(request.weights, cpus.len()), <[u32]>::to_vec);
    let plan = plan::PlanParts {
        host,
        weights: request.weights,
        total_bytes,
        cpus,
        nics,
        nics_of_core,
        owners,
        reasons,
    };
    Ok(plan.into_plan())
}
