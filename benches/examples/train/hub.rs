//! The hub's process: a hub on a free port, until the parent stops it.

use anyhow::Result;
use benches::child;
use phub_server::{Hub, HubSettings};

/// Long enough for a worker that has no core on a loaded machine. The pipe tells sooner of a dead worker.
const HEARTBEAT_LIMIT_S: u64 = 30;

/// Runs the hub and prints its address.
pub fn run() -> Result<()> {
    child::die_with_parent();
    let settings = HubSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        heartbeat_limit_s: HEARTBEAT_LIMIT_S,
        ..HubSettings::default()
    };
    let hub = Hub::start(&settings)?;
    println!("{}", hub.address());
    child::wait_for_word("stop")?;
    hub.stop("the training is done");
    Ok(())
}
