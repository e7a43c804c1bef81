//! The hub's description of itself, for `GET /v1/hub`, the page and the metrics.

use std::collections::BTreeSet;

use fabric::verbs::NicOptions;
use hub_threads::CoreHandle;
use pbox_core::control::{CoreReply, HubReply, NicReply, PROTOCOL, PROTOCOL_LOWEST};

use super::Registry;
use crate::lanes;

impl Registry {
    /// Returns the counters of the cores' NICs. Reads files of the kernel. For their contents, the driver may have to
    /// ask the NICs.
    pub fn nics(&self) -> Vec<NicReply> {
        let ports = self.cores.iter().filter_map(|core| {
            let nic = core.lane.nic.as_ref()?;
            Some((nic.device.clone(), nic.port.unwrap_or(1)))
        });
        let lost = self.up.group.rdma().map(|rdma| rdma.lost()).unwrap_or_default();
        let counted = |(device, port): (String, u8)| {
            let nic = NicOptions { port: Some(port), ..NicOptions::new(&device) };
            let lost = lanes::why_lost(&nic, &lost).map(ToString::to_string);
            let counters = fabric::verbs::counters(&device, port);
            let counters = counters.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
            let mbps = fabric::verbs::mbps(&device, port);
            NicReply { device, port, mbps, lost, counters }
        };
        ports.collect::<BTreeSet<_>>().into_iter().map(counted).collect()
    }

    /// Whether any core has a NIC.
    pub fn has_nics(&self) -> bool {
        self.cores.iter().any(|core| core.lane.nic.is_some())
    }

    /// Describes the hub and its work so far, except for the counters of NICs and the refused clients.
    pub fn describe(&self) -> HubReply {
        use std::sync::atomic::Ordering::Relaxed;
        let rdma = self.up.group.rdma();
        let core = |(number, core): (usize, &CoreHandle)| CoreReply {
            cpu: core.lane.cpu,
            nic: rdma.map(|rdma| rdma.name(number)),
            chunks: core.meters.chunks.load(Relaxed),
            chunk_bytes: core.meters.chunk_bytes.load(Relaxed),
            busy_ns: core.meters.busy_ns.load(Relaxed),
            waiting_ns: core.meters.waiting_ns.load(Relaxed),
            asleep_ns: core.meters.asleep_ns.load(Relaxed),
            held_back: core.meters.held_back.load(Relaxed),
        };
        let mut inner = self.lock();
        HubReply {
            protocol: PROTOCOL,
            protocol_lowest: Some(PROTOCOL_LOWEST),
            id: self.id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernels: self.kernels.name().to_owned(),
            rss_bytes: fabric::resident_bytes().unwrap_or(0),
            draining: inner.hub().end().drains(),
            machine: self.up.above.as_ref().map(|above| above.machine),
            transports: self.transports.clone(),
            counts: inner.hub().counts(),
            cores: self.cores.iter().enumerate().map(core).collect(),
            nics: Vec::new(),
            jobs: inner.jobs().map(|(state, job)| job.describe(state)).collect(),
            refusals: Vec::new(),
            timeline: self.timeline.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use coordinator::input::EndFile;
    use pbox_core::control::CheckpointReply;
    use pbox_core::{JobId, Occasion, Round, Selection};

    use crate::registry::test_bed::{registry, request, runtime};

    /// The docs have a query for the rounds that would be lost with the hub. Formerly the query gave -8.
    #[test]
    fn a_job_is_not_behind_its_own_checkpoint() {
        let (registry, _core) = registry();
        runtime().block_on(registry.join("job".into(), request())).unwrap();
        assert_eq!(registry.describe().jobs[0].round, Round(0));
        let last = CheckpointReply { round: Round(8), bytes: 1, milliseconds: 1, error_before: None };
        registry
            .lock()
            .ask(EndFile {
                job: JobId(0),
                occasion: Occasion::Asked(1, Selection::All),
                before: Round(8),
                written: Ok(last),
            })
            .unwrap();
        assert_eq!(registry.describe().jobs[0].round, Round(8));
    }
}
