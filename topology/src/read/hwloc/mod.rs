//! The machine as hwloc sees it: live, or from lstopo's XML.
//!
//! Only this module uses hwloc. It returns plain data and keeps no hwloc object. It must not depend on
//! placement.

mod devices;
mod tree;

use crate::host::Source;
use crate::read::survey::Survey;
use hwlocality::Topology;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};
use std::path::Path;
use std::sync::OnceLock;

/// Reads this machine. If `allowed` is given, exactly these cpus count as allowed.
pub(crate) fn read_live(allowed: Option<&[u32]>) -> Result<Survey, String> {
    // A process asks hwloc only once, because hwloc reads the configuration of all PCI devices each time. In a virtual
    // machine, these reads took a tenth of the processor time of the tests that start hubs.
    static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
    let topology = match TOPOLOGY.get() {
        Some(topology) => topology,
        None => {
            let read = builder()?.build().map_err(|error| error.to_string())?;
            TOPOLOGY.get_or_init(|| read)
        }
    };
    survey(topology, Source::LiveHwloc, allowed)
}

/// Returns the machine in an XML text whose form was already checked. `path` is only the name of the source.
pub(crate) fn read_xml(path: &Path, text: &str) -> Result<Survey, String> {
    let topology = builder()?
        .from_xml(text)
        .map_err(|error| error.to_string())?
        .build()
        .map_err(|error| error.to_string())?;
    let mut survey = survey(&topology, Source::Xml(path.to_owned()), None)?;
    survey.name = topology.root_object().info("HostName").map(|name| name.to_string_lossy().into_owned());
    Ok(survey)
}

fn builder() -> Result<TopologyBuilder, String> {
    Topology::builder()
        // A [`Host`](crate::Host) also lists the cpus that this process may not use, with a mark.
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|error| error.to_string())?
        .with_io_type_filter(TypeFilter::KeepImportant)
        .map_err(|error| error.to_string())
}

fn survey(topology: &Topology, source: Source, allowed: Option<&[u32]>) -> Result<Survey, String> {
    let mut survey = Survey::new(source);
    tree::read(topology, allowed, &mut survey);
    if survey.cpus.is_empty() {
        return Err("the topology has no processing unit (PU)".into());
    }
    survey.nics = devices::read(topology);
    Ok(survey)
}
