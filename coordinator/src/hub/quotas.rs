//! Quotas: limits on the jobs and the memory of one address, and on the memory of one job. An address owns the jobs
//! that it made. All addresses of this machine count as one address. All addresses of an IPv6 network with a prefix of
//! 64 bits count as one address, too.
//!
//! A client whose token is for one job name needs no quota on jobs, because only one job has this name at a time.

use std::net::IpAddr;

use fabric::Amount;
use pbox_core::control::RefusalCode;
use serde::{Deserialize, Serialize};

use super::Hub;
use crate::refused::Refused;

/// The quotas of a hub. By default a hub has no quotas, because all workers of a cluster may be behind one gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotas {
    /// The limit on the jobs of an address.
    pub jobs_per_address: Option<u32>,
    /// The limit on the memory promised to all jobs of an address together, in bytes.
    pub memory_per_address: Option<u64>,
    /// The limit on the memory promised to one job, in bytes.
    pub memory_per_job: Option<u64>,
}

/// The jobs of an address that run or are being made. Each has its name and its promised memory.
type Owned<'hub> = Vec<(&'hub str, u64)>;

impl Hub {
    /// Returns the jobs of an address.
    pub(super) fn owned_by(&self, owner: IpAddr) -> Owned<'_> {
        let running = self.living().filter(|job| job.spec.made.owner == Some(owner));
        let running = running.map(|job| (job.spec.name.as_str(), job.spec.made.promised));
        let making = self.names.reserved.iter().filter(|(_, reserved)| reserved.owner == Some(owner));
        let making = making.map(|(name, reserved)| (name.as_str(), reserved.promised));
        let mut owned: Vec<_> = running.chain(making).collect();
        owned.sort_unstable();
        owned
    }
}

impl Quotas {
    /// Checks that an address with these jobs may make one more job.
    pub(super) fn check_jobs_of<'hub>(
        &self,
        name: &str,
        owner: Option<IpAddr>,
        owned: impl FnOnce() -> Owned<'hub>,
    ) -> Result<(), Refused> {
        let Some((limit, owner)) = self.jobs_per_address.zip(owner) else { return Ok(()) };
        let owned = owned();
        if owned.len() < limit as usize {
            return Ok(());
        }
        let why = format!(
            "job {name:?}: address {owner} has {} job(s) at this hub ({}), and --jobs-per-address allows {limit}; end \
             one of these jobs",
            owned.len(),
            shown(&owned),
        );
        Err(Refused::new(RefusalCode::Quota, why))
    }

    /// Checks that a job that is being made may be promised this much memory. `owned` are all jobs of its owner, this job
    /// included.
    pub(super) fn check_memory_of<'hub>(
        &self,
        (name, needed): (&str, u64),
        owner: Option<IpAddr>,
        owned: impl FnOnce() -> Owned<'hub>,
    ) -> Result<(), Refused> {
        if let Some(limit) = self.memory_per_job.filter(|&limit| needed > limit) {
            let why = format!(
                "job {name:?} needs {} of this hub's memory, and --memory-per-job lets a job have {}; use \
                 fewer workers or a smaller model",
                Amount(needed),
                Amount(limit)
            );
            return Err(Refused::new(RefusalCode::Quota, why));
        }
        let Some((limit, owner)) = self.memory_per_address.zip(owner) else { return Ok(()) };
        let mut owned = owned();
        owned.retain(|(job, _)| *job != name);
        let used = owned.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        if used.saturating_add(needed) <= limit {
            return Ok(());
        }
        let why = format!(
            "job {name:?} needs {} of this hub's memory; address {owner} has {} in {} job(s) ({}), and \
             --memory-per-address allows {}; end one of these jobs",
            Amount(needed),
            Amount(used),
            owned.len(),
            shown(&owned),
            Amount(limit)
        );
        Err(Refused::new(RefusalCode::Quota, why))
    }
}

/// Lists the names of at most eight jobs, for an error.
fn shown(owned: &[(&str, u64)]) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<&str> = owned.iter().take(SHOWN).map(|(name, _)| *name).collect();
    names.extend((owned.len() > SHOWN).then_some("..."));
    names.join(", ")
}
