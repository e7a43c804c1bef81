//! Lanes. A lane is one core thread, pinned to a cpu. With RDMA it has one NIC, on the NUMA node of that cpu.
//!
//! ```text
//!   plan:   core 0 -- nic 0      core 1 -- nic 1, nic 2       (more NICs than cores)
//!   lanes:  cpu 0, nic 0         cpu 1, nic 1    cpu 1, nic 2
//! ```
//!
//! A core that has several NICs in the plan becomes several lanes, so that every NIC carries its share. In the plan a
//! NIC is a device; the device's cores share its ports. Lanes are chosen once, before any thread starts. Later this
//! module also decides which lanes a new job can use. Of the transports, this module knows only the NICs.

use std::collections::HashMap;

use fabric::any::{self, Transport};
use fabric::verbs::{self, Device, Fitness, GroupOptions, Nccl, Nic, NicList, NicOptions, VerbsError};
pub use hub_threads::Lane;
use topology::{Host, NicChoice, NicId, Plan, Request};

use crate::error::HubError;
use crate::settings::{CoreSelection, HubSettings};

/// The lanes of a hub, and its RDMA devices if there are any.
pub(crate) struct Lanes {
    pub lanes: Vec<Lane>,
    pub rdma: Option<any::Rdma>,
    /// A picture of the machine with these cores and NICs, as SVG.
    pub picture: String,
}

/// Chooses cores and NICs. If RDMA is missing, that is an error only if the settings ask for RDMA.
pub(crate) fn choose(host: &Host, settings: &HubSettings) -> Result<Lanes, HubError> {
    if settings.offers(Transport::Verbs) {
        let nccl = nccl(settings);
        nccl.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        match with_rdma(host, settings, &nccl) {
            Ok(lanes) => return Ok(lanes),
            // A wrong setting is an error, even if no setting asks for RDMA.
            Err(error @ HubError::Rdma(VerbsError::Setting(_))) => return Err(error),
            Err(error) if wants_rdma(settings) => {
                let setting = if settings.nics.is_some() { "--nics" } else { "--transports" };
                return Err(HubError::Asked { setting, error: Box::new(error) });
            }
            Err(error) => tracing::info!("no RDMA: {error}"),
        }
    }
    let plan = place(host, settings, NicChoice::default())?;
    let lanes =
        plan.cores().iter().map(|core| Lane { cpu: core.cpu.0, node: core.node.0, nic: None }).collect();
    Ok(Lanes { lanes, rdma: None, picture: topology::render::machine_svg(host, &plan) })
}

/// Whether the settings ask for RDMA. If so, the hub must not start without RDMA.
pub fn wants_rdma(settings: &HubSettings) -> bool {
    settings.transports.is_some() || settings.nics.is_some()
}

/// Reads NCCL's variables. They apply only if this hub's own variables are not set.
pub fn nccl(settings: &HubSettings) -> Nccl {
    Nccl::of_environment(&settings.paths.0, settings.nics.is_some())
}

fn with_rdma(host: &Host, settings: &HubSettings, nccl: &Nccl) -> Result<Lanes, HubError> {
    if nccl.disabled && !wants_rdma(settings) {
        return Err(HubError::Disabled);
    }
    let list = nic_list(settings, nccl);
    // The devices are read first, because the error of this call says whether the library or a device is missing.
    let devices = verbs::devices()?;
    let OnNics { mut lanes, plan } = on_nics(host, settings, &list, &devices)?;
    let nics: Vec<NicOptions> = lanes.iter().filter_map(|lane| lane.nic.clone()).collect();
    let rails = settings.rails.clone().unwrap_or_default();
    if !rails.is_empty() {
        tracing::info!(%rails, "the NICs of links to hubs above are paired by --rails");
    }
    let options = GroupOptions { rails, first_vector: 0, paths: settings.paths.0.clone() };
    let (group, ports) = verbs::group(&nics, options)?;
    for (nic, error) in group.lost() {
        // A list of NICs in the hub's own settings is a request for RDMA, so a failure is an error.
        if settings.nics.is_some() && list.names_devices() {
            return Err(error.into());
        }
        tracing::warn!(
            %nic,
            "RDMA: cannot open the NIC; jobs do not use the NIC's cores until the NIC opens; the hub tries again for each job: {error}"
        );
    }
    for (port, lane) in lanes.iter_mut().enumerate() {
        for nic in group.nics(port) {
            lane.nic.iter_mut().for_each(|options| options.port = Some(nic.port()));
            tracing::info!(cpu = lane.cpu, device = %nic.address().device, gbps = nic.gbps(), "RDMA: {}", nic.reason());
        }
    }
    Ok(Lanes { lanes, rdma: Some((group, ports)), picture: topology::render::machine_svg(host, &plan) })
}

