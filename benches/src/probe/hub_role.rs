//! The probe's hub process: a hub on a free port, until its parent stops it.

use anyhow::Result;
use phub_server::{Hub, HubSettings};

use super::args::Args;
use crate::child;

/// Runs the hub and prints its address.
pub(super) fn run(args: &Args) -> Result<()> {
    child::die_with_parent();
    let settings = HubSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        cores: args.cores.clone(),
        idle: args.idle,
        transports: args.transport.choice().map(|transport| vec![transport]),
        nics: args.nics.clone(),
        heartbeat_limit_s: 30,
        ..HubSettings::default()
    };
    let hub = Hub::start(&settings)?;
    println!("{}", hub.address());
    child::wait_for_word("stop")?;
    hub.stop("the probe is done");
    Ok(())
}
