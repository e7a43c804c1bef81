//! What one address, and one job, may have of the hub. An address owns the jobs that it made; this machine's own addresses are
//! one, and so is a network of IPv6 with 64 bits.
//!
//! Under the registry's lock. A token for a job needs no quota of its own: there is one job of a name at a time.

use std::net::IpAddr;

use pbox_core::control::RefusalCode;

use super::{Because, Inner, Refusal, Registry};

/// The quotas of this hub; by default there are none, because all workers of a cluster may be behind one gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quotas {
    /// The most jobs of an address.
    pub jobs_per_address: Option<u32>,
    /// The most bytes that an address' jobs may be promised together.
    pub memory_per_address: Option<u64>,
    /// The most bytes that a job may be promised.
    pub memory_per_job: Option<u64>,
}

impl Inner {
    /// The jobs of an address that have not failed or are being made, and what each was promised.
    fn owned_by(&self, owner: IpAddr) -> Vec<(&str, u64)> {
        let running = self.jobs.values().filter(|job| !job.failed() && job.made.owner == Some(owner));
        let making = self.making.iter().filter(|(_, load)| load.owner == Some(owner));
        let running = running.map(|job| (job.name.as_str(), job.made.promised));
        let mut owned: Vec<_> =
            running.chain(making.map(|(name, load)| (name.as_str(), load.promised))).collect();
        owned.sort_unstable();
        owned
    }
}

impl Registry {
    /// Whether an address may make one more job.
    pub(super) fn check_jobs_of(
        &self,
        inner: &Inner,
        name: &str,
        owner: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        let Some((limit, owner)) = self.quotas.jobs_per_address.zip(owner) else { return Ok(()) };
        let owned = inner.owned_by(owner);
        if owned.len() < limit as usize {
            return Ok(());
        }
        Err(RefusalCode::Quota.because(format!(
            "job {name:?}: address {owner} has {} job(s) at this hub ({}), and --jobs-per-address lets it have {limit}; end \
         one of them",
            owned.len(),
            named(&owned),
        )))
    }

    /// Whether a job that is being made may be promised so many bytes.
    pub(super) fn check_memory_of(&self, inner: &Inner, name: &str, needed: u64) -> Result<(), Refusal> {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        if let Some(limit) = self.quotas.memory_per_job.filter(|&limit| needed > limit) {
            return Err(RefusalCode::Quota.because(format!(
                "job {name:?} needs {:.2} GB of this hub's memory, and --memory-per-job lets a job have {:.2} GB; use fewer \
             workers or a smaller model",
                gb(needed),
                gb(limit)
            )));
        }
        let owner = inner.making.get(name).and_then(|load| load.owner);
        let Some((limit, owner)) = self.quotas.memory_per_address.zip(owner) else { return Ok(()) };
        let mut owned = inner.owned_by(owner);
        owned.retain(|(job, _)| *job != name);
        let used = owned.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        if used.saturating_add(needed) <= limit {
            return Ok(());
        }
        Err(RefusalCode::Quota.because(format!(
            "job {name:?} needs {:.2} GB of this hub's memory; address {owner} has {:.2} GB in {} job(s) ({}), and \
         --memory-per-address lets it have {:.2} GB; end one of them",
            gb(needed),
            gb(used),
            owned.len(),
            named(&owned),
            gb(limit)
        )))
    }
}

/// The first of these jobs, for an error.
fn named(owned: &[(&str, u64)]) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<&str> = owned.iter().take(SHOWN).map(|(name, _)| *name).collect();
    names.extend((owned.len() > SHOWN).then_some("..."));
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use pbox_core::JobId;

    use super::*;
    use crate::registry::test_bed::{registry_with, request, runtime};
    use coordinator::Asker;

    const ONE: Option<Asker> = from([10, 0, 0, 1]);
    const OTHER: Option<Asker> = from([10, 0, 0, 2]);

    const fn from([a, b, c, d]: [u8; 4]) -> Option<Asker> {
        let address = IpAddr::V4(std::net::Ipv4Addr::new(a, b, c, d));
        Some(Asker { counted: address, address, host: None })
    }

    fn why(refused: Result<pbox_core::control::JoinReply, Refusal>) -> String {
        match refused {
            Err(Refusal { code: RefusalCode::Quota, why }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_address_has_its_jobs_and_no_more_and_others_have_theirs() {
        let quotas = Quotas { jobs_per_address: Some(2), ..Quotas::default() };
        let (registry, _core) = registry_with(quotas);
        runtime().block_on(async {
            let join = |name: &str, from| registry.join_from(name.to_owned(), request(), from);
            join("a", ONE).await.unwrap();
            join("b", ONE).await.unwrap();
            let told = why(join("c", ONE).await);
            for words in ["10.0.0.1", "2 job(s)", "(a, b)", "--jobs-per-address", "have 2"] {
                assert!(told.contains(words), "{told}");
            }
            join("c", OTHER).await.unwrap();
            registry.fail(&mut registry.lock(), JobId(0), "a test");
            join("d", ONE).await.unwrap();
        });
    }

    #[test]
    fn the_memory_of_a_job_and_of_an_address_has_a_limit() {
        let (registry, _core) = registry_with(Quotas::default());
        let of_one = runtime().block_on(async {
            registry.join_from("a".into(), request(), ONE).await.unwrap();
            registry.lock().promised()
        });
        let quotas = Quotas { memory_per_address: Some(2 * of_one), ..Quotas::default() };
        let (registry, _core) = registry_with(quotas);
        runtime().block_on(async {
            let join = |name: &str, from| registry.join_from(name.to_owned(), request(), from);
            join("a", ONE).await.unwrap();
            join("b", ONE).await.unwrap();
            let told = why(join("c", ONE).await);
            for words in ["10.0.0.1", "2 job(s)", "(a, b)", "--memory-per-address"] {
                assert!(told.contains(words), "{told}");
            }
            assert_eq!(registry.lock().promised(), 2 * of_one, "a refused job has no promise");
            join("c", OTHER).await.unwrap();
        });
        let quotas = Quotas { memory_per_job: Some(of_one - 1), ..Quotas::default() };
        let (registry, _core) = registry_with(quotas);
        let told = why(runtime().block_on(registry.join_from("a".into(), request(), ONE)));
        assert!(told.contains("--memory-per-job"), "{told}");
    }
}