/// The lanes of a hub with RDMA, and their plan.
#[derive(Debug)]
pub struct OnNics {
    /// The plan, which says which NICs belong to which cores.
    pub plan: Plan,
    /// The lanes, each with a NIC.
    pub lanes: Vec<Lane>,
}

impl OnNics {
    /// Returns the NICs of all lanes, each NIC once.
    pub fn nics(&self) -> Vec<NicOptions> {
        let mut nics: Vec<NicOptions> = Vec::new();
        for nic in self.lanes.iter().filter_map(|lane| lane.nic.as_ref()) {
            if !nics.contains(nic) {
                nics.push(nic.clone());
            }
        }
        nics
    }
}

/// Returns the NICs that the settings or the environment name.
pub fn nic_list(settings: &HubSettings, nccl: &Nccl) -> NicList {
    settings.nics.clone().unwrap_or_else(|| nccl.list.clone())
}

/// Assigns these devices to cores. Opens no device.
pub fn on_nics(
    host: &Host,
    settings: &HubSettings,
    list: &NicList,
    devices: &[Device],
) -> Result<OnNics, HubError> {
    let there_are: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
    let absent = list.absent(&there_are);
    if settings.nics.is_some() && !absent.is_empty() {
        let there_are = there_are.into_iter().map(str::to_owned).collect();
        return Err(HubError::AbsentNics { absent, there_are });
    }
    let fitness = Fitness::of(devices, list);
    fitness.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let nics_of = |name: &str| -> Vec<NicOptions> {
        let device = devices.iter().find(|device| device.name == name);
        let nics = device.map(|device| list.nics(device)).unwrap_or_default();
        nics.into_iter().filter(|nic| fitness.allows(nic)).collect()
    };
    let (mut only, mut except) = (Vec::new(), Vec::new());
    for nic in &host.nics {
        match nic.ibdev.as_deref().filter(|name| !nics_of(name).is_empty()) {
            Some(device) => only.push(device.to_owned()),
            None => except.push(nic.name.clone()),
        }
    }
    let none = || HubError::NoNic { there_are: devices.iter().map(|device| device.name.clone()).collect() };
    if only.is_empty() {
        return Err(none());
    }
    // A NIC that is named is used even if it is down, so that the error can say what is wrong.
    let only = list.names_devices().then_some(only);
    let plan = place(host, settings, NicChoice { only, except })?;
    let mut lanes = Vec::new();
    let mut cores_before: HashMap<NicId, usize> = HashMap::new();
    for core in plan.cores() {
        for &id in &core.nics {
            let ports = host.nic(id).and_then(|nic| nic.ibdev.as_deref()).map(nics_of).unwrap_or_default();
            let cores = plan.nics().iter().find(|nic| nic.nic == id).map_or(1, |nic| nic.cores.len());
            let before = cores_before.entry(id).or_default();
            let dealt = ports_of_core(&ports, *before, cores);
            lanes.extend(dealt.map(|nic| Lane { cpu: core.cpu.0, node: core.node.0, nic: Some(nic) }));
            *before += 1;
        }
    }
    if lanes.is_empty() { Err(none()) } else { Ok(OnNics { plan, lanes }) }
}

/// Returns the ports that core number `core` uses, of a device that `cores` cores share. Each core has the
/// next port, or several ports if there are more ports than cores.
fn ports_of_core(ports: &[NicOptions], core: usize, cores: usize) -> impl Iterator<Item = NicOptions> {
    let turns = ports.len().max(cores);
    let numbers = (core..turns).step_by(cores.max(1));
    numbers.filter_map(|turn| ports.get(turn % ports.len().max(1)).cloned())
}

/// Opens lost NICs again, so that new links can use them.
pub(crate) fn mend(rdma: &verbs::Group) {
    for (nic, opened) in rdma.mend() {
        match opened {
            Ok(reason) => tracing::info!(%nic, "RDMA: the NIC was opened again: {reason}"),
            Err(error) => {
                tracing::warn!(
                    %nic,
                    "RDMA: cannot open the NIC; the hub tries again for a job that begins 10 s from now or later: {error}"
                );
            }
        }
    }
}

