//! Placement: weighted items onto cores, cores onto NICs of their own NUMA node.
//!
//! ```text
//!   Request ── choice ──> NICs in use ── choice ──> cores ── wiring ──> NICs of each core
//!                                                     │
//!   weights ─────────────── lpt ─────────────────> owner of each item ──> Plan
//! ```
//!
//! A pure function: no clock, no randomness, no hash order, so that equal inputs give equal plans on every
//! machine and build. Must not know what an item is, nor look at the machine itself.

mod apportion;
mod core_choice;
mod lpt;
mod nic_choice;
mod plan;
mod wiring;

pub use lpt::{lpt, lpt_by_share};
pub use plan::{Balance, CoreSlot, PlacedCore, PlacedNic, Plan};

use crate::host::{CpuId, Host};

/// What to place, and on what.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// Each item's weight in bytes.
    pub weights: &'a [u64],
    /// The cores that may own items.
    pub cores: CoreChoice,
    /// The NICs that may be used.
    pub nics: NicChoice,
    /// What is to carry even loads.
    pub evenness: Evenness,
}

impl<'a> Request<'a> {
    /// These items on every core and NIC, cores loaded evenly.
    pub fn new(weights: &'a [u64]) -> Self {
        Self {
            weights,
            cores: CoreChoice::default(),
            nics: NicChoice::default(),
            evenness: Evenness::default(),
        }
    }
}

/// The cores that own items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// One cpu of every physical core that this process may run on.
    #[default]
    EveryCore,
    /// This many, spread over the nodes in proportion to the speed of their NICs, at least one for each node
    /// with NICs while they last; first one cpu of each physical core, then their siblings.
    Count(usize),
    /// Exactly these, in this order: the first is slot 0.
    Cpus(Vec<CpuId>),
}

/// The NICs that may be used, by any of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicChoice {
    /// If given, only these, whatever their state. If not, every NIC but those without a link, and those less
    /// than an eighth as fast as the fastest: a management port beside 100 Gb/s would hold all others back.
    pub only: Option<Vec<String>>,
    /// None of these.
    pub except: Vec<String>,
}

/// What is to carry even loads when the cores cannot be dealt evenly to the NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evenness {
    /// Every core owns the same bytes: the owners are [`lpt`]`(weights, cores)`, which anyone can compute.
    #[default]
    Cores,
    /// Every NIC carries bytes in proportion to its speed: the owners are [`lpt_by_share`] with
    /// [`Plan::shares`].
    Nics,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// No core was asked for.
    #[error("placement: asked for 0 cores, expected at least 1; leave the choice out to use every core")]
    NoCores,
    /// The process may run on no cpu of this host.
    #[error(
        "placement: none of the host's {cpus} cpus is allowed to this process; widen its cpuset or affinity mask"
    )]
    NoAllowedCpu {
        /// How many cpus the host has.
        cpus: usize,
    },
    /// More cores were asked for than there are cpus.
    #[error(
        "placement: asked for {asked} cores, but only {allowed} cpus are allowed; ask for at most {allowed}"
    )]
    TooManyCores {
        /// How many were asked for.
        asked: usize,
        /// How many cpus this process may use.
        allowed: usize,
    },
    /// A cpu that the host does not have.
    #[error("placement: {cpu} does not exist; the host has cpus {known}")]
    UnknownCpu {
        /// The cpu asked for.
        cpu: CpuId,
        /// The host's cpus, as a list.
        known: String,
    },
    /// A cpu outside the cpuset or affinity mask.
    #[error(
        "placement: {cpu} is not allowed to this process, which may use cpus {allowed}; start it elsewhere or choose among these"
    )]
    CpuNotAllowed {
        /// The cpu asked for.
        cpu: CpuId,
        /// The allowed cpus, as a list.
        allowed: String,
    },
    /// A cpu that was named twice.
    #[error("placement: {cpu} is named twice; a cpu is one core's")]
    RepeatedCpu {
        /// The cpu.
        cpu: CpuId,
    },
    /// A NIC that the host does not have.
    #[error("placement: no NIC is called \"{name}\"; the host has {known}")]
    UnknownNic {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The weights' sum is beyond 64 bits.
    #[error("placement: the {items} items' bytes do not fit in 64 bits; are the weights in bytes?")]
    BytesOverflow {
        /// How many items there are.
        items: usize,
    },
}

/// Places the request's items on the host.
///
/// Rules, after PHub's:
/// - items go to cores by LPT ([`lpt`]), to even loads;
/// - a core's NICs are of its own NUMA node, else of its own socket, else any;
/// - every NIC in use has a core, its number of cores in proportion to its speed;
/// - where a node has more NICs than cores, a core has several NICs, and its items are spread over them in
///   proportion to their speeds.
///
/// Whatever departs from the ideal is in [`Plan::reasons`].
pub fn place(host: &Host, request: &Request<'_>) -> Result<Plan, PlaceError> {
    let items = request.weights.len();
    let total = request.weights.iter().try_fold(0u64, |sum, &weight| sum.checked_add(weight));
    let total_bytes = total.ok_or(PlaceError::BytesOverflow { items })?;
    let mut reasons = Vec::new();
    let nics = nic_choice::choose(host, &request.nics, &mut reasons)?;
    let cpus = core_choice::choose(host, &request.cores, &nics, &mut reasons)?;
    let nics_of_core = wiring::wire(&cpus, &nics, &mut reasons);
    let shares = match request.evenness {
        Evenness::Cores => vec![1; cpus.len()],
        Evenness::Nics => wiring::shares(&nics_of_core, &nics),
    };
    let owners = lpt_by_share(request.weights, &shares);
    let plan = plan::PlanParts {
        host,
        weights: request.weights,
        total_bytes,
        cpus,
        nics,
        nics_of_core,
        shares,
        owners,
        evenness: request.evenness,
        reasons,
    };
    Ok(plan.into_plan())
}