/// Returns the reason why a NIC is lost; `None` if the NIC is not lost.
pub(crate) fn why_lost<'a>(nic: &NicOptions, lost: &'a [(NicOptions, VerbsError)]) -> Option<&'a VerbsError> {
    let is_it =
        |lost: &NicOptions| lost.device == nic.device && (lost.port.is_none() || lost.port == nic.port);
    lost.iter().find(|(options, _)| is_it(options)).map(|(_, error)| error)
}

/// Returns, for each lane, whether a new job can use the lane. The lane must have no NIC, or its NIC must be open and
/// have a link. If no lane is left, the job can use all lanes, because its workers use other transports. Called only
/// once for each job, because it makes a system call for each open NIC.
pub(crate) fn of_use(lanes: &[&Lane], rdma: Option<&verbs::Group>) -> Vec<bool> {
    let Some(rdma) = rdma else { return vec![true; lanes.len()] };
    mend(rdma);
    let up = rdma.up();
    has_link(lanes, |nic| {
        let is_it =
            |up: &Nic| up.address().device == nic.device && nic.port.is_none_or(|port| port == up.port());
        up.iter().any(|up| is_it(up))
    })
}

fn has_link(lanes: &[&Lane], is_up: impl Fn(&NicOptions) -> bool) -> Vec<bool> {
    let up: Vec<bool> = lanes.iter().map(|lane| lane.nic.as_ref().is_none_or(&is_up)).collect();
    if up.contains(&true) { up } else { vec![true; lanes.len()] }
}

/// Returns the plan for the cores and these NICs.
pub fn place(host: &Host, settings: &HubSettings, nics: NicChoice) -> Result<Plan, HubError> {
    let cores = CoreSelection::choice(settings.cores.as_ref());
    let plan = topology::place(host, &Request { cores, nics, ..Request::new(&[]) })?;
    for core in plan.cores() {
        tracing::info!(slot = core.slot.0, cpu = core.cpu.0, node = core.node.0, "core");
    }
    for reason in plan.reasons() {
        tracing::info!("placement: {reason}");
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_of_a_device_has_lanes() {
        let ports: Vec<NicOptions> = ["mlx4_0:1", "mlx4_0:2"]
            .map(|nic| format!("={nic}").parse::<NicList>().unwrap().choose("mlx4_0").unwrap())
            .to_vec();
        let dealt = |ports: &[NicOptions], cores: usize| -> Vec<Vec<u8>> {
            let of = |core| ports_of_core(ports, core, cores).map(|nic| nic.port.unwrap_or(0)).collect();
            (0..cores).map(of).collect()
        };
        assert_eq!(dealt(&ports, 4), [[1], [2], [1], [2]]);
        assert_eq!(dealt(&ports, 1), [[1, 2]]);
        assert_eq!(dealt(&[NicOptions::new("mlx5_0")], 2), [[0], [0]]);
    }

    #[test]
    fn a_device_that_failed_costs_no_other() {
        let nic = |text: &str| format!("={text}").parse::<NicList>().unwrap().choose("mlx5_0").unwrap();
        let error = VerbsError::System { doing: "opening", error: "EIO".into() };
        let lost = |nic: NicOptions| [(nic, error.clone())];
        assert_eq!(why_lost(&nic("mlx5_0:1"), &lost(NicOptions::new("mlx5_0"))), Some(&error));
        assert_eq!(why_lost(&nic("mlx5_0:1"), &lost(nic("mlx5_0:1"))), Some(&error));
        assert_eq!(why_lost(&nic("mlx5_0:2"), &lost(nic("mlx5_0:1"))), None);
        assert_eq!(why_lost(&NicOptions::new("mlx5_1"), &lost(NicOptions::new("mlx5_0"))), None);
    }

    #[test]
    fn a_lane_without_a_link_is_of_use_only_where_all_are_without() {
        let lane = |nic: &str| Lane { cpu: 0, node: 0, nic: Some(NicOptions::new(nic)) };
        let lanes = [lane("mlx5_0"), lane("mlx5_1"), Lane { cpu: 1, node: 0, nic: None }];
        let [first, second, bare] = &lanes;
        let up =
            |lanes: &[&Lane], active: &[&str]| has_link(lanes, |nic| active.contains(&nic.device.as_str()));
        assert_eq!(up(&[first, second], &["mlx5_1"]), [false, true]);
        assert_eq!(up(&[first, bare], &[]), [false, true]);
        assert_eq!(up(&[first, second], &[]), [true, true]);
    }
}
